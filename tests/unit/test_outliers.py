"""Gorila's filter: which batches it discards, and that it never discards forever."""

from __future__ import annotations

from typing import Any

import numpy as np

from thespis.algorithms.updates.outliers import OutlierFilter
from thespis.algorithms.updates.update import Gradients


class GivenLosses:
    """An update whose batches are their losses."""

    def gradients(self, batch: float, want_metrics: bool) -> Gradients:
        return Gradients([], {"train/loss": batch}, np.array([batch]))

    def state(self) -> dict[str, Any]:
        return {"a": np.ones(2)}

    def restore(self, arrays: dict[str, Any]) -> None:
        assert list(arrays) == ["a"]


def refused(outliers: OutlierFilter, losses: Any) -> int:
    return sum(outliers.gradients(float(loss)).outlier for loss in losses)


def make(**settings: Any) -> OutlierFilter:
    return OutlierFilter(GivenLosses(), **settings)  # type: ignore[arg-type]


def test_an_outlier_is_refused_and_little_else() -> None:
    outliers, rng = make(deviations=3.0), np.random.default_rng(0)
    assert refused(outliers, rng.normal(1.0, 0.1, 1000)) == 0, "the filter has not seen enough batches"
    rate = refused(outliers, rng.normal(1.0, 0.1, 20_000)) / 20_000
    assert 0.0005 < rate < 0.003, "one side of three deviations is 0.13%"
    found = outliers.gradients(5.0)
    assert found.outlier and found.priorities == [5.0], "a lasting change of the loss is accepted"


def test_a_lasting_change_is_accepted_after_a_while() -> None:
    outliers, rng = make(deviations=4.0, memory=100), np.random.default_rng(0)
    refused(outliers, rng.normal(1.0, 0.1, 500))
    assert refused(outliers, rng.normal(10.0, 0.1, 300)) < 20
    assert refused(outliers, rng.normal(10.0, 0.1, 300)) == 0


def test_its_statistics_are_saved() -> None:
    outliers, other, rng = make(deviations=3.0), make(deviations=3.0), np.random.default_rng(0)
    refused(outliers, rng.normal(1.0, 0.1, 1500))
    other.restore(outliers.state())
    np.testing.assert_array_equal(other.state()["outliers"], outliers.state()["outliers"])
    assert refused(other, [5.0]) == 1
