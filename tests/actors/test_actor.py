"""Actors: what an ask, a request and a wait come to, whatever the actor does meanwhile; and how actors end."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from aerix.actors import (
    Actor,
    Answer,
    Call,
    CallCancelled,
    Cancel,
    Cancelled,
    DeadlineExceeded,
    Down,
    Exit,
    GivenUp,
    Gone,
    Ref,
    Refused,
    Reply,
    Started,
    StartFailed,
    Stop,
    Tick,
    on,
    start,
    whereis,
)
from tests.actors.bodies import PATIENCE, Asker, Gate, Ping, Puppet, Run, refusal, running


def raises(error: BaseException) -> Callable[[Actor], None]:
    def do(_: Actor) -> None:
        raise error

    return do


class Monitor(Actor):
    """Keeps what it is told about others."""

    def __init__(self) -> None:
        self.told: list[Started | Down] = []
        self.changed = threading.Condition()

    @on(Down)
    def _down(self, message: Down) -> None:
        self._keep(message)

    @on(Started)
    def _started(self, message: Started) -> None:
        self._keep(message)

    def _keep(self, message: Started | Down) -> None:
        with self.changed:
            self.told.append(message)
            self.changed.notify_all()

    def until(self, count: int) -> list[Started | Down]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.told) >= count, PATIENCE)
            return self.told


class Keeper(Actor):
    """Takes every Ping's answer for later, and hands on what it is told to hand on."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.cancelled: list[int] = []
        self.heard = threading.Event()

    @on(Ping)
    def _ping(self, _: Ping) -> str:
        self.answers.append(self.later())
        return "not the answer"

    @on(Run)
    def _run(self, message: Run) -> object:
        return message.do(self)

    @on(CallCancelled)
    def _cancelled(self, message: CallCancelled) -> None:
        self.cancelled.append(message.token)
        self.heard.set()


# --- asks ---------------------------------------------------------------------------------------------------------


def test_an_ask_is_answered_with_what_the_handler_returns() -> None:
    with running(Puppet()) as ref:
        assert ref.ask(Ping(7), PATIENCE) == 7


@pytest.mark.rule("actors.one-at-a-time")
def test_messages_are_handled_in_order_and_in_one_thread() -> None:
    puppet = Puppet()
    with running(puppet) as ref:
        for n in range(100):
            ref.tell(Ping(n))
        thread = ref.ask(Run(lambda _: threading.current_thread()), PATIENCE)
    assert puppet.came == [Ping(n) for n in range(100)]
    assert (thread.name, thread is not threading.current_thread()) == ("actor", True)


@pytest.mark.rule("actors.unknown-refused")
def test_a_message_without_a_handler_is_refused_and_the_actor_lives_on() -> None:
    with running(Puppet()) as ref:
        assert refusal(ref, "what").code == "unknown_message"
        assert str(refusal(ref, "what")) == "actor takes no str"
        assert ref.ask(Ping(1), PATIENCE) == 1


@pytest.mark.rule("actors.refused-is-an-answer")
def test_a_refusal_is_an_answer_and_no_crash() -> None:
    with running(Puppet()) as ref:
        refused = refusal(ref, Run(raises(Refused("not_now", "come back tomorrow"))))
        assert (refused.code, refused.message) == ("not_now", "come back tomorrow")
        ref.tell(Run(raises(Refused("not_now", "nobody asked"))))
        assert ref.ask(Ping(1), PATIENCE) == 1


