"""How many cores this process may use: what the machine has, less what affinity and cgroups take from it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from thespis.core.system.cgroups import contents


def available_cores() -> int:
    """Cores for all processes of a run together, at least 1; a share of one, as containers may have, counts as one."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, min([allowed, *(int(quota) for quota in _quotas())]))


def learner_threads(parameters: int, busy: int) -> int:
    """Threads of a learner with so many parameters beside `busy` others that want a core each all the time.

    OMP_NUM_THREADS decides if it is set. Below `SMALL` parameters a thread more waits longer than it works.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if asked.isdecimal() and int(asked):
        return int(asked)
    return 1 if parameters < SMALL else max(1, available_cores() - busy)


SMALL = 100_000
"""Parameters of a network that is learned on one thread. On CartPole two layers of 64 have 4,675 and two of 256 have
67,843; PPO learned the latter 1.17 times as fast on one thread as on two."""


def _quotas() -> Iterator[float]:
    """What the control groups of this process allow at a time, in cores."""
    unified = [text.split() for text in contents("cpu", unified="max")]
    periods = contents("cpu", legacy="cfs_period_us")
    legacy = [[*pair] for pair in zip(contents("cpu", legacy="cfs_quota_us"), periods, strict=False)]
    for quota, period in (*unified, *legacy):
        if quota.isdecimal() and period.isdecimal() and int(period):  # else it is `max`, or -1: no limit
            yield int(quota) / int(period)
