"""V-trace: hand-computed numbers, the definition, and properties that follow from it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thespis.algorithms.updates.vtrace_targets import PAPER, Clips, VTraceReturns, vtrace

OFF = (2.0, 0.5, 1.5)


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def flags(*bits: int) -> Tensor:
    return torch.tensor(bits, dtype=torch.bool)[:, None]


def small(
    ratios: tuple[float, ...] = OFF,
    v_t: tuple[float, ...] = (1.0, 1.5, 2.0),
    discount: tuple[float, ...] = (0.9, 0.9, 0.9),
    cut: tuple[int, ...] = (0, 0, 0),
    clips: Clips = PAPER,
) -> VTraceReturns:
    v_tm1, r_t = column(0.5, 1.0, 1.5), column(1.0, 2.0, 3.0)
    return vtrace(v_tm1, column(*v_t), r_t, column(*discount), flags(*cut), column(*ratios).log(), clips=clips)


@pytest.mark.parametrize(
    ("case", "targets", "advantages"),
    [
        ({"ratios": (1.0, 1.0, 1.0)}, (6.688, 6.32, 4.8), (6.188, 5.32, 3.3)),
        ({}, (4.294, 3.66, 4.8), (3.794, 2.66, 3.3)),
        ({"clips": Clips(rho_bar=2.0)}, (6.36225, 4.4025, 6.45), (4.46225, 3.4025, 3.3)),
        ({"discount": (0.9, 0.0, 0.9), "cut": (0, 1, 0)}, (2.35, 1.5, 4.8), (1.85, 0.5, 3.3)),
        ({"clips": Clips(lambda_=0.95)}, (4.110816, 3.58575, 4.8), (3.727175, 2.66, 3.3)),
        ({"v_t": (1.0, 4.0, 2.0), "cut": (0, 1, 0)}, (3.97, 3.3, 4.8), (3.47, 2.3, 3.3)),
    ],
    ids=["on-policy", "off-policy", "rho_bar 2", "terminal", "lambda", "truncated"],
)
def test_vectors(case: dict[str, object], targets: tuple[float, ...], advantages: tuple[float, ...]) -> None:
    out = small(**case)  # type: ignore[arg-type]
    np.testing.assert_allclose(out.targets[:, 0], targets, rtol=1e-6)
    np.testing.assert_allclose(out.advantages[:, 0], advantages, rtol=1e-6)


def test_advantages_without_the_ratio() -> None:
    """Advantages are r + discount * v_{s+1} - V for any `pg_rho_bar`, and targets do not change."""
    plain, bare = small(), small(clips=Clips(pg_rho_bar=0.1, weighted=False))
    assert torch.equal(bare.targets, plain.targets)
    expected = (1.0 + 0.9 * plain.targets[1] - 0.5, 2.0 + 0.9 * plain.targets[2] - 1.0, 3.0 + 0.9 * 2.0 - 1.5)
    np.testing.assert_allclose(bare.advantages[:, 0], [float(value) for value in expected], rtol=1e-6)


def test_truncation_does_not_leak_the_next_episode() -> None:
    v = column(1, 1, 100, 100)
    v_t = column(1, 1, 100, 100)  # the truncated step 1 led to a state worth 1, not to the next episode's 100
    out = vtrace(v, v_t, torch.zeros_like(v), torch.ones_like(v), flags(0, 1, 0, 0), torch.zeros_like(v))
    assert torch.equal(out.advantages, torch.zeros_like(v))
    assert torch.equal(out.targets, v)


def test_independent_oracle() -> None:
    ratios = torch.tensor(
        [[0.475151, 22.312224, 0.038761, 3.220699], [95.639175, 0.880906, 1.1e-5, 1.908544]]
    ).T.double()
    discount = torch.tensor([[0, 0.89, 0.85, 0.99], [0.88, 1, 0.83, 0.95]]).T.double()
    rewards = torch.tensor([[-1.3, -1.3, 2.3, 42], [1.3, 5.3, -3.3, -5]]).T.double()
    v = torch.tensor([[2.1, 1.1, -3.1, 0], [3.1, 0.1, -1.1, 7.4]]).T.double()
    v_t = torch.cat([v[1:], torch.tensor([[8.4, -1.2]]).double()])
    out = vtrace(v, v_t, rewards, discount, discount == 0, ratios.log())
    errors = [[-1.615514, -3.497322, 1.867053, 50.316], [1.466243, 3.611640, -0.000083, -13.54]]
    np.testing.assert_allclose((out.targets - v).T, errors, rtol=2e-5, atol=1e-5)


def test_on_policy_with_lambda_is_gae() -> None:
    out = small(ratios=(1.0, 1.0, 1.0), clips=Clips(lambda_=0.8))
    np.testing.assert_allclose(out.targets[:, 0], (5.30272, 5.726, 4.8), rtol=1e-6)
    v, r = column(0.5, 0.4, 0.3), column(1, 1, 1)
    for middle, expected in ((0, (2.533946, 1.741569, 0.898)), (1, (1.4603, 0.6, 0.898))):
        cut = flags(0, middle, 0)
        discount = 0.99 * (~cut).double()
        gae = vtrace(v, column(0.4, 0.3, 0.2), r, discount, cut, torch.zeros_like(v), clips=Clips(lambda_=0.95))
        np.testing.assert_allclose((gae.targets - v)[:, 0], expected, rtol=1e-5)


Case = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def random_case(seed: int, steps: int, batch: int) -> Case:
    """Return v_tm1, v_t, r, discount, cut, log_ratio with terminations and truncations."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(steps + 1, batch))
    terminated, truncated = rng.random((2, steps, batch)) < 0.15
    v_t = np.where(truncated, rng.normal(size=(steps, batch)), values[1:])
    discount = 0.97 * ~terminated
    log_ratio = rng.uniform(-2.5, 2.5, (steps, batch))
    arrays = (values[:-1], v_t, rng.normal(size=(steps, batch)), discount, terminated | truncated, log_ratio)
    v_tm1, v_t, r, discount, cut, log_ratio = (torch.from_numpy(np.array(array)) for array in arrays)
    return v_tm1, v_t, r, discount, cut, log_ratio


