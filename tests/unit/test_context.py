"""The report of a role contains everything that the role recorded."""

from __future__ import annotations

import numpy as np
from fakes import FakeContext

from thespis.core.context import Identity


def test_lags_are_counted_exactly_below_eight_and_to_a_quarter_above() -> None:
    ctx = FakeContext(Identity("learner", 0, run_seed=0))
    ctx.lag(np.array([0, 1, 1, 7, 8, 9, 10, 1000]))
    report = ctx.take_report()
    assert report.lags == {0: 1, 1: 2, 7: 1, 8: 2, 10: 1, 896: 1}
    assert (report.stats["lag"].mean, report.stats["lag"].maximum) == (129.5, 1000.0)


def test_a_gradient_of_many_steps_weighs_as_many() -> None:
    ctx = FakeContext(Identity("server", 0, run_seed=0))
    ctx.lag(np.array([3]), weight=40)
    ctx.lag(np.array([1]), weight=120)
    report = ctx.take_report()
    assert report.lags == {3: 40, 1: 120}
    assert report.stats["lag"].mean == 1.5
