"""The mean of gradients: blocks of the vectors, the order of the parts, and weights by rows."""

from __future__ import annotations

import numpy as np
import pytest

from thespis.core.context import Context, Identity
from thespis.core.payloads import Contribution
from thespis.core.types import Array
from thespis.exchange import mean_gradients as module
from thespis.exchange.mean_gradients import mean_gradients, weighted_sum


class Still(Context):
    """A context whose clock stands still."""

    def now(self) -> float:
        return 0.0


def vectors(number: int, size: int) -> list[Array]:
    return list(np.random.default_rng(0).standard_normal((number, size), np.float32))


@pytest.mark.parametrize("size", [1, 7, 8, 9, 24, 29])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_blocks_are_added_up_in_the_order_of_the_vectors(
    monkeypatch: pytest.MonkeyPatch, number: int, size: int
) -> None:
    monkeypatch.setattr(module, "_BLOCK", 8)
    parts, weights = vectors(number, size), np.array([0.1, 0.7, 0.2], np.float32)[:number]
    expected = parts[0] * weights[0]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        expected = expected + part * weight
    into = np.full(size, np.nan, np.float32)
    assert weighted_sum(parts, weights.tolist(), into) is into
    assert into.tobytes() == expected.tobytes()


def test_parts_weigh_as_many_rows_as_they_have() -> None:
    ctx, (first, second) = Still(Identity("group", 0, 0)), vectors(2, 50)
    parts = [Contribution(0, 0, first, rows=3), Contribution(0, 0, second, rows=1)]
    mean, total = mean_gradients(ctx, parts, averages=True), mean_gradients(ctx, parts, averages=False)
    assert mean is not None and total is not None
    np.testing.assert_array_equal(mean, first * np.float32(0.75) + second * np.float32(0.25))
    np.testing.assert_array_equal(total, first + second)


def test_there_is_no_mean_if_one_part_has_no_gradients() -> None:
    parts = [Contribution(0, 0, vectors(1, 5)[0], rows=1), Contribution(0, 0, None, rows=1)]
    assert mean_gradients(Still(Identity("group", 0, 0)), parts, averages=True) is None
