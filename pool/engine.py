"""llama.cpp behind the Engine protocol: load, decode batches, copy and cut sequences. The only file of llama_cpp.

Facts and traps: spec/engine-facts.md. Everything here runs in a worker process, which may die by a signal at any call.
"""

import ctypes
import hashlib
import mmap
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np

from aerix.actors import Refused
from aerix.actors.log import log
from aerix.pool.bounds import BATCH, CHUNK, SEQUENCES
from aerix.pool.fit import KV_BYTES, Plan, cells_for, is_known, memory_limit, plan, windows
from aerix.pool.header import read_header
from aerix.pool.ladder import Rung
from aerix.pool.leash import Leash
from aerix.pool.models import parts
from aerix.pool.pace import Pace
from aerix.pool.rows import Aborted, EngineFacts, EngineFailed, OutOfRoom, Row, Scene
from aerix.pool.workerargs import WorkerArgs

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from numpy.typing import NDArray

    from aerix.pool.rows import Logits

_NEUTRAL = "\x01"
_SMALL_BATCH = 32
_WARNING = 3
_ERROR = 4
_SMALLEST = 256
_PIECE_BYTES = 4096
_MANY_BYTES = 1 << 20
_DECODED, _NO_SLOT, _ABORTED = 0, 1, 2
_GPU = 1
_SPARE = SEQUENCES.count
"""A sequence beyond those of the shelf, for rows on their way out and in."""
_KV_TYPES: dict[str, int] = {kind: getattr(llama_cpp, f"GGML_TYPE_{kind.upper()}") for kind in KV_BYTES}
_STRIPS_LEFT, _STRIPS_RIGHT = llama_cpp.LLAMA_TOKEN_ATTR_LSTRIP, llama_cpp.LLAMA_TOKEN_ATTR_RSTRIP


# --- the vocabulary -----------------------------------------------------------------------------------------------


