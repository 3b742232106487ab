"""Fingerprints of user code: what makes "the same function" a checkable statement.

A function is its module, qualified name and the SHA-256 of its source text, with the plain values that it was closed over.
It is not its byte code, which differs between Python versions, nor what it calls: give ``version=`` to say that yourself.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from zephon.errors import ConfigError
from zephon.types import Json

_PLAIN = (str, bytes, int, float, bool, type(None))


def identity_of(function: Callable[..., Any], version: str | None, *, where: str) -> Json:
    """A function as plain values for the fingerprint.

    Args:
        function: a function, method, `functools.partial`, or an instance with ``__call__``.
        version: given by the user; it then stands for the source text and for everything the function was closed over.
        where: the op, for messages.

    Raises:
        ConfigError: there is no source text and no version, or the function holds an object that has no plain value.
    """
    if not callable(function):
        raise ConfigError(f"{where} got {function!r}, which cannot be called", remedy="give a function")
    if version is not None:
        return {"function": _name(function), "version": str(version)}
    return _described(function, where)


def _described(function: Any, where: str) -> Json:
    if isinstance(function, functools.partial):
        values = {**{str(i): v for i, v in enumerate(function.args)}, **function.keywords}
        return {**_described(function.func, where), "partial": _values(values, function, where)}
    if inspect.ismethod(function):
        return {**_described(function.__func__, where), "self": _values(_state(function.__self__), function, where)}
    if inspect.isbuiltin(function) or (inspect.isclass(function) and function.__module__ == "builtins"):
        return {"function": _name(function)}
    code = function if inspect.isfunction(function) or inspect.isclass(function) else type(function)
    try:
        source = textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError) as error:
        raise ConfigError(
            f"{where} uses {_name(function)}, whose source text is not available",
            follows="a changed function would resume an old run silently",
            remedy='give version="1" and raise it whenever the function changes',
        ) from error
    described = {"function": _name(function), "source": hashlib.sha256(source.encode()).hexdigest()[:32]}
    if inspect.isfunction(function):
        held = dict(inspect.getclosurevars(function).nonlocals)
        defaults = {name: p.default for name, p in inspect.signature(function).parameters.items() if p.default is not p.empty}
        held.update({f"default {name}": value for name, value in defaults.items()})
    else:
        held = {} if inspect.isclass(function) else _state(function)
    if held:
        described["holds"] = _values(held, function, where)  # type: ignore[assignment]
    return described


def _values(values: Json, function: Any, where: str) -> Json:
    return {name: _value(value, name, function, where) for name, value in sorted(values.items())}


def _value(value: Any, name: str, function: Any, where: str) -> Any:
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return [_value(item, name, function, where) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(repr(_value(item, name, function, where)) for item in value)
    if isinstance(value, dict):
        return {repr(k): _value(v, name, function, where) for k, v in value.items()}
    if hasattr(value, "identity") and isinstance(value.identity, str):  # a tokenizer or a dataset
        return value.identity
    if inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, functools.partial):
        return _described(value, where)
    raise ConfigError(
        f"{where} uses {_name(function)}, which holds {name}={str(value)[:60]}, an object without a plain value",
        follows="a run could resume with another object in its place, unseen",
        remedy='give version="1" and raise it whenever the function or what it holds changes',
    )


def _state(instance: Any) -> Json:
    return dict(getattr(instance, "__dict__", {}))


def _name(function: Any) -> str:
    if isinstance(function, functools.partial):
        return _name(function.func)
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
