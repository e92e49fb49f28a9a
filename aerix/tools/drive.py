"""Drive: commands in a runner's select loop: their pipes are read, their deadlines kept, and what they leave running can
go on writing.
"""

import os
import selectors
from collections import deque
from functools import partial

from aerix.actors.mailbox import wait_readable
from aerix.bounds import BASH_PIPES
from aerix.tools.bash import READ, Command, Pipe

_REST = 32  # reads of a pipe that is full when its command is over


class Drive:
    """Belongs to one loop, which calls the ``data`` of each key that its selector finds ready."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._held: deque[Pipe] = deque()

    def begin(self, command: Command) -> None:
        """Read its pipes from now on, and wake the loop at its end."""
        self._selector.register(command.ended, selectors.EVENT_READ, partial(self._unregister, command))
        for pipe in command.pipes:
            self._selector.register(pipe.file, selectors.EVENT_READ, partial(self._read, pipe, command.pipes))

    def is_over(self, command: Command, *, cancelled: bool) -> bool:
        """Let it go on; whether it is over, and all that it said was read. Call it when the loop wakes."""
        if not command.advance(cancelled=cancelled):
            return False
        for pipe in list(command.pipes):
            self._read_rest(pipe, command.pipes)
        for pipe in command.pipes:
            self._hold(pipe)
        self.forget(command)
        return True

    def forget(self, command: Command) -> None:
        """Watch no longer for its end; for one that is over, or given up."""
        if command.ended in self._selector.get_map():
            self._unregister(command)
        command.close()

    def _unregister(self, command: Command) -> None:
        self._selector.unregister(command.ended)

    def _read(self, pipe: Pipe, among: list[Pipe]) -> None:
        if not pipe.read():
            among.remove(pipe)
            self._close(pipe)

    def _read_rest(self, pipe: Pipe, among: list[Pipe]) -> None:
        """What stands in the pipe when the command is over; a process left running may write without end."""
        for _ in range(_REST):
            if pipe not in among or not wait_readable(pipe.file, 0):
                return
            self._read(pipe, among)

    def _hold(self, pipe: Pipe) -> None:
        """A pipe that a process left running writes to is read on, for nobody: closing it would end the process."""
        self._selector.modify(pipe.file, selectors.EVENT_READ, partial(self._drop, pipe))
        self._held.append(pipe)
        if len(self._held) > BASH_PIPES.count:
            self._close(self._held.popleft())

    def _drop(self, pipe: Pipe) -> None:
        if not os.read(pipe.file.fileno(), READ):
            self._held.remove(pipe)
            self._close(pipe)

    def _close(self, pipe: Pipe) -> None:
        self._selector.unregister(pipe.file)
        pipe.file.close()