class LlamaVocabulary:
    """A model file's vocabulary. llama.cpp's tokenizer is thread-safe, and nothing here changes after birth."""

    def __init__(self, model: "_Model") -> None:
        self._model = model
        self._vocab = vocab = llama_cpp.llama_model_get_vocab(model.pointer)
        self.size: int = llama_cpp.llama_vocab_n_tokens(vocab)
        self.ends = tuple(t for t in range(self.size) if llama_cpp.llama_vocab_is_eog(vocab, t))
        bos, eos = llama_cpp.llama_vocab_bos(vocab), llama_cpp.llama_vocab_eos(vocab)
        self.bos: int | None = bos if llama_cpp.llama_vocab_get_add_bos(vocab) and bos >= 0 else None
        self._written = self._write_all()
        self._control = [bool(llama_cpp.llama_vocab_is_control(vocab, t)) for t in range(self.size)]
        self.bos_text, self.eos_text = (
            self._written[t].decode("utf-8", "replace") if t >= 0 else "" for t in (bos, eos)
        )
        self.chat_template = model.chat_template
        self.architecture = model.meta("general.architecture")
        self._entries = [b"\xff" * self._is_markup(t) + text for t, text in enumerate(self._written)]
        self.digest = hashlib.sha256(
            b"".join(len(e).to_bytes(4, "big") + e for e in self._entries)
        ).hexdigest()
        self.special = frozenset(t for t in range(self.size) if self._entries[t][:1] == b"\xff") | {
            *self.ends
        }
        """The tokens that no text makes: control tokens, markup, ends of a turn."""
        self._neutral = self._find_neutral()

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """The text's ids. ``special`` tokens are made where their names are asked for, and nowhere else."""
        if not special:
            return self._text(text)
        return self._markup(text) if self._neutral else self._tokenize(text, special=True)

    def piece(self, token: int) -> bytes:
        """A token's bytes; none for a control token."""
        return b"" if self._control[token] else self._written[token]

    def name(self, token: int) -> str:
        """How a token is written in a template."""
        return self._written[token].decode("utf-8", "replace")

    def guide(self) -> "LLTokenizer":
        """The vocabulary for llguidance (a quarter of a second for 49,152 entries, once)."""
        return self._guide

    @cached_property
    def _guide(self) -> "LLTokenizer":
        from llguidance import LLTokenizer

        library = llama_cpp.llama_cpp._lib  # noqa: SLF001  # the matcher wants the C function's address
        make: Any = LLTokenizer
        guide: LLTokenizer = make.from_llamacpp(
            tokens=self._entries,
            vocab_ptr=self._vocab,
            tokenize_fptr=ctypes.cast(library.llama_tokenize, ctypes.c_void_p).value,
            eos_token=list(self.ends),
            slices=None,
        )
        return guide

    def _is_markup(self, token: int) -> bool:
        """Whether an entry is no text: the matcher wants 0xff before those."""
        text = self._written[token]
        if self._control[token] or text[:1] + text[-1:] not in (b"<>", b"[]"):
            return self._control[token]
        return bool(self._attributes(token) & llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED)

    def _attributes(self, token: int) -> int:
        return int(llama_cpp.llama_vocab_get_attr(self._vocab, token))

    def _text(self, text: str) -> list[int]:
        """The ids of a text that names no special token. llama.cpp makes some of them all the same: a name that it
        does so with is cut behind its first character.
        """
        tokens = self._behind_neutral(text)
        made = self.special.intersection(tokens)
        if not made:
            return tokens
        names = "|".join(re.escape(self._written[t].decode("utf-8", "replace")) for t in made)
        cuts = [0, *(found.start() + 1 for found in re.finditer(names, text)), len(text)]
        parts = [text[start:end] for start, end in pairwise(cuts)]
        if text in parts:
            return [token for token in tokens if token not in made]
        return [token for part in parts for token in self._text(part)]

    def _behind_neutral(self, text: str) -> list[int]:
        """Where the vocabulary puts a space before a text, it is put before a neutral character."""
        if not text:
            return []
        tokens = self._tokenize(_NEUTRAL + text if self._neutral else text, special=False)
        lead = len(self._neutral)
        assert tokens[:lead] == self._neutral, "the neutral character merged with the text"
        return tokens[lead:]

    def _markup(self, text: str) -> list[int]:
        """A template's piece, cut at the special tokens: llama.cpp would put a space behind each of them."""
        tokens: list[int] = []
        end = 0
        for found in self._names.finditer(text):
            token = self._by_name[found[0]]
            between = text[end : found.start()]
            tokens += self._behind_neutral(
                between.rstrip() if self._attributes(token) & _STRIPS_LEFT else between
            )
            tokens.append(token)
            end = found.end()
            if self._attributes(token) & _STRIPS_RIGHT:
                end += len(text[end:]) - len(text[end:].lstrip())
        return tokens + self._behind_neutral(text[end:])

    @cached_property
    def _by_name(self) -> dict[str, int]:
        kinds = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
        named = (t for t in range(self.size) if self._written[t] and self._attributes(t) & kinds)
        return {self._written[t].decode("utf-8", "replace"): t for t in named}

    @cached_property
    def _names(self) -> re.Pattern[str]:
        """The longest name goes first, as in llama.cpp."""
        names = sorted(self._by_name, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def _find_neutral(self) -> list[int]:
        plain = self._tokenize("a", special=False)
        adds_space = b"".join(self._written[t] for t in plain) != b"a"
        return self._tokenize(_NEUTRAL, special=False) if adds_space else []

    def _tokenize(self, text: str, *, special: bool) -> list[int]:
        raw = text.encode("utf-8", "replace")
        room = len(raw) + 8
        while True:
            buffer = (ctypes.c_int32 * room)()
            count = llama_cpp.llama_tokenize(self._vocab, raw, len(raw), buffer, room, False, special)
            if count >= 0:
                return buffer[:count]
            room = -count

    def _write_all(self) -> list[bytes]:
        """Each entry's bytes, control tokens by their names."""
        buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        write = llama_cpp.llama_token_to_piece
        counts = (write(self._vocab, t, buffer, _PIECE_BYTES, 0, True) for t in range(self.size))
        return [ctypes.string_at(buffer, max(count, 0)) for count in counts]


# --- the model file -----------------------------------------------------------------------------------------------


class _Model:
    """An open model file. Freed by ``close``."""

    def __init__(
        self, path: str, *, plain_weights: bool = False, vocab_only: bool = False, gpu_layers: int = 0
    ) -> None:
        _LOG.install()
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = vocab_only
        params.use_extra_bufts = not plain_weights
        params.n_gpu_layers = gpu_layers
        self.pointer = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        if not self.pointer:
            raise Refused("load_failed", f"llama.cpp cannot load {path}: {_LOG.last or 'it gives no reason'}")

    @property
    def chat_template(self) -> str | None:
        text = llama_cpp.llama_model_chat_template(self.pointer, None)
        return text.decode("utf-8", "replace") if text else None

    def meta(self, key: str) -> str:
        """A value of the file's header; empty where it has none."""
        buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        found = llama_cpp.llama_model_meta_val_str(self.pointer, key.encode(), buffer, _PIECE_BYTES)
        return buffer.value.decode("utf-8", "replace") if found >= 0 else ""

    def close(self) -> None:
        llama_cpp.llama_model_free(self.pointer)


def load_vocabulary(path: str) -> LlamaVocabulary:
    """Only a model's vocabulary and template, without its weights. Raises Refused ``load_failed``."""
    return LlamaVocabulary(_Model(path, vocab_only=True))


class _Log:
    """llama.cpp's log: warnings and errors go to ours, the last error is kept for the refusal that follows it."""

    def __init__(self) -> None:
        self.last = ""
        self.muted = False
        self._callback = llama_cpp.llama_log_callback(self._take)

    def install(self) -> None:
        llama_cpp.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _take(self, level: int, text: bytes, _data: object) -> None:
        if level not in (_WARNING, _ERROR) or self.muted:
            return
        line = text.decode("utf-8", "replace").strip()
        if level == _ERROR:
            self.last = line
        log("engine.said", level="warning", text=line)


_LOG = _Log()


# --- the engine ---------------------------------------------------------------------------------------------------


class LlamaEngine:
    """One model with one cache of cells that all sequences share. Made for one thread, ``interrupt`` for any."""

    def __init__(self, args: WorkerArgs, rung: Rung, leash: Leash | None = None) -> None:
        """``leash`` says when to compute, and with how many threads. Raises Refused."""
        if 0 < args.window < _SMALLEST:
            raise Refused(
                "bad_flags", f"a window of {args.window} tokens holds no turn: set {_SMALLEST} or more"
            )
        if 0 < args.batch < _SMALL_BATCH:  # llama.cpp aborts where a batch has not a row for each sequence
            raise Refused(
                "bad_flags", f"a batch of {args.batch} rows is too small: set {_SMALL_BATCH} or more"
            )
        self._leash = leash or Leash()
        planned = _plan(args, rung)
        layers = planned.gpu_layers if planned is not None else max(args.gpu_layers, 0)
        self.note = f"{layers} layers on the GPU." if layers else ""
        self._model = _Model(args.model, plain_weights=rung.plain_weights, gpu_layers=layers)
        self._abort = ctypes.create_string_buffer(2)
        self.vocabulary = LlamaVocabulary(self._model)
        threads = 1 if rung.one_thread else args.threads or len(os.sched_getaffinity(0))
        batch = _SMALL_BATCH if rung.small_batch else args.batch or BATCH.count
        self._context, window = self._open(args, planned, threads, batch)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(batch, 0, 1)
        self.facts = EngineFacts(
            window=window,
            cells=llama_cpp.llama_n_ctx(self._context),
            sequences=SEQUENCES.count,
            batch=batch,
            threads=threads,
            engine=f"llama-cpp-python {llama_cpp.__version__}",
            drafts=True,
            chunk=_chunk(llama_cpp.llama_model_n_swa(self._model.pointer)),
        )
        self._threads = threads
        self._pace = Pace()

    def begin(self, sequence: int, scene: Scene) -> None:
        """A model needs no scene."""

    def decode(self, rows: Sequence[Row]) -> "list[Logits]":
        """See Engine. Raises EngineFailed where llama.cpp gives up."""
        assert 0 < len(rows) <= self.facts.batch
        self._fill(rows)
        with self._leash as permitted:
            code = self._compute(min(permitted or self.facts.threads, self.facts.threads))
        if code == _NO_SLOT:
            raise OutOfRoom
        if code == _ABORTED:
            raise Aborted
        if code != _DECODED:
            raise EngineFailed(f"llama_decode returned {code}: {_LOG.last}")
        return [self._logits(i) for i, row in enumerate(rows) if row.logits]

    def copy(self, source: int, target: int, upto: int) -> None:
        """Shares the cells; under a millisecond whatever the length."""
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, 0, upto)

    def cut(self, sequence: int, at: int) -> bool:
        """See Engine. A cache that keeps only what sliding windows still see may lack what came before the cut."""
        inside = 0 < at <= llama_cpp.llama_memory_seq_pos_max(self._memory, sequence)
        if self._windowed and inside:
            return False
        return bool(llama_cpp.llama_memory_seq_rm(self._memory, sequence, at, -1))

    def save(self, sequence: int, start: int, end: int) -> memoryview | None:
        """See Engine. A stretch is what a sequence holds that shares only these rows."""
        source = _SPARE if self.facts.cuttable else sequence
        if self.facts.cuttable:
            llama_cpp.llama_memory_seq_cp(self._memory, sequence, source, start, end)
        data = _fresh(llama_cpp.llama_state_seq_get_size(self._context, source))
        written = llama_cpp.llama_state_seq_get_data(self._context, _bytes_of(data), data.size, source)
        if self.facts.cuttable:
            llama_cpp.llama_memory_seq_rm(self._memory, source, -1, -1)
        return data.data if written == data.size else None

    def load(self, sequence: int, data: memoryview, start: int, end: int) -> bool:
        """See Engine."""
        target = _SPARE if self.facts.cuttable else sequence
        raw = np.frombuffer(data, dtype=np.uint8)
        size = llama_cpp.llama_state_seq_set_data(self._context, _bytes_of(raw), raw.size, target)
        taken = bool(size == raw.size)
        if not self.facts.cuttable:
            return taken
        if taken:
            llama_cpp.llama_memory_seq_cp(self._memory, target, sequence, start, end)
        llama_cpp.llama_memory_seq_rm(self._memory, target, -1, -1)
        return taken

    def stuck(self, sequence: int, allowed: list[bytes]) -> Refused:
        """Logits that are no numbers: a damaged file, or arithmetic that broke."""
        return Refused(
            "model_broken", "The model's output is not a number at this point; check its file's hash."
        )

    def interrupt(self) -> None:
        """See Engine."""
        _LOG.muted = True
        self._abort[0] = b"\x01"
        self._leash.interrupt()

    def resume(self) -> None:
        """See Engine."""
        self._abort[0] = b"\x00"
        self._leash.resume()
        _LOG.muted = False

    def close(self) -> None:
        """See Engine."""
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        self._model.close()

    # --- private --------------------------------------------------------------------------------------------------

    def _open(self, args: WorkerArgs, planned: Plan | None, threads: int, batch: int) -> tuple[int, int]:
        """The context as planned, or the largest that the system gives where the file does not tell; and its window."""
        trained = llama_cpp.llama_model_n_ctx_train(self._model.pointer)
        shapes = [(planned.window, planned.cells)] if planned is not None else untold(args, trained)
        for window, cells in shapes:
            params = self._params(args, cells, threads, batch)
            self._windowed = llama_cpp.llama_model_n_swa(self._model.pointer) > 0 and not params.swa_full
            context = llama_cpp.llama_init_from_model(self._model.pointer, params)
            if context:
                return context, min(window, llama_cpp.llama_n_ctx_seq(context))
        raise Refused(
            "no_memory",
            f"{args.model} has no room for {shapes[-1][1]:,} cells: {_LOG.last or 'llama.cpp gives no reason'}. Set a "
            "smaller `window` for this model, or unload another one.",
        )

    def _params(
        self, args: WorkerArgs, cells: int, threads: int, batch: int
    ) -> llama_cpp.llama_context_params:
        params: llama_cpp.llama_context_params = llama_cpp.llama_context_default_params()
        params.n_ctx = cells
        params.type_k = params.type_v = _KV_TYPES[args.kv_type]
        params.n_batch = params.n_ubatch = batch
        params.n_seq_max = SEQUENCES.count + 1
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True
        # The callback is asked between any two operations, about 1,000 times a token. C's strlen is false on an empty
        # string and true on another: one byte, set from any thread, ends the decode, and no Python runs in it.
        strlen = ctypes.CDLL(None).strlen
        params.abort_callback = ctypes.cast(strlen, llama_cpp.ggml_abort_callback)
        params.abort_callback_data = ctypes.c_void_p(ctypes.addressof(self._abort))
        return params

    def _compute(self, most: int) -> int:
        """Decode the batch. What a GPU computes says nothing about how busy the cores are."""
        if self.note:
            self._compute_with(most)
            return int(llama_cpp.llama_decode(self._context, self._batch))
        self._compute_with(self._pace.threads(most))
        began, spent = time.perf_counter(), time.process_time()
        code = int(llama_cpp.llama_decode(self._context, self._batch))
        self._pace.took(most, time.perf_counter() - began, time.process_time() - spent)
        return code

    def _compute_with(self, threads: int) -> None:
        if threads != self._threads:
            llama_cpp.llama_set_n_threads(self._context, threads, threads)
            self._threads = threads

    def _fill(self, rows: Sequence[Row]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, row in enumerate(rows):
            batch.token[i] = row.token
            batch.pos[i] = row.position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = row.sequence
            batch.logits[i] = row.logits

    def _logits(self, index: int) -> "Logits":
        pointer = llama_cpp.llama_get_logits_ith(self._context, index)
        address = ctypes.addressof(pointer.contents)
        memory: Any = (ctypes.c_float * self.vocabulary.size).from_address(address)  # as a buffer, in 2 µs
        logits: Logits = np.ndarray(self.vocabulary.size, np.float32, memory)
        return logits


def _fresh(size: int) -> "NDArray[np.uint8]":
    """Memory of so many bytes; where they are many, all of it there at once: page by page it takes four times as long."""
    if size < _MANY_BYTES:
        return np.empty(size, dtype=np.uint8)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=np.uint8)


