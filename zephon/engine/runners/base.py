"""What a runner is: it applies one function to items on workers, and gives a pending result for each.

A runner has four verbs: ``submit`` returns something with ``result()``, ``close`` ends all threads, ``abandon`` does so without
waiting, and ``workers`` says how many there are. Inline is the runner with no workers: it applies the function when the result
is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Item_contra = TypeVar("Item_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)


class Pending(Protocol[Result_co]):
    """A result that may not be there yet."""

    def result(self) -> Result_co: ...


class Runner(Protocol[Item_contra, Result_co]):
    @property
    def workers(self) -> int: ...

    def submit(self, item: Item_contra) -> Pending[Result_co]: ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Waits for nothing: the loop was interrupted and wants control back. What is under way ends by itself."""


class InlineRunner(Generic[Item, Result]):
    """No workers: the caller does the work."""

    workers = 0

    def __init__(self, function: Callable[[Item], Result]) -> None:
        self._function = function

    def submit(self, item: Item) -> Pending[Result]:
        return _Deferred(self._function, item)

    def close(self) -> None:
        pass

    def abandon(self) -> None:
        pass


class _Deferred(Generic[Item, Result]):
    """A call that is made when its result is asked for, once."""

    def __init__(self, function: Callable[[Item], Result], item: Item) -> None:
        self._call: Callable[[], Result] | None = lambda: function(item)

    def result(self) -> Result:
        if self._call is not None:
            self._value, self._call = self._call(), None
        return self._value