@pytest.mark.rule("actors.crash-ends")
@pytest.mark.rule("actors.base-exception-contained")
@pytest.mark.parametrize(
    "error", [ValueError("no luck"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()]
)
@pytest.mark.parametrize("asked", [True, False])
def test_an_exception_ends_this_actor_only(error: BaseException, asked: bool) -> None:
    puppet = Puppet()
    with running(Puppet(), "other") as other:
        ref = start(puppet, "actor")
        if asked:
            refused = refusal(ref, Run(raises(error)))
            assert refused.code == "crashed"
            assert type(error).__name__ in refused.message
        else:
            ref.tell(Run(raises(error)))
        exit = ref.join(PATIENCE)
        assert exit is not None
        assert (exit.kind, exit.abnormal) == ("crash", True)
        assert type(error).__name__ in exit.detail
        assert puppet.exits == [exit]
        assert other.ask(Ping(1), PATIENCE) == 1


@pytest.mark.rule("actors.crash-ends")
def test_an_exception_that_cannot_be_printed_is_still_answered() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    ref = start(Puppet(), "actor")
    assert refusal(ref, Run(raises(Unprintable()))).code == "crashed"
    assert ref.join(PATIENCE)


@pytest.mark.rule("actors.ask-deadline")
def test_an_ask_that_takes_too_long_is_a_named_error_and_the_late_answer_goes_nowhere() -> None:
    gate = Gate()
    with running(Puppet()) as ref:
        with pytest.raises(DeadlineExceeded, match=r"actor did not answer Run in 0\.01 s"):
            ref.ask(Run(gate), 0.01)
        gate.free.set()
        assert ref.ask(Ping(1), PATIENCE) == 1


@pytest.mark.rule("actors.ask-deadline")
def test_an_ask_that_takes_too_long_is_cancelled() -> None:
    keeper = Keeper()
    with running(keeper) as ref:
        with pytest.raises(DeadlineExceeded):
            ref.ask(Ping(), 0.01)
        assert keeper.heard.wait(PATIENCE)
        assert keeper.cancelled == [keeper.answers[0].token]
        assert keeper.answers[0].cancelled


@pytest.mark.rule("actors.mailbox-bounded")
def test_a_full_mailbox_refuses_by_name_and_still_takes_a_stop() -> None:
    class Small(Puppet):
        mailbox_limit = 2

    gate = Gate()
    ref = start(Small(), "actor")
    gate.hold(ref)
    for n in range(2):
        ref.tell(Ping(n))
    with pytest.raises(Refused, match="actor has 2 messages waiting and takes no more") as refused:
        ref.tell(Ping(3))
    assert refused.value.code == "mailbox_full"
    ref.stop()
    gate.free.set()
    assert ref.join(PATIENCE) == Exit("shutdown", "shutdown")


# --- ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.rule("actors.two-lanes")
@pytest.mark.rule("actors.waiting-messages-told")
@pytest.mark.rule("actors.closed-refuses")
def test_a_stop_overtakes_queued_messages_which_are_then_refused() -> None:
    puppet, asker, gate = Puppet(), Asker(), Gate()
    with running(asker, "asker"):
        ref = start(puppet, "actor")
        gate.hold(ref)
        calls = [asker.sends(ref, Ping(n)) for n in range(20)]
        ref.stop("enough")
        gate.free.set()
        assert ref.join(PATIENCE) == Exit("shutdown", "enough")
        asker.until(lambda a: len(a.replies) == 20)
        assert puppet.came == []
        assert {call.error.code for call in calls if call.error} == {"gone"}
        with pytest.raises(Gone, match="actor has ended"):
            ref.ask(Ping(), PATIENCE)
        with pytest.raises(Gone):
            ref.tell(Ping())
        ref.stop()  # nobody is there, and that is fine


@pytest.mark.rule("actors.exit-reasons")
def test_an_actor_that_ends_itself_says_how() -> None:
    ref = start(Puppet(), "actor")
    ref.ask(Run(lambda me: me.stop("normal", "all done")), PATIENCE)
    assert ref.join(PATIENCE) == Exit("normal", "all done")
    assert [Exit(kind).abnormal for kind in ("normal", "shutdown", "crash", "killed", "lost")] == [
        False, False, True, True, True,
    ]  # fmt: skip


@pytest.mark.rule("supervisor.reason-upward")
def test_whoever_asks_one_that_failed_is_told_what_of() -> None:
    keeper, asker = Keeper(), Asker()
    with running(asker, "asker"):
        ref = start(keeper, "keeper")
        asker.sends(ref, Ping())
        ref.tell(Run(raises(OSError("no disk"))))
        asker.until(lambda a: a.replies)
        assert ref.join(PATIENCE)
        assert str(asker.replies[0].error) == "keeper has ended: OSError: no disk"
        assert str(refusal(ref, Ping())) == "keeper has ended: OSError: no disk"


def test_a_cancel_ends_an_actor_that_waits_for_nothing() -> None:
    ref = start(Puppet(), "actor")
    ref.cancel("not wanted")
    assert ref.join(PATIENCE) == Exit("shutdown", "not wanted")


@pytest.mark.rule("actors.start-synchronous")
def test_an_actor_is_up_when_start_returns() -> None:
    class Slow(Puppet):
        ready = False

        def setup(self) -> None:
            self.ready = True

    slow = Slow()
    with running(slow) as ref:
        assert slow.ready
        assert (ref.up, ref.alive, repr(ref)) == (True, True, f"<actor#{ref.incarnation}>")
    assert not ref.alive


@pytest.mark.rule("actors.start-synchronous")
def test_a_set_up_that_raises_is_a_start_error() -> None:
    class Broken(Puppet):
        def setup(self) -> None:
            raise OSError("no disk")

    broken, monitor = Broken(), Monitor()
    with running(monitor, "monitor") as told:
        with pytest.raises(StartFailed, match="actor did not start: OSError: no disk"):
            start(broken, "actor", told)
        (down,) = monitor.until(1)
    assert isinstance(down, Down)
    assert (down.name, down.started, down.exit.kind) == ("actor", False, "crash")
    assert broken.exits == [down.exit]


def test_a_set_up_that_refuses_is_raised_as_that() -> None:
    class Locked(Puppet):
        def setup(self) -> None:
            raise Refused("locked", "somebody else has it")

    with pytest.raises(Refused, match="somebody else has it"):
        start(Locked(), "actor")


@pytest.mark.rule("actors.start-synchronous")
def test_a_set_up_that_hangs_is_given_up_and_stopped_when_it_comes_back() -> None:
    free = threading.Event()

    class Hanging(Puppet):
        def setup(self) -> None:
            assert free.wait(PATIENCE)

    hanging = Hanging()
    with pytest.raises(StartFailed, match=r"actor was not up in 0\.01 s"):
        start(hanging, "actor", start_timeout_s=0.01)
    assert whereis("actor") is None, "one that was given up must not hold its name"
    free.set()
    assert hanging.ref.join(PATIENCE) == Exit("shutdown", "start timeout")


@pytest.mark.rule("actors.names-unique")
def test_a_name_that_a_living_actor_holds_is_refused_and_free_after_its_end() -> None:
    first = start(Puppet(), "actor")
    with pytest.raises(Refused, match="an actor named actor lives already") as refused:
        start(Puppet(), "actor")
    assert refused.value.code == "name_taken"
    assert whereis("actor") is first
    first.stop()
    assert first.join(PATIENCE)
    second = start(Puppet(), "actor")
    assert whereis("actor") is second
    second.stop()
    assert second.join(PATIENCE)


def test_an_actor_may_say_itself_when_it_is_up() -> None:
    class Later(Puppet):
        starts_later = True

        def setup(self) -> None:
            self.after(0, "now")

        @on(Tick)
        def _tick(self, _: Tick) -> None:
            assert not self.ref.started.is_set()
            self.declare_started()
            self.declare_started()

    monitor = Monitor()
    with running(monitor, "monitor") as told:
        with running(Later(), monitor=told):
            pass
        assert [type(note) for note in monitor.until(2)] == [Started, Down]


def test_one_that_ends_before_it_was_up_did_not_start() -> None:
    class Never(Puppet):
        starts_later = True

        def setup(self) -> None:
            self.stop("normal")

    with pytest.raises(StartFailed, match="actor did not start: normal"):
        start(Never(), "actor")


def test_a_system_without_threads_is_a_start_error() -> None:
    program = (
        "import threading; from aerix.actors import Actor, StartFailed, start, whereis\n"
        "threading.stack_size(1 << 46)\n"
        "try: start(Actor(), 'actor')\n"
        "except StartFailed as error: print(error, whereis('actor'))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "actor did not start: no thread could be started for it: can't start new thread None\n"


@pytest.mark.rule("actors.gone-means-cleaned")
def test_an_actor_is_gone_only_after_its_teardown() -> None:
    cleaning, free = threading.Event(), threading.Event()

    class Careful(Puppet):
        def teardown(self, exit: Exit) -> None:
            cleaning.set()
            assert free.wait(PATIENCE)

    ref = start(Careful(), "actor")
    ref.stop()
    assert cleaning.wait(PATIENCE)
    assert ref.alive
    assert ref.join(0) is None
    assert whereis("actor") is None
    with pytest.raises(Gone):
        ref.tell(Ping())
    free.set()
    assert ref.join(PATIENCE) == Exit("shutdown", "shutdown")


def test_a_teardown_that_raises_is_a_crash() -> None:
    class Careless(Puppet):
        def teardown(self, exit: Exit) -> None:
            raise SystemExit("oh")

    ref = start(Careless(), "actor")
    ref.stop()
    exit = ref.join(PATIENCE)
    assert exit is not None
    assert (exit.kind, exit.detail.strip().rpartition("\n")[2]) == ("crash", "SystemExit: oh")


@pytest.mark.rule("actors.down")
@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (lambda ref: ref.stop(), "shutdown"),
        (lambda ref: ref.tell(Run(lambda me: me.stop("lost", "x"))), "lost"),
        (lambda ref: ref.tell(Run(raises(SystemExit()))), "crash"),
    ],
)
def test_a_monitor_is_told_once_of_the_beginning_and_of_the_end(
    end: Callable[[Ref], None], kind: str
) -> None:
    monitor = Monitor()
    with running(monitor, "monitor") as told:
        ref = start(Puppet(), "actor", told)
        end(ref)
        exit = ref.join(PATIENCE)
        assert exit is not None
        monitor.until(2)
    assert exit.kind == kind
    assert monitor.told == [Started("actor", ref.incarnation), Down("actor", ref.incarnation, exit)]


