"""Filters on the fields of documents, in a small part of Python's own grammar, which is read and never run.

    lang == 'en' and score > 0.8          == != < <= > >=, chained too; and, or, not
    lang in ('en', 'de')                  also: 'law' in tags, 'http' not in text
    meta.source is not None               a dotted name reaches into nested fields
    len(text) > 100                       characters of text, entries of a list
    field('two words') == 1               a field whose name is no word

A comparison with a field that is missing or null is false; ``is None`` asks for that. `may_hold` tells from the least and
greatest value of a row group of Parquet that no row of it can pass, so that the group is not decoded.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from zephon.errors import ConfigError

_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, held: value in held,
    ast.NotIn: lambda value, held: value not in held,
}
_TURNED = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.Eq: ast.Eq}
_WORDS = {"true": True, "false": False, "null": None}
_HOW = "compare fields with values: lang == 'en' and score > 0.8; see docs/data.md"


class Range(NamedTuple):
    """The least and the greatest value of a column in a row group."""

    least: Any
    greatest: Any


Values = Callable[[str], Sequence[object]]
"""The values of a field by its name, one a document; None where a document lacks it."""


@functools.lru_cache(maxsize=256)
def parsed(text: str) -> ast.expr:
    """The filter as a tree of what this module reads. Raises ConfigError for anything else."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        hint = "write == to compare" if " = " in text else _HOW
        raise ConfigError(f"where={text!r} cannot be read: {error.args[0]}", remedy=hint) from error
    except (RecursionError, MemoryError) as error:
        raise ConfigError(f"where of {len(text)} characters is nested too deep", remedy=_HOW) from error
    _check(tree, text)
    return tree


def fields_of(text: str) -> list[str]:
    """Names of the fields that the filter asks for, in the order of their first use."""
    return list(dict.fromkeys(_fields(parsed(text))))


def _fields(node: ast.AST) -> Iterator[str]:
    name = _name(node)
    if name is not None:
        yield name
        return
    for inner in node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node):
        yield from _fields(inner)


def _check(node: ast.expr, text: str) -> None:
    match node:
        case ast.BoolOp(values=parts):
            for part in parts:
                _check(part, text)
        case ast.UnaryOp(op=ast.Not(), operand=part):
            _check(part, text)
        case ast.Compare(left=left, ops=ops, comparators=others):
            for operand in (left, *others):
                _check_operand(operand, text)
            for op, right in zip(ops, others, strict=True):
                is_none = _is_constant(right) and _constant(right) is None
                if isinstance(op, (ast.Is, ast.IsNot)) != is_none or (isinstance(op, (ast.Is, ast.IsNot)) and len(ops) > 1):
                    raise _unknown(node, text, "write `is None` or `is not None` for a missing value, and == for any other")
        case _:
            if _is_constant(node):
                raise _unknown(node, text, _HOW)
            _check_operand(node, text)


def _check_operand(node: ast.expr, text: str) -> None:
    if _is_constant(node):
        return
    match node:
        case ast.Call(func=ast.Name(id="len"), args=[argument], keywords=[]):
            _check_operand(argument, text)
        case _ if _name(node) is None:
            raise _unknown(node, text, _HOW)


def _unknown(node: ast.expr, text: str, remedy: str) -> ConfigError:
    return ConfigError(f"where={text!r}: {ast.unparse(node)!r} is no part of a filter", remedy=remedy)


def _name(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name) if name not in _WORDS:
            return name
        case ast.Attribute(value=value, attr=attribute):
            before = _name(value)
            return None if before is None else f"{before}.{attribute}"
        case ast.Call(func=ast.Name(id="field"), args=[ast.Constant(value=str(name))], keywords=[]):
            return name
    return None


def _is_constant(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=value):
            return value is None or isinstance(value, (str, int, float))
        case ast.Name(id=name):
            return name in _WORDS
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            return True
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return all(_is_constant(part) for part in parts)
    return False


