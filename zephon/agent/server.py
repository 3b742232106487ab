"""The coordinator's end of the agents' connections: sockets and names, no decisions.

One TCP connection for each node, a message a line. The first message is ``Hello``, which says whose connection it is; a
node that connects again replaces its old connection. A connection that sends anything else is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from zephon.agent.messages import FROM_AGENT, BadMessage, FromAgent, Hello, ToAgent, decode, encode

_MAX_LINE = 1 << 16
_FLUSH_S = 1.0


class Listener(Protocol):
    """What handles the messages."""

    def received(self, node: str, message: FromAgent) -> None:
        """A connected node has sent this; ``Hello`` too."""

    def replaced(self, node: str, hello: Hello) -> None:
        """A node has connected again before its old connection was known to be closed. ``received`` follows."""

    def gone(self, node: str) -> None:
        """A node's connection is closed, and it has no other one."""

    def refused(self, node: str, error: str) -> None:
        """A connection sent a line that is not a message; ``node`` is empty before its ``Hello``."""


class Server:
    """Call ``start`` once, ``close`` at the end."""

    def __init__(self) -> None:
        self.port = 0
        self._connections: dict[str, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self._listener: Listener

    async def start(self, host: str, port: int, listener: Listener) -> None:
        """Begins to listen; ``port`` 0 takes a free one and sets ``self.port``."""
        self._listener = listener
        self._server = await asyncio.start_server(self._serve, host, port, limit=_MAX_LINE)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stops listening, and closes all connections when what was sent has left."""
        for connection in list(self._connections.values()):
            with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
                await asyncio.wait_for(connection.drain(), _FLUSH_S)
            connection.close()
        if self._server is not None:
            self._server.close()

    def connected(self) -> list[str]:
        """The nodes that have a connection, in the order in which they came."""
        return list(self._connections)

    def send(self, node: str, message: ToAgent) -> None:
        """Sends without waiting; does nothing where the node has no connection."""
        connection = self._connections.get(node)
        if connection is not None and not connection.is_closing():
            connection.write(encode(message))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node = ""
        try:
            while line := await reader.readline():
                message = decode(line, FROM_AGENT)
                if isinstance(message, Hello):
                    node = message.node
                    self._admit(message, writer)
                elif not node:
                    raise BadMessage(f"{type(message).__name__} before Hello")
                self._listener.received(node, message)
        except (ConnectionError, ValueError) as error:  # a line that is too long is a ValueError of asyncio's
            self._listener.refused(node, f"{type(error).__name__}: {error}")
        except asyncio.CancelledError:
            pass  # the loop ends; a handler that stays cancelled is reported as an error by asyncio
        finally:
            writer.close()
            if node and self._connections.get(node) is writer:
                del self._connections[node]
                self._listener.gone(node)

    def _admit(self, hello: Hello, writer: asyncio.StreamWriter) -> None:
        previous, self._connections[hello.node] = self._connections.get(hello.node), writer
        if previous is not None and previous is not writer:
            previous.close()
            self._listener.replaced(hello.node, hello)
