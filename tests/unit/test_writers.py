"""The unroll writer against a slow reference with the whole stream."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_stream import Moment, check, stream, streams

from thespis.core.types import Inputs, PolicyOutput, Unroll
from thespis.experience.writers import UnrollWriter, concatenate


def written(moments: list[Moment], length: int) -> list[Unroll]:
    writer = UnrollWriter(length, moments[0].inputs, moments[0].state)
    unrolls = []
    for now, then in pairwise(moments):
        unroll = writer.write(PolicyOutput(now.actions, now.logp, then.state), now.version, now.step, then.inputs)
        if unroll is not None:
            unrolls.append(unroll)
    return unrolls


@settings(max_examples=60, deadline=None)
@given(moments=streams(), length=st.integers(1, 7))
def test_unrolls_are_the_stream(moments: list[Moment], length: int) -> None:
    unrolls = written(moments, length)
    assert len(unrolls) == (len(moments) - 1) // length
    for number, unroll in enumerate(unrolls):
        check(unroll, moments, number * length, length)
    assert sum(int(unroll.valid.sum()) for unroll in unrolls) == sum(
        int(moment.step.valid.sum()) for moment in moments[: len(unrolls) * length]
    )


def test_consecutive_unrolls_share_one_observation_and_no_memory() -> None:
    one, two = written(stream(6, 2, np.random.default_rng(0), tree=False, same_step=False), 3)
    np.testing.assert_array_equal(one.inputs.obs[-1], two.inputs.obs[0])
    for part in ("first", "last_action", "last_reward"):
        np.testing.assert_array_equal(getattr(one.inputs, part)[-1], getattr(two.inputs, part)[0])
    assert not np.shares_memory(one.inputs.obs, two.inputs.obs)


def test_returns_so_far_go_on_across_unrolls_and_stop_at_endings() -> None:
    moments = stream(20, 3, np.random.default_rng(4), tree=False, same_step=True)
    writer = UnrollWriter(5, moments[0].inputs, moments[0].state, return_discount=0.9)
    result, wanted, carry = [], [], np.zeros(3)
    for now, then in pairwise(moments):
        unroll = writer.write(PolicyOutput(now.actions, now.logp, then.state), now.version, now.step, then.inputs)
        carry = now.step.rewards + 0.9 * carry
        wanted.append(carry)
        carry = np.where(now.step.terminated | now.step.truncated, 0.0, carry)
        if unroll is not None:
            result.append(unroll.returns)
    np.testing.assert_allclose(np.concatenate(result), wanted, rtol=1e-5, atol=1e-6)


def test_what_the_caller_reuses_is_copied() -> None:
    """The writer copies arrays, because environments overwrite them at the next step."""
    moments = stream(3, 2, np.random.default_rng(0), tree=False, same_step=True)
    (unroll,) = written(moments, 3)
    kept = unroll.inputs.obs.copy(), unroll.state[0].copy()
    for moment in moments:
        moment.inputs.obs[:] = -1
        moment.state[0][:] = -1
    np.testing.assert_array_equal(unroll.inputs.obs, kept[0])
    np.testing.assert_array_equal(unroll.state[0], kept[1])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 3), min_size=1, max_size=4), st.booleans())
def test_concatenated_unrolls_stand_side_by_side(seed: int, widths: list[int], tree: bool) -> None:
    rng = np.random.default_rng(seed)
    streams = [stream(4, width, rng, tree=tree, same_step=True) for width in widths]
    joined = concatenate([written(moments, 4)[0] for moments in streams])
    assert joined.rewards.shape == (4, sum(widths))
    at, finals = 0, 0
    for moments, width in zip(streams, widths, strict=True):
        mine = slice(at, at + width)
        chosen = (joined.final_index[:, 1] >= at) & (joined.final_index[:, 1] < at + width)
        part = Unroll(
            inputs=Inputs(
                {key: leaf[:, mine] for key, leaf in joined.inputs.obs.items()} if tree else joined.inputs.obs[:, mine],
                joined.inputs.first[:, mine],
                joined.inputs.last_action[:, mine],
                joined.inputs.last_reward[:, mine],
            ),
            actions=joined.actions[:, mine],
            rewards=joined.rewards[:, mine],
            terminated=joined.terminated[:, mine],
            truncated=joined.truncated[:, mine],
            valid=joined.valid[:, mine],
            behaviour_logp=joined.behaviour_logp[:, mine],
            state=tuple(state[mine] for state in joined.state),
            versions=joined.versions[:, mine],
            final_index=joined.final_index[chosen] - [0, at],
            final_obs={k: v[chosen] for k, v in joined.final_obs.items()} if tree else joined.final_obs[chosen],
        )
        check(part, moments, 0, 4)
        at, finals = at + width, finals + int(chosen.sum())
    assert finals == len(joined.final_index)