@pytest.mark.rule("actors.names")
@pytest.mark.rule("actors.stale-down")
def test_a_name_leads_to_the_incarnation_that_lives_now() -> None:
    with running(Puppet()) as first:
        assert whereis("actor") is first
    assert whereis("actor") is None
    with running(Puppet()) as second:
        assert whereis("actor") is second
        assert second.incarnation > first.incarnation
        with pytest.raises(Gone):
            first.tell(Ping())


def test_the_late_end_of_one_that_was_given_up_leaves_the_name_to_the_newer() -> None:
    older = start(Puppet(), "actor")
    older.leave()
    with running(Puppet()) as newer:
        older.stop()
        assert older.join(PATIENCE)
        assert whereis("actor") is newer


# --- answers that come later --------------------------------------------------------------------------------------


@pytest.mark.rule("actors.later-answer")
@pytest.mark.rule("actors.pieces")
def test_an_answer_that_was_taken_over_is_given_in_pieces_and_once() -> None:
    keeper, asker = Keeper(), Asker()
    with running(keeper) as ref, running(asker, "asker"):
        call = asker.sends(ref, Ping())
        ref.ask(Run(lambda me: [me.answers[0].piece(n) for n in range(3)]), PATIENCE)
        keeper.answers[0].reply("the answer")
        keeper.answers[0].piece("late")
        keeper.answers[0].refuse(Refused("late", "late"))
        asker.until(lambda a: a.replies)
        asker.ref.ask(Run(lambda _: None), PATIENCE)
    assert asker.pieces == [0, 1, 2]
    assert (len(asker.replies), call.result()) == (1, "the answer")


