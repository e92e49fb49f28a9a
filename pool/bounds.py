"""The pool's rows of the loop-bounds table: the daemon's and the client's, then the worker's."""

from aerix.actors.bounds import Bound

# --- fetching models ----------------------------------------------------------------------------------------------

PULL_SILENCE = Bound(
    "models.pull-silence", 180, "seconds", "aerix models pull", "kill", "refused: model_pull_failed"
)
PULL_LOCK = Bound(
    "models.pull-lock", 3600, "seconds", "aerix models pull", "refuse", "refused: model_pull_failed"
)

HUB_TRIES = Bound(
    "models.hub-tries",
    5,
    "tries in a row without a new byte",
    "aerix models pull",
    "retry",
    "refused: model_pull_failed",
)
HUB_PAUSE = Bound(
    "models.hub-pause",
    1,
    "seconds before the second try, doubling",
    "aerix models pull",
    "wait",
    "tried again",
)
HUB_LIST = Bound(
    "models.hub-list",
    16 * 1024 * 1024,
    "bytes of a list of files",
    "aerix models pull",
    "refuse",
    "refused: model_pull_failed",
)
HUB_PAGES = Bound(
    "models.hub-pages",
    20,
    "pages of a list of files",
    "aerix models pull",
    "cut",
    "the first ones are looked at",
)
HUB_REDIRECTS = Bound(
    "models.hub-redirects",
    5,
    "redirects in a row",
    "aerix models pull",
    "refuse",
    "refused: model_pull_failed",
)
GPU_LOOK = Bound(
    "models.gpu-look", 30, "seconds", "whoever loads a model", "kill", "done: as if there were no GPU"
)
MODEL_PARTS = Bound(
    "models.parts",
    1000,
    "files that a model is cut into",
    "whoever loads a model",
    "cut",
    "it is taken for one that is whole",
)
MANIFEST = Bound(
    "models.manifest",
    1024 * 1024,
    "bytes of a manifest of Ollama",
    "whoever loads a model",
    "refuse",
    "refused: model_missing",
)
HEADER_BYTES = Bound(
    "models.header-bytes",
    256 * 1024 * 1024,
    "bytes of a model file's header",
    "whoever loads a model",
    "refuse",
    "refused: model_broken_file",
)
HEADER_ENTRIES = Bound(
    "models.header-entries",
    4_000_000,
    "texts in the lists of a model file's header",
    "whoever loads a model",
    "refuse",
    "refused: model_broken_file",
)

# --- the client ---------------------------------------------------------------------------------------------------

CONTROL = Bound("pool.control", 30, "seconds without an answer", "PoolLink", "kill", "failed: pool_silent")
FRAMES = Bound("pool.frames", 600, "seconds between two frames", "PoolLink", "kill", "failed: pool_silent")
AUTOSTART = Bound(
    "pool.autostart",
    900,
    "seconds",
    "PoolLink",
    "retry",
    "failed: pool_start_timeout",
    "pool.start_timeout_secs",
)
AUTOSTART_EVERY = Bound(
    "pool.autostart-every", 0.5, "seconds between two tries", "PoolLink", "retry", "tried again", least=0.001
)
STARTS = Bound(
    "pool.starts", 3, "daemons started for one connection", "PoolLink", "retry", "failed: pool_exited"
)
STOP_WAIT = Bound("pool.stop-wait", 10, "seconds", "aerix pool stop", "kill", "killed: SIGTERM, then SIGKILL")
START_LOG = Bound(
    "pool.start-log", 1024 * 1024, "bytes kept of earlier starts", "PoolLink", "cut", "begun anew"
)
CONNECTIONS = Bound(
    "pool.max-connections",
    4,
    "generations at once",
    "PoolLink",
    "wait",
    "waiting is no end",
    "pool.max_connections",
    least=1,
)
PATIENCE_NOTE = Bound(
    "pool.patience-note", 2, "seconds without an answer", "aerix pool", "wait", "a note that it waits"
)
LINK_QUEUE = Bound("pool.link-queue", 256, "requests that wait", "PoolLink", "refuse", "refused: pool_busy")
LOST_IN_A_ROW = Bound(
    "pool.lost-in-a-row", 2, "losses without a new token", "PoolContext", "stop", "failed: generation_lost"
)
GENERATION = Bound(
    "pool.generation",
    86_400,
    "seconds without a sign, waiting for its turn included",
    "PoolContext",
    "stop",
    "failed: deadline",
)

