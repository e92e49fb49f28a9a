"""Permission rules and what they say of a call: it runs, it is asked about, it is refused. Standard library only.

A denial wins over a question, a question over an allowance, wherever they stand; then the mode decides. What a rule's
pattern fits is in ``pathrules.py`` (paths) and ``shell.py`` (commands), what needs an allow rule in any mode in
``protected.py``.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aerix.permissions import Permissions
from aerix.tools.pathrules import PathPattern, Places, pattern_of, read_pattern
from aerix.tools.protected import Protected, working_tree
from aerix.tools.shell import Commands, split

_RULE = re.compile(r"([A-Za-z_][\w-]*)(?:\((.*)\))?", re.DOTALL)
_CLAUDES = {
    "Bash": "bash", "Read": "read", "NotebookRead": "read", "LS": "read", "Edit": "edit", "MultiEdit": "edit",
    "NotebookEdit": "edit", "Write": "write", "Grep": "grep", "Glob": "glob", "Task": "agent", "Agent": "agent",
    "Skill": "skill",
}  # fmt: skip
_CLAUDES_OWN = frozenset({
    "WebFetch", "WebSearch", "TodoWrite", "TodoRead", "BashOutput", "KillShell", "KillBash", "ExitPlanMode", "TaskStop",
    "AskUserQuestion", "SlashCommand", "PowerShell", "Monitor", "LSP",
})  # fmt: skip
"""Tools of Claude's that Aerix has not: rules for them are taken, and fit nothing."""
_OURS = ("read", "write", "edit", "bash", "glob", "grep", "repo_map", "plan", "context", "agent", "skill")
_MEANT = {"edit": frozenset({"edit", "write"}), "read": frozenset({"read", "grep", "glob"})}
"""A rule for a tool that stands for others too."""
_ON_PATHS = frozenset({"read", "write", "edit", "grep", "glob"})
_ON_NAMES = {"agent": ("definition", "implementer"), "skill": ("name", "")}
"""The input that a pattern is compared with, and what it is where there is none."""
_READING = frozenset({"read", "grep", "glob", "repo_map", "plan", "context", "agent", "skill"})
"""What changes nothing by itself; the calls of an agent that is started are looked at themselves."""
_CHANGING = frozenset({"write", "edit"})
_SHOWN = 160  # characters of a call in a sentence
_STAR, _LITERAL_STAR = re.compile(r"(?<!\\)\*"), "\\*"
"""In a pattern of text: what stands for anything, and the star itself."""
_WITH_SUBCOMMANDS = frozenset(
    {
        "git",
        "gh",
        "npm",
        "pnpm",
        "yarn",
        "bun",
        "deno",
        "cargo",
        "go",
        "uv",
        "pip",
        "poetry",
        "docker",
        "podman",
        "kubectl",
        "make",
        "just",
        "apt",
        "brew",
    }
)
_SUBCOMMAND = re.compile(r"[a-z][a-z0-9-]*")

Verdict = Literal["run", "ask", "refuse"]


class BadRule(ValueError):
    """A text is no rule; it says why and what would be."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that was read: ``tool`` is ours, or one that Aerix has not; without ``pattern`` it holds for all its calls."""

    text: str
    tool: str
    pattern: str | None
    claude: bool

    def is_for(self, tool: str) -> bool:
        """Whether it speaks of a tool."""
        return tool == self.tool or tool in _MEANT.get(self.tool, ())


def read_rule(text: str) -> Rule:
    """A rule as it is written: ``bash``, ``bash(git push *)``, ``Edit(src/**)``. Raises BadRule."""
    found = _RULE.fullmatch(text.strip())
    if found is None:
        raise BadRule(f"{text!r} is no rule, such as bash, bash(git push *) or edit(src/**)")
    name, pattern = found[1], found[2]
    tool = _CLAUDES.get(name, name)
    if tool not in _OURS and name not in _CLAUDES_OWN and not name.startswith("mcp__"):
        raise BadRule(f"{text!r}: there is no tool {name}; {_nearest(name)}")
    if pattern is None or pattern.strip() in ("", "*") or (pattern == ":*" and tool == "bash"):
        return Rule(text, tool, None, name in _CLAUDES)
    if tool in ("repo_map", "plan", "context"):
        raise BadRule(f"{text!r}: {tool} takes no pattern; write {tool}")
    return Rule(text, tool, pattern.strip(), name in _CLAUDES)


