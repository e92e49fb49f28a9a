"""What a child's frames and its death come to at their edges, with real processes."""

import signal

import pytest

from aerix.actors import Exit
from aerix.actors.bounds import FRAME
from aerix.actors.wire import pack
from tests.actors.bodies import CODEC, PATIENCE, Blob, Do, Echo, refusal
from tests.actors.test_process import Owner, exit_of, owning


@pytest.mark.rule("process.last-words")
@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGSEGV, "SIGSEGV"), (signal.SIGABRT, "SIGABRT"), (signal.SIGRTMIN + 1, "35")],
)
def test_the_signal_that_a_child_died_of_has_its_name(number: int, name: str) -> None:
    with owning(Owner()) as (ref, _):
        assert refusal(ref, Do("die", str(int(number)))).code == "worker_died"
        assert exit_of(ref) == Exit("lost", f"signal {name}")


@pytest.mark.rule("wire.frame-limit")
def test_the_largest_frame_goes_to_a_child_and_one_byte_more_is_refused() -> None:
    call = {"t": "call", "id": 1, "m": CODEC.encode(Blob(b"x" * 70_000))}
    room = FRAME.count - (len(pack(call)) - 4 - 70_000)
    with owning(Owner()) as (ref, _):
        assert ref.ask(Blob(b"x" * room), PATIENCE) == Blob(room)
        assert refusal(ref, Blob(b"x" * (room + 1))).code == "frame_too_large"
        assert ref.ask(Echo("on it goes"), PATIENCE) == Echo("on it goes")


@pytest.mark.rule("wire.cut-anywhere")
def test_an_answer_that_comes_byte_by_byte_is_an_answer() -> None:
    with owning(Owner()) as (ref, _):
        assert ref.ask(Do("dribble", "drop by drop"), PATIENCE) == Echo("drop by drop")


@pytest.mark.rule("wire.cut-anywhere")
@pytest.mark.parametrize("length", [1, 4, 5, 20])
def test_an_answer_that_death_cut_off_is_none(length: int) -> None:
    with owning(Owner()) as (ref, _):
        assert refusal(ref, Do("cut", str(length))).code == "worker_died"
        assert exit_of(ref) == Exit("lost", "exit 9")