# --- the daemon ---------------------------------------------------------------------------------------------------

IDLE = Bound(
    "pool.idle",
    1800,
    "seconds without a connection; 0 never",
    "daemon",
    "stop",
    "done: idle",
    "--idle-timeout",
)
HELLO = Bound("pool.hello", 30, "seconds to the first frame", "Connection", "stop", "refused: no_hello")
OPEN = Bound(
    "pool.open-connections",
    256,
    "connections",
    "Listener",
    "refuse",
    "refused: too_many_connections",
    least=1,
)
UNREAD = Bound(
    "pool.unread",
    65_536,
    "bytes that a client does not read",
    "Connection",
    "wait",
    "the client is not read either",
)
REQUESTS = Bound(
    "pool.open-requests",
    256,
    "unanswered requests of a connection",
    "Connection",
    "refuse",
    "refused: pool_busy",
)
ACCEPT_PAUSE = Bound(
    "pool.accept-pause", 1, "seconds without accepting", "Listener", "wait", "clients wait in the backlog"
)
MEMORY = Bound(
    "pool.memory",
    0,
    "bytes of all members; 0: the machine's limit",
    "Members",
    "refuse",
    "refused: no_memory",
)
MEMBER_LOAD = Bound(
    "pool.member-load", 900, "seconds", "Member", "kill", "refused: load_failed", "pool.start_timeout_secs"
)
MEMBER_RESTARTS = Bound(
    "pool.member-restarts", 3, "restarts a window", "Member", "stop", "refused: member_failed"
)
MEMBER_WINDOW = Bound("pool.member-window", 600, "seconds", "Member", "stop", "refused: member_failed")
MEMBER_DELAY = Bound(
    "pool.member-delay", 1, "seconds before the second restart, doubling", "Member", "wait", "a restart waits"
)
MEMBER_HELD = Bound(
    "pool.member-held", 64, "requests held during a restart", "Member", "refuse", "refused: pool_busy"
)
HELD_PROGRESS = Bound(
    "pool.held-progress",
    10,
    "seconds between signs of life to held requests",
    "Member",
    "wait",
    "the client waits on",
    least=0.001,
)
WORKER_WINDOW = Bound(
    "pool.worker-window",
    256,
    "unanswered calls of a worker",
    "Member",
    "refuse",
    "refused: pool_busy",
    least=1,
)
CANCEL_REACTION = Bound(
    "pool.cancel-reaction", 30, "seconds from Cancel to the end", "Member", "kill", "failed: member_restarted"
)
PERMIT_SLICE = Bound(
    "pool.permit-slice", 2, "seconds of computing while others wait", "Permits", "wait", "the next one's turn"
)
PERMIT_RECALL = Bound(
    "pool.permit-recall",
    30,
    "seconds until a step has given back its threads",
    "Permits",
    "wait",
    "others compute beside it",
)
STATUS_WAIT = Bound(
    "pool.status-wait", 2, "seconds for a worker's numbers", "Member", "cut", "the last known numbers"
)
MEMBERS_WAIT = Bound(
    "pool.members-wait", 3, "seconds for a member to tell", "Members", "cut", "it is shown not to answer"
)
STATUS_ALONE = Bound(
    "pool.status-alone",
    5,
    "seconds for the members to tell",
    "Connection",
    "cut",
    "all are shown not to answer",
)

