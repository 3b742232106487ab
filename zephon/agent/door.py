"""A listening port that lets in only who proves to know the attempt's secret, and bounds what the others cost.

    connection ──► a bounded number at a time, five seconds each ──proof──► Channel ──► the owner's ``serve``
                   one more pushes the oldest out, never the newest

A process of the run proves itself within a round trip, so strangers who open connections by the thousand push out each other.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Awaitable, Callable

from zephon.agent.channel import HANDSHAKE_S, NONCE, PROOF, Handshake, Lines, NotAuthentic, Purpose

MAX_PENDING = 1024  # a coordinator that is started anew is found by all nodes in one moment
MAX_LINE = 1 << 16
MAX_LINES_PER_S = 200
_BUFFER = 1 << 12  # asyncio holds twice as much of what nobody has read
_BACKLOG = 128  # asyncio takes as many connections at once as this says


class Channel:
    """A connection whose other end knows the secret."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handshake: Handshake) -> None:
        self._reader, self._writer = reader, writer
        self._seal: Lines = handshake.lines("server")
        self._open: Lines = handshake.lines("client")
        self._second, self._lines = 0, 0
        self._buffer = b""

    def send(self, line: bytes) -> None:
        """Sends without waiting; does nothing on a closed connection."""
        if not self._writer.is_closing():
            self._writer.write(self._seal.seal(line))

    async def receive(self) -> bytes:
        """The next line; empty at the end. Who sends more than 200 in a second is read more slowly.

        Raises:
            ConnectionError: the connection broke, or somebody has changed the line.
            ValueError: the line is longer than 64 KiB.
        """
        await self._brake()
        while b"\n" not in self._buffer:
            if len(self._buffer) > MAX_LINE:
                raise ValueError(f"a line of more than {MAX_LINE} bytes")
            data = await self._reader.read(_BUFFER)
            if not data:
                return b""
            self._buffer += data
        sealed, _, self._buffer = self._buffer.partition(b"\n")
        return self._open.open(sealed + b"\n")

    async def drain(self) -> None:
        """Waits until what was sent has left."""
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()

    async def _brake(self) -> None:
        now = asyncio.get_running_loop().time()
        if int(now) != self._second:
            self._second, self._lines = int(now), 0
        self._lines += 1
        if self._lines > MAX_LINES_PER_S:
            await asyncio.sleep(self._second + 1 - now)


class Door:
    """Call ``open`` once, ``close`` at the end.

    Args:
        serve: is called with every connection whose other end knows the secret, and closes it.
        refused: is called with the reason for each other one that has sent something.
    """

    def __init__(
        self, purpose: Purpose, serve: Callable[[Channel], Awaitable[None]], refused: Callable[[str], None] = lambda _: None
    ) -> None:
        self.port = 0
        self._purpose, self._serve, self._refused = purpose, serve, refused
        self._pending: dict[asyncio.StreamWriter, None] = {}
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most_pending = min(MAX_PENDING, files // 4) if files > 0 else MAX_PENDING  # infinity is -1
        self._secret = b""
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int, secret: bytes) -> None:
        """Begins to listen; ``port`` 0 takes a free one and sets ``self.port``."""
        self._secret = secret
        self._server = await asyncio.start_server(self._come, host, port, limit=_BUFFER, backlog=_BACKLOG)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Stops listening, and drops who has not proved itself yet."""
        for writer in self._pending:
            writer.transport.abort()
        if self._server is not None:
            self._server.close()

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            channel = await self._admitted(reader, writer)
            if channel is not None:
                await self._serve(channel)
        except asyncio.CancelledError:
            pass  # the loop ends; a handler that stays cancelled is reported as an error by asyncio
        finally:
            writer.close()

    async def _admitted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Channel | None:
        if len(self._pending) >= self.most_pending:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.transport.abort()
        self._pending[writer] = None
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                return await self._shake(reader, writer)
        except NotAuthentic as error:
            self._refused(str(error))
        except ConnectionError:
            pass  # a cluster's probe goes away with our nonce unread
        except asyncio.IncompleteReadError as error:
            if error.partial:  # a probe sends nothing
                self._refused(f"closed after {len(error.partial)} bytes, before a proof of the attempt's secret")
        except TimeoutError:
            self._refused(f"no proof of the attempt's secret within {HANDSHAKE_S:g} s")
        finally:
            self._pending.pop(writer, None)
        return None

    async def _shake(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Channel:
        ours = os.urandom(NONCE)
        writer.write(ours)
        answer = await reader.readexactly(NONCE + PROOF)
        handshake = Handshake(self._secret, self._purpose, server=ours, client=answer[:NONCE])
        handshake.check("client", answer[NONCE:])
        writer.write(handshake.proof("server"))
        return Channel(reader, writer, handshake)
