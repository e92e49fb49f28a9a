"""What an interactive session does with what the user says and with what an agent tells and asks.

It belongs to the front's thread: whoever has the terminal calls it, and everything else comes as functions to run there.
"""

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from aerix import commands, folders
from aerix.actors import Answer, Ref, Refused, StartFailed, whereis
from aerix.agent.asking import AskPermission, AskPlan, Permission, PlanAnswer, Verdict
from aerix.bounds import LINES_ASKED, LINES_QUEUE, LINES_TOLD
from aerix.exits import CANCELS, DONE, STORAGE, TERMINATED
from aerix.lines_actors import Do, Failed, RunCommand
from aerix.lines_view import DIM, ERROR, PLAIN, Line, View
from aerix.lines_work import LiveWork, in_shell
from aerix.mentions import bring_in
from aerix.session.events import SessionEnd
from aerix.session.show import Show
from aerix.shown import clean, one_line
from aerix.steering import Steering, TakeSteering
from aerix.tools.messages import ToolResult
from aerix.tools.secrets import is_secret

_VERDICTS: dict[str, Verdict] = {"1": "once", "2": "session", "3": "always"}
_CHOICES = "1 once · 2 this session · 3 for ever · 4 no, and why > "
_PLAN = "Enter accepts · e edits · Esc aborts > "
_EDITED = "the plan, as you want it > "


class Front(Protocol):
    """Whoever has the terminal."""

    def post(self, job: Callable[[], object]) -> bool:
        """Run something in the front's thread; false where that has ended. For every thread."""

    def show(self, lines: Sequence[Line]) -> None:
        """Show whole lines; they are on the terminal when this returns."""

    def refresh(self) -> None:
        """What ``live``, ``status`` or ``label`` give has changed."""

    def swap(self, text: str) -> str:
        """Put a text into the input line; what stood there."""

    def leave(self, code: int) -> None:
        """End the front's loop."""

    def die(self, code: int) -> None:
        """End the process at once, the terminal as it was."""


@dataclass(slots=True)
class _Question:
    """What an agent asks, and where the answer goes; ``edits``: the plan is being changed."""

    ask: AskPermission | AskPlan
    answer: Answer
    edits: bool = False


