"""TLS in front of a server that has none built in."""

import asyncio
import ssl
import threading

LOOPBACK = "127.0.0.1"


class TlsEnd:
    """Takes TLS connections on a port of its own and hands them on in the clear.

    Args:
        target: The port on loopback to which they go.
        context: The certificate that is shown, and what is asked of clients.
    """

    def __init__(self, target: int, context: ssl.SSLContext) -> None:
        self.port = 0
        """Where it listens on loopback, once it was started."""
        self._target = target
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def start(self) -> None:
        """Begins to take connections."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(300)

    def stop(self) -> None:
        """Ends all of them."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(300)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(300)
        self._loop.close()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._accept, LOOPBACK, 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        self._server = server

    async def _close(self) -> None:
        self._server.close()
        mine = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far = await asyncio.open_connection(LOOPBACK, self._target)
        try:
            await asyncio.gather(_hand_on(reader, far), _hand_on(far_reader, writer))
        except OSError:
            pass  # one side is gone, so is the connection
        finally:
            far.transport.abort()
            writer.transport.abort()


async def _hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