def by_definition(case: Case, clips: Clips) -> tuple[Tensor, Tensor]:
    """Return the sums of the paper, term by term, in O(T^2)."""
    v_tm1, v_t, r, discount, cut, log_ratio = case
    ratio = log_ratio.exp()
    rho, c, pg = (ratio.clamp(max=math.inf if bar is None else bar) for bar in clips[:3])
    targets, advantages = v_tm1.clone(), torch.zeros_like(v_tm1)
    steps, batch = v_tm1.shape
    for b in range(batch):
        for s in range(steps):
            factor = 1.0
            for t in range(s, steps):
                targets[s, b] += factor * rho[t, b] * (r[t, b] + discount[t, b] * v_t[t, b] - v_tm1[t, b])
                if cut[t, b]:
                    break
                factor *= float(discount[t, b] * c[t, b] * clips.lambda_)
        for s in range(steps):
            bootstrap = v_t[s, b] if cut[s, b] or s == steps - 1 else targets[s + 1, b]
            advantages[s, b] = pg[s, b] * (r[s, b] + discount[s, b] * bootstrap - v_tm1[s, b])
    return targets, advantages


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 9),
    st.integers(1, 4),
    st.sampled_from([Clips(), Clips(3.7, 1.0, 2.2), Clips(None, math.inf, None, 0.9), Clips(1.0, 0.0, 1.0)]),
)
def test_equals_the_definition(seed: int, steps: int, batch: int, clips: Clips) -> None:
    case = random_case(seed, steps, batch)
    out = vtrace(*case, clips=clips)
    targets, advantages = by_definition(case, clips)
    torch.testing.assert_close(out.targets, targets, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(out.advantages, advantages, rtol=1e-9, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 3))
def test_zero_discount_and_zero_trace(seed: int, steps: int, batch: int) -> None:
    v, v_t, r, discount, cut, log_ratio = random_case(seed, steps, batch)
    rho = log_ratio.exp().clamp(max=1.0)
    myopic = vtrace(v, v_t, r, torch.zeros_like(discount), cut, log_ratio)
    torch.testing.assert_close(myopic.targets, v + rho * (r - v))
    one_step = vtrace(v, v_t, r, discount, cut, log_ratio, clips=Clips(c_bar=0.0))
    torch.testing.assert_close(one_step.targets, v + rho * (r + discount * v_t - v))


def test_environments_do_not_mix() -> None:
    case = random_case(3, 7, 5)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(0))
    whole, permuted = vtrace(*case), vtrace(*(part[:, order] for part in case))
    assert torch.equal(whole.targets[:, order], permuted.targets)
    assert torch.equal(whole.advantages[:, order], permuted.advantages)


def test_splitting_at_an_episode_end_changes_nothing() -> None:
    v, v_t, r, discount, cut, log_ratio = random_case(4, 9, 2)
    cut[3] = True
    case = (v, v_t, r, discount, cut, log_ratio)
    whole, left, right = vtrace(*case), vtrace(*(p[:4] for p in case)), vtrace(*(p[4:] for p in case))
    torch.testing.assert_close(whole.targets, torch.cat([left.targets, right.targets]))
    torch.testing.assert_close(whole.advantages, torch.cat([left.advantages, right.advantages]))


def test_an_invalid_row_says_nothing_and_stops_traces() -> None:
    v, v_t, r, discount, cut, log_ratio = random_case(5, 6, 2)
    cut[:] = False
    v_t[:-1] = v[1:]
    valid = torch.ones_like(cut)
    valid[3] = False
    before = vtrace(v, v_t, r, discount, cut, log_ratio, valid)
    r[3], log_ratio[3], v_t[3] = math.nan, 80.0, 1e9
    after = vtrace(v, v_t, r, discount, cut, log_ratio, valid)
    assert torch.equal(before.targets, after.targets) and torch.equal(before.advantages, after.advantages)
    assert torch.equal(after.targets[3], v[3]) and not after.advantages[3].any()
    head = vtrace(v[:3], v_t[:3], r[:3], discount[:3], cut[:3], log_ratio[:3])
    torch.testing.assert_close(after.targets[:3], head.targets)


def test_no_gradient_flows_out_and_inputs_stay() -> None:
    case = random_case(6, 4, 2)
    kept = [part.clone() for part in case]
    case[0].requires_grad_()
    out = vtrace(*case)
    assert not out.targets.requires_grad and not out.advantages.requires_grad
    assert all(torch.equal(part, copy) for part, copy in zip(case, kept, strict=True))


def test_shapes_are_checked() -> None:
    case = random_case(7, 4, 2)
    with pytest.raises(ValueError, match=r"\[T, B\]"):
        vtrace(case[0], case[1][:3], *case[2:])
    with pytest.raises(ValueError, match=r"\[T, B\]"):
        vtrace(*(part[:, 0] for part in case))
