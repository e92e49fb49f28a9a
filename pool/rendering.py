"""Messages to text through a chat template. The templates of model files are data: jinja's sandbox keeps them in.

What the sandbox does not bound, time and memory, a process does: ``main`` is its body, ``Apart`` its owner. A template
that we wrote is rendered where it is needed, by ``Jinja`` itself.
"""

import datetime as dt
import json
import resource
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from aerix.actors import Refused
from aerix.actors.wire import Codec, Plain
from aerix.pool.bounds import TEMPLATE_MEMORY, TEMPLATE_START, TEMPLATE_TEXT, TEMPLATE_TIME
from aerix.pool.builtin import TRUSTED

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from aerix.actors import Ref
    from aerix.actors.child import Channel

_DAY = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
_NUMBERS = count(1)


@dataclass(frozen=True, slots=True)
class Render:
    """Messages to render: with the opening of the model's turn, and with thinking switched on in the template."""

    messages: list[dict[str, str]]
    turn: bool
    thinking: bool


@dataclass(frozen=True, slots=True)
class Rendered:
    """What the template wrote."""

    text: str


Renderer = Callable[[Render], str]
"""Raises Refused ``bad_template``."""
MakeRenderer = Callable[[str, str, str], Renderer]
"""Of a template's source and the texts of the vocabulary's first and last token."""

CODEC = Codec((Render, Rendered))


def refused(why: object) -> Refused:
    """A template that cannot be used, and which setting helps."""
    return Refused(
        "bad_template",
        f"The model's chat template cannot be used: {str(why).rstrip('.')}. "
        'Set `template` under [models."REF"] to another one.',
    )


class Jinja:
    """Renders in this process. Raises Refused ``bad_template``, also where the source is no template."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        from jinja2 import TemplateError

        try:
            self._template = _environment(bos, eos).from_string(source)
        except (TemplateError, RecursionError, MemoryError) as error:
            raise refused(_reason(error)) from None

    def __call__(self, wanted: Render) -> str:
        """See Renderer."""
        from jinja2 import TemplateError

        switches = dict.fromkeys(("enable_thinking", "thinking"), wanted.thinking)
        pieces, size = [], 0
        try:
            for piece in self._template.generate(
                messages=wanted.messages, add_generation_prompt=wanted.turn, **switches
            ):
                pieces.append(piece)
                size += len(piece)
                if size > TEMPLATE_TEXT.count:
                    raise refused(f"it writes more than {TEMPLATE_TEXT.count:,} characters")
        except (TemplateError, MemoryError, RecursionError) as error:
            raise refused(_reason(error)) from None
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise refused(_reason(error)) from None
        return "".join(pieces)


class Apart:
    """Renders in a child process of this one, which is killed when it takes too long or dies by what it takes.

    The next rendering starts another. The child ends with this process at the latest.
    """

    def __init__(self, source: str, bos: str, eos: str) -> None:
        self._args: Plain = {"source": source, "bos": bos, "eos": eos}
        self._child: Ref | None = None

    def __call__(self, wanted: Render) -> str:
        """See Renderer."""
        from aerix.actors import DeadlineExceeded, Gone

        child = self._living()
        try:
            rendered = child.ask(wanted, TEMPLATE_TIME.value)
        except DeadlineExceeded:
            child.stop("a template took too long", force=True)
            self._child = None
            raise refused(f"it takes longer than {TEMPLATE_TIME.value:g} s") from None
        except Refused as refusal:
            raise self._explained(refusal) from None
        except Gone:
            raise refused("its process died") from None
        assert isinstance(rendered, Rendered)
        return rendered.text

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.stop()
            self._child.join(TEMPLATE_TIME.value)
            self._child = None

    def _living(self) -> "Ref":
        from aerix.actors import StartFailed, start
        from aerix.actors.process import ProcessActor

        if self._child is None or not self._child.alive:
            actor = ProcessActor("aerix.pool.rendering:main", self._args, CODEC, guard="kill", window=1)
            try:
                self._child = start(actor, f"template:{next(_NUMBERS)}", start_timeout_s=TEMPLATE_START.value)
            except StartFailed as error:
                raise refused(f"the process that renders it did not start: {error}") from None
        return self._child

    def _explained(self, refusal: Refused) -> Refused:
        return (
            refusal if refusal.code == "bad_template" else refused(f"its process ended ({refusal.message})")
        )


def renderer(source: str, bos: str, eos: str) -> Renderer:
    """What a worker renders with: apart, but for the templates that we wrote."""
    return Jinja(source, bos, eos) if source in TRUSTED else Apart(source, bos, eos)


def main(channel: "Channel", args: Plain) -> None:
    """The body of a rendering process. A template that cannot be read is told with the first rendering."""
    from aerix.actors.child import IncomingCall

    channel.codec = CODEC
    resource.setrlimit(resource.RLIMIT_AS, (TEMPLATE_MEMORY.count, TEMPLATE_MEMORY.count))
    channel.ready()
    jinja: Jinja | None = None
    while True:
        incoming = channel.receive()
        if not isinstance(incoming, IncomingCall):
            continue
        try:
            jinja = jinja or Jinja(**args)
            channel.reply(incoming.id, Rendered(jinja(incoming.message)))
        except Refused as refusal:
            channel.refuse(incoming.id, refusal.code, refusal.message)


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "it takes too much memory"
    return str(error) or type(error).__name__


def _environment(bos: str, eos: str) -> "ImmutableSandboxedEnvironment":
    """What templates of model files expect, without a clock and without a way out."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks the model's own words, for training: nothing is done with it here."""

        tags = {"generation"}  # noqa: RUF012  # the library's own way

        def parse(self, parser: Any) -> list[nodes.Node]:
            next(parser.stream)
            return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=_raise,
        strftime_now=_DAY.strftime,
        bos_token=bos,
        eos_token=eos,
        tools=None,
        documents=None,
    )
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)
