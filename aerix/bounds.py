"""The agent's rows of the loop-bounds table (spec/actors.md 3.4), the rows of its tools and snapshots among them."""

from aerix.actors.bounds import Bound

_KIB = 1024
_MIB = 1024 * 1024

# --- git

GIT_CALL = Bound("git.call", 30, "seconds", "git", "kill", "failed: git_timeout")
GIT_OUTPUT = Bound("git.output", 64 * _MIB, "bytes", "git", "kill", "failed: git_output")

# --- tools

READ_LINES = Bound(
    "read.lines", 200, "lines unless asked", "read", "cut", "a pointer to the next line", "limit"
)
READ_CHARS = Bound("read.chars", 2000, "characters a line", "read", "cut", "the rest of the line is left out")
READ_SCAN = Bound("read.scan", 1024 * _MIB, "bytes", "read", "refuse", "error: too far into the file")
EDIT_BYTES = Bound("edit.bytes", 16 * _MIB, "bytes of a file", "edit", "refuse", "error: too large to edit")
EDIT_NEAREST = Bound("edit.nearest", 20_000, "lines", "edit", "cut", "a miss shows no nearest region")
SEEN_FILES = Bound(
    "tools.seen", 1000, "files", "tool runner", "cut", "a miss cannot say that the file changed"
)
GREP_FILE = Bound("grep.file", 8 * _MIB, "bytes of a file", "grep", "cut", "the file is skipped")
GREP_CHARS = Bound("grep.chars", 400, "characters a line", "grep", "cut", "the rest of the line is left out")
GREP_MATCHES = Bound("grep.matches", 200, "matches unless asked", "grep", "cut", "a note", "max_matches")
GLOB_FORMS = Bound("glob.forms", 64, "patterns out of one", "glob", "refuse", "error: too many alternatives")
WALK_FILES = Bound("tools.walk", 100_000, "files", "glob and grep", "cut", "the rest is not looked at")
GIT_FILES = Bound("tools.git-files", 30, "seconds", "glob and grep", "kill", "error: git_timeout")
BASH_TIMEOUT = Bound(
    "bash.timeout", 120, "seconds unless asked", "bash", "kill", "[timeout after Ns]", "timeout_secs"
)
BASH_LONGEST = Bound("bash.longest", 600, "seconds", "bash", "cut", "the timeout is this one")
BASH_TERM = Bound("bash.term", 2, "seconds from TERM to KILL", "bash", "kill", "[timeout after Ns]")
BASH_CANCEL = Bound("bash.cancel", 0.5, "seconds from TERM to KILL", "bash", "kill", "[cancelled]")
BASH_DRAIN = Bound(
    "bash.drain", 0.2, "seconds after the shell's end", "bash", "cut", "[N processes still running]"
)
BASH_PIPES = Bound(
    "bash.pipes", 64, "pipes of processes left running", "tool runner", "cut", "the oldest is closed"
)
SPOOL = Bound(
    "tools.spool", 64 * _MIB, "bytes of a result", "tool runner", "cut", "the rest is dropped, with a note"
)
TOOL_TIME = Bound(
    "tools.time", 120, "seconds of a tool but bash", "tool runner", "kill", "error: took over N s"
)
TOOL_WATCH = Bound(
    "tools.watch", 0.1, "seconds between looks for a cancel", "tool runner", "kill", "[cancelled]"
)
TOOL_GRACE = Bound(
    "tools.grace", 5, "seconds after a call's deadline", "tool runner", "kill", "error: tool runner died"
)
CANCEL_GRACE = Bound(
    "tools.cancel", 1, "seconds to answer a cancel", "tool runner", "kill", "error: tool runner died"
)

# --- snapshots

SNAPSHOT_FILE = Bound(
    "snapshot.file", 8 * _MIB, "bytes of a file", "snapshots", "cut", "named in `untracked`"
)
SNAPSHOT_TOTAL = Bound(
    "snapshot.total", 256 * _MIB, "bytes of a tree", "snapshots", "cut", "named in `untracked`"
)
SNAPSHOT_FILES = Bound(
    "snapshot.files", 20_000, "changed and new files", "snapshots", "cut", "named in `untracked`"
)
SNAPSHOT_NESTED = Bound(
    "snapshot.nested", 5000, "entries of a nested repository", "snapshots", "cut", "named always"
)
DIFF_BYTES = Bound("diff.bytes", _MIB, "bytes", "snapshots", "cut", "a note at the end of the diff")

# --- requests and agents

