"""The tools: what a model is told of each (``TOOLS``), the runner's messages, and, imported in the runner's process
only, one module a tool.

Read ``messages.py`` and ``runner.py`` for the agent's side, ``child.py`` for the runner's process, then any tool.
"""

from dataclasses import replace

from aerix.turn.schema import JsonSchema, ToolSpec

_TEXT: JsonSchema = {"type": "string"}
_SOME_TEXT: JsonSchema = {"type": "string", "minLength": 1}
_COUNT: JsonSchema = {"type": "integer", "minimum": 0, "maximum": 1_000_000_000}
_NAMES: JsonSchema = {"type": "array", "items": {"type": "string"}}
_FLAG: JsonSchema = {"type": "boolean"}
_SECONDS: JsonSchema = {"type": "integer", "minimum": 1, "maximum": 600}


def _tool(name: str, description: str, required: JsonSchema, optional: JsonSchema | None = None) -> ToolSpec:
    schema: JsonSchema = {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }
    return ToolSpec(name, description, schema)


_ALL = (
    _tool("read", "A file's lines with their numbers, or a folder's entries.",
          {"path": {**_SOME_TEXT, "examples": ["README.md"]}}, {"offset": _COUNT, "limit": _COUNT}),
    _tool("write", "Create or replace a file; append adds to its end.",
          {"path": _SOME_TEXT, "content": _TEXT}, {"append": _FLAG}),
    _tool("edit", "Replace the exact text old, which must occur once, by new.",
          {"path": _SOME_TEXT, "old": _SOME_TEXT, "new": _TEXT}, {"replace_all": _FLAG}),
    _tool("bash", "Run a shell command (120 s, at most 600); in the background its output comes when it exits.",
          {"command": _SOME_TEXT}, {"timeout_secs": _SECONDS, "background": _FLAG}),
    _tool("glob", "Find files by name: src/*.py (* crosses /).",
          {"pattern": _SOME_TEXT}, {"path": _SOME_TEXT}),
    _tool("grep", "Search a regex in files: path:line:text. glob limits the files.",
          {"pattern": _SOME_TEXT}, {"path": _SOME_TEXT, "glob": _SOME_TEXT, "max_matches": _COUNT}),
    _tool("repo_map", "The folders here with their files, sizes and languages, the most useful first.", {}),
    _tool("plan", "Read or replace your plan.",
          {"op": {"enum": ["read", "write"]}}, {"text": _TEXT}),
    _tool("context", "Manage what you keep in mind: status lists segments; drop takes ids out; summarize puts text in their"
          " place; pin keeps ids from compaction; note keeps text.",
          {"op": {"enum": ["status", "drop", "summarize", "pin", "unpin", "note"]}}, {"ids": _NAMES, "text": _TEXT}),
    _tool("agent", "Have another agent do a piece of work, which is then verified. It sees nothing else: brief says all that it"
          " needs, check how to see that it is done.",
          {"brief": _SOME_TEXT}, {"check": _TEXT, "member": _SOME_TEXT, "definition": _SOME_TEXT}),
)  # fmt: skip

TOOLS: dict[str, ToolSpec] = {tool.name: tool for tool in _ALL}
"""Every tool by its name, in the order in which a model reads them. ``plan`` and ``context`` are run by the agent itself,
``agent`` starts others.
"""

_SHORT = {
    "read": "Lines of a file, or a folder's entries.",
    "write": "Create or replace a file; append adds.",
    "edit": "Replace text that occurs once.",
    "bash": "Run a command.",
    "glob": "Find files by name.",
    "grep": "Search a regex.",
    "plan": "Your plan.",
    "context": "What you keep in mind: status, drop or pin ids, summarize them as text, note text.",
    "agent": "Another agent does brief, seeing nothing else, and is checked by check.",
    "repo_map": "The file tree.",
}
SHORT_TOOLS = tuple(replace(tool, description=_SHORT[tool.name]) for tool in _ALL)
"""The same tools, told in few words: for small windows."""

RUN_BY_RUNNER = frozenset(TOOLS) - {"plan", "context", "agent"}
"""The tools that a tool runner runs."""
