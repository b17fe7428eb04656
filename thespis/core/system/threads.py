"""Limits the threads of numpy and torch in each of a run's processes. Imports neither of them."""

from __future__ import annotations

import os

THREADS = {
    # Each process is one worker among several, so numpy's matrix product must not use their cores as well.
    "OPENBLAS_NUM_THREADS": "1",
    # Idle threads of torch (libgomp) sleep. Spinning threads would take cores from other processes (docs/ppo.md has the
    # figures).
    "OMP_WAIT_POLICY": "PASSIVE",
}
"""Environment variables that every process of a run sets, unless the user has set them."""


def limit_threads() -> None:
    """Set the variables in this process. numpy and torch read them when they are first imported."""
    for name, value in THREADS.items():
        os.environ.setdefault(name, value)
