"""The listening end: who is let in, and what those cost who are not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable

import pytest

from zephon.agent import door as module
from zephon.agent.channel import NONCE, PROOF, Handshake, Lines
from zephon.agent.door import MAX_LINE, MAX_LINES_PER_S, Channel, Door

SECRET = b"known to the processes of one attempt"


class Guest:
    """A client: a stranger until ``prove``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.ours, self.theirs = Lines(b""), Lines(b"")

    async def prove(self, secret: bytes = SECRET) -> None:
        theirs, ours = await self.reader.readexactly(NONCE), os.urandom(NONCE)
        handshake = Handshake(secret, "control", server=theirs, client=ours)
        self.writer.write(ours + handshake.proof("client"))
        handshake.check("server", await self.reader.readexactly(PROOF))
        self.ours, self.theirs = handshake.lines("client"), handshake.lines("server")

    async def ask(self, line: bytes) -> bytes:
        self.writer.write(self.ours.seal(line))
        return self.theirs.open(await asyncio.wait_for(self.reader.readline(), 5))

    async def is_closed(self) -> bool:
        with contextlib.suppress(ConnectionResetError):  # with something of ours unread
            await asyncio.wait_for(self.reader.read(), 5)
        return True


def is_dropped(link: socket.socket) -> bool:
    """Whether the server has closed it; the test's end closes here."""
    link.setblocking(False)
    try:
        while link.recv(NONCE):
            pass
        return True
    except ConnectionResetError:
        return True
    except BlockingIOError:
        return False
    finally:
        link.close()


class House:
    """A door whose owner sends back what it is sent."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.door = Door("control", self.echo, self.refused.append)
        self.guests: list[Guest] = []

    async def echo(self, channel: Channel) -> None:
        with contextlib.suppress(ConnectionError, ValueError):
            while line := await channel.receive():
                channel.send(line)
        channel.close()

    async def come(self) -> Guest:
        self.guests.append(Guest(*await asyncio.open_connection("127.0.0.1", self.door.port, limit=1 << 17)))
        return self.guests[-1]

    async def friend(self) -> Guest:
        guest = await self.come()
        await guest.prove()
        return guest

    async def until_refused(self, number: int) -> list[str]:
        async with asyncio.timeout(5):
            while len(self.refused) < number:
                await asyncio.sleep(0.005)
        return self.refused


def visit(test: Callable[[House], Awaitable[None]]) -> None:
    async def main() -> None:
        house = House()
        await house.door.open("127.0.0.1", 0, SECRET)
        try:
            await test(house)
        finally:
            for guest in house.guests:
                guest.writer.close()
            house.door.close()

    asyncio.run(main())


def test_who_knows_the_secret_is_served() -> None:
    async def test(house: House) -> None:
        guest = await house.friend()
        assert await guest.ask(b"first\n") == b"first\n"
        assert await guest.ask(b"second\n") == b"second\n"
        assert house.refused == []

    visit(test)


def test_another_secret_is_refused_and_learns_nothing() -> None:
    async def test(house: House) -> None:
        guest = await house.come()
        with pytest.raises(asyncio.IncompleteReadError) as error:
            await guest.prove(b"a guess")
        assert error.value.partial == b""
        assert await house.until_refused(1) == ["the client does not know the secret of this attempt"]

    visit(test)


@pytest.mark.parametrize(
    "sent", [b'{"kind": "Hello"}\n' * 9, b"\x16\x03\x01" * 99, bytes(1 << 20)], ids=["plain", "tls", "huge"]
)
def test_garbage_is_refused_at_once(sent: bytes) -> None:
    async def test(house: House) -> None:
        guest = await house.come()
        guest.writer.write(sent)
        assert await guest.is_closed()
        assert len(await house.until_refused(1)) == 1
        assert await (await house.friend()).ask(b"still here\n") == b"still here\n"

    visit(test)


def test_a_recorded_connection_opens_no_other_one() -> None:
    async def test(house: House) -> None:
        guest = await house.come()
        theirs, ours = await guest.reader.readexactly(NONCE), os.urandom(NONCE)
        handshake = Handshake(SECRET, "control", server=theirs, client=ours)
        recorded = ours + handshake.proof("client") + handshake.lines("client").seal(b"stop\n")
        guest.writer.write(recorded)
        await guest.reader.readexactly(PROOF)
        assert b"stop" in await guest.reader.readline()
        stranger = await house.come()
        stranger.writer.write(recorded)
        assert await stranger.is_closed()
        assert len(await house.until_refused(1)) == 1

    visit(test)


def test_a_probe_that_sends_nothing_is_no_event() -> None:
    async def test(house: House) -> None:
        for _ in range(3):
            (await house.come()).writer.close()
        half = await house.come()
        await half.reader.readexactly(NONCE)
        half.writer.write(b"half a proof")
        half.writer.close()
        assert await house.until_refused(1) == ["closed after 12 bytes, before a proof of the attempt's secret"]

    visit(test)


def test_who_says_nothing_is_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_S", 0.2)

    async def test(house: House) -> None:
        assert await (await house.come()).is_closed()
        assert await house.until_refused(1) == ["no proof of the attempt's secret within 0.2 s"]

    visit(test)


def test_strangers_push_out_each_other_and_never_who_knows_the_secret() -> None:
    async def test(house: House) -> None:
        inside = await house.friend()
        held = []
        house.door.most_pending = 64
        for number in range(256):
            held.append(socket.create_connection(("127.0.0.1", house.door.port)))
            if number % 32 == 0:
                await asyncio.sleep(0)
                assert await (await house.friend()).ask(b"in\n") == b"in\n"
        assert await inside.ask(b"still in\n") == b"still in\n"
        closed = sum(is_dropped(link) for link in held)
        assert closed >= 256 - 64 - 1, "no more than the bound are kept"

    visit(test)


def test_lines_of_any_length_up_to_the_bound_arrive_however_they_are_cut() -> None:
    async def test(house: House) -> None:
        guest = await house.friend()
        for length in (1, 4096, 8192, MAX_LINE - 100):
            line = b"x" * length + b"\n"
            sealed = guest.ours.seal(line)
            for start in range(0, len(sealed), 1000):
                guest.writer.write(sealed[start : start + 1000])
                await guest.writer.drain()
            assert guest.theirs.open(await asyncio.wait_for(guest.reader.readuntil(), 5)) == line

    visit(test)


def test_who_sends_too_many_lines_waits_and_loses_none() -> None:
    async def test(house: House) -> None:
        guest, number = await house.friend(), int(1.5 * MAX_LINES_PER_S)
        loop = asyncio.get_running_loop()
        began = loop.time()
        guest.writer.writelines(guest.ours.seal(b"%d\n" % i) for i in range(number))
        for i in range(number):
            assert guest.theirs.open(await asyncio.wait_for(guest.reader.readline(), 5)) == b"%d\n" % i
        assert int(loop.time()) > int(began), "not all within one second"

    visit(test)


def test_a_line_that_somebody_changed_or_that_has_no_end_closes_its_connection() -> None:
    async def test(house: House) -> None:
        changed, endless = await house.friend(), await house.friend()
        changed.writer.write(changed.ours.seal(b"stop\n").replace(b"stop", b"halt"))
        endless.writer.write(b"x" * (1 << 18))
        assert await changed.is_closed()
        assert await endless.is_closed()

    visit(test)
