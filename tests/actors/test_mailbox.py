"""Mailboxes: two lanes, a bound, a close that loses nothing, and descriptors beside the messages."""

import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerix.actors.mailbox import Mailbox, MailboxClosed, MailboxFull, Ready, Slot, wait_readable

PATIENCE = 30.0


@pytest.fixture
def box() -> Iterator[Mailbox[object]]:
    box = Mailbox[object](10, lambda ready: ready)
    yield box
    box.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    one.setblocking(False)
    with one, other:
        yield one, other


def all_of(box: Mailbox[object]) -> list[object]:
    return [box.get(0) for _ in range(len(box))]


@pytest.mark.rule("actors.two-lanes")
@given(st.lists(st.tuples(st.booleans(), st.integers())))
def test_the_system_lane_comes_first_and_each_lane_keeps_its_order(puts: list[tuple[bool, int]]) -> None:
    box = Mailbox[object](1000, lambda ready: ready)
    for system, number in puts:
        box.put((system, number), system=system)
    assert all_of(box) == [put for put in puts if put[0]] + [put for put in puts if not put[0]]


@pytest.mark.rule("actors.mailbox-bounded")
def test_a_full_user_lane_refuses_and_the_system_lane_takes_all(box: Mailbox[object]) -> None:
    for n in range(10):
        box.put(n)
    with pytest.raises(MailboxFull):
        box.put(10)
    for n in range(100):
        box.put(n, system=True)
    assert len(box) == 110


@pytest.mark.rule("actors.closed-refuses")
def test_a_closed_mailbox_gives_back_what_waited_and_refuses_both_lanes(box: Mailbox[object]) -> None:
    box.put("later")
    box.put("first", system=True)
    assert box.close() == ["first", "later"]
    for system in (False, True):
        with pytest.raises(MailboxClosed):
            box.put("late", system=system)


@pytest.mark.rule("supervisor.abandoned-refuses")
def test_a_shut_mailbox_gives_back_what_users_sent_and_still_serves_the_system(box: Mailbox[object]) -> None:
    box.put("later")
    box.put("first", system=True)
    assert box.shut() == ["later"]
    with pytest.raises(MailboxClosed):
        box.put("late")
    box.put("second", system=True)
    assert all_of(box) == ["first", "second"]


def test_what_is_taken_while_a_mailbox_is_shut_is_taken_once() -> None:
    for _ in range(200):
        box, taken = Mailbox[int](20, lambda _: -1), list[int]()
        for n in range(20):
            box.put(n)

        def take(box: Mailbox[int] = box, taken: list[int] = taken) -> None:
            while (number := box.get(0)) is not None:
                taken.append(number)

        thread = threading.Thread(target=take)
        thread.start()
        rest = box.shut()
        thread.join()
        assert sorted(taken + rest) == list(range(20))
        box.close()


def test_a_message_wakes_who_waits(box: Mailbox[object]) -> None:
    thread = threading.Thread(target=lambda: box.put("here"))
    thread.start()
    assert box.get(PATIENCE) == "here"
    thread.join()


