"""JSON from bytes and to text: orjson where it is installed, else the standard library made equally strict.

orjson has no build for free-threaded Python yet. A stream must not depend on which of the two reads it, so both give the
same values for the same bytes and refuse the same ones: bytes that are not UTF-8, half a surrogate pair, NaN, and numbers
that no float holds. Integers beyond 64 bits become floats in both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

Bytes = bytes | bytearray | memoryview
Json = dict[str, Any]
"""A JSON object: what a configuration, a record of the run directory or a cluster's answer is before it is checked."""


def strict_loads(data: Bytes) -> Any:
    """One JSON value, by the standard library. Raises ValueError where there is none."""
    text = str(data, "utf-8")
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if "\\u" in text:  # only an escape can bring half a surrogate pair into a text that was UTF-8
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def plain_dumps(value: Any) -> str:
    """Without spaces and with sorted keys, by the standard library."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _integer(digits: str) -> int | float:
    if len(digits) < 19:
        return int(digits)
    value = int(digits)
    return value if -(1 << 63) <= value < 1 << 64 else _float(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:40]} is beyond what a float holds")
    return value


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_int=_integer, parse_float=_float, parse_constant=_constant)

loads: Callable[[Bytes], Any] = strict_loads
sorted_dumps: Callable[[Any], str] = plain_dumps
try:
    import orjson
except ImportError:
    pass
else:
    loads = orjson.loads

    def sorted_dumps(value: Any) -> str:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
