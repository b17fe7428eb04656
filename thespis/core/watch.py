"""Making and closing environments under the eyes of the process's watchdog, as stepping them is."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

Doing = Literal["make", "close"]


class StatusPage(Protocol):
    def handle(self, doing: Doing, env: int) -> None:
        """Environment `env` (-1: all of a vector at once) is being made or closed from now on."""

    def end(self) -> None: ...


_page: weakref.ref[StatusPage] | None = None


def watch_on(page: StatusPage) -> None:
    """Tell this page from now on; a process has one."""
    global _page
    _page = weakref.ref(page)


@contextmanager
def watched(doing: Doing, env: int = -1) -> Iterator[None]:
    """Around a constructor or `close`: should it never return, the page says which."""
    page = None if _page is None else _page()
    if page is None:
        yield
        return
    page.handle(doing, env)
    try:
        yield
    finally:
        page.end()
