"""RepoMap: a request's map of the repository, made once, for whichever agents ask for it."""

from dataclasses import dataclass

from aerix.actors import Actor, ChildSpec, DeadlineExceeded, Ref, Refused, on
from aerix.tools.messages import RunTool, ToolResult


@dataclass(frozen=True, slots=True)
class MapRepo:
    """A ``repo_map`` call, and the tool runner that would run it; answered by ``ToolResult``."""

    runner: Ref
    call: RunTool


class RepoMap(Actor):
    """The runner of whoever asks first makes it; others that come meanwhile wait in the mailbox, and get the same."""

    def __init__(self) -> None:
        self._made: ToolResult | None = None

    @on(MapRepo)
    def map(self, message: MapRepo) -> ToolResult:
        """The map; an attempt that failed is told, and made anew for the next one."""
        if self._made is not None:
            return self._made
        asked = self.request(message.runner, message.call)
        try:
            self.wait(asked, deadline_s=message.call.limit_s)
        except DeadlineExceeded as late:
            asked.cancel()
            raise Refused("late", str(late)) from None
        except BaseException:
            asked.cancel()
            raise
        result: ToolResult = asked.result()
        if not result.error:
            self._made = result
        return result


def map_child() -> ChildSpec:
    """How to start it, under the supervisor of the request's root."""
    return ChildSpec("repo-map", RepoMap, restart="temporary")