DAEMON_ROWS = (
    PULL_SILENCE, PULL_LOCK, HUB_TRIES, HUB_PAUSE, HUB_LIST, HUB_PAGES, HUB_REDIRECTS, GPU_LOOK, MODEL_PARTS, MANIFEST, HEADER_BYTES,
    HEADER_ENTRIES, CONTROL, FRAMES, AUTOSTART, AUTOSTART_EVERY, STARTS, STOP_WAIT, START_LOG, CONNECTIONS, PATIENCE_NOTE, LINK_QUEUE, LOST_IN_A_ROW,
    GENERATION, IDLE, HELLO, OPEN, UNREAD, REQUESTS, ACCEPT_PAUSE, MEMORY, MEMBER_LOAD, MEMBER_RESTARTS, MEMBER_WINDOW, MEMBER_DELAY, MEMBER_HELD, HELD_PROGRESS,
    WORKER_WINDOW, CANCEL_REACTION, PERMIT_SLICE, PERMIT_RECALL, STATUS_WAIT, MEMBERS_WAIT,
    STATUS_ALONE,
)  # fmt: skip

# --- the worker ---------------------------------------------------------------------------------------------------

BATCH = Bound(
    "worker.batch",
    512,
    "rows a step; a cancel is seen after one",
    "worker",
    "wait",
    "more steps",
    "models.REF.batch",
    least=1,
)
SEQUENCES = Bound(
    "worker.sequences",
    16,
    "token lists in the cache",
    "worker",
    "cut",
    "the least recently used goes",
    least=1,
)
CHUNK = Bound(
    "prefix.chunk",
    256,
    "rows of one snapshot",
    "worker",
    "cut",
    "more snapshots",
    least=1,
)
IDLE_ROWS = Bound(
    "prefix.idle-rows",
    1024,
    "rows in the cache that nobody uses",
    "worker",
    "cut",
    "they leave it for snapshots where that is faster",
)
DISK = Bound(
    "prefix.disk",
    512 * 1024 * 1024,
    "bytes of pinned heads on disk",
    "worker",
    "cut",
    "the least recently used goes",
)
DISK_HEADER = Bound(
    "prefix.disk-header", 8 * 1024 * 1024, "bytes of a file's header", "worker", "cut", "it is passed over"
)
DISK_QUEUE = Bound("prefix.disk-queue", 4, "heads on their way to the disk", "worker", "cut", "not written")
DISK_QUIET = Bound(
    "prefix.disk-quiet",
    1,
    "seconds without work before heads are written",
    "worker",
    "wait",
    "written at the end",
)
DISK_CLOSE = Bound(
    "prefix.disk-close", 1, "seconds for what is being written", "worker", "cut", "not written"
)
SNAPSHOTS = Bound(
    "prefix.snapshots",
    8 * 1024**3,
    "bytes of snapshots where nothing else is set",
    "worker",
    "cut",
    "the least recently used goes",
    "--context-budget",
)
CONTEXTS = Bound("worker.contexts", 1024, "contexts", "worker", "refuse", "refused: too_many_contexts")
QUEUE = Bound("worker.queue", 256, "generations that wait", "worker", "refuse", "refused: pool_busy")
SEGMENTS = Bound(
    "worker.segments", 4096, "segments of a context", "worker", "refuse", "refused: too_many_segments"
)
SCHEMA = Bound(
    "worker.schema", 1024 * 1024, "bytes of a schema", "worker", "refuse", "refused: bad_constraint"
)
PASSED_OVER = Bound(
    "worker.passed-over", 2, "times that a generation is passed over", "worker", "wait", "it is the next one"
)
PROMPT_SLICE = Bound(
    "worker.prompt-slice", 128, "rows a step of prompts beside replies", "worker", "wait", "more steps"
)
PROMPT_STEP = Bound(
    "worker.prompt-step",
    0.35,
    "seconds of a step beside replies, from 64 rows on",
    "worker",
    "wait",
    "more steps",
)
REPLY_SLICE = Bound("worker.reply-slice", 64, "rows of a reply a step", "worker", "wait", "more steps")
DRAFT = Bound("worker.draft", 8, "tokens drafted a step", "worker", "cut", "drawn one by one", least=0)
SCHEMA_STATES = Bound(
    "worker.schema-states", 50_000, "states of its lexer", "worker", "refuse", "refused: bad_constraint"
)
SCHEMA_FUEL = Bound(
    "worker.schema-fuel", 1_000_000, "units to compile it", "worker", "refuse", "refused: bad_constraint"
)
SCHEMA_ITEMS = Bound(
    "worker.schema-items", 50_000, "items of its parser a step", "worker", "refuse", "refused: bad_constraint"
)
TEXTS = Bound("worker.texts", 64, "texts of a OneOf", "worker", "refuse", "refused: bad_constraint")
SCRIPT = Bound(
    "worker.script", 16 * 1024 * 1024, "bytes of a script", "worker", "refuse", "refused: bad_script"
)
TEMPLATE_TIME = Bound(
    "worker.template-time", 5, "seconds of one rendering", "worker", "kill", "refused: bad_template"
)
TEMPLATE_START = Bound("worker.template-start", 30, "seconds", "worker", "kill", "refused: bad_template")
TEMPLATE_TEXT = Bound(
    "worker.template-text",
    1024 * 1024,
    "characters of one rendering",
    "worker",
    "refuse",
    "refused: bad_template",
)
TEMPLATE_MEMORY = Bound(
    "worker.template-memory",
    512 * 1024 * 1024,
    "bytes of its process",
    "worker",
    "refuse",
    "refused: bad_template",
)
THINKING = Bound(
    "worker.thinking",
    1024,
    "tokens before a turn",
    "worker",
    "cut",
    "the thinking is closed",
    "models.REF.thinking",
)
UNSCORED = Bound("worker.unscored", 8, "tokens of a OneOf that is not scored", "worker", "cut", "no choice")

