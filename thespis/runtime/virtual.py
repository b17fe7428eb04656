"""An event loop whose clock jumps: when nothing is ready it moves to the next timer instead of sleeping."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable

LEAP = 1.0


class Deadlock(Exception):
    """Nothing can run and no timer is left: everybody waits for somebody."""


class _Selector(selectors.SelectSelector):
    """Reports no events, ever; where a real selector would sleep, it moves the clock."""

    def __init__(self, advance: Callable[[float | None], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._advance(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on virtual time. `on_time(now)` is called whenever the clock has moved.

    Before it moves by more than `LEAP` seconds, `before_leap()` is asked whether it should stay where it is.

    Everything asyncio orders by (ready order, timer) stays ordered, and no thread or socket can interfere:
    the same coroutines give the same interleaving every time.
    """

    def __init__(
        self, start: float, on_time: Callable[[float], None], before_leap: Callable[[], bool] = lambda: False
    ) -> None:
        self._virtual = start
        self._on_time, self._before_leap = on_time, before_leap
        super().__init__(_Selector(self._advance))

    def time(self) -> float:
        return self._virtual

    def _advance(self, timeout: float | None) -> None:
        if timeout is None:
            raise Deadlock
        if timeout > 0 and not (timeout > LEAP and self._before_leap()):
            self._virtual += timeout
            self._on_time(self._virtual)
