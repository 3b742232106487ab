"""Both readers of JSON give the same values for the same bytes and refuse the same ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon import fastjson
from zephon.fastjson import plain_dumps, strict_loads
from zephon.ops.tokenizers.gpt2 import gpt2_definition

pytest.importorskip("orjson", reason="there is only one reader here")

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)

ODD = [
    b'{"a": 99999999999999999999999999}',
    b"18446744073709551615",
    b"18446744073709551616",
    b"-9223372036854775808",
    b"-9223372036854775809",
    b'{"a": 1, "a": 2}',
    b'"\\ud83d\\ude00"',
    b"1E3",
    b"-0",
    b"-0.0",
    b" \t\r{ } ",
    b'"\xc2\xa0"',
    # and what neither takes
    b'{"a": NaN}',
    b"-Infinity",
    b"1e999",
    b'"\\ud800"',
    b'{"\\udc00": 1}',
    b'{"a": 1}x',
    b"\xff",
    b'"\xed\xa0\x80"',
    b'"\x01"',
    b"",
    b"[1,]",
    b"{'a': 1}",
    b"01",
    b"1.",
    b"+1",
    b"\xef\xbb\xbf1",
    b"[" * 100_000,
]


def read(reader: Any, data: bytes) -> tuple[type, str] | None:
    """Type and spelling, as -0.0 equals 0; None where there is a ValueError."""
    try:
        value = reader(data)
    except ValueError:
        return None
    return type(value), repr(value)


@pytest.mark.parametrize("data", ODD, ids=lambda data: repr(data[:20]))
def test_what_is_odd_is_read_or_refused_by_both(data: bytes) -> None:
    assert read(strict_loads, data) == read(fastjson.loads, data)


@given(VALUES)
def test_any_value_is_read_alike(value: Any) -> None:
    data = plain_dumps(value).encode("utf-8", "surrogatepass")
    assert read(strict_loads, data) == read(fastjson.loads, data)


def test_a_definition_is_written_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    written = gpt2_definition.__wrapped__()
    monkeypatch.setattr("zephon.ops.tokenizers.gpt2.sorted_dumps", plain_dumps)
    assert gpt2_definition.__wrapped__() == written