WORKER_ROWS = (
    BATCH, SEQUENCES, CONTEXTS, QUEUE, PASSED_OVER, PROMPT_SLICE, PROMPT_STEP, REPLY_SLICE, DRAFT, SEGMENTS, SCHEMA, SCHEMA_STATES, SCHEMA_FUEL, SCHEMA_ITEMS, TEXTS, SCRIPT, TEMPLATE_TIME, TEMPLATE_START, TEMPLATE_TEXT, TEMPLATE_MEMORY,
    THINKING, UNSCORED, CHUNK, IDLE_ROWS, DISK, DISK_HEADER, DISK_QUEUE, DISK_QUIET, DISK_CLOSE, SNAPSHOTS,
)  # fmt: skip

# --- models on servers --------------------------------------------------------------------------------------------

REMOTE_SILENCE = Bound(
    "remote.silence", 900, "seconds without a byte of a server", "worker", "kill", "failed: server_silent"
)
REMOTE_CONNECT = Bound(
    "remote.connect", 10, "seconds to connect to a server", "worker", "retry", "failed: server_unreachable"
)
REMOTE_TRIES = Bound(
    "remote.tries",
    8,
    "tries of a turn that has not begun",
    "worker",
    "retry",
    "failed: server_failed",
    least=1,
)
REMOTE_DELAY = Bound(
    "remote.delay", 0.5, "seconds before the second try, doubling", "worker", "wait", "a try waits"
)
REMOTE_WAIT = Bound(
    "remote.wait", 60, "seconds before a try at most", "worker", "cut", "a try waits no longer"
)
REMOTE_ASK = Bound(
    "remote.ask", 10, "seconds for what a server tells of itself", "worker", "cut", "it is not known"
)
REMOTE_LINE = Bound(
    "remote.line", 1024 * 1024, "bytes of a line of an answer", "worker", "kill", "failed: server_garbled"
)
REMOTE_BODY = Bound(
    "remote.body",
    4 * 1024 * 1024,
    "bytes of an answer that is no stream",
    "worker",
    "kill",
    "failed: server_garbled",
)
REMOTE_TEXT = Bound("remote.text", 1024 * 1024, "characters of a turn", "worker", "cut", "stop: length")

REMOTE_ROWS = (
    REMOTE_SILENCE, REMOTE_CONNECT, REMOTE_TRIES, REMOTE_DELAY, REMOTE_WAIT, REMOTE_ASK, REMOTE_LINE, REMOTE_BODY, REMOTE_TEXT,
)  # fmt: skip

ROWS = (*DAEMON_ROWS, *WORKER_ROWS, *REMOTE_ROWS)