def _bytes_of(array: "NDArray[np.uint8]") -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def _chunk(sliding_window: int) -> int:
    """Rows of a snapshot: llama.cpp leaves out of one what the sliding window does not see from its last row."""
    chunk = CHUNK.count
    while sliding_window and chunk > max(sliding_window // 2, 1):
        chunk //= 2
    return chunk


def untold(args: WorkerArgs, trained: int) -> list[tuple[int, int]]:
    """The windows and cells to try for a model whose file does not tell what they take, largest first."""
    tried = [args.window] if args.window else windows(trained)
    cells = [args.cells or cells_for(window, args.max_batch) for window in tried]
    return [(min(window, count), count) for window, count in zip(tried, cells, strict=True)]


def _plan(args: WorkerArgs, rung: Rung) -> Plan | None:
    """How the model is loaded into the room there is; None where its file does not tell. Raises Refused ``no_memory``."""
    path = Path(args.model)
    header = read_header(path)
    if not is_known(header):
        return None
    weights = sum(part.stat().st_size for part in parts(path))
    if args.gpu_layers > 0:
        args = replace(args, gpu_layers=int(args.gpu_layers * rung.gpu_share))
    gpu = int(gpu_memory() * rung.gpu_share)
    return plan(path.name, header, weights, args, args.room or memory_limit(), gpu)


def gpu_memory() -> int:
    """Bytes that the machine's GPUs have free; those that share its own memory do not count."""
    if not llama_cpp.llama_supports_gpu_offload():
        return 0
    library: Any = llama_cpp.llama_cpp._lib  # noqa: SLF001  # ggml's functions come with it, and have no binding
    library.ggml_backend_dev_count.restype = ctypes.c_size_t
    library.ggml_backend_dev_get.restype = ctypes.c_void_p
    free, whole = ctypes.c_size_t(), ctypes.c_size_t()
    total = 0
    for index in range(library.ggml_backend_dev_count()):
        device = ctypes.c_void_p(library.ggml_backend_dev_get(ctypes.c_size_t(index)))
        if library.ggml_backend_dev_type(device) == _GPU:
            library.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(whole))
            total += free.value
    return total
