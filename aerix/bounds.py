"""The agent's rows of the loop-bounds table (spec/actors.md 3.4), the rows of its tools and snapshots among them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from aerix.actors.bounds import PREFIX, Bound

if TYPE_CHECKING:
    from aerix.settings import Settings

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
READ_SCAN = Bound(
    "read.scan", 1024 * _MIB, "bytes", "read", "refuse", "error: only its first N bytes can be read"
)
EDIT_BYTES = Bound(
    "edit.bytes", 16 * _MIB, "bytes of a file", "edit", "refuse", "error: files over N bytes are not edited"
)
EDIT_NEAREST = Bound("edit.nearest", 20_000, "lines", "edit", "cut", "a miss shows no nearest region")
SEEN_FILES = Bound(
    "tools.seen", 1000, "files", "tool runner", "cut", "a miss cannot say that the file changed"
)
GREP_FILE = Bound("grep.file", 8 * _MIB, "bytes of a file", "grep", "cut", "the file is skipped")
GREP_CHARS = Bound("grep.chars", 400, "characters a line", "grep", "cut", "the rest of the line is left out")
GREP_MATCHES = Bound("grep.matches", 200, "matches unless asked", "grep", "cut", "a note", "max_matches")
GLOB_FORMS = Bound(
    "glob.forms", 64, "patterns out of one", "glob", "refuse", "error: the pattern has over N alternatives"
)
WALK_FILES = Bound("tools.walk", 100_000, "files", "glob and grep", "cut", "the rest is not looked at")
GIT_FILES = Bound(
    "tools.git-files", 30, "seconds", "glob and grep", "kill", "error: git ls-files did not end in N s"
)
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
SANDBOX_PROBE = Bound(
    "sandbox.probe", 5, "seconds", "sandbox", "kill", "the sandbox counts as one that does not work"
)
SANDBOX_LOOK = Bound("sandbox.look", 20_000, "files", "sandbox", "cut", "secrets in the rest are not hidden")
GIT_FOLDER_FILE = Bound(
    "sandbox.git-file",
    64 * _KIB,
    "bytes of a file of git's",
    "sandbox",
    "cut",
    "the git folder cannot be written",
)
TREE_LOOK = Bound(
    "tools.tree-look", 5000, "files and folders", "tool runner", "cut", "every command counts as a change"
)
TOOL_TIME = Bound(
    "tools.time", 120, "seconds of a tool but bash", "tool runner", "kill", "error: it took too long"
)
TOOL_WATCH = Bound(
    "tools.watch",
    0.1,
    "seconds between looks for a cancel",
    "tool runner",
    "kill",
    "[cancelled]",
    least=0.001,
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
SNAPSHOT_ENTRIES = Bound(
    "snapshot.entries",
    1_000_000,
    "files and folders of a working tree",
    "snapshots",
    "refuse",
    "a note: there is no diff, and no undo of commands",
)
UNDO_ENTRIES = Bound(
    "undo.entries",
    50_000,
    "files and folders of a working tree",
    "snapshots",
    "cut",
    "a note: undo goes back to before the first call only",
)
UNDO_WAIT = Bound(
    "undo.wait", 30, "seconds for a snapshot before a call", "agent", "stop", "a note: it cannot be undone"
)
UNDO_KEPT = Bound(
    "undo.kept",
    1000,
    "files of a request that no tree has",
    "snapshots",
    "refuse",
    "a note: it cannot be undone",
)
UNDO_STORE = Bound(
    "undo.store", 1024 * _MIB, "bytes of a session", "snapshots", "refuse", "a note: it cannot be undone"
)
UNDO_STORES = Bound(
    "undo.stores",
    8 * 1024 * _MIB,
    "bytes of all sessions",
    "snapshots",
    "cut",
    "the stores that were used least recently go",
)
UNDO_NAMED = Bound("undo.named", 50, "names", "snapshots", "cut", "the rest is counted")
DIFF_BYTES = Bound("diff.bytes", _MIB, "bytes", "snapshots", "cut", "a note at the end of the diff")

# --- requests and agents

TURNS = Bound(
    "agent.turns",
    40,
    "turns",
    "agent",
    "stop",
    "budget: turns N: the turn budget is spent",
    "delegation.max_turns, --max-turns",
    least=1,
)
TURN_RETRIES = Bound(
    "agent.turn-retries",
    2,
    "asks after a bad or cut turn",
    "agent",
    "retry",
    "failed: turn did not parse",
    per=TURNS.name,
)
CALLS = Bound("turn.calls", 8, "calls of a turn", "agent", "cut", "a note: N calls dropped", least=1)
REPEATS = Bound(
    "agent.repeats", 2, "equal results of equal calls", "agent", "refuse", "error: not run", least=1
)
CYCLES = Bound("agent.cycles", 3, "equal cycles of calls", "agent", "stop", "failed: loop", least=1)
CYCLE_CALLS = Bound("agent.cycle-calls", 4, "calls of a cycle", "agent", "cut", "a longer one is not seen")
APPENDS = Bound(
    "agent.appends",
    3,
    "forms in which one result is tried",
    "agent",
    "retry",
    "its pointer alone",
    least=1,
)
OWN_WORDS = Bound(
    "context.own-words",
    8,
    "parts of the window, one of which notes and summaries may take",
    "agent",
    "refuse",
    "error: notes and summaries may take N tokens",
    least=1,
)
STOP_CONTINUES = Bound(
    "agent.stop-continues",
    5,
    "times that a Stop hook lets an agent go on",
    "agent",
    "refuse",
    "a note: stop hook limit",
)
JOBS_AT_FINAL = Bound(
    "jobs.at-final",
    10,
    "seconds after the latest job's time",
    "agent",
    "kill",
    "[job jN killed: agent ended]",
)
JOBS = Bound(
    "jobs.at-once", 16, "jobs of a request", "job runner", "refuse", "error: N jobs run already", least=1
)
HARD_LIMIT_HITS = Bound("agent.hard-limit-hits", 2, "hits", "agent", "kill", "killed: context floor")
CUT_TURN = Bound(
    "agent.cut-turn",
    64,
    "tokens at least",
    "agent",
    "kill",
    "refused before the first turn, later killed: context floor",
)
SHOWN_ANSWER = Bound("agent.shown-answer", 200, "characters", "agent", "cut", "the rest is not quoted")
ROUTE_TOKENS = Bound("route.tokens", 8, "tokens", "request", "cut", "the default route", least=1)
ROUTE_CHARS = Bound(
    "route.chars", 4000, "characters of the prompt", "request", "cut", "the rest is not classified"
)
DIFF = Bound("request.diff", 60, "seconds", "request", "stop", "a note: there is no diff")
CANCEL = Bound("request.cancel", 0.9, "seconds", "request", "kill", "cancelled")
JOURNAL = Bound("request.journal", 600, "seconds", "agent", "stop", "failed: nobody reads the output")
STDIN = Bound(
    "headless.stdin",
    4 * _MIB,
    "bytes",
    "command line",
    "refuse",
    "exit 3: standard input is longer than N bytes",
)
STDIN_NOTE = Bound("headless.stdin-note", 2, "seconds of silence", "command line", "wait", "a note")
FINAL_SCHEMA = Bound(
    "headless.final-schema",
    64 * 1024,
    "bytes of a schema file",
    "command line",
    "refuse",
    "exit 3: it is larger than N bytes",
)
FINAL_SCHEMA_CHECK = Bound(
    "headless.final-schema-check",
    20,
    "seconds to compile it",
    "command line",
    "stop",
    "exit 3: it takes longer than N s",
)
DOCTOR_LOOK = Bound("doctor.look", 60, "seconds of one check", "doctor", "stop", "the check says so, exit 1")
DOCTOR_POOL = Bound(
    "doctor.pool",
    900,
    "seconds to reach a pool or load a model",
    "doctor",
    "stop",
    "the check says so, exit 1",
)
DOCTOR_GENERATION = Bound(
    "doctor.generation", 300, "seconds of one generation", "doctor", "stop", "the check says so, exit 1"
)
PROMPTS = Bound(
    "headless.prompts",
    100,
    "messages that wait",
    "command line",
    "wait",
    "standard input is read on later",
    least=1,
)

LINES_QUEUE = Bound(
    "lines.queue", 20, "prompts that wait", "session", "refuse", "it stays on the input line", least=1
)
LINES_DIFF = Bound("lines.diff", 200, "lines of a diff", "session", "cut", "the rest is counted")
LINES_ASKED = Bound("lines.asked", 12, "lines of a call's input", "session", "cut", "the rest is counted")
LINES_LAST = Bound(
    "lines.last",
    5,
    "lines of the last prompt, and of its answer",
    "session",
    "cut",
    "the rest is counted",
    least=1,
)
LINES_SESSIONS = Bound(
    "lines.sessions", 20, "sessions, the latest", "session", "cut", "the rest is counted", least=1
)
LINES_TOLD = Bound(
    "lines.told", 20, "outputs of the user's commands", "session", "cut", "the oldest are not told", least=1
)
LINES_HISTORY = Bound("lines.history", 1000, "inputs", "session", "cut", "the oldest are forgotten", least=1)
LINES_HISTORY_FILE = Bound(
    "lines.history-file",
    4 * _MIB,
    "bytes",
    "session",
    "cut",
    "the file is put aside, and begun anew",
    least=1,
)
MENTIONS = Bound(
    "lines.mentions", 20, "files of a prompt", "session", "cut", "a note: at most N files", least=1
)
MENTION_BYTES = Bound(
    "lines.mention-bytes", 64 * _KIB, "bytes of a file", "session", "cut", "a note: it is larger", least=1
)

# --- pieces

DEPTH = Bound(
    "pieces.depth",
    3,
    "levels of delegation",
    "request",
    "refuse",
    "refused: depth N",
    "delegation.depth",
)
PIECES = Bound(
    "pieces.at-once",
    4,
    "pieces of a turn",
    "request",
    "wait",
    "waiting is no end",
    "delegation.parallel",
    least=1,
)
PIECE_RETRIES = Bound(
    "pieces.retries",
    2,
    "tries after a failed verification",
    "piece",
    "retry",
    "failed: verification failed",
    "delegation.retries",
)
PIECE_LISTED = Bound(
    "pieces.listed", 50, "files, and as many commands", "piece", "cut", "the rest is counted"
)
PIECE_REASON = Bound("pieces.reason", 2000, "characters of a verdict", "piece", "cut", "the rest is left out")

# --- profiles, tuning and the farm

PROFILE_GIT = Bound(
    "profile.git", 30, "seconds of a call", "profile", "kill", "failed: profile git", built=False
)
PROFILE_WRITES = Bound(
    "profile.compare-and-swap", 3, "tries", "profile", "retry", "refused: branch moved N times", built=False
)
TUNE_SESSIONS = Bound(
    "tune.sessions",
    20,
    "sessions, the newest",
    "tune",
    "cut",
    "the count in the report",
    "tune.sessions, --sessions",
    built=False,
)
REFLECTIONS = Bound(
    "tune.reflections", 1, "calls an artifact", "tune", "stop", "the artifact is skipped", built=False
)
FARM_RESTARTS = Bound(
    "farm.restarts", 2, "restarts of a job", "farm", "restart", "failed: restart limit", built=False
)

# --- sessions

LOG_LINE = Bound("session.line", 32 * _MIB, "bytes", "reader of a log", "cut", "the line is passed over")
SESSION_INDEX = Bound("session.index", 64 * _MIB, "bytes", "index", "cut", "it is made anew from the logs")
TITLE = Bound(
    "session.title", 120, "characters of a prompt's start", "index", "cut", "the rest is not listed"
)

# --- settings and instruction files

SETTINGS_FILE = Bound("settings.file", 256 * _KIB, "bytes", "settings", "refuse", "refused: unreadable")
SETTINGS_LOCK = Bound(
    "settings.lock",
    5,
    "seconds for another Aerix that keeps a permission",
    "settings",
    "stop",
    "a note: it holds for this session only",
)
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
    TURNS, TURN_RETRIES, CALLS, REPEATS, CYCLES, CYCLE_CALLS, APPENDS, OWN_WORDS, STOP_CONTINUES, JOBS_AT_FINAL, JOBS, HARD_LIMIT_HITS,
    CUT_TURN, SHOWN_ANSWER, ROUTE_TOKENS, ROUTE_CHARS, DIFF, CANCEL, JOURNAL, STDIN, STDIN_NOTE, PROMPTS, FINAL_SCHEMA, FINAL_SCHEMA_CHECK,
    DOCTOR_LOOK, DOCTOR_POOL, DOCTOR_GENERATION,
    LINES_QUEUE, LINES_DIFF, LINES_ASKED, LINES_LAST, LINES_SESSIONS, LINES_TOLD, LINES_HISTORY, LINES_HISTORY_FILE, MENTIONS, MENTION_BYTES,
    DEPTH, PIECES, PIECE_RETRIES, PIECE_LISTED, PIECE_REASON, PROFILE_GIT, PROFILE_WRITES, TUNE_SESSIONS, REFLECTIONS, FARM_RESTARTS,
    GIT_CALL, GIT_OUTPUT,
    READ_LINES, READ_CHARS, READ_SCAN, EDIT_BYTES, EDIT_NEAREST, SEEN_FILES, GREP_FILE, GREP_CHARS, GREP_MATCHES,
    GLOB_FORMS, WALK_FILES, GIT_FILES, BASH_TIMEOUT, BASH_LONGEST, BASH_TERM, BASH_CANCEL, BASH_DRAIN, BASH_PIPES,
    SPOOL, SANDBOX_PROBE, SANDBOX_LOOK, GIT_FOLDER_FILE, TREE_LOOK, TOOL_TIME, TOOL_WATCH, TOOL_GRACE, CANCEL_GRACE,
    SNAPSHOT_FILE, SNAPSHOT_TOTAL, SNAPSHOT_FILES, SNAPSHOT_NESTED, SNAPSHOT_ENTRIES,
    UNDO_ENTRIES, UNDO_WAIT, UNDO_KEPT, UNDO_STORE, UNDO_STORES, UNDO_NAMED, DIFF_BYTES,
    LOG_LINE, SESSION_INDEX, TITLE,
    SETTINGS_FILE, SETTINGS_LOCK, START_NOTES, SETTINGS_CHECKED, INSTRUCTION_FILE, INSTRUCTION_FILES,
    INSTRUCTION_TOTAL, IMPORTS, IMPORT_HOPS,
)  # fmt: skip


def every_row() -> tuple[Bound, ...]:
    """The whole table: the rows of all packages."""
    from aerix.actors import bounds as actors
    from aerix.hooks import bounds as hooks
    from aerix.pool import bounds as pool

    return (*actors.ROWS, *pool.ROWS, *hooks.ROWS, *ROWS)


def wrong(env: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that sets a row wrongly, or no row that there is."""
    named = sorted(name for name in env if name.startswith(PREFIX) and env[name])
    rows = {row.variable: row for row in every_row()}
    found = []
    for name in named:
        if name not in rows:
            found.append(_unknown(name, list(rows)))
            continue
        try:
            rows[name].read(env[name])
        except ValueError as error:
            found.append(str(error))
    return found


