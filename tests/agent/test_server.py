"""The coordinator's end of the connections, over real sockets and without a coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable

from tests.agent.played import SECRET
from zephon.agent.channel import NONCE, PROOF, Handshake
from zephon.agent.messages import TO_AGENT, Beat, Finish, FromAgent, Hello, Ready, ToAgent, decode, encode
from zephon.agent.server import Server

Happened = list[tuple[object, ...]]


class Recorder:
    """A listener that keeps what the server reports."""

    def __init__(self) -> None:
        self.happened: Happened = []

    def received(self, node: str, message: FromAgent) -> None:
        self.happened.append(("received", node, message))

    def replaced(self, node: str, hello: Hello) -> None:
        self.happened.append(("replaced", node, hello.generation))

    def gone(self, node: str) -> None:
        self.happened.append(("gone", node))

    def refused(self, node: str, error: str) -> None:
        self.happened.append(("refused", node, error))

    async def until(self, number: int) -> Happened:
        """What has happened, when it is so much."""
        async with asyncio.timeout(5):
            while len(self.happened) < number:
                await asyncio.sleep(0.005)
        return self.happened


class Node:
    """One connection; without ``prove`` its other end never learns that it knows the secret."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def prove(self, secret: bytes = SECRET) -> Node:
        """The client's handshake."""
        theirs, ours = await self.reader.readexactly(NONCE), os.urandom(NONCE)
        handshake = Handshake(secret, "coordinator", server=theirs, client=ours)
        self.writer.write(ours + handshake.proof("client"))
        self.ours, self.theirs = handshake.lines("client"), handshake.lines("server")
        handshake.check("server", await self.reader.readexactly(PROOF))
        return self

    def send(self, *messages: FromAgent) -> None:
        self.writer.writelines(self.ours.seal(encode(message)) for message in messages)

    async def receive(self) -> ToAgent:
        return decode(self.theirs.open(await asyncio.wait_for(self.reader.readline(), 5)), TO_AGENT)

    async def is_closed(self) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(), 5) == b""
        except ConnectionResetError:  # closed with something of ours unread
            return True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


Connect = Callable[[], Awaitable[Node]]


def serve(test: Callable[[Server, Recorder, Connect], Awaitable[None]]) -> None:
    """Runs a test with a server that listens."""

    async def main() -> None:
        server, recorder = Server(), Recorder()
        await server.start("127.0.0.1", 0, recorder, secret=SECRET)

        nodes: list[Node] = []

        async def connect() -> Node:
            nodes.append(Node(*await asyncio.open_connection("127.0.0.1", server.port)))
            return await nodes[-1].prove()

        try:
            await test(server, recorder, connect)
        finally:
            for node in nodes:
                await node.close()
            await server.close()

    asyncio.run(main())


def hello(node: str, generation: int | None = None) -> Hello:
    return Hello(node, 1, "here", generation)


def test_messages_arrive_in_order_under_the_name_that_said_hello() -> None:
    async def test(server: Server, recorder: Recorder, connect: Connect) -> None:
        node = await connect()
        node.send(hello("n-0"), Ready("x:1"), Beat())
        expected = [("received", "n-0", message) for message in (hello("n-0"), Ready("x:1"), Beat())]
        assert await recorder.until(3) == expected
        assert server.connected() == ["n-0"]

    serve(test)


def test_a_message_goes_to_the_node_that_it_names_and_to_nobody_else() -> None:
    async def test(server: Server, recorder: Recorder, connect: Connect) -> None:
        first, second = await connect(), await connect()
        first.send(hello("n-0"))
        second.send(hello("n-1"))
        await recorder.until(2)
        server.send("n-1", Finish(0, "done"))
        server.send("n-0", Finish(1, "failed"))
        server.send("n-9", Finish(2, "nobody"))
        assert [await first.receive(), await second.receive()] == [Finish(1, "failed"), Finish(0, "done")]

    serve(test)


def test_a_closed_connection_is_a_gone_node() -> None:
    async def test(server: Server, recorder: Recorder, connect: Connect) -> None:
        node = await connect()
        node.send(hello("n-0"))
        await recorder.until(1)
        node.writer.close()
        assert (await recorder.until(2))[1] == ("gone", "n-0")
        assert server.connected() == []

    serve(test)


def test_a_node_that_connects_again_replaces_its_old_connection_and_is_not_gone() -> None:
    async def test(server: Server, recorder: Recorder, connect: Connect) -> None:
        old, new = await connect(), await connect()
        old.send(hello("n-0"))
        await recorder.until(1)
        new.send(hello("n-0", generation=3))
        assert (await recorder.until(3))[1:] == [("replaced", "n-0", 3), ("received", "n-0", hello("n-0", 3))]
        assert await old.is_closed()
        server.send("n-0", Finish(0, "done"))
        assert await new.receive() == Finish(0, "done")
        assert len(recorder.happened) == 3

    serve(test)


def test_what_is_no_message_closes_its_connection_and_no_other() -> None:
    async def test(server: Server, recorder: Recorder, connect: Connect) -> None:
        good, garbage, mute = await connect(), await connect(), await connect()
        good.send(hello("n-0"))
        await recorder.until(1)
        garbage.writer.write(garbage.ours.seal(b"GET / HTTP/1.1\r\n"))
        assert await garbage.is_closed()
        mute.send(Beat())
        assert await mute.is_closed()
        good.send(Beat())
        errors = [str(entry[-1]).split(":")[0] + str(entry[1]) for entry in (await recorder.until(4)) if entry[0] == "refused"]
        assert errors == ["BadMessage", "BadMessage"], recorder.happened
        assert recorder.happened[-1] == ("received", "n-0", Beat())

    serve(test)


def test_a_line_without_end_is_refused() -> None:
    async def test(server: Server, recorder: Recorder, connect: Connect) -> None:
        node = await connect()
        node.writer.write(b"x" * (1 << 17))
        assert await node.is_closed()
        assert (await recorder.until(1))[0][:2] == ("refused", "")

    serve(test)


def test_a_connection_belongs_to_one_node() -> None:
    async def test(server: Server, recorder: Recorder, connect: Connect) -> None:
        node = await connect()
        node.send(hello("n-0"), hello("n-1"))
        assert await node.is_closed()
        assert (await recorder.until(3))[1:] == [("refused", "n-0", "BadMessage: Hello after Hello"), ("gone", "n-0")]

    serve(test)


def test_what_was_sent_before_the_end_arrives() -> None:
    async def test(server: Server, recorder: Recorder, connect: Connect) -> None:
        node = await connect()
        node.send(hello("n-0"))
        await recorder.until(1)
        server.send("n-0", Finish(0, "done"))
        await server.close()
        assert await node.receive() == Finish(0, "done")
        assert await node.is_closed()

    serve(test)