def is_rule(text: object) -> bool:
    """Whether it is a text that can be read as one."""
    try:
        return isinstance(text, str) and read_rule(text) is not None
    except BadRule:
        return False


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, [*_OURS, *_CLAUDES], 1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(_OURS)}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is to become of a call."""

    verdict: Verdict
    why: str = ""
    """What has it asked about or refused, where that is not only the mode: the end of a sentence about the call."""
    rules: tuple[str, ...] = ()
    """The rule that refuses it, or those that would allow it."""
    real: str | None = None
    """The path that it works on, with its links followed: that one is permitted, and no other."""
    lasting: bool = True
    """Whether a rule can allow it for ever; a rule that has it asked about would win over one that allows."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call, and what rules are compared with."""

    tool: str
    text: str = ""
    """What a pattern is compared with, where that is no path: a name, or the only command."""
    literal: str = ""
    """The path that it names, absolute and without ``..``."""
    real: str | None = None
    commands: Commands | None = None
    bound: str = ""
    """Why it needs an allow rule in every mode."""
    named: bool = False
    """Whether that rule has to name it: no wildcard stands for the dot that a name begins with."""


@dataclass(frozen=True, slots=True)
class _Test:
    """A rule, made ready: whether it fits a call, erring as its list must."""

    rule: Rule
    fits: Callable[[_Call], bool]


