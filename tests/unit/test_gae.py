"""Generalised advantages: hand-computed numbers, the definition, and no leaks between episodes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thespis.algorithms.updates.gae import gae


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def flags(*bits: int) -> Tensor:
    return torch.tensor(bits, dtype=torch.bool)[:, None]


@pytest.mark.parametrize(
    ("terminal", "expected"), [(0, (2.533946, 1.741569, 0.898)), (1, (1.4603, 0.6, 0.898))], ids=["on", "ends"]
)
def test_vectors(terminal: int, expected: tuple[float, ...]) -> None:
    cut = flags(0, terminal, 0)
    discount = 0.99 * (~cut).double()
    found = gae(column(0.5, 0.4, 0.3), column(0.4, 0.3, 0.2), column(1, 1, 1), discount, cut, 0.95)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-5)


def test_a_truncation_ends_in_its_own_last_value_and_not_in_the_next_episode() -> None:
    v = column(1, 1, 100, 100)
    v_t = column(1, 1, 100, 100)  # the truncated step 1 led to a state worth 1, not to the next episode's 100
    found = gae(v, v_t, torch.zeros_like(v), torch.ones_like(v), flags(0, 1, 0, 0), 0.95)
    assert torch.equal(found, torch.zeros_like(v))


Case = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def random_case(seed: int, steps: int, batch: int) -> Case:
    """Return v_tm1, v_t, r, discount, cut, valid with terminations, truncations and reset rows."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(steps + 1, batch))
    terminated, truncated, invalid = rng.random((3, steps, batch)) < 0.15
    v_t = np.where(truncated, rng.normal(size=(steps, batch)), values[1:])
    arrays = (values[:-1], v_t, rng.normal(size=(steps, batch)), 0.97 * ~terminated, terminated | truncated, ~invalid)
    v_tm1, v_t, r, discount, cut, valid = (torch.from_numpy(np.array(array)) for array in arrays)
    return v_tm1, v_t, r, discount, cut, valid


def by_definition(case: Case, lambda_: float) -> Tensor:
    """Return the sum of discounted temporal differences, term by term, in O(T^2)."""
    v_tm1, v_t, r, discount, cut, valid = case
    found = torch.zeros_like(v_tm1)
    steps, batch = v_tm1.shape
    for b in range(batch):
        for s in range(steps):
            factor = 1.0
            for t in range(s, steps):
                if not valid[t, b]:
                    break
                found[s, b] += factor * (r[t, b] + discount[t, b] * v_t[t, b] - v_tm1[t, b])
                if cut[t, b]:
                    break
                factor *= float(discount[t, b]) * lambda_
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 4), st.sampled_from([0.0, 0.8, 0.95, 1.0]))
def test_equals_the_definition(seed: int, steps: int, batch: int, lambda_: float) -> None:
    case = random_case(seed, steps, batch)
    kept = [part.clone() for part in case]
    v_tm1, v_t, r, discount, cut, valid = case
    found = gae(v_tm1, v_t, r, discount, cut, lambda_, valid)
    torch.testing.assert_close(found, by_definition(case, lambda_), rtol=1e-9, atol=1e-9)
    assert all(torch.equal(part, copy) for part, copy in zip(case, kept, strict=True)), "inputs must not change"


def test_a_reset_row_says_nothing_and_stops_traces() -> None:
    v_tm1, v_t, r, discount, cut, valid = random_case(5, 6, 2)
    valid[:], cut[:] = True, False
    valid[3] = False
    before = gae(v_tm1, v_t, r, discount, cut, 0.9, valid)
    r[3], v_t[3] = math.nan, 1e9
    assert torch.equal(gae(v_tm1, v_t, r, discount, cut, 0.9, valid), before)
    head = gae(v_tm1[:3], v_t[:3], r[:3], discount[:3], cut[:3], 0.9)
    torch.testing.assert_close(before[:3], head)
    assert not before[3].any()


def test_shapes_are_checked() -> None:
    v_tm1, v_t, r, discount, cut, _ = random_case(7, 4, 2)
    with pytest.raises(ValueError, match=r"\[T, B\]"):
        gae(v_tm1, v_t[:3], r, discount, cut, 0.9)
