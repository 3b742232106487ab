"""Which documents share a row: planners that see lengths only.

first_fit       the first open bin with room            } whole documents; a document that fits nowhere opens a bin, and when
best_fit        the open bin with the least room left   } all ``num_bins`` are open, the fullest one is closed for it
best_fit_wrap   a pool of ``num_bins`` candidates: the longest that fits, again and again; when none fits any more, one
                document is split so that the row is filled exactly
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Protocol

Slice = tuple[int, int, int]
"""A slice of a document: its number in the pool, and its tokens from ``start`` to ``stop``. A plain tuple, for speed."""

Row = list[Slice]


class Planner(Protocol):
    def add(self, slices: Iterable[Slice]) -> None: ...

    def full(self) -> list[Row]:
        """Rows that are finished, each emitted once."""
        ...

    def remainder(self) -> list[Row]:
        """All others; after this nothing is held."""
        ...


class Bins:
    """first_fit and best_fit.

    Args:
        length: tokens of a row.
        bins: how many may be open.
        most: slices of a row, at most.
        least: the shortest document there can be: a bin with less room is full.
        best: best_fit instead of first_fit.
    """

    def __init__(self, length: int, bins: int, most: int | None, least: int, *, best: bool) -> None:
        self._length, self._bins, self._best = length, bins, best
        self._most, self._least = most or 1 << 62, max(least, 1)
        self._rooms: list[int] = []  # of the open bins, in order of opening; with ``best`` ascending
        self._open: list[Row] = []
        self._done: list[Row] = []

    def add(self, slices: Iterable[Slice]) -> None:
        rooms, rows, best = self._rooms, self._open, self._best
        for part in slices:
            need = part[2] - part[1]
            if best:
                at = bisect.bisect_left(rooms, need)
            else:
                at = 0
                for room in rooms:
                    if room >= need:
                        break
                    at += 1
            if at == len(rooms):
                if at >= self._bins:
                    fullest = 0 if best else rooms.index(min(rooms))
                    del rooms[fullest]
                    self._done.append(rows.pop(fullest))
                self._put(self._length - need, [part], len(rooms))
                continue
            row, room = rows[at], rooms[at] - need
            row.append(part)
            if best or room < self._least or len(row) >= self._most:
                del rooms[at], rows[at]
                self._put(room, row, at)
            else:
                rooms[at] = room

    def _put(self, room: int, row: Row, at: int) -> None:
        if room < self._least or len(row) >= self._most:
            self._done.append(row)
            return
        if self._best:
            at = bisect.bisect_right(self._rooms, room)
        self._rooms.insert(at, room)
        self._open.insert(at, row)

    def full(self) -> list[Row]:
        done, self._done = self._done, []
        return done

    def rows(self) -> list[Row]:
        """All rows so far, full ones first."""
        return [*self._done, *self._open]

    def remainder(self) -> list[Row]:
        rows, self._open, self._rooms = self._open, [], []
        again = self._repacked([part for row in rows for part in row])
        return again if len(again) < len(rows) else rows

    def _repacked(self, slices: list[Slice]) -> list[Row]:
        """What is held at the end, longest first into the tightest bin: often fewer rows than were open."""
        packer = Bins(self._length, len(slices) + 1, self._most, self._least, best=True)
        packer.add(sorted(slices, key=lambda part: part[1] - part[2]))
        return packer.rows()


class Splitting:
    """best_fit_wrap: see the module's text. No token is lost; only the last row before a sentinel is padded."""

    def __init__(self, length: int, candidates: int, most: int | None) -> None:
        self._length, self._candidates, self._most = length, candidates, most or 1 << 62
        self._lengths: list[int] = []  # of the pool, ascending; of equals the oldest is last
        self._pool: list[Slice] = []
        self._tokens = 0
        self._done: list[Row] = []

    def add(self, slices: Iterable[Slice]) -> None:
        for part in slices:
            self._put(part)
            while self._tokens >= self._length and (
                len(self._pool) > self._candidates or self._tokens > self._candidates * self._length
            ):
                self._done.append(self._row())

    def _put(self, part: Slice) -> None:
        length = part[2] - part[1]
        at = bisect.bisect_left(self._lengths, length)
        self._tokens += length
        self._lengths.insert(at, length)
        self._pool.insert(at, part)

    def _row(self) -> Row:
        row: Row = []
        room = self._length
        while room and self._pool and len(row) < self._most:
            at = bisect.bisect_right(self._lengths, room) - 1  # -1 when none fits: then the longest is split
            part, length = self._pool.pop(at), self._lengths.pop(at)
            self._tokens -= length
            if at < 0:
                number, start, stop = part
                self._put((number, start + room, stop))
                part, length = (number, start, start + room), room
            row.append(part)
            room -= length
        return row

    def full(self) -> list[Row]:
        done, self._done = self._done, []
        return done

    def remainder(self) -> list[Row]:
        rows = self.full()
        while self._pool:
            rows.append(self._row())
        return rows
