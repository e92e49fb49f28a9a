"""Patterns of file names: ``*`` crosses folders, ``**/`` may be nothing, ``{a,b}`` are alternatives."""

import fnmatch
import re
from collections.abc import Callable

from aerix.bounds import GLOB_FORMS
from aerix.tools.workspace import ToolError

_BRACES = re.compile(r"\{([^{}]*)\}")
_MAGIC = re.compile(r"[*?\[{]")


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a relative path matches. A pattern without a slash is compared with the file's name as well.

    Raises ToolError where the alternatives are too many.
    """
    forms = _forms(pattern.removeprefix("./"))
    tests = [re.compile(fnmatch.translate(form)).match for form in forms]
    by_name = [] if "/" in pattern else tests

    def matches(path: str) -> bool:
        name = path.rpartition("/")[2]
        return any(test(path) for test in tests) or any(test(name) for test in by_name)

    return matches


def split(pattern: str) -> tuple[str, str]:
    """The folder that a pattern begins with where that is not below the search's own, and the rest."""
    if not pattern.startswith(("/", "~/", "../")):
        return "", pattern
    magic = _MAGIC.search(pattern)
    at = pattern.rfind("/", 0, magic.start() if magic else len(pattern)) + 1
    return pattern[:at], pattern[at:]


def _forms(pattern: str) -> list[str]:
    """The pattern without braces and ``**/``, once for each way to read it."""
    todo, done = [pattern], list[str]()
    while todo:
        form = todo.pop()
        if len(todo) + len(done) >= GLOB_FORMS.count:
            raise ToolError(f"the pattern has over {GLOB_FORMS.count} alternatives; give fewer.")
        if braces := _BRACES.search(form):
            todo += [
                form[: braces.start()] + choice + form[braces.end() :] for choice in braces[1].split(",")
            ]
        elif "**/" in form:
            todo += [form.replace("**/", "*/", 1), form.replace("**/", "", 1)]
        else:
            done.append(form)
    return done