def test_what_is_put_while_descriptors_are_watched_is_never_slept_through(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """The actor looks and waits without the lock: each message comes just before, in or after its look."""
    count, answered = 2000, threading.Semaphore()
    box = Mailbox[object](count, lambda ready: ready)
    box.watch(pair[0], lambda: None, None)

    def put() -> None:
        for number in range(count):
            answered.acquire()
            box.put(number)

    thread = threading.Thread(target=put)
    thread.start()
    for number in range(count):
        assert box.get(PATIENCE) == number
        answered.release()
    thread.join()
    box.close()


def test_nothing_comes_in_no_time(box: Mailbox[object]) -> None:
    assert box.get(0) is None
    assert box.get(0.001) is None


def test_waiting_for_system_messages_leaves_the_others(box: Mailbox[object]) -> None:
    box.put("user")
    assert box.get(0, system_only=True) is None
    box.put("system", system=True)
    assert box.get(PATIENCE, system_only=True) == "system"
    assert box.get(PATIENCE) == "user"


def test_what_was_set_aside_comes_before_what_came_later(box: Mailbox[object]) -> None:
    box.put("c", system=True)
    box.unget(["a", "b"])
    assert all_of(box) == ["a", "b", "c"]


@pytest.mark.rule("actors.watch-descriptors")
def test_a_descriptor_that_is_ready_runs_its_callback(
    box: Mailbox[object], pair: tuple[socket.socket, socket.socket]
) -> None:
    one, other = pair
    read: list[bytes] = []
    box.watch(one, lambda: read.append(one.recv(10)), None)
    other.send(b"hi")
    ready = box.get(PATIENCE)
    assert isinstance(ready, Ready)
    box.run()
    assert read == [b"hi"]


def test_a_message_wakes_who_waits_for_descriptors(
    box: Mailbox[object], pair: tuple[socket.socket, socket.socket]
) -> None:
    box.watch(pair[0], lambda: None, None)
    thread = threading.Thread(target=lambda: box.put("here"))
    thread.start()
    assert box.get(PATIENCE) == "here"
    thread.join()
    assert box.get(0.001) is None


@pytest.mark.rule("actors.watch-descriptors")
def test_a_flood_of_messages_does_not_hide_a_descriptor(
    box: Mailbox[object], pair: tuple[socket.socket, socket.socket]
) -> None:
    box.watch(pair[0], lambda: None, None)
    pair[1].send(b"x")
    for _ in range(1000):
        box.put("flood", system=True)
        if isinstance(box.get(PATIENCE), Ready):
            return
    raise AssertionError("a thousand messages came before the descriptor")


def test_a_callback_that_another_one_unwatched_in_the_same_round_is_not_run(box: Mailbox[object]) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    ran: list[int] = []

    def callback(at: int) -> None:
        ran.append(at)
        box.watch(pairs[1 - at][0], None, None)

    for at, (one, other) in enumerate(pairs):
        box.watch(one, lambda at=at: callback(at), None)  # type: ignore[misc]
        other.send(b"x")
    ready = box.get(PATIENCE)
    assert isinstance(ready, Ready)
    assert len(box._events) == 2
    box.run()
    assert len(ran) == 1
    for one, other in pairs:
        one.close()
        other.close()


def test_a_descriptor_of_the_same_number_is_not_taken_for_the_one_that_was_ready(
    box: Mailbox[object],
) -> None:
    one, other = socket.socketpair()
    box.watch(one, lambda: None, None)
    other.send(b"x")
    ready = box.get(PATIENCE)
    assert isinstance(ready, Ready)
    number = one.fileno()
    box.watch(one, None, None)
    one.close()
    new = socket.socketpair()
    assert number in [sock.fileno() for sock in new]
    ran: list[str] = []
    box.watch(number, lambda: ran.append("the new one"), None)
    box.run()
    assert ran == []
    for sock in (other, *new):
        sock.close()


def test_a_descriptor_can_be_waited_for_without_an_actor(pair: tuple[socket.socket, socket.socket]) -> None:
    assert not wait_readable(pair[0], 0)
    pair[1].send(b"x")
    assert wait_readable(pair[0], None)
    assert wait_readable(pair[0], -1)


def test_an_answer_wakes_who_waits_for_it() -> None:
    slot = Slot()
    thread = threading.Thread(target=lambda: slot.fill("here", None))
    thread.start()
    assert slot.wait(PATIENCE)
    assert (slot.value, slot.error) == ("here", None)
    thread.join()


def test_an_answer_that_came_before_anybody_waited_is_there_at_once() -> None:
    slot = Slot()
    assert not slot.wait(0)
    slot.fill("here", None)
    assert slot.wait(0)
    assert slot.wait(float("inf"))


def test_a_late_answer_ends_nobody_elses_wait() -> None:
    late, slot = Slot(), Slot()
    assert not late.wait(0.001)
    late.fill("late", None)  # it wakes the poller that the next one waits with
    assert not slot.wait(0.01)
    assert slot._poller is late._poller
    slot.fill("mine", None)
    assert slot.wait(0)
    assert slot.value == "mine"
