"""The end of an episode inside an unroll, as each of Gymnasium's autoreset modes writes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from thespis.core.types import Inputs, Unroll


def same_step(long: Unroll, truncates: bool) -> Unroll:
    """Write two episodes, of 3 steps and 2, into `long` as the next-step mode does; return them in the same-step mode.

    The episodes are o0 o1 o2 | final, then p0 p1 and the bootstrap p2.

    next-step:  o0 o1 o2 final* p0 p1 (p2)      * invalid row
    same-step:  o0 o1 o2 p0 p1 (p2)             final in final_obs
    """
    (long.truncated if truncates else long.terminated)[2, 0] = True
    long.valid[3, 0] = False
    long.inputs.first[4, 0] = True
    long.inputs.last_action[3], long.inputs.last_reward[3] = long.actions[2], long.rewards[2]
    steps, rows = [0, 1, 2, 4, 5], [0, 1, 2, 4, 5, 6]
    fields = ("actions", "rewards", "terminated", "truncated", "valid", "behaviour_logp", "versions")
    inputs = Inputs(*(getattr(long.inputs, name)[rows] for name in ("obs", "first", "last_action", "last_reward")))
    short = replace(long, inputs=inputs, **{name: getattr(long, name)[steps] for name in fields})
    if truncates:
        short = replace(short, final_index=np.array([[2, 0]]), final_obs=long.inputs.obs[3])
    return short