class Judge:
    """Decides about the calls of whoever works in ``cwd``. It asks nobody and changes nothing."""

    def __init__(self, permissions: Permissions, cwd: Path) -> None:
        """Raises BadRule."""
        self.permissions = permissions
        self._cwd = cwd
        tree = working_tree(cwd)
        self._protected = Protected.of(tree, permissions.folders)
        self._places = Places(tree, os.path.realpath(self._protected.home))
        self._deny = [self._strict(text) for text in permissions.deny]
        self._ask = [self._strict(text) for text in permissions.ask]
        self._allow = [self._open(text) for text in permissions.allow]
        self._granted = [self._open(text) for text in permissions.granted]

    def judge(self, tool: str, given: Mapping[str, Any]) -> Judgement:
        """What is to become of a call."""
        return self._decide(self._call(tool, given))

    def _decide(self, call: _Call) -> Judgement:
        if call.commands is not None and call.commands.sure and len(call.commands.parts) > 1:
            return _together([self._decide(_command(part)) for part in call.commands.parts])
        if denied := _first(self._deny, call):
            return Judgement(
                "refuse", f"is denied by the rule {denied.rule.text}", (denied.rule.text,), call.real
            )
        if _first(self._granted, call):
            return Judgement("run", real=call.real)
        if asked := _first(self._ask, call):
            why = f"is asked about by the rule {asked.rule.text}"
            return Judgement("ask", why, self._rules_for(call), call.real, lasting=False)
        if self._unreadable(call):
            return Judgement("ask", "cannot be compared with the rules for bash", ("bash",), lasting=False)
        if _first(self._allow, call) or (not call.bound and self._is_free(call)):
            return Judgement("run", real=call.real)
        return Judgement("ask", call.bound, self._rules_for(call), call.real)

    def hides(self, tool: str, path: str) -> bool:
        """Whether a search leaves out a file that it finds; ``path`` is absolute, with its links followed."""
        bound = self._protected.secret(path)
        if not bound and not any(test.rule.is_for(tool) for test in (*self._deny, *self._ask)):
            return False
        call = self._on_path(tool, path, path)
        if _first(self._deny, call):
            return True
        if _first(self._granted, call):
            return False
        return _first(self._ask, call) is not None or (bound and not _first(self._allow, call))

    def shown(self, tool: str, given: Mapping[str, Any]) -> str:
        """A call as a sentence names it."""
        call = self._call(tool, given)
        text = str(given.get("command", "")) if call.commands else call.text
        return _shown(tool, _named(call.literal, self._places) if call.literal else text)

    # --- calls

    def _call(self, tool: str, given: Mapping[str, Any]) -> _Call:
        if tool == "bash":
            return _command(str(given.get("command", "")))
        if tool in _ON_PATHS:
            path = self._cwd / _expanded(_path_of(tool, given))
            literal = os.path.normpath(path)
            return self._on_path(tool, literal, _real(path, literal))
        key, default = _ON_NAMES.get(tool, ("", ""))
        return _Call(tool, text=str(given.get(key) or default))

    def _on_path(self, tool: str, literal: str, real: str) -> _Call:
        bound, named = self._bound(tool, literal, real)
        return _Call(tool, literal=literal, real=real, bound=bound, named=named)

    def _bound(self, tool: str, literal: str, real: str) -> tuple[str, bool]:
        """Why a call on a path needs an allow rule in every mode, or nothing; and whether the rule has to name it."""
        protected = self._protected
        if tool != "write" and protected.secret(literal, real):
            return "may show secrets and needs an allow rule", True
        if tool in _CHANGING and protected.grants(literal, real):
            return "may change what is permitted or run later and needs an allow rule", True
        if tool in _CHANGING and protected.outside(real):
            return "is outside the working tree and needs an allow rule", False
        return "", False

    def _is_free(self, call: _Call) -> bool:
        """Whether the mode lets a call run."""
        mode = self.permissions.mode
        return mode == "auto" or call.tool in _READING or (mode == "auto-edit" and call.tool in _CHANGING)

    def _unreadable(self, call: _Call) -> bool:
        """A command that cannot be read may be one that a rule denies."""
        lost = call.commands is not None and call.commands.lost
        return lost and any(test.rule.tool == "bash" for test in (*self._deny, *self._ask))

    # --- rules

    def _open(self, text: str) -> _Test:
        """A rule that allows: in doubt it does not fit."""
        rule = read_rule(text)
        if rule.pattern is None:
            return _Test(rule, lambda call: rule.is_for(call.tool) and not call.bound)
        if rule.tool in _ON_PATHS:
            paths = read_pattern(rule.pattern, self._places, claude=rule.claude)
            return _Test(rule, lambda call: rule.is_for(call.tool) and _fits_real(paths, call))
        words = _words(rule)
        return _Test(
            rule, lambda call: rule.is_for(call.tool) and _is_one(call) and bool(words.fullmatch(call.text))
        )

    def _strict(self, text: str) -> _Test:
        """A rule that denies or has something asked about: in doubt it fits."""
        rule = read_rule(text)
        if rule.pattern is None:
            return _Test(rule, lambda call: rule.is_for(call.tool))
        if rule.tool in _ON_PATHS:
            paths = read_pattern(rule.pattern, self._places, claude=rule.claude, loose=True)
            return _Test(rule, lambda call: rule.is_for(call.tool) and _fits_any(paths, call))
        words = _words(rule)
        return _Test(rule, lambda call: rule.is_for(call.tool) and any(map(words.fullmatch, _texts(call))))

    def _rules_for(self, call: _Call) -> tuple[str, ...]:
        """The rules that would allow a call, and those like it."""
        if call.commands is not None:
            return (_rule_for(call.commands),)
        if call.real is None:
            return (call.tool,)
        tool = "edit" if call.tool in _CHANGING else "read"
        pattern = pattern_of(call.real, self._places)
        if not call.bound and "/" in pattern.removeprefix("./"):
            pattern = f"{pattern.rpartition('/')[0]}/**"
        return (f"{tool}({pattern})",)


