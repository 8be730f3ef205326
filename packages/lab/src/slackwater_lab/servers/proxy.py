"""A network that fails on demand: a proxy that holds back, slows down and cuts what passes."""

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

from slackwater.dev.server import LOOPBACK, free_port

T = TypeVar("T")
_Waiting = asyncio.Queue[tuple[float, bytes]]
"""Chunks with the time of their arrival; an empty one is the end."""
_CHUNK_BYTES = 256 * 1024
_CHUNKS_IN_FLIGHT = 64
_ANSWER_SECONDS = 10.0


class TcpProxy:
    """Forwards connections from its port to a target on loopback; works on a thread of its own.

    :attr:`watch` lets somebody look at what clients send.

    All methods may be called from any thread and return when done. What was held back is never lost, so the
    clients see a slow network, not a broken one; only :meth:`cut` breaks connections.

    Args:
        target: Port on loopback; asked for at each new connection, so the target may move.
        tls: The certificate that is shown, and what is asked of clients; None: they come in the clear.
    """

    def __init__(self, target: Callable[[], int], tls: ssl.SSLContext | None = None) -> None:
        self.port = free_port()
        self._target, self._tls = target, tls
        self.watch: Callable[[], Callable[[bytes], None]] | None = None
        """Is called for each new connection, and what it returns with each chunk that its client sends, in
        the proxy's thread."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._delay_seconds = 0.0
        self._connections: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    @property
    def is_paused(self) -> bool:
        return not self._open.is_set()

    @property
    def connections(self) -> int:
        return len(self._connections) // 2

    def start(self) -> None:
        """Accept connections; nothing happens when it does already.

        Raises:
            OSError: the port is taken.
        """
        if self._loop is not None:
            return
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()
        try:
            self._await(self._listen())
        except BaseException:
            self._end_loop()
            raise

    def stop(self) -> None:
        """Close everything; idempotent. May be started again on the same port."""
        if self._loop is not None:
            self._await(self._close())
            self._end_loop()

    def pause(self) -> None:
        """Nothing passes in either direction, as if packets were lost; connections stay, new ones hang."""
        self._call(self._open.clear)

    def resume(self) -> None:
        """Let pass what was held back since :meth:`pause`."""
        self._call(self._open.set)

    def delay(self, duration: timedelta) -> None:
        """Everything passes so much later, in each direction; zero: at once."""
        self._delay_seconds = duration.total_seconds()

    def cut(self) -> None:
        """Reset all connections; what was on its way is lost. New ones are accepted at once."""
        self._call(self._reset)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._accept, LOOPBACK, self.port, limit=_CHUNK_BYTES, ssl=self._tls
        )

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self._reset()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its first byte to its end."""
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        ends = [writer]
        try:
            await self._open.wait()
            far_reader, far = await asyncio.open_connection(LOOPBACK, self._target(), limit=_CHUNK_BYTES)
            ends.append(far)
            self._connections |= {*ends}
            watch = None if self.watch is None else self.watch()
            async with asyncio.TaskGroup() as both:  # an error on one side ends the connection as a whole
                for source, sink, seen in ((reader, far, watch), (far_reader, writer, None)):
                    waiting: _Waiting = asyncio.Queue(_CHUNKS_IN_FLIGHT)
                    both.create_task(self._receive(source, waiting, seen))
                    both.create_task(self._deliver(waiting, sink))
        except* OSError:
            pass  # the target is down or a side is gone: both connections end below
        finally:
            self._connections -= {*ends}
            for end in ends:
                end.transport.abort()

    async def _receive(
        self, source: asyncio.StreamReader, waiting: _Waiting, seen: Callable[[bytes], None] | None
    ) -> None:
        while chunk := await source.read(_CHUNK_BYTES):
            if seen is not None:
                seen(chunk)
            await waiting.put((self._now(), chunk))
        await waiting.put((self._now(), b""))

    async def _deliver(self, waiting: _Waiting, sink: asyncio.StreamWriter) -> None:
        while True:
            arrived, chunk = await waiting.get()
            rest = arrived + self._delay_seconds - self._now()
            if rest > 0:
                await asyncio.sleep(rest)
            await self._open.wait()
            if not chunk:
                if not sink.can_write_eof():  # over TLS
                    sink.close()
                    return
                sink.write_eof()
                await sink.drain()
                return
            sink.write(chunk)
            await sink.drain()

    def _reset(self) -> None:
        for writer in self._connections:
            writer.transport.abort()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _call(self, action: Callable[[], object]) -> None:
        async def run() -> None:
            action()

        if self._loop is not None:
            self._await(run())
        else:
            action()

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            raise RuntimeError(f"the proxy on port {self.port} does not run")
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(_ANSWER_SECONDS)

    def _end_loop(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
