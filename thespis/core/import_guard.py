"""Prevents a user's file from starting a training run while Thespis imports it for its definitions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from thespis.core.errors import ThespisError

_IMPORTING: ContextVar[bool] = ContextVar("importing", default=False)


@contextmanager
def importing() -> Iterator[None]:
    """Mark the imports inside the block as imports for definitions only."""
    before = _IMPORTING.set(True)
    try:
        yield
    finally:
        _IMPORTING.reset(before)


def refuse_training() -> None:
    """Raise a `ThespisError` inside `importing`: a file that trains on import would start a run within a run."""
    if not _IMPORTING.get():
        return
    frame = sys._getframe()
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    raise ThespisError(
        f"{frame.f_code.co_filename} starts a training run whenever it is imported, and Thespis imports it for its "
        'definitions; put the training call under `if __name__ == "__main__":`'
    )
