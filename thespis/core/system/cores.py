"""The number of cores that this process may use, by CPU affinity and cgroup quotas."""

from __future__ import annotations

import os
from collections.abc import Iterator

from thespis.core.system.cgroups import contents


def available_cores() -> int:
    """Return the cores for all processes of a run together, at least 1. A quota below one core counts as one."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, min([allowed, *(int(quota) for quota in _quotas())]))


def learner_threads(parameters: int, busy: int, learners: int = 1) -> int:
    """Return the threads of a learner with `parameters` parameters, next to `busy` roles that each occupy a core.

    `learners`: how many divide the other cores among them.

    OMP_NUM_THREADS overrides this. With fewer than `ONE_THREAD_BELOW` parameters a second thread costs more than it
    gains.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if threads.isdecimal() and int(threads):
        return int(threads)
    return 1 if parameters < ONE_THREAD_BELOW else max(1, (available_cores() - busy) // learners)


ONE_THREAD_BELOW = 100_000
"""Networks with fewer parameters train on one thread. On CartPole two layers of 64 have 4,675 parameters and two of 256
have 67,843; PPO trained the latter 1.17 times as fast on one thread as on two."""


def _quotas() -> Iterator[float]:
    """Iterate over the CPU quotas of this process's control groups, in cores."""
    unified = [text.split() for text in contents("cpu", unified="max")]
    periods = contents("cpu", legacy="cfs_period_us")
    legacy = [[*pair] for pair in zip(contents("cpu", legacy="cfs_quota_us"), periods, strict=False)]
    for quota, period in (*unified, *legacy):
        if quota.isdecimal() and period.isdecimal() and int(period):  # otherwise `max` or -1: no limit
            yield int(quota) / int(period)
