"""What a turn costs beside the model does not grow with the turns before it. Counted, not timed: steps and bytes."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import aerix
from aerix.actors.wire import FrameSocket, Plain
from aerix.session.events import Event, Message
from tests.runs import Desk, call, calls, final, script

TURNS = 40
SOME = 8
COUNTED = tuple(str(Path(aerix.__file__).parent / name) for name in ("agent/", "session/", "tools/", "turn/"))
STREAMED = ("journal.py",)
"""How often this runs depends on how fast a reader reads."""


class Count:
    """Lines that the program's own threads run, loops counted by their rounds, and bytes that they send, by turn."""

    def __init__(self) -> None:
        self.turn = 0
        self.lines: Counter[int] = Counter()
        self.bytes: Counter[int] = Counter()

    def heard(self, event: Event) -> None:
        if isinstance(event, Message) and event.role == "assistant":
            self.turn += 1

    def trace(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        """See ``sys.settrace``."""
        name = frame.f_code.co_filename
        if not name.startswith(COUNTED) or name.endswith(STREAMED):
            return None
        self.lines[self.turn] += 1
        return self.trace

    def grown(self, of: Counter[int]) -> float:
        """What some of the last turns took, of what some of the first took."""
        first = range(SOME, 2 * SOME)
        last = range(TURNS - SOME, TURNS)
        return sum(of[turn] for turn in last) / sum(of[turn] for turn in first)


@pytest.fixture
def model() -> str:
    """Each run has its own."""
    return ""


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Iterator[Count]:
    found = Count()
    send = FrameSocket.send

    def counted(self: FrameSocket, plain: Plain) -> None:
        found.bytes[found.turn] += len(repr(plain))
        send(self, plain)

    monkeypatch.setattr(FrameSocket, "send", counted)
    before = threading.gettrace()
    threading.settrace(found.trace)
    yield found
    threading.settrace(before)  # type: ignore[arg-type]  # None switches it off


@pytest.mark.rule("agent.turn-overhead-flat")
def test_a_turn_takes_no_more_steps_and_sends_no_more_bytes_after_many_others(
    desk: Desk, tmp_path: Path, count: Count
) -> None:
    (desk.cwd / "notes").write_text("".join(f"line {n}\n" for n in range(100, 200)))
    reads = [call("read", path="notes", offset=n + 1, limit=3) for n in range(TURNS)]
    writes = [call("write", path=f"written{n % 3}", content=f"{n}\n") for n in range(TURNS)]
    steps = [calls((reads, writes)[n % 2][n]) for n in range(TURNS)]
    model = script(tmp_path, [("play flat", [*steps, final("done")])], window=200_000)
    desk.heard = count.heard
    ran = desk("play flat", model=model, max_turns=TURNS + 1, diff=False)
    assert ran.end.outcome == "done", ran.end.reason
    assert min(count.lines[turn] for turn in range(1, TURNS)) > 100
    assert count.grown(count.lines) < 1.3
    assert count.grown(count.bytes) < 1.3