@pytest.mark.rule("actors.later-answer")
def test_an_answer_is_handed_on_to_another_actor() -> None:
    class Clerk(Actor):
        @on(Ping)
        def _ping(self, message: Ping) -> None:
            ref = whereis("boss")
            if ref is None:
                raise Refused("no_boss", "there is none")
            self.forward(ref, message)

    with running(Clerk(), "clerk") as clerk:
        boss = start(Puppet(), "boss")
        assert clerk.ask(Ping(5), PATIENCE) == 5
        boss.stop()
        assert boss.join(PATIENCE)
        assert refusal(clerk, Ping(5)).code == "no_boss"


@pytest.mark.rule("actors.later-answer")
def test_an_answer_that_could_not_be_handed_on_is_still_held() -> None:
    dead = start(Puppet(), "dead")
    dead.stop()
    assert dead.join(PATIENCE)

    class Clerk(Keeper):
        @on(Ping)
        def _ping(self, message: Ping) -> str:
            with pytest.raises(Gone):
                self.forward(dead, message)
            self.answers.append(self.later())
            return ""

    clerk = Clerk()
    with running(clerk) as ref, running(Asker(), "asker") as asking:
        call: Call = asking.ask(Run(lambda me: me.request(ref, Ping())), PATIENCE)
        ref.ask(Run(lambda _: None), PATIENCE)
        call.cancel()
        assert clerk.heard.wait(PATIENCE)
        clerk.answers[0].reply()


@pytest.mark.rule("actors.no-lost-ask")
@pytest.mark.parametrize("end", ["crash", "stop", "crash at once"])
def test_answers_that_an_actor_still_owes_when_it_ends_are_refused(end: str) -> None:
    def at_once(me: Actor) -> None:
        me.later()
        raise ValueError

    keeper, asker = Keeper(), Asker()
    with running(asker, "asker"):
        ref = start(keeper, "keeper")
        if end == "crash at once":
            asker.sends(ref, Run(at_once))
        else:
            asker.sends(ref, Ping())
            ref.tell(Run(raises(ValueError()) if end == "crash" else lambda me: me.stop()))
        asker.until(lambda a: a.replies)
        assert ref.join(PATIENCE)
    assert [reply.error and reply.error.code for reply in asker.replies] == ["gone"]


@pytest.mark.rule("actors.foreign-future")
def test_an_answer_that_somebody_else_gave_does_not_disturb_the_end() -> None:
    keeper = Keeper()
    ref = start(keeper, "keeper")

    def give() -> None:
        while not keeper.answers:
            pass
        keeper.answers[0].reply("from outside")

    thread = threading.Thread(target=give)
    thread.start()
    assert ref.ask(Ping(), PATIENCE) == "from outside"
    thread.join()
    keeper.answers[0]._done = False  # as if both had looked before either gave it
    keeper.answers[0].reply("again")
    ref.stop()
    assert ref.join(PATIENCE) == Exit("shutdown", "shutdown")


# --- cancelled calls ----------------------------------------------------------------------------------------------


@pytest.mark.rule("actors.call-cancelled")
def test_a_cancelled_call_that_still_waits_is_not_begun() -> None:
    puppet, asker, gate = Puppet(), Asker(), Gate()
    with running(puppet) as ref, running(asker, "asker"):
        gate.hold(ref)
        call = asker.sends(ref, Ping())
        call.cancel()
        gate.free.set()
        asker.until(lambda a: a.replies)
    assert puppet.came == []
    assert call.error is not None
    assert call.error.code == "cancelled"


@pytest.mark.rule("actors.call-cancelled")
def test_a_cancelled_call_that_runs_is_told_to_whoever_holds_it_and_still_answered() -> None:
    keeper, asker = Keeper(), Asker()
    with running(keeper) as ref, running(asker, "asker"):
        call = asker.sends(ref, Ping())
        ref.ask(Run(lambda _: None), PATIENCE)
        call.cancel()
        assert keeper.heard.wait(PATIENCE)
        assert keeper.cancelled == [call.token] == [keeper.answers[0].token]
        keeper.answers[0].reply("half of it")
        asker.until(lambda a: a.replies)
        call.cancel()  # answered: nobody is told
        ref.ask(Run(lambda _: None), PATIENCE)
    assert (call.result(), len(keeper.cancelled)) == ("half of it", 1)


@pytest.mark.rule("actors.call-cancelled")
def test_a_cancelled_call_that_was_handed_on_is_told_to_the_last_holder() -> None:
    first, last, asker = Keeper(), Keeper(), Asker()
    with running(first, "first") as one, running(last, "last") as two, running(asker, "asker"):
        call = asker.sends(one, Run(lambda me: me.forward(two, Ping())))
        for ref in (one, two):
            ref.ask(Run(lambda _: None), PATIENCE)
        call.cancel()
        assert last.heard.wait(PATIENCE)
        last.answers[0].refuse(Refused("cancelled", "as you like"))
        asker.until(lambda a: a.replies)
    assert (first.cancelled, last.cancelled) == ([], [call.token])


