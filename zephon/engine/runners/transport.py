"""Messages between this process and a child: objects over a socket, their large arrays through shared memory files.

Each side holds the same few anonymous memory files, called slots. A message names the slot that its arrays lie in; the
receiver copies them out, and the slot is free again when its answer or its next request says so. The files have no name:
the system frees them with the last process that holds them, however it ends.

    socket   | length, slot, bytes | pickle without the arrays |
    slot     | array | array | array |
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

_HEAD = struct.Struct("<QiQI")
_INLINE = 4096  # smaller arrays go with the pickle: a system call each would cost more
_ALIGN = 64


class Closed(Exception):
    """The other side has ended or hung up."""


class Unreadable(Exception):
    """A message has arrived, whole, but cannot be unpickled here.

    Args:
        slot: the slot of the message.
    """

    def __init__(self, slot: int) -> None:
        super().__init__(slot)
        self.slot = slot


def make_slots(count: int) -> list[int]:
    """Descriptors of anonymous memory files."""
    return [os.memfd_create(f"zephon-slot-{i}", os.MFD_CLOEXEC) for i in range(count)]


class Channel:
    """One end. One thread sends and one receives at a time.

    Args:
        connection: a connected stream socket.
        slots: descriptors of the shared memory files.
    """

    def __init__(self, connection: socket.socket, slots: list[int]) -> None:
        self._connection, self.slots = connection, slots

    def send(self, value: object, slot: int = -1) -> None:
        """Sends an object; with a slot its large arrays go through shared memory. Raises Closed."""
        if slot < 0:
            self._send(pickle.dumps(value, protocol=5), slot, 0, [])
            return
        large: list[memoryview] = []

        def keep(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < _INLINE:
                return True
            large.append(raw)
            return False

        data = pickle.dumps(value, protocol=5, buffer_callback=keep)
        sizes = [raw.nbytes for raw in large]
        places, total = _places(sizes)
        for at, raw in zip(places, large, strict=True):
            _write(self.slots[slot], raw, at)
        self._send(data, slot, total, sizes)

    def receive(self) -> tuple[Any, int]:
        """The next object and the slot it used (-1 for none). Raises Closed, or Unreadable; the channel then goes on."""
        length, slot, total, count = _HEAD.unpack(self._exactly(_HEAD.size))
        sizes = struct.unpack(f"<{count}Q", self._exactly(8 * count))
        data = self._exactly(length)
        buffers: list[memoryview] = []
        if count:
            block = np.empty(total, np.uint8).data  # ours alone: the slot may be written again at once
            _read(self.slots[slot], block)
            buffers = [block[at : at + size] for at, size in zip(_places(sizes)[0], sizes, strict=True)]
        try:
            return pickle.loads(data, buffers=buffers), slot
        except Exception as error:
            raise Unreadable(slot) from error

    def hang_up(self) -> None:
        """Wakes the threads that wait on either end."""
        with contextlib.suppress(OSError):  # the other side was faster
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()
        for slot in self.slots:
            os.close(slot)

    def _send(self, data: bytes, slot: int, total: int, sizes: list[int]) -> None:
        try:
            self._connection.sendall(
                _HEAD.pack(len(data), slot, total, len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes) + data
            )
        except OSError as error:
            raise Closed from error

    def _exactly(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            try:
                part = self._connection.recv(min(count, 1 << 20))
            except OSError as error:
                raise Closed from error
            if not part:
                raise Closed
            parts.append(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where arrays of these sizes lie in a slot, and where the last one ends."""
    places, end = [], 0
    for size in sizes:
        places.append(-(-end // _ALIGN) * _ALIGN)
        end = places[-1] + size
    return places, end


def _write(descriptor: int, raw: memoryview, at: int) -> None:
    done = 0
    while done < raw.nbytes:
        done += os.pwrite(descriptor, raw[done:], at + done)


def _read(descriptor: int, block: memoryview) -> None:
    done = 0
    while done < block.nbytes:
        count = os.preadv(descriptor, [block[done:]], done)
        if count == 0:
            raise Closed
        done += count