def _constant(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name):
            return _WORDS[name]
        case ast.UnaryOp(operand=ast.Constant(value=value)):
            return -value  # type: ignore[operator]
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return tuple(_constant(part) for part in parts)
    assert isinstance(node, ast.Constant)
    return node.value


def rows_where(text: str, values: Values, count: int) -> list[int]:
    """The documents of ``range(count)`` that pass.

    Raises:
        TypeError: a value cannot be compared with the filter's.
    """
    return _passing(parsed(text), values, list(range(count)))


def _passing(node: ast.expr, values: Values, rows: list[int]) -> list[int]:
    """Those of the rows that pass; a part behind ``and`` or ``or`` is asked only of rows that it decides."""
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            for part in parts:
                rows = _passing(part, values, rows)
            return rows
        case ast.BoolOp(values=parts):
            passed: set[int] = set()
            for part in parts:
                passed |= set(_passing(part, values, [row for row in rows if row not in passed]))
            return [row for row in rows if row in passed]
        case ast.UnaryOp(operand=part):
            excluded = set(_passing(part, values, rows))
            return [row for row in rows if row not in excluded]
        case ast.Compare(left=left, ops=ops, comparators=others):
            for op, first, second in zip(ops, (left, *others), others, strict=False):
                rows = _compared(type(op), first, second, values, rows)
            return rows
    held = _operand(node, values)
    return [row for row in rows if held(row)]


def _compared(kind: type[ast.cmpop], first: ast.expr, second: ast.expr, values: Values, rows: list[int]) -> list[int]:
    left, right = _operand(first, values), _operand(second, values)
    if kind in (ast.Is, ast.IsNot):
        return [row for row in rows if (left(row) is None) == (kind is ast.Is)]
    holds = _COMPARED[kind]
    passing = []
    for row in rows:
        a, b = left(row), right(row)
        if a is not None and b is not None and holds(a, b):
            passing.append(row)
    return passing


def _operand(node: ast.expr, values: Values) -> Callable[[int], Any]:
    if _is_constant(node):
        constant = _constant(node)
        return lambda row: constant
    name = _name(node)
    if name is not None:
        return values(name).__getitem__
    assert isinstance(node, ast.Call)
    inner = _operand(node.args[0], values)
    return lambda row: None if (value := inner(row)) is None else len(value)


def may_hold(text: str, ranges: Callable[[str], Range | None]) -> bool:
    """Whether a document may pass whose fields lie in these ranges; ``ranges`` gives None where it knows none."""
    return _may(parsed(text), ranges)


def _may(node: ast.expr, ranges: Callable[[str], Range | None]) -> bool:
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_may(part, ranges) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_may(part, ranges) for part in parts)
        case ast.Compare(left=left, ops=ops, comparators=others):
            pairs = zip(ops, (left, *others), others, strict=False)
            return all(_may_compare(type(op), first, second, ranges) for op, first, second in pairs)
    return True


def _may_compare(kind: type[ast.cmpop], first: ast.expr, second: ast.expr, ranges: Callable[[str], Range | None]) -> bool:
    if _is_constant(first) and kind in _TURNED:
        return _may_compare(_TURNED[kind], second, first, ranges)
    name = _name(first)
    known = ranges(name) if name is not None and _is_constant(second) else None
    if known is None:
        return True
    value = _constant(second)
    try:
        if kind is ast.Eq:
            return bool(known.least <= value <= known.greatest)
        if kind is ast.In and isinstance(value, tuple):
            return any(known.least <= choice <= known.greatest for choice in value)
        if kind in (ast.Lt, ast.LtE):
            return bool(_COMPARED[kind](known.least, value))
        if kind in (ast.Gt, ast.GtE):
            return bool(_COMPARED[kind](known.greatest, value))
    except TypeError:  # the reading of a document says so
        return True
    return True


def equalities(text: str) -> dict[str, object]:
    """Fields that must have one value in every document that passes, with this value."""
    tree = parsed(text)
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    fixed = {}
    for part in parts:
        match part:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]) if _is_constant(right):
                name = _name(left)
                if name is not None:
                    fixed[name] = _constant(right)
    return fixed