@pytest.mark.rule("actors.call-cancelled")
def test_a_call_that_is_cancelled_while_it_is_handed_on_is_not_begun() -> None:
    """The canceller saw the first holder; by the time it is told, the message lies with the second."""
    puppet, asker, gate, at_first = Puppet(), Asker(), Gate(), Gate()
    with running(Puppet(), "first") as one, running(puppet, "last") as two, running(asker, "asker"):
        gate.hold(two)

        def hand_on(me: Actor) -> None:
            at_first(me)
            me.forward(two, Ping())

        call = asker.sends(one, Run(hand_on))
        assert at_first.begun.wait(PATIENCE)
        call.cancel()
        at_first.free.set()
        one.ask(Run(lambda _: None), PATIENCE)
        gate.free.set()
        asker.until(lambda a: a.replies)
    assert puppet.came == []
    assert call.error is not None
    assert call.error.code == "cancelled"


@pytest.mark.rule("actors.wait-given-up")
@pytest.mark.parametrize("how", ["cancel", "death", "deadline"])
def test_a_handler_that_waits_hears_that_its_answer_is_not_wanted_and_its_actor_lives_on(how: str) -> None:
    keeper, asker, puppet = Keeper(), Asker(), Puppet()
    begun, heard = threading.Event(), threading.Event()

    def use(me: Actor) -> None:
        call = me.request(keeper.ref, Ping())
        begun.set()
        try:
            me.wait(call, deadline_s=PATIENCE)
        except GivenUp:
            call.cancel()
            heard.set()
            raise

    with running(keeper, "keeper"), running(puppet, "puppet") as ref:
        asking = start(asker, "asker")
        if how == "deadline":
            with pytest.raises(DeadlineExceeded):
                ref.ask(Run(use), 0.01)
        else:
            call = asker.sends(ref, Run(use))
            assert begun.wait(PATIENCE)
            call.cancel() if how == "cancel" else asking.stop()
        assert heard.wait(PATIENCE)
        assert keeper.heard.wait(PATIENCE)
        if how == "cancel":
            asker.until(lambda a: a.replies)
            assert call.error is not None
            assert (call.error.code, call.error.message) == ("cancelled", "puppet: whoever asked gave up")
        assert ref.ask(Ping(1), PATIENCE) == 1
        asking.stop()
        assert asking.join(PATIENCE)


@pytest.mark.rule("actors.wait-given-up")
def test_a_wait_does_not_end_because_another_answer_is_not_wanted() -> None:
    keeper, asker = Keeper(), Asker()
    waiter = Keeper()

    def use(me: Actor) -> object:
        return me.wait(me.request(keeper.ref, Ping()), deadline_s=PATIENCE).result()

    with running(keeper, "keeper"), running(waiter, "waiter") as ref, running(asker, "asker"):
        other = asker.sends(ref, Ping())
        call = asker.sends(ref, Run(use))
        until(lambda: keeper.answers)
        other.cancel()
        keeper.ref.tell(Run(lambda k: k.answers[0].reply("whole")))
        asker.until(lambda a: a.replies)
        assert call.result() == "whole"
        assert waiter.heard.wait(PATIENCE)
        waiter.answers[0].reply()


def until(test: Callable[[], Any]) -> None:
    while not test():
        pass


@pytest.mark.rule("actors.call-cancelled")
def test_a_call_that_is_cancelled_while_it_cannot_be_handed_on_is_told_to_whoever_still_holds_it() -> None:
    class Slow(Ref):
        """Somebody to whom a message takes long, and in vain."""

        def _put(self, envelope: Any) -> None:
            gate(None)  # type: ignore[arg-type]
            raise Gone(self.name)

    gate, first, asker = Gate(), Keeper(), Asker()

    def hand_on(me: Keeper) -> None:
        with pytest.raises(Gone):
            away.send(Ping(), me.answers[0])

    with running(first, "first") as one, running(asker, "asker"):
        away = Slow("away", 0, one._mailbox)
        call = asker.sends(one, Ping())
        asker.sends(one, Run(hand_on))
        assert gate.begun.wait(PATIENCE)
        call.cancel()
        gate.free.set()
        until(lambda: call.token in first.cancelled)
        first.answers[0].reply()
        asker.until(lambda a: len(a.replies) == 2)


def test_an_answer_that_was_handed_on_is_owed_by_nobody_but_its_last_holder() -> None:
    class Desk(Keeper):
        @on(Run)
        def _run(self, message: Run) -> object:
            return message.do(self)

    desk, last = Desk(), Keeper()
    with running(desk, "desk") as one, running(last, "last") as two, running(Asker(), "asker") as asker:
        asker.tell(Run(lambda me: me.request(one, Ping())))
        until(lambda: desk.answers)
        one.ask(Run(lambda me: two.send(Ping(), me.answers[0])), PATIENCE)
        until(lambda: last.answers)
        assert not desk._life.owed
        assert last._life.owed == set(last.answers)
        last.answers[0].reply()
        assert not last._life.owed


@pytest.mark.rule("actors.call-cancelled")
def test_the_death_of_a_caller_cancels_its_calls() -> None:
    keeper, asker = Keeper(), Asker()
    with running(keeper) as ref:
        asking = start(asker, "asker")
        call = asker.sends(ref, Ping())
        ref.ask(Run(lambda _: None), PATIENCE)
        asking.stop()
        assert keeper.heard.wait(PATIENCE)
        keeper.answers[0].reply("to nobody")
    assert keeper.cancelled == [call.token]