class Session:
    """Prompts, commands, questions and their order. One request runs at a time; what is said meanwhile waits."""

    def __init__(self, front: Front, work: LiveWork, worker: Ref, view: View, cwd: Path) -> None:
        self._front, self._work, self._worker, self._view, self._cwd = front, work, worker, view, cwd
        self._prompts: deque[str] = deque()
        self._steering: deque[str] = deque()
        self._told: deque[str] = deque(maxlen=LINES_TOLD.count)
        """What commands of the user's gave, for the next prompt."""
        self._questions: deque[_Question] = deque()
        self._draft = ""
        """What stood on the input line when a question came."""
        self._running = ""
        """What the worker does: ``request``, or another job's name; empty where it does nothing."""
        self._shell: Ref | None = None
        self._shells = 0
        self._cancelled = self._leaving = ""
        """Why."""
        self._heard = False
        """Whether the request that runs has said something: before that a cancel may reach the one before it."""
        self._code = DONE

    # --- what is shown

    @property
    def live(self) -> Line:
        """The line that is being written."""
        return self._view.live

    @property
    def status(self) -> str:
        """What goes on; empty where nothing does."""
        waiting = f"{len(self._prompts)} queued" if self._prompts else ""
        if self._running == "request":
            about = "cancelling…" if self._cancelled else "waiting for you" if self._questions else ""
            return self._view.status(monotonic(), about, waiting)
        return (
            " · ".join(filter(None, (self._running or "running a command of yours", waiting)))
            if self.busy
            else ""
        )

    @property
    def label(self) -> str:
        """What stands before the input."""
        if not self._questions:
            return "> "
        question = self._questions[0]
        return _CHOICES if isinstance(question.ask, AskPermission) else _EDITED if question.edits else _PLAN

    @property
    def busy(self) -> bool:
        """Whether there is something to cancel."""
        return bool(self._running or self._shells)

    @property
    def asks(self) -> bool:
        """Whether what is sent now answers a question."""
        return bool(self._questions)

    @property
    def plans(self) -> bool:
        """Whether a plan waits for the user's word."""
        return (
            bool(self._questions)
            and isinstance(self._questions[0].ask, AskPlan)
            and not self._questions[0].edits
        )

    def say(self, *lines: str) -> None:
        """Show lines of Aerix's own."""
        self._front.show([[(DIM, clean(line))] for line in lines])

    def complain(self, text: str) -> None:
        """Show what went wrong."""
        self._front.show([[(ERROR, line)] for line in clean(text).splitlines()])

    # --- what the user does

    def enter(self, text: str) -> None:
        """A line, or several, were sent."""
        if self._questions and (self._questions[0].edits or not text.startswith(("/", "!"))):
            self._answered(text.strip())
        elif text.startswith("/") and "\n" not in text:
            self._command(text.strip())
        elif text.startswith("!") and text[1:].strip():
            self._echo(text)
            self._run_shell(text[1:].strip())
        elif text.strip():
            self._take_prompt(text.strip())
        self._front.refresh()

    def cancel(self) -> None:
        """Esc, or Ctrl-C: give up what runs. At a plan it is the answer."""
        if self._questions and isinstance(self._questions[0].ask, AskPlan):
            self._settle(PlanAnswer(accepted=False, text=""))
        elif self._shells and self._shell is not None:
            self._shell.cancel("interrupted")
        elif self._running and not self._cancelled:
            self._give_up("interrupted")
        self._front.refresh()

    def interrupt(self) -> None:
        """Ctrl-C: as ``cancel``; a second one, while that takes its time, ends the process."""
        if self._cancelled:
            self._front.die(CANCELS[self._cancelled])
        if self.busy:
            self.cancel()
        elif not self._front.swap(""):
            self.say("Ctrl-D or /quit ends the session")

    def end(self, reason: str = "") -> None:
        """Ctrl-D, a signal, or the end of the input."""
        if reason:
            self._code = CANCELS[reason]
        self.quit()

    def hang_up(self) -> None:
        """The terminal has gone: what runs is given up, and nobody is told anything any more."""
        self._cancelled = "terminated"
        self._send_cancel()

    def quit(self) -> None:
        """End the session; what has not been sent is told."""
        if self._leaving:
            return
        self._leaving = "quit"
        if lost := [*self._steering, *self._prompts]:
            self.say(f"{len(lost)} not sent, kept in the history:", *(f"  {one_line(text)}" for text in lost))
            self._steering.clear()
            self._prompts.clear()
        if self._shell is not None:
            self._shell.cancel("interrupted")
        if not self._running:
            self._front.leave(self._code)
        elif not self._cancelled:
            self._give_up("terminated" if self._code == TERMINATED else "interrupted")

    def steer(self, text: str) -> None:
        """Send a message into the running turn; where none runs it is a prompt."""
        if self._running != "request" or self._questions:
            self._take_prompt(text)
        elif len(self._steering) >= LINES_QUEUE.count:
            self.complain(f"as many messages wait as may ({LINES_QUEUE.count}); this one is not taken")
        else:
            self._steering.append(text)
            self.say(f"steers at the next turn: {one_line(text)}")

    # --- prompts

    def _command(self, text: str) -> None:
        """One that has to wait for a request's end waits among the prompts."""
        if self._running and commands.waits(text):
            self._queue(text)
        else:
            self._echo(text)
            commands.run(self, text)

    def _queue(self, text: str) -> None:
        if len(self._prompts) >= LINES_QUEUE.count:
            self.complain(f"as many inputs wait as may ({LINES_QUEUE.count}); this one is not taken")
            self._front.swap(text)
        else:
            self._prompts.append(text)
            self.say(f"queued: {one_line(text)}")

    def _echo(self, text: str) -> None:
        first, *more = clean(text).split("\n")
        self._front.show(
            [[("class:prompt", "> "), (PLAIN, first)], *([(PLAIN, f"  {line}")] for line in more)]
        )

    def _take_prompt(self, text: str) -> None:
        if self._leaving:
            return
        if self._running or self._shells:
            self._queue(text)
        else:
            self._begin(text)

    def _begin(self, text: str) -> None:
        self._echo(text)
        prompt, notes = bring_in(text, self._cwd, lambda path: is_secret(path, folders.home()))
        self.say(*notes)
        prompt = "\n\n".join([prompt, *self._told])
        self._told.clear()
        self._running, self._heard = "request", False
        self._view.begin(monotonic())
        self._worker.tell(Do(lambda _: self._work.prompt(prompt), self._ended))

    def _next(self) -> None:
        """What waits begins, once nothing runs; whoever leaves leaves."""
        if self._running or self._shells:
            return
        if self._leaving:
            self._front.leave(self._code)
        elif self._prompts:
            self.enter(self._prompts.popleft())

    def _ended(self, result: object) -> None:
        """The request is over."""
        cancelled, self._cancelled, self._running = self._cancelled, "", ""
        self._drop_questions()
        if isinstance(result, Failed):
            self.complain(result.why)
        elif isinstance(result, SessionEnd) and not self._leaving:
            self._code = STORAGE if result.exit == STORAGE else DONE
        self._prompts.extendleft(reversed(self._steering))  # they came too late for the agent
        self._steering.clear()
        if cancelled and self._prompts and not self._leaving:
            waited = "\n\n".join(self._prompts)
            self._prompts.clear()
            self._front.swap("\n\n".join(filter(None, (waited, self._front.swap("")))))
            self.say("what was queued was not sent")
        self._next()
        self._front.refresh()

    def _give_up(self, reason: str) -> None:
        self._cancelled = reason
        self._drop_questions()
        self._send_cancel()

    def _send_cancel(self) -> None:
        """To the request, where it has begun: else it is told as soon as it says something."""
        target = whereis(self._work.request) if self._running == "request" else self._worker
        if target is not None:
            target.cancel(self._cancelled)

    # --- between requests

    def between_requests(self, job: Callable[[commands.Work], Sequence[str]]) -> None:
        """Do something with the session, and show what it gives."""
        self.do("working", lambda _: job(self._work), lambda lines: self.say(*lines))

    def diff(self) -> None:
        """Show what the last request changed."""
        self.do("working", lambda _: self._work.diff(), self._front.show)

    def do(self, name: str, job: Callable[..., object], shown: Callable[..., object]) -> None:
        """Have the worker do a job; ``shown`` shows what it gives."""
        self._running = name
        self._worker.tell(Do(job, partial(self._did, shown)))
        self._front.refresh()

    def _did(self, shown: Callable[..., object], result: object) -> None:
        self._running = self._cancelled = ""
        if isinstance(result, Failed):
            self.complain(result.why)
        else:
            shown(result)
        self._next()
        self._front.refresh()

    def _run_shell(self, command: str) -> None:
        try:
            self._shell = self._shell or self._work.shell(self._front.post)
        except StartFailed as error:  # the folder may be gone
            self.complain(f"the command was not run: {error}")
            return
        self._shells += 1
        self._shell.tell(RunCommand(in_shell(command), partial(self._shell_ended, command)))

    def _shell_ended(self, command: str, result: object) -> None:
        self._shells -= 1
        if isinstance(result, ToolResult):
            lines = clean(result.text).rstrip("\n").split("\n")
            self._front.show([[(PLAIN, line)] for line in lines])
            self._told.append(f"# A command that the user ran\n$ {command}\n{result.text}")
        elif isinstance(result, Failed):
            self.complain(result.why)
        self._next()
        self._front.refresh()

    # --- what agents tell and ask

    def hear(self, message: object, answer: Answer) -> None:
        """Something that an agent tells or asks. It waits for the answer."""
        match message:
            case Show():
                self._show(message)
                answer.reply()
            case TakeSteering():
                answer.reply(Steering(tuple(self._steering)))
                self._steering.clear()
            case AskPermission() | AskPlan():
                self._asked(_Question(message, answer))
            case _:
                answer.refuse(Refused("unknown_message", f"nobody answers {type(message).__name__}"))
        self._front.refresh()

    def _show(self, message: Show) -> None:
        now = monotonic()
        lines = [line for event in message.events for line in self._view.take(event, now)]
        if lines:
            self._front.show(lines)
        if self._cancelled and not self._heard:
            self._send_cancel()
        self._heard = True

    # --- questions

    def _asked(self, question: _Question) -> None:
        if self._cancelled:
            question.answer.refuse(Refused("cancelled", "the user gave it up"))
            return
        if not self._questions:
            self._draft = self._front.swap("")
        self._questions.append(question)
        if len(self._questions) == 1:
            self._put()

    def _put(self) -> None:
        """Show the question that is to be answered now."""
        ask = self._questions[0].ask
        if isinstance(ask, AskPlan):
            self._front.show(self._view.planned(ask.text))
            return
        whose = "" if ask.agent == "a1" else f"{ask.agent} "
        self._front.show([
            [("class:question", f"? {whose}{one_line(ask.tool)}"), (PLAIN, f" {one_line(ask.why) or 'wants to run'}")],
            *_inputs(ask.input),
            *([[(DIM, f"  2 and 3 allow {one_line(ask.rule)}")]] if ask.rule else []),
        ])  # fmt: skip

    def _answered(self, text: str) -> None:
        question = self._questions[0]
        if isinstance(question.ask, AskPlan):
            self._answer_plan(question, question.ask, text)
        elif text in _VERDICTS:
            self._settle(Permission(_VERDICTS[text]))
        elif text[:1] == "4":
            self._settle(Permission("no", text[1:].strip()))
        else:
            self.say("1, 2, 3, or 4 and why not")

    def _answer_plan(self, question: _Question, ask: AskPlan, text: str) -> None:
        if text == "e" and not question.edits:
            question.edits = True
            self._front.swap(ask.text)
        else:
            self._settle(PlanAnswer(accepted=True, text=text or ask.text))

    def _settle(self, given: Permission | PlanAnswer) -> None:
        self._questions.popleft().answer.reply(given)
        if self._questions:
            self._put()
        else:
            self._front.swap(self._draft)
            self._draft = ""

    def _drop_questions(self) -> None:
        """Whoever asked has gone, or is going."""
        if self._questions:
            for question in self._questions:
                question.answer.refuse(Refused("cancelled", "the user gave it up"))
            self._questions.clear()
            self._front.swap(self._draft)
            self._draft = ""


def _inputs(values: dict[str, Any]) -> list[Line]:
    """What a call is to be run with: all of it that decides whether it may, and the beginning of long texts."""
    lines: list[Line] = []
    for name, value in values.items():
        text = clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).rstrip("\n")
        first, *more = text.split("\n")
        lines.append([(PLAIN, f"  {one_line(name)}: {first}")])
        most = len(more) if name == "command" else LINES_ASKED.count  # nothing of a command is kept back
        lines += [[(PLAIN, f"    {line}")] for line in more[:most]]
        if (left := len(more) - most) > 0:
            lines.append([(DIM, f"    … {left:,} more lines")])
    return lines
