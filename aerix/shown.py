"""Text of a model, a tool or a file as a terminal may be given it: nothing in it can move the cursor or hide a word. Pure."""

import re

_ENDS = re.compile(r"\r\n?|[\x85\u2028\u2029]")
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_TAB = "    "
_PICTURES = 0x2400
_MARK = "\N{REPLACEMENT CHARACTER}"


def clean(text: str) -> str:
    """The text with line ends as newlines, tabs as blanks, and marks in the places of all that is no character to see."""
    return _CONTROLS.sub(_picture, _ENDS.sub("\n", text)).replace("\t", _TAB)


def one_line(text: str) -> str:
    """The same, on one line."""
    return " ".join(clean(text).split())


def why_failed(result: str) -> str:
    """Why a call failed, in one line: the line of its result that says so, else how a command ended and what it said last."""
    lines = result.splitlines()[1:] or [""]  # the first names the call
    said = next((line for line in lines if line.startswith(("error:", "refused:"))), None)
    return one_line(said or " ".join(lines[-2:]))


def clip(text: str, width: int) -> str:
    """As much of a line as so many columns hold, with a mark where something is left out."""
    from wcwidth import wcwidth

    used, kept = 0, 0
    for at, letter in enumerate(text):
        used += max(0, wcwidth(letter))
        if used > width:
            return text[:kept].rstrip() + "…" * (width > 0)
        if used < width:
            kept = at + 1
    return text


def _picture(found: "re.Match[str]") -> str:
    code = ord(found[0])
    return chr(_PICTURES + code) if code < 0x20 else "\N{SYMBOL FOR DELETE}" if code == 0x7F else _MARK
