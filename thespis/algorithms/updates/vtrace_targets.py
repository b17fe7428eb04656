"""V-trace targets and policy-gradient advantages (Espeholt et al., 2018, section 4)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Clips(NamedTuple):
    """The three truncation levels of the importance ratio, and the trace decay.

    `rho_bar` sets which policy is evaluated, between behaviour and target policy. `c_bar` sets how far corrections
    propagate. `pg_rho_bar` bounds the policy gradient of one step. None or infinity disables a truncation.
    `weighted` off leaves the ratio out of the advantages, for a loss that contains the ratio itself.
    """

    rho_bar: float | None = 1.0
    c_bar: float | None = 1.0
    pg_rho_bar: float | None = 1.0
    lambda_: float = 1.0
    weighted: bool = True


PAPER = Clips()


class VTraceReturns(NamedTuple):
    """V-trace results, both `[T, B]` and without gradients.

    `targets`: regression targets of V(x_t). `advantages`: the factor of grad log pi, or of grad pi / mu if `weighted`
    is off.
    """

    targets: Tensor
    advantages: Tensor


@torch.no_grad()
def vtrace(
    v_tm1: Tensor,
    v_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    cut_t: Tensor,
    log_ratio: Tensor,
    valid: Tensor | None = None,
    clips: Clips = PAPER,
) -> VTraceReturns:
    """V-trace targets and advantages, which correct for an older behaviour policy. Every tensor is `[T, B]`.

    `v_tm1[t]`: V(x_t). `v_t[t]`: value of the transition's next state; at a truncation this is the last state of the
    episode. `discount_t`: gamma, or 0 if the episode terminated. `cut_t`: bool, the next row belongs to another
    episode, so the return ends in `v_t`. `log_ratio`: log pi(a_t|x_t) - log mu(a_t|x_t). `valid`: bool; a false row is
    no transition, so its target is its value, its advantage is 0, and traces stop there.
    """
    _check_shapes(v_tm1, v_t, r_t, discount_t, cut_t, log_ratio, *(() if valid is None else (valid,)))
    ratio = log_ratio.exp()
    rho = _truncate(ratio, clips.rho_bar)
    c = rho if clips.c_bar == clips.rho_bar else _truncate(ratio, clips.c_bar)
    pg_rho = rho if clips.pg_rho_bar == clips.rho_bar else _truncate(ratio, clips.pg_rho_bar)

    error = torch.addcmul(r_t, discount_t, v_t).sub_(v_tm1)
    delta = rho * error
    carry = discount_t.masked_fill(cut_t, 0.0)
    trace = carry * c if clips.lambda_ == 1.0 else (carry * c).mul_(clips.lambda_)
    if valid is not None:
        invalid = ~valid
        delta.masked_fill_(invalid, 0.0)
        trace.masked_fill_(invalid, 0.0)

    # excess[t] = v_s - V(x_s). The backward sum runs in place on a numpy view, because T small torch operations cost
    # three times as much (T = 20, B = 64: 39 us against 115 us).
    excess = delta
    rows, factors = excess.numpy(), trace.numpy()
    for t in range(len(rows) - 2, -1, -1):
        rows[t] += factors[t] * rows[t + 1]

    # r + discount * v_{s+1} - V(x_s), with v_{s+1} = V(x_{s+1}) + excess[s + 1] unless the row is cut.
    advantages = error
    advantages[:-1].addcmul_(carry[:-1], excess[1:])
    if clips.weighted:
        advantages.mul_(pg_rho)
    if valid is not None:
        advantages.masked_fill_(invalid, 0.0)
    return VTraceReturns(v_tm1 + excess, advantages)


def _truncate(ratio: Tensor, bar: float | None) -> Tensor:
    return ratio if bar is None or bar == math.inf else ratio.clamp(max=bar)


def _check_shapes(*tensors: Tensor) -> None:
    shape = tensors[0].shape
    if len(shape) != 2 or any(tensor.shape != shape for tensor in tensors):
        raise ValueError(f"vtrace needs equal shapes [T, B], got {[tuple(tensor.shape) for tensor in tensors]}")
