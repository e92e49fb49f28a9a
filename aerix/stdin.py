"""The prompt of a headless run: the argument, and what is piped in."""

import os
import select
import stat
from time import monotonic

from aerix.bounds import STDIN, STDIN_NOTE
from aerix.output import complain

_STDIN = 0
_READ = 65_536


class BadPrompt(Exception):
    """There is no usable prompt; the text says why and what to do."""


def prompt_of(argument: str | None) -> str:
    """The prompt: the argument, a blank line and the piped text; either may be absent, not both. Raises BadPrompt."""
    try:
        piped = _piped() if argument == "-" or _is_piped() else ""
    except OSError as error:
        raise BadPrompt(f"standard input cannot be read: {error.strerror}; pipe the prompt in") from None
    parts = [part for part in ("" if argument == "-" else (argument or "").strip(), piped.strip()) if part]
    if not parts:
        raise BadPrompt(
            'there is no prompt: give one as in aerix -p "Explain this repository", or pipe one in'
        )
    return checked("\n\n".join(parts))


def checked(prompt: str) -> str:
    """The prompt, which is text. Raises BadPrompt."""
    if not prompt.isascii() and prompt != prompt.encode("utf-8", "replace").decode():
        raise BadPrompt("the prompt is not UTF-8 text; name the file in the prompt instead")
    return prompt


def _is_piped() -> bool:
    """Whether standard input is a pipe, a socket or a file: a terminal, /dev/null and a closed input are not."""
    try:
        mode = os.fstat(_STDIN).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _piped() -> str:
    """All of standard input, bounded; says once that it waits when nothing came for a while."""
    data = bytearray()
    noted = False
    quiet_since = monotonic()
    while True:
        limit = None if noted else max(0.0, STDIN_NOTE.value - (monotonic() - quiet_since))
        if not select.select([_STDIN], [], [], limit)[0]:
            noted = True
            complain("waiting for the end of standard input; close it with Ctrl-D, or give it </dev/null")
            continue
        chunk = os.read(_STDIN, _READ)
        if not chunk:
            break
        data += chunk
        quiet_since = monotonic()
        if len(data) > STDIN.count:
            raise BadPrompt(
                f"standard input is longer than {STDIN.count:,} bytes; name the file in the prompt instead"
            )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise BadPrompt("standard input is not UTF-8 text; name the file in the prompt instead") from None
