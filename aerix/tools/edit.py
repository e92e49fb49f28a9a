"""edit: replace a text in a file. Only the region that is replaced changes, byte for byte."""

from aerix.tools import lineends
from aerix.tools.match import Found, How, find, replacement
from aerix.tools.nearest import explain
from aerix.tools.textfile import load, replace
from aerix.tools.workspace import Given, Output, ToolError, Workspace

_LINES_NAMED = 10  # places named of a text that was found too often


def edit(ws: Workspace, given: Given) -> Output:
    """The tool: ``path``, ``old``, ``new``, ``replace_all``."""
    path = ws.resolve(given.text("path"))
    old, new, everywhere = given.text("old"), given.text("new"), given.flag("replace_all")
    shown = ws.shown(path)
    if not old:
        raise ToolError("`old` is empty; give the text to replace, or use write.")
    if old == new:
        raise ToolError("`old` and `new` are the same.")
    file, status = load(ws, path)
    how, found = find(file.text, old)
    if not found:
        raise ToolError(f"{shown}: {explain(file.text, old, new, changed=ws.changed_since(path, status))}")
    if len(found) > 1 and not everywhere:
        raise ToolError(f"{shown}: {_too_often(file.text, found)}")
    text = _replaced(file.text, found, new)
    if text == file.text:
        raise ToolError(f"{shown}: the edit changes nothing; the file keeps its line ends.")
    replace(ws, path, file.encode(text))
    return Output(f"edited {shown}: {_said(file.text, found)}{_relaxed(how, found)}.", (path,))


def _replaced(text: str, found: list[Found], new: str) -> str:
    parts, at = [], 0
    for place in found:
        put = replacement(text, place, new)
        if put is None:
            raise ToolError(
                f"`old` was found at line {lineends.line_of(text, place.start)} with less indentation, "
                "but `new` cannot be moved left as far; give both as they are in the file."
            )
        parts += [text[at : place.start], put]
        at = place.end
    return "".join([*parts, text[at:]])


def _too_often(text: str, found: list[Found]) -> str:
    return (
        f"`old` was found {len(found)} times, at lines {_lines(text, found)}; "
        "give more of the text around the right one, or set replace_all."
    )


def _lines(text: str, found: list[Found]) -> str:
    named = ", ".join(str(lineends.line_of(text, place.start)) for place in found[:_LINES_NAMED])
    return named + (", …" if len(found) > _LINES_NAMED else "")


def _said(text: str, found: list[Found]) -> str:
    if len(found) > 1:
        return f"{len(found)} replacements, at lines {_lines(text, found)}"
    return f"replaced at line {_lines(text, found)}"


def _relaxed(how: How, found: list[Found]) -> str:
    if how == "exact":
        return ""
    if how != "indentation":
        return f" ({how} differed)"
    place = found[0]
    indent = place.added or place.taken
    return f" (indentation shifted by {len(indent)} to the {'right' if place.added else 'left'})"
