"""Imports of a user's file for what it defines. Such an import may not start a training."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from thespis.core.errors import ThespisError

_IMPORTING: ContextVar[bool] = ContextVar("importing", default=False)


@contextmanager
def importing() -> Iterator[None]:
    """What is imported inside is wanted for its definitions alone."""
    before = _IMPORTING.set(True)
    try:
        yield
    finally:
        _IMPORTING.reset(before)


def refuse_training() -> None:
    """Called where a run starts: a script that trains when it is imported would start one run inside another."""
    if not _IMPORTING.get():
        return
    frame = sys._getframe()
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    raise ThespisError(
        f"{frame.f_code.co_filename} starts a training whenever it is imported, and it has to be imported to find what "
        'it defines; put what trains under `if __name__ == "__main__":`'
    )