# --- waiting ------------------------------------------------------------------------------------------------------


def test_a_request_to_one_that_has_ended_is_answered_as_gone() -> None:
    dead = start(Puppet(), "dead")
    dead.stop()
    assert dead.join(PATIENCE)

    def ask_the_dead(me: Actor) -> None:
        me.wait(call := me.request(dead, Ping()), deadline_s=PATIENCE)
        call.result()

    with running(Puppet()) as ref:
        assert refusal(ref, Run(ask_the_dead)).code == "gone"


@pytest.mark.rule("actors.wait-replies")
def test_a_wait_for_several_gives_the_first_that_is_answered() -> None:
    keeper = Keeper()

    def use(me: Actor) -> list[Any]:
        calls = [me.request(keeper.ref, Ping(n)) for n in range(3)]
        me.request(keeper.ref, Run(lambda k: k.answers[1].reply("second")))
        first = me.wait(*calls, deadline_s=PATIENCE)
        me.request(keeper.ref, Run(lambda k: [k.answers[n].reply(n) for n in (2, 0)]))
        for call in calls:
            me.wait(call, deadline_s=PATIENCE)
        return [calls.index(first), *(call.result() for call in calls)]

    with running(keeper, "keeper"), running(Puppet()) as ref:
        assert ref.ask(Run(use), PATIENCE) == [1, 0, "second", 2]


@pytest.mark.rule("actors.pieces")
def test_a_wait_hears_the_pieces_of_its_calls_and_keeps_those_of_others() -> None:
    keeper = Keeper()

    def use(me: Actor) -> tuple[list[Any], list[Any]]:
        one, other = me.request(keeper.ref, Ping(1)), me.request(keeper.ref, Ping(2))
        heard: list[Any] = []
        later: list[Any] = []

        def speak(k: Keeper) -> None:
            for n in range(3):
                k.answers[1].piece(f"other {n}")
                k.answers[0].piece(f"one {n}")
            k.answers[1].reply()
            k.answers[0].reply()

        me.request(keeper.ref, Run(speak))
        me.wait(one, deadline_s=PATIENCE, on_piece=lambda call, value: heard.append((call is one, value)))
        assert not other.done
        me.wait(other, deadline_s=PATIENCE, on_piece=lambda call, value: later.append((call is other, value)))
        return heard, later

    with running(keeper, "keeper"), running(Puppet()) as ref:
        heard, later = ref.ask(Run(use), PATIENCE)
    assert heard == [(True, f"one {n}") for n in range(3)]
    assert later == [(True, f"other {n}") for n in range(3)]


def test_an_answer_nobody_waited_for_reaches_its_handler_after_the_wait() -> None:
    asker = Asker()

    def use(me: Any) -> Call:
        other, one = me.request(puppet.ref, Ping(1)), me.request(puppet.ref, Ping(2))
        me.wait(one, deadline_s=PATIENCE)
        assert me.replies == []
        return other  # type: ignore[no-any-return]

    puppet = Puppet()
    with running(puppet), running(asker, "asker") as ref:
        other = ref.ask(Run(use), PATIENCE)
        asker.until(lambda a: a.replies)
    assert asker.replies == [Reply(other.token, 1)]


@pytest.mark.rule("actors.wait-cancel")
@pytest.mark.parametrize("message", [Cancel("by hand"), Stop("by hand")])
def test_a_cancel_or_a_stop_ends_a_wait_and_unless_it_is_caught_the_actor(message: Cancel | Stop) -> None:
    keeper = Keeper()

    def use(me: Actor) -> None:
        call = me.request(keeper.ref, Ping())
        me.ref.tell(message)
        me.wait(call, deadline_s=PATIENCE)

    with running(keeper, "keeper"):
        ref = start(Puppet(), "actor")
        refused = refusal(ref, Run(use))
        assert (refused.code, refused.message) == ("cancelled", "actor: by hand")
        assert ref.join(PATIENCE) == Exit("shutdown", "by hand")
        assert keeper.heard.wait(PATIENCE)


@pytest.mark.rule("actors.wait-cancel")
@pytest.mark.parametrize("message", [Cancel("by hand"), Stop("by hand")])
def test_a_handler_that_catches_it_can_wait_again_and_a_stop_is_obeyed_after_it(
    message: Cancel | Stop,
) -> None:
    keeper = Keeper()

    def use(me: Actor) -> str:
        call = me.request(keeper.ref, Ping())
        me.ref.tell(message)
        with pytest.raises(Cancelled, match="by hand"):
            me.wait(call, deadline_s=PATIENCE)
        me.request(keeper.ref, Run(lambda k: k.answers[0].reply("cleaned up")))
        return me.wait(call, deadline_s=PATIENCE).result()  # type: ignore[no-any-return]

    with running(keeper, "keeper"):
        ref = start(Puppet(), "actor")
        assert ref.ask(Run(use), PATIENCE) == "cleaned up"
        if isinstance(message, Cancel):
            assert ref.ask(Ping(1), PATIENCE) == 1
            ref.stop("by hand")
        assert ref.join(PATIENCE) == Exit("shutdown", "by hand")


