"""Contexts of a model on a server: their segments. No tokens: the server has those."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from aerix.actors import Refused
from aerix.pool import protocol as p
from aerix.pool.bounds import CONTEXTS
from aerix.pool.segments import check_segments, index_of


@dataclass(slots=True)
class RemoteContext:
    """Segments in order."""

    id: str
    segments: tuple[p.Segment, ...]


class RemoteContexts:
    """All contexts of such a member, and the requests that change and read them."""

    def __init__(self) -> None:
        self._contexts: dict[str, RemoteContext] = {}

    def __len__(self) -> int:
        return len(self._contexts)

    def change(self, request: object) -> RemoteContext:
        """Do what a request on a context asks; the context after it. Nothing has changed after a refusal."""
        match request:
            case p.ContextCreate(segments=segments):
                return self._add(check_segments(segments))
            case p.ContextAppend(_, name, segments):
                return self._set(name, [*self.find(name).segments, *segments])
            case p.ContextReplace(_, name, segment):
                segments = list(self.find(name).segments)
                segments[index_of(segments, segment.id)] = segment
                return self._set(name, segments)
            case p.ContextRemove(_, name, names):
                segments = list(self.find(name).segments)
                for gone in names:
                    index_of(segments, gone)
                return self._set(name, [segment for segment in segments if segment.id not in names])
            case p.ContextFork(_, name, upto):
                segments = list(self.find(name).segments)
                return self._add(segments if upto is None else segments[: index_of(segments, upto) + 1])
        raise Refused("unknown_request", f"A worker does not know the request {type(request).__name__}.")

    def find(self, name: str) -> RemoteContext:
        """The context. Raises Refused ``unknown_context``."""
        if (context := self._contexts.get(name)) is None:
            raise Refused("unknown_context", f"There is no context {name} here; create it again.")
        return context

    def drop(self, name: str) -> None:
        """Forget it. Raises Refused ``unknown_context``."""
        del self._contexts[self.find(name).id]

    def _add(self, segments: Sequence[p.Segment]) -> RemoteContext:
        if len(self._contexts) >= CONTEXTS.count:
            raise Refused("too_many_contexts", f"There are {CONTEXTS.count} contexts already; drop one.")
        context = RemoteContext(uuid.uuid4().hex, tuple(segments))
        self._contexts[context.id] = context
        return context

    def _set(self, name: str, segments: list[p.Segment]) -> RemoteContext:
        context = self.find(name)
        context.segments = tuple(check_segments(segments))
        return context
