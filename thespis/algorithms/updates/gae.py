"""Generalised advantage estimation (Schulman et al., 2016, arXiv:1506.02438)."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def gae(
    v_tm1: Tensor,
    v_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    cut_t: Tensor,
    lambda_: float,
    valid: Tensor | None = None,
) -> Tensor:
    """Advantages `[T, B]` of the actions, without gradients. Every tensor is `[T, B]`.

        delta_t = r_t + discount_t * v_t - v_tm1
        A_t = delta_t + lambda * discount_t * A_{t+1}, without the second term if the row is cut

    `v_tm1[t]`: V(x_t). `v_t[t]`: value of the transition's next state; at a truncation this is the last state of the
    episode. `discount_t`: gamma, or 0 if the episode terminated. `cut_t`: bool, the next row belongs to another
    episode. `valid`: bool; a false row is no transition, so its advantage is 0 and traces stop there.
    """
    given = (v_tm1, v_t, r_t, discount_t, cut_t, *(() if valid is None else (valid,)))
    if v_tm1.dim() != 2 or any(tensor.shape != v_tm1.shape for tensor in given):
        raise ValueError(f"gae needs equal shapes [T, B], got {[tuple(tensor.shape) for tensor in given]}")
    delta = torch.addcmul(r_t, discount_t, v_t).sub_(v_tm1)
    trace = discount_t.masked_fill(cut_t, 0.0).mul_(lambda_)
    if valid is not None:
        delta.masked_fill_(~valid, 0.0)
        trace.masked_fill_(~valid, 0.0)
    # The backward sum runs in place on a numpy view: T small torch operations cost three times as much.
    rows, factors = delta.numpy(), trace.numpy()
    for t in range(len(rows) - 2, -1, -1):
        rows[t] += factors[t] * rows[t + 1]
    return delta
