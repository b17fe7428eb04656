"""Threads of numpy and torch in a process that is one of several. Loads neither of them."""

from __future__ import annotations

import os

THREADS = {
    # Each process is one worker among several: numpy's matrix product must not spread over their cores as well.
    "OPENBLAS_NUM_THREADS": "1",
    # Threads of torch (libgomp) that wait for each other sleep. Spinning threads take the cores from everybody else
    # (docs/ppo.md has the figures).
    "OMP_WAIT_POLICY": "PASSIVE",
}
"""Environment variables that every process of a run has, unless the user has set them."""


def limit_threads() -> None:
    """Set the variables in this process. They are read when numpy and torch are first imported."""
    for name, value in THREADS.items():
        os.environ.setdefault(name, value)