TURNS = Bound(
    "agent.turns", 40, "turns", "agent", "stop", "budget: turns", "delegation.max_turns, --max-turns"
)
TURN_RETRIES = Bound(
    "agent.turn-retries", 2, "asks after a bad or cut turn", "agent", "retry", "failed: turn did not parse"
)
HARD_LIMIT_HITS = Bound("agent.hard-limit-hits", 2, "hits", "agent", "kill", "killed: context floor")
CUT_TURN = Bound("agent.cut-turn", 64, "tokens at least", "agent", "kill", "killed: context floor")
SHOWN_ANSWER = Bound("agent.shown-answer", 200, "characters", "agent", "cut", "the rest is not quoted")
ROUTE_TOKENS = Bound("route.tokens", 8, "tokens", "request", "cut", "the default route")
ROUTE_CHARS = Bound(
    "route.chars", 4000, "characters of the prompt", "request", "cut", "the rest is not classified"
)
DIFF = Bound("request.diff", 60, "seconds", "request", "stop", "a note: there is no diff")
CANCEL = Bound("request.cancel", 0.9, "seconds", "request", "kill", "cancelled")
JOURNAL = Bound("request.journal", 600, "seconds", "agent", "stop", "failed: nobody reads the output")
STDIN = Bound("headless.stdin", 4 * _MIB, "bytes", "command line", "refuse", "exit 3: the input is too long")
STDIN_NOTE = Bound("headless.stdin-note", 2, "seconds of silence", "command line", "wait", "a note")

# --- settings and instruction files

SETTINGS_FILE = Bound("settings.file", 256 * _KIB, "bytes", "settings", "refuse", "refused: unreadable")
START_NOTES = Bound("start.notes", 20, "lines a source", "settings", "cut", "the rest is counted")
SETTINGS_CHECKED = Bound(
    "settings.checked", 256, "digests kept", "settings", "cut", "the oldest is checked again"
)
INSTRUCTION_FILE = Bound("instructions.file", 4 * _MIB, "bytes", "instructions", "cut", "the file is skipped")
INSTRUCTION_FILES = Bound("instructions.files", 100, "files", "instructions", "cut", "the rest is not read")
INSTRUCTION_TOTAL = Bound(
    "instructions.total", 8 * _MIB, "bytes", "instructions", "cut", "the rest is not read"
)
IMPORTS = Bound("instructions.imports", 1000, "imports", "instructions", "cut", "the rest is not looked for")
IMPORT_HOPS = Bound(
    "instructions.hops", 4, "hops of imports", "instructions", "cut", "the import is not followed"
)

ROWS: tuple[Bound, ...] = (
    TURNS, TURN_RETRIES, HARD_LIMIT_HITS, CUT_TURN, SHOWN_ANSWER, ROUTE_TOKENS, ROUTE_CHARS,
    DIFF, CANCEL, JOURNAL, STDIN, STDIN_NOTE,
    GIT_CALL, GIT_OUTPUT,
    READ_LINES, READ_CHARS, READ_SCAN, EDIT_BYTES, EDIT_NEAREST, SEEN_FILES, GREP_FILE, GREP_CHARS, GREP_MATCHES,
    GLOB_FORMS, WALK_FILES, GIT_FILES, BASH_TIMEOUT, BASH_LONGEST, BASH_TERM, BASH_CANCEL, BASH_DRAIN, BASH_PIPES,
    SPOOL, TOOL_TIME, TOOL_WATCH, TOOL_GRACE, CANCEL_GRACE,
    SNAPSHOT_FILE, SNAPSHOT_TOTAL, SNAPSHOT_FILES, SNAPSHOT_NESTED, DIFF_BYTES,
    SETTINGS_FILE, START_NOTES, SETTINGS_CHECKED, INSTRUCTION_FILE, INSTRUCTION_FILES,
    INSTRUCTION_TOTAL, IMPORTS, IMPORT_HOPS,
)  # fmt: skip


def table() -> list[str]:
    """The whole table, one line a row: name, value in force, what it bounds, and how its end is called."""
    from aerix.actors import bounds as actors
    from aerix.pool import bounds as pool

    rows = [*actors.ROWS, *pool.ROWS, *ROWS]
    width = max(len(row.name) for row in rows)
    return [
        f"{row.name:{width}}  {row.value:>13,.12g} {row.unit}; {row.owner}: {row.policy}; {row.outcome}"
        f"{f'; set by {row.setting}' if row.setting else ''}{'' if row.built else '; not built yet'}"
        for row in rows
    ]