@pytest.mark.rule("actors.no-lost-ask")
@pytest.mark.parametrize("message", [Cancel("by hand"), Stop("by hand")])
def test_a_cancel_and_a_stop_that_somebody_asks_are_answered_also_in_a_wait(message: Cancel | Stop) -> None:
    keeper = Keeper()
    begun = threading.Event()

    def use(me: Actor) -> None:
        call = me.request(keeper.ref, Ping())
        for _ in range(2):
            begun.set()
            with pytest.raises(Cancelled):
                me.wait(call, deadline_s=PATIENCE)

    with running(keeper, "keeper"), running(Puppet()) as ref:
        ref.tell(Run(use))
        assert begun.wait(PATIENCE)
        asks = [threading.Thread(target=ref.ask, args=(message, PATIENCE)) for _ in range(2)]
        for ask in asks:
            ask.start()
        for ask in asks:
            ask.join(PATIENCE)
            assert not ask.is_alive()


@pytest.mark.rule("actors.wait-cancel")
def test_two_that_wait_for_each_other_can_be_stopped() -> None:
    both = threading.Barrier(3, timeout=PATIENCE)

    def use(me: Actor) -> None:
        other = whereis("one" if me.name == "two" else "two")
        assert other is not None
        both.wait()
        me.wait(me.request(other, Ping()), deadline_s=PATIENCE)

    with running(Puppet(), "one") as one, running(Puppet(), "two") as two:
        for ref in (one, two):
            ref.tell(Run(use))
        both.wait()


@pytest.mark.parametrize("what", ["wait", "watch"])
def test_a_clean_up_can_neither_wait_nor_watch(what: str) -> None:
    ours, theirs = socket.socketpair()

    class Late(Puppet):
        def teardown(self, exit: Exit) -> None:
            if what == "watch":
                self.watch(ours, lambda: None)
            else:
                self.wait(self.request(keeper.ref, Ping()), deadline_s=PATIENCE)

    keeper = Keeper()
    with ours, theirs, running(keeper, "keeper"):
        ref = start(Late(), "late")
        ref.stop()
        exit = ref.join(PATIENCE)
    assert exit is not None
    assert exit.kind == ("crash" if what == "wait" else "shutdown")


@pytest.mark.rule("actors.two-lanes")
@pytest.mark.rule("actors.wait-user-later")
def test_what_comes_during_a_wait_keeps_its_order_for_after_it() -> None:
    class Waiter(Puppet):
        @on(Tick)
        def _tick(self, message: Tick) -> None:
            self.came.append(message)

        @on(Down)
        def _down(self, message: Down) -> None:
            self.came.append(message)

    waiter, keeper = Waiter(), Keeper()
    down = Down("x", 1, Exit("normal"))

    def use(me: Actor) -> None:
        call = me.request(keeper.ref, Ping())
        for message in (Ping(1), Tick("a"), Ping(2), down, Tick("b")):
            me.ref.tell(message)
        me.request(keeper.ref, Run(lambda k: k.answers[0].reply()))
        me.wait(call, deadline_s=PATIENCE)
        me.ref.tell(Tick("c"))

    with running(keeper, "keeper"), running(waiter) as ref:
        ref.ask(Run(use), PATIENCE)
        ref.ask(Ping(3), PATIENCE)
    assert waiter.came == [Tick("a"), down, Tick("b"), Tick("c"), Ping(1), Ping(2), Ping(3)]


@pytest.mark.rule("actors.ask-deadline")
def test_a_wait_that_takes_too_long_is_a_named_error() -> None:
    def use(me: Actor) -> None:
        with pytest.raises(DeadlineExceeded, match=r"actor got no answer in 0\.01 s"):
            me.wait(me.request(keeper.ref, Ping()), deadline_s=0.01)

    keeper = Keeper()
    with running(keeper, "keeper"), running(Puppet()) as ref:
        ref.ask(Run(use), PATIENCE)


def test_the_pieces_of_another_call_do_not_prolong_a_wait() -> None:
    keeper = Keeper()

    def use(me: Actor) -> None:
        silent, loud = me.request(keeper.ref, Ping(1)), me.request(keeper.ref, Ping(2))
        me.request(keeper.ref, Run(lambda k: [k.answers[1].piece(n) for n in range(100)]))
        with pytest.raises(DeadlineExceeded):
            me.wait(silent, deadline_s=0.02)
        heard: list[Any] = []
        me.request(keeper.ref, Run(lambda k: k.answers[1].reply()))
        me.wait(loud, deadline_s=PATIENCE, on_piece=lambda _, value: heard.append(value))
        assert heard == list(range(100))

    with running(keeper, "keeper"), running(Puppet()) as ref:
        ref.ask(Run(use), PATIENCE)


# --- descriptors --------------------------------------------------------------------------------------------------


@pytest.mark.rule("actors.watch-descriptors")
def test_an_actor_reads_and_writes_descriptors_in_its_own_thread() -> None:
    ours, theirs = socket.socketpair()
    seen: dict[str, threading.Thread] = {}
    both = threading.Event()

    def note(what: str) -> None:
        seen[what] = threading.current_thread()
        if len(seen) == 2:
            both.set()

    def watch(me: Actor) -> None:
        def read() -> None:
            ours.recv(1)
            note("read")

        def write() -> None:
            me.watch(ours, read)
            note("write")

        me.watch(ours, read, write)

    with running(Puppet()) as ref:
        ref.ask(Run(watch), PATIENCE)
        theirs.send(b"x")
        assert both.wait(PATIENCE)
    ours.close()
    theirs.close()
    assert {thread.name for thread in seen.values()} == {"actor"}