def _rule_for(commands: Commands) -> str:
    """``git push origin`` asks for ``git push *``; a command that has no subcommand's name for itself alone."""
    if not commands.sure or not commands.parts:
        return "bash"
    words = commands.parts[0].split(" ")
    if words[0] in _WITH_SUBCOMMANDS and len(words) > 1 and _SUBCOMMAND.fullmatch(words[1]):
        return f"bash({words[0]} {words[1]} *)"
    return f"bash({_STAR.sub(_LITERAL_STAR, commands.parts[0])})"


def _together(judgements: list[Judgement]) -> Judgement:
    """What is to become of a command that is several: all of them have to be allowed."""
    if refused := next((one for one in judgements if one.verdict == "refuse"), None):
        return refused
    asked = [one for one in judgements if one.verdict == "ask"]
    if not asked:
        return Judgement("run")
    why = next((one.why for one in asked if one.why), "")
    rules = tuple(dict.fromkeys(rule for one in asked for rule in one.rules))
    return Judgement("ask", why, rules, lasting=all(one.lasting for one in asked))


def _first(tests: Iterable[_Test], call: _Call) -> _Test | None:
    return next((test for test in tests if test.fits(call)), None)


def _command(text: str) -> _Call:
    commands = split(text)
    return _Call("bash", " ".join(commands.parts), commands=commands)


def _is_one(call: _Call) -> bool:
    """Whether the text is all of a call: of what cannot be taken apart, nothing is known."""
    return call.commands is None or (call.commands.sure and len(call.commands.parts) == 1)


def _texts(call: _Call) -> tuple[str, ...]:
    """All that a strict rule's pattern is compared with."""
    return (call.text,) if call.commands is None else (*call.commands.parts, *call.commands.forms)


def _fits_real(paths: PathPattern, call: _Call) -> bool:
    return call.real is not None and paths.matches(call.real, dots=not call.named)


def _fits_any(paths: PathPattern, call: _Call) -> bool:
    return call.real is not None and (paths.matches(call.real) or paths.matches(call.literal))


def _words(rule: Rule) -> re.Pattern[str]:
    """A pattern of text: ``*`` is anything; at the end `` *``, or ``:*``, is any more words or none.

    Written so that it never goes back: the time is that of the text, whatever the pattern.
    """
    pattern = rule.pattern or "*"
    ends = "" if rule.tool != "bash" else next((end for end in (":*", " *") if pattern.endswith(end)), "")
    first, *more = [
        re.escape(text.replace(_LITERAL_STAR, "*")) for text in _STAR.split(pattern.removesuffix(ends))
    ]
    if not more:
        return re.compile(first + ("(?: .*)?" if ends else ""), re.DOTALL)
    last = more.pop()
    middle = "".join(f"(?>.*?{literal})" for literal in more)
    tail = f".*?{last}(?: .*)?" if ends else f".*{last}"
    return re.compile(first + middle + tail, re.DOTALL)


# --- paths


def _path_of(tool: str, given: Mapping[str, Any]) -> str:
    """The path that a call names; a search without one is in the working directory."""
    if tool == "glob":
        from aerix.tools.patterns import split as split_pattern

        start, _ = split_pattern(str(given.get("pattern", "")))
        return start or str(given.get("path") or ".")
    return str(given.get("path") or ".")


def _expanded(path: str) -> str:
    return os.path.expanduser(path) if path.startswith("~/") else path  # noqa: PTH111 - no path yet


def _real(path: Path, otherwise: str) -> str:
    """Where a path leads. One that no system call takes leads nowhere: its tool says so."""
    try:
        return os.path.realpath(path)
    except ValueError:
        return otherwise


def _named(path: str, places: Places) -> str:
    if path.startswith(f"{places.tree}/"):
        return path[len(places.tree) + 1 :]
    return f"~{path[len(places.home) :]}" if path.startswith(f"{places.home}/") else path


def _shown(tool: str, text: str) -> str:
    plain = " ".join(text.split())
    if not plain:
        return tool
    return f"{tool}({plain if len(plain) <= _SHOWN else plain[: _SHOWN - 1] + '…'})"
