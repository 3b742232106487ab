"""The coordinator's end of the agents' connections: names, no decisions.

One connection for each node, a message a line; only processes that know the attempt's secret get so far (``door.py``). The
first message is ``Hello``, which says whose connection it is; a node that connects again replaces its old connection. A
connection that sends anything else is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from zephon.agent.door import Channel, Door
from zephon.agent.messages import FROM_AGENT, BadMessage, FromAgent, Hello, ToAgent, decode, encode

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
        self._connections: dict[str, Channel] = {}
        self._door = Door("coordinator", self._serve, lambda error: self._listener.refused("", error))
        self._listener: Listener

    @property
    def port(self) -> int:
        return self._door.port

    async def start(self, host: str, port: int, listener: Listener, *, secret: bytes) -> None:
        """Begins to listen; ``port`` 0 takes a free one and sets ``self.port``."""
        self._listener = listener
        await self._door.open(host, port, secret)

    async def close(self) -> None:
        """Stops listening, and closes all connections when what was sent has left."""
        for connection in list(self._connections.values()):
            with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
                await asyncio.wait_for(connection.drain(), _FLUSH_S)
            connection.close()
        self._door.close()

    def connected(self) -> list[str]:
        """The nodes that have a connection, in the order in which they came."""
        return list(self._connections)

    def send(self, node: str, message: ToAgent) -> None:
        """Sends without waiting; does nothing where the node has no connection."""
        connection = self._connections.get(node)
        if connection is not None:
            connection.send(encode(message))

    async def _serve(self, connection: Channel) -> None:
        node = ""
        try:
            while line := await connection.receive():
                message = decode(line, FROM_AGENT)
                if isinstance(message, Hello) and not node:
                    node = message.node
                    self._admit(message, connection)
                elif isinstance(message, Hello) or not node:
                    raise BadMessage(f"{type(message).__name__} {'after' if node else 'before'} Hello")
                self._listener.received(node, message)
        except (ConnectionError, ValueError) as error:  # a line that is too long is a ValueError of asyncio's
            self._listener.refused(node, f"{type(error).__name__}: {error}")
        finally:
            connection.close()
            if node and self._connections.get(node) is connection:
                del self._connections[node]
                self._listener.gone(node)

    def _admit(self, hello: Hello, connection: Channel) -> None:
        previous, self._connections[hello.node] = self._connections.get(hello.node), connection
        if previous is not None:
            previous.close()
            self._listener.replaced(hello.node, hello)