def _unknown(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    short = {variable.removeprefix(PREFIX): variable for variable in known}
    near = get_close_matches(name.removeprefix(PREFIX), list(short), 1)
    meant = f"; {short[near[0]]} is" if near else ""
    return f"{name} is no limit of this version{meant} (aerix bounds names them all)"


def in_force(row: Bound, settings: "Settings") -> tuple[float, str]:
    """A row's value, and what set it: its setting, where somebody set that; else its variable; else nobody (empty)."""
    key = row.setting.partition(",")[0]
    if (chosen := settings.chosen(key)) is not None:
        value, source = chosen
        return float(cast("float", value)), source if key in source else f"{key} in {source}"
    value = row.value
    return value, row.variable if value != row.default else ""


def table(settings: "Settings") -> list[str]:
    """``aerix bounds``: a line a row with its name, the value in force, what it bounds, and how its end is called."""
    rows = every_row()
    width = max(len(row.name) for row in rows)
    return [_line(row, width, *in_force(row, settings)) for row in rows]


def _line(row: Bound, width: int, value: float, source: str) -> str:
    parts = [
        f"{row.name:{width}}  {value:>13,.12g} {row.unit}",
        f"{row.owner}: {row.policy}",
        row.outcome,
        f"set by {row.setting}" if row.setting else "",
        f"now {source}" if source else "",
        "" if row.built else "not built yet",
    ]
    return "; ".join(part for part in parts if part)