@pytest.mark.rule("actors.watch-descriptors")
def test_an_actor_flooded_by_messages_still_serves_its_descriptors() -> None:
    ours, theirs = socket.socketpair()
    served = threading.Event()

    class Busy(Puppet):
        def setup(self) -> None:
            self.watch(ours, self._served)

        def _served(self) -> None:
            self.unwatch(ours)
            served.set()

        @on(Ping)
        def _ping(self, message: Ping) -> int:
            if not served.is_set():
                self.ref.tell(message)
            return 0

    with running(Busy()) as ref:
        for _ in range(10):
            ref.tell(Ping())
        theirs.send(b"x")
        assert served.wait(PATIENCE)
    ours.close()
    theirs.close()


@pytest.mark.rule("actors.watch-descriptors")
def test_descriptors_are_served_during_a_wait() -> None:
    ours, theirs = socket.socketpair()
    keeper = Keeper()

    def use(me: Actor) -> None:
        call = me.request(keeper.ref, Ping())

        def read() -> None:
            me.unwatch(ours)
            me.request(keeper.ref, Run(lambda k: k.answers[0].reply()))

        me.watch(ours, read)
        theirs.send(b"x")
        me.wait(call, deadline_s=PATIENCE)

    with running(keeper, "keeper"), running(Puppet()) as ref:
        ref.ask(Run(use), PATIENCE)
    ours.close()
    theirs.close()


# --- classes ------------------------------------------------------------------------------------------------------


def test_handlers_are_inherited_mixed_in_and_overridden_by_name() -> None:
    class Mixin(Actor):
        @on(Tick)
        def _tick(self, _: Tick) -> str:
            return "mixed in"

    class Child(Puppet, Mixin):
        def _ping(self, message: Ping) -> int:
            return message.number + 100

    with running(Child()) as ref:
        assert ref.ask(Ping(1), PATIENCE) == 101
        assert ref.ask(Tick(0), PATIENCE) == "mixed in"
        assert ref.ask(Run(lambda _: "inherited"), PATIENCE) == "inherited"


@pytest.mark.rule("actors.frozen-messages")
def test_only_a_frozen_dataclass_is_a_message() -> None:
    @dataclass
    class Soft:
        """Its sender may still change it."""

    for cls in (Soft, str, dict):
        with pytest.raises(TypeError, match=f"{cls.__name__} is no message: make it a frozen dataclass"):
            on(cls)


@pytest.mark.rule("actors.frozen-messages")
def test_a_class_has_one_handler_for_each_message_and_a_handler_one_message() -> None:
    with pytest.raises(TypeError, match="Torn has 2 handlers of Ping"):

        class Torn(Actor):
            @on(Ping)
            def _one(self, _: Ping) -> None: ...

            @on(Ping)
            def _other(self, _: Ping) -> None: ...

    with pytest.raises(TypeError, match="_both handles Ping already"):

        class Greedy(Actor):
            @on(Run)
            @on(Ping)
            def _both(self, _: object) -> None: ...


@pytest.mark.rule("actors.native-names-safe")
def test_a_subclass_may_use_any_private_name() -> None:
    class Crowded(Puppet):
        def __init__(self) -> None:
            super().__init__()
            for name in ("exit", "answer", "calls", "mailbox", "monitor", "up", "stopped", "handlers"):
                setattr(self, f"_{name}", "mine")

        def _end(self, *_: object) -> None:
            raise AssertionError

        _live = _handle = _dispatch = _settle = _stop = _actor_loop = _handle_receive = _end

    with running(Crowded()) as ref:
        assert ref.ask(Ping(1), PATIENCE) == 1


# --- nothing is left ----------------------------------------------------------------------------------------------


@pytest.mark.rule("actors.no-thread-left")
def test_many_actors_leave_nothing_behind() -> None:
    def use(me: Actor) -> None:
        me.watch(ours, lambda: None)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        refs = [start(Puppet(), f"actor{n}") for n in range(50)]
        for ref in refs:
            ref.ask(Run(use), PATIENCE)
            ref.stop()
        assert all(ref.join(PATIENCE) for ref in refs)


def test_every_public_name_is_there() -> None:
    import aerix.actors as package

    assert sorted(package.__all__) == package.__all__ or len(set(package.__all__)) == len(package.__all__)
    assert all(getattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError, match="no nothing"):
        _ = package.nothing


@pytest.mark.rule("rooms.light-start")
def test_importing_the_runtime_imports_nothing_heavy() -> None:
    program = (
        "import sys; from aerix.actors import Actor, Supervisor; import aerix.actors.wire\n"
        "print(sorted({'multiprocessing', 'structlog', 'subprocess', 'asyncio', 'aerix.actors.process'}\n"
        " & set(sys.modules)))\n"
        "import aerix.actors.process; print('multiprocessing' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "[]\nFalse\n"
