"""A client process of the soak test: asks the pool at random, and checks every word of the answers.

``python -m tests.pool.soaker PLAN SEED``. It writes a line for each thing it did, ends with 0 when its input closes, and
with a sentence and 3 when an answer was wrong.
"""

import json
import random
import select
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerix.actors import Actor, Ref, Refused, start
from aerix.pool.address import connect
from aerix.pool.client import PoolContext, PoolLink, PoolSettings, load_member
from aerix.pool.protocol import Constraint, Done, Sampling, Segment, Token
from tests.pool.daemons import Do, Runner, user

PATIENT = 120.0  # seconds for one thing, some kills included
GIVEN_UP = {
    "generation_lost",
    "context_lost",
    "member_lost",
    "pool_silent",
}  # two losses in a row: a named end
EXACT = Sampling(temperature=0.0, seed=1)
SCHEMA = {
    "type": "object",
    "properties": {"sky": {"enum": ["clear", "cloudy"]}, "warm": {"type": "boolean"}},
    "required": ["sky", "warm"],
    "additionalProperties": False,
}
SYSTEM = Segment("s", "system", "You are a helpful assistant. Answer briefly.", pinned=True)


class Wrong(Exception):
    """An answer that is not the one of an undisturbed pool."""


class Enough(Exception):
    """Raised in the middle of a generation, which cancels it."""


@dataclass(frozen=True)
class Plan:
    """What to ask, and the answers of an undisturbed pool."""

    socket: str
    scripted: str
    real: str
    turns: list[str]
    """What the scripted model says, turn by turn."""
    prompts: list[str]
    answers: list[str]
    """What the real one says to each prompt; empty while they are found out."""


def settings(plan: Plan) -> PoolSettings:
    loads = (plan.scripted, plan.real)
    flags = ("--window", "1024", "--idle-timeout", "60")
    return PoolSettings(Path(plan.socket), loads, flags, start_log=Path(plan.socket + ".log"))


class Client:
    """Does one thing after the other, in an actor's thread."""

    def __init__(self, plan: Plan, link: Ref, rng: random.Random) -> None:
        self._plan, self._link, self._rng = plan, link, rng
        self.things: list[Callable[[Actor], object]] = [
            self.scripted, self.scripted, self.cancelled, self.real, self.real, self.held_to_json, self.chosen,
            self.half_a_frame, self.loaded,
        ]  # fmt: skip

    def do(self, me: Actor) -> str:
        thing = self._rng.choice(self.things)
        try:
            thing(me)
        except Refused as refusal:
            if refusal.code not in GIVEN_UP:
                raise Wrong(f"{thing.__name__}: {refusal.code}: {refusal}") from None
            return f"{thing.__name__} given up: {refusal.code}"
        return thing.__name__

    def _context(self, me: Actor, member: str, *segments: Segment) -> PoolContext:
        context = PoolContext(me, self._link, member)
        context.create(segments)
        return context

    def scripted(self, me: Actor) -> None:
        """Several turns, each appended with its tokens, by itself or with the next one; now and then on a fork."""
        context = self._context(me, self._plan.scripted, user("story"))
        more: list[Segment] = []
        for at, text in enumerate(self._plan.turns[: self._rng.randint(1, 3)]):
            heard = _Heard()
            done = context.generate(300, on_event=heard, append=more)
            same(text, done.text, heard.data.decode())
            same(2 * at + 1, len(context.segments), len(context.counts))
            more = [turn(done, f"a{at}"), user("go on", f"u{at}")]
            if self._rng.random() < 0.3:
                context.append(*more)
                more, context = [], context.fork()
        context.drop()

    def cancelled(self, me: Actor) -> None:
        context = self._context(me, self._plan.scripted, user("story"))
        left = self._rng.randint(1, 20)

        def heard(event: object) -> None:
            nonlocal left
            left -= isinstance(event, Token)
            if left < 0:
                raise Enough

        try:
            context.generate(300, on_event=heard)
        except Enough:
            context.drop()

    def real(self, me: Actor) -> None:
        at = self._rng.randrange(len(self._plan.prompts))
        same(self._plan.answers[at], self.ask_real(me, at).text)

    def ask_real(self, me: Actor, at: int) -> Done:
        context = self._context(me, self._plan.real, SYSTEM, user(self._plan.prompts[at]))
        done = context.generate(16, EXACT)
        context.drop()
        return done

    def held_to_json(self, me: Actor) -> None:
        context = self._context(me, self._plan.real, SYSTEM, user(self._rng.choice(self._plan.prompts)))
        found = json.loads(context.generate(40, EXACT, Constraint(schema=json.dumps(SCHEMA))).text)
        same(True, found["sky"] in ("clear", "cloudy"), isinstance(found["warm"], bool), len(found) == 2)
        context.drop()

    def chosen(self, me: Actor) -> None:
        context = self._context(me, self._plan.real, SYSTEM, user(self._rng.choice(self._plan.prompts)))
        done = context.generate(8, EXACT, Constraint(texts=["yes", "no", "perhaps"]))
        same(True, done.scores is not None and done.choice == done.scores.index(max(done.scores)))
        context.drop()

    def half_a_frame(self, _: Actor) -> None:
        try:
            with connect(Path(self._plan.socket)) as sock:
                sock.send(b"\0\0\0\x40\xa1")
        except OSError:  # the daemon has just been killed
            pass

    def loaded(self, me: Actor) -> None:
        load_member(me, self._link, self._plan.scripted)


class _Heard:
    """Puts the pieces of an answer together."""

    def __init__(self) -> None:
        self.data = b""

    def __call__(self, event: object) -> None:
        if isinstance(event, Token):
            self.data += event.data


def turn(done: Done, id_: str) -> Segment:
    return Segment(id_, "assistant", done.text, tokens=done.tokens, vocab=done.vocab)


def same(wanted: object, *found: object) -> None:
    if any(one != wanted for one in found):
        raise Wrong(f"wanted {wanted!r}, got {found!r}")


def main(plan_file: str, seed: str) -> int:
    plan = Plan(**json.loads(Path(plan_file).read_text()))
    link, runner = start(PoolLink(settings(plan)), "link"), start(Runner(), "runner")
    client = Client(plan, link, random.Random(int(seed)))
    try:
        while not select.select([sys.stdin], [], [], 0)[0]:
            said: Any = runner.ask(Do(client.do), PATIENT)
            sys.stdout.write(f"{said}\n")
            sys.stdout.flush()
    except (Wrong, Refused) as error:
        sys.stdout.write(f"WRONG: {type(error).__name__}: {error}\n")
        return 3
    finally:
        link.stop()
        link.join(30)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
