"""The process of a member that is a model on a server: the same requests and answers as ``worker``, and no model.

One thread and one loop: it waits for the channel to the member and for the server's streams alike. Each generation is a
task; a cancel ends the task, and with it the connection that its answer comes on.
"""

import asyncio
import os
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from aerix.actors import Refused
from aerix.actors.child import Channel, IncomingCall, IncomingCancel
from aerix.actors.log import log
from aerix.pool import protocol as p
from aerix.pool.bounds import HELD_PROGRESS, QUEUE
from aerix.pool.pieces import Pieces
from aerix.pool.remote import address, key
from aerix.pool.remote_contexts import RemoteContext, RemoteContexts
from aerix.pool.remote_http import Server
from aerix.pool.remote_load import Facts, look
from aerix.pool.remote_turn import Turn
from aerix.pool.tally import Tally
from aerix.pool.workerargs import WorkerArgs


def main(channel: Channel, args: dict[str, Any]) -> None:
    """The body of the process; ``args`` are WorkerArgs'. Raises Refused where the model cannot be served."""
    channel.codec = p.CODEC
    asyncio.run(_serve(channel, WorkerArgs.from_dict(args)))


async def _serve(channel: Channel, args: WorkerArgs) -> None:
    async with Server(address(args.model), key(args.key_env)) as server:
        facts = await look(server, args.window, args.thinking)
        worker = RemoteWorker(channel, server, facts, args.max_batch)
        info = worker.status()
        told = ("window", "json", "thinking", "estimated", "note")
        channel.ready({name: getattr(info, name) for name in told})
        log("worker.ready", model=args.model, window=facts.window, json=facts.json, way=str(facts.way))
        await worker.run()


class RemoteWorker:
    """Serves one channel with one server. ``run`` ends as the channel does: it raises ChannelClosed."""

    def __init__(self, channel: Channel, server: Server, facts: Facts, max_batch: int) -> None:
        self._channel, self._server, self._facts = channel, server, facts
        self._contexts = RemoteContexts()
        self._tally = Tally()
        self._turns: dict[int, asyncio.Task[p.Done]] = {}
        self._others: set[asyncio.Task[None]] = set()
        self._may_run = asyncio.Semaphore(max_batch)
        self._max_batch = max_batch
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Answer until the channel closes. Whatever a task breaks with is raised here."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._channel.fileno(), self._guarded, self._read)
        self._guarded(self._read)
        try:
            await self._over
        finally:
            loop.remove_reader(self._channel.fileno())

    def status(self) -> p.MemberInfo:
        """What the member tells of its worker."""
        facts, running = self._facts, min(len(self._turns), self._max_batch)
        return p.MemberInfo(
            name="",
            state="ready",
            window=facts.window,
            json=facts.json,
            thinking=facts.thinking,
            estimated=not facts.counts.exact,
            contexts=len(self._contexts),
            running=running,
            waiting=len(self._turns) - running,
            note="" if facts.json else "the server does not hold answers to a schema",
            pid=os.getpid(),
            totals=self._tally.totals,
        )

    # --- requests

    def _guarded(self, act: Any, *args: Any) -> None:
        """What a callback of the loop breaks with, ends this process."""
        try:
            act(*args)
        except BaseException as error:  # noqa: BLE001  # raised again by ``run``
            if not self._over.done():
                self._over.set_exception(error)

    def _read(self) -> None:
        while (incoming := self._channel.receive(0)) is not None:
            match incoming:
                case IncomingCall(call, message):
                    self._take(call, message)
                case IncomingCancel(call):
                    if call in self._turns:
                        self._turns[call].cancel()

    def _take(self, call: int, message: Any) -> None:
        try:
            match message:
                case p.Generate():
                    self._generate(call, message)
                case p.MemberList():
                    self._channel.reply(call, p.Members(message.id, [self.status()]))
                case p.ContextDrop():
                    self._contexts.drop(message.context)
                    self._channel.reply(call, p.Ok(message.id))
                case p.ContextRead():
                    context = self._contexts.find(message.context)
                    text = p.ContextText(message.id, context.id, list(context.segments), [])
                    self._channel.reply(call, text)
                case _:
                    self._tell(call, message.id, self._contexts.change(message))
        except Refused as refusal:
            self._channel.refuse(call, refusal.code, refusal.message)

    def _tell(self, call: int, id_: int, context: RemoteContext) -> None:
        """Count what the context is now; it may have changed again when that is told."""
        name, segments = context.id, context.segments

        async def count() -> None:
            self._channel.reply(call, await self._facts.counts.state(id_, name, segments))

        self._spawn(count())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(lambda done: self._guarded(self._left, done))
        return task

    def _left(self, task: asyncio.Task[None]) -> None:
        self._others.discard(task)
        with suppress(asyncio.CancelledError):
            task.result()

    # --- generations

    def _generate(self, call: int, message: p.Generate) -> None:
        if len(self._turns) - self._max_batch >= QUEUE.count:
            raise Refused("pool_busy", f"{QUEUE.count} generations wait already; ask again later.")
        pieces = Pieces(self._channel, call)
        segments = (*self._contexts.find(message.context).segments, *message.append)
        turn = Turn(self._server, self._facts, message, segments, pieces.send)
        if message.append:
            self._contexts.change(p.ContextAppend(message.id, message.context, message.append))
        life = self._spawn(self._signs_of_life(call, message.id))
        task = self._turns[call] = asyncio.create_task(self._run(turn))
        task.add_done_callback(lambda done: self._guarded(self._ended, call, turn, pieces, life, done))

    async def _run(self, turn: Turn) -> p.Done:
        await turn.count()
        async with self._may_run:
            return await turn.run()

    async def _signs_of_life(self, call: int, id_: int) -> None:
        """A server may think for minutes before its first word; whoever waits for it must not give up."""
        while True:
            await asyncio.sleep(HELD_PROGRESS.value)
            self._channel.offer(call, p.Progress(id_, 0, 0))

    def _ended(
        self,
        call: int,
        turn: Turn,
        pieces: Pieces,
        life: asyncio.Task[None],
        task: asyncio.Task[p.Done],
    ) -> None:
        del self._turns[call]
        life.cancel()
        pieces.flush()
        try:
            done = turn.done("cancelled") if task.cancelled() else task.result()
        except Refused as refusal:
            self._tally.refused()
            self._channel.refuse(call, refusal.code, refusal.message)
        else:
            self._tally.done(done)
            self._channel.reply(call, done)
