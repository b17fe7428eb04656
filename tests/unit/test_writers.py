"""The unroll writer against a slow reference that sees the whole stream."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from thespis.envs.autoreset import EnvStep
from thespis.experience.writers import UnrollWriter, concatenate
from thespis.roles.actor import next_inputs
from thespis.types import Acted, Inputs, Unroll, Version


@dataclass
class Moment:
    """One step of the stream as the reference remembers it: everything, copied."""

    inputs: Inputs
    state: tuple[np.ndarray, ...]
    actions: np.ndarray
    logp: np.ndarray
    step: EnvStep
    version: Version


def obs_at(time: int, batch: int, tree: bool) -> Any:
    """Observations that tell their time and environment."""
    plain = np.stack([np.full(batch, time), np.arange(batch)], axis=1).astype(np.float32)
    return {"a": plain, "b": (plain[:, :1] * 2).astype(np.uint8)} if tree else plain


def stream(steps: int, batch: int, rng: np.random.Generator, *, tree: bool, same_step: bool) -> list[Moment]:
    """A stream of random endings; in next-step mode the row after an ending is no transition."""
    moments = []
    inputs = Inputs(obs_at(0, batch, tree), np.ones(batch, bool), np.zeros((batch, 2), np.int64), np.zeros(batch, "f4"))
    over = np.zeros(batch, bool)
    for time in range(steps):
        terminated, truncated = rng.random((2, batch)) < 0.2
        valid = np.ones(batch, bool) if same_step else ~over
        terminated, truncated = terminated & valid, truncated & valid & ~terminated
        rewards = rng.normal(size=batch).astype(np.float32) * valid
        over = terminated | truncated
        first = over if same_step else ~valid
        final = obs_at(1000 + time, batch, tree) if same_step and over.any() else None
        usual = not (over.any() or first.any())
        step = EnvStep(obs_at(time + 1, batch, tree), rewards, terminated, truncated, valid, first, final, [], usual)
        state = (np.full((batch, 3), float(time)),)
        actions, logp = rng.integers(0, 5, (batch, 2)), rng.normal(size=batch).astype(np.float32)
        moments.append(Moment(inputs, state, actions, logp, step, Version(1, time // 4)))
        inputs = next_inputs(step, actions)
    moments.append(Moment(inputs, (np.full((batch, 3), float(steps)),), *([None] * 3), Version(0, 0)))  # type: ignore[arg-type]
    return moments


def written(moments: list[Moment], length: int) -> list[Unroll]:
    writer = UnrollWriter(length, moments[0].inputs, moments[0].state)
    unrolls = []
    for now, then in pairwise(moments):
        unroll = writer.write(Acted(now.actions, now.logp, then.state), now.version, now.step, then.inputs)
        if unroll is not None:
            unrolls.append(unroll)
    return unrolls


def leaves(tree: Any) -> list[Any]:
    return [tree[key] for key in sorted(tree)] if isinstance(tree, dict) else [tree]


def check(unroll: Unroll, moments: list[Moment], start: int, length: int) -> None:
    """Compare an unroll, element by element, with the moments it was made from."""
    np.testing.assert_array_equal(unroll.state[0], moments[start].state[0])
    for t in range(length + 1):
        wanted = moments[start + t].inputs
        for got, leaf in zip(leaves(unroll.inputs.obs), leaves(wanted.obs), strict=True):
            np.testing.assert_array_equal(got[t], leaf)
            assert got.dtype == leaf.dtype
        for part in ("first", "last_action", "last_reward"):
            np.testing.assert_array_equal(getattr(unroll.inputs, part)[t], getattr(wanted, part), part)
    finals: list[tuple[int, int]] = []
    for t in range(length):
        moment = moments[start + t]
        np.testing.assert_array_equal(unroll.actions[t], moment.actions)
        np.testing.assert_array_equal(unroll.behaviour_logp[t], moment.logp)
        for part in ("rewards", "terminated", "truncated", "valid"):
            np.testing.assert_array_equal(getattr(unroll, part)[t], getattr(moment.step, part), part)
        assert (unroll.versions[t] == moment.version.packed()).all()
        if moment.step.final_obs is not None:
            finals += [(t, int(env)) for env in np.flatnonzero(moment.step.truncated)]
    assert [tuple(pair) for pair in unroll.final_index.tolist()] == finals
    for k, (t, env) in enumerate(finals):
        for got, leaf in zip(leaves(unroll.final_obs), leaves(moments[start + t].step.final_obs), strict=True):
            np.testing.assert_array_equal(got[k], leaf[env])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    length=st.integers(1, 7),
    batch=st.integers(1, 4),
    steps=st.integers(0, 30),
    tree=st.booleans(),
    same_step=st.booleans(),
)
def test_unrolls_are_the_stream(seed: int, length: int, batch: int, steps: int, tree: bool, same_step: bool) -> None:
    moments = stream(steps, batch, np.random.default_rng(seed), tree=tree, same_step=same_step)
    unrolls = written(moments, length)
    assert len(unrolls) == steps // length
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
    told, wanted, carry = [], [], np.zeros(3)
    for now, then in pairwise(moments):
        unroll = writer.write(Acted(now.actions, now.logp, then.state), now.version, now.step, then.inputs)
        carry = now.step.rewards + 0.9 * carry
        wanted.append(carry)
        carry = np.where(now.step.terminated | now.step.truncated, 0.0, carry)
        if unroll is not None:
            told.append(unroll.returns)
    np.testing.assert_allclose(np.concatenate(told), wanted, rtol=1e-5, atol=1e-6)


def test_what_the_caller_reuses_is_copied() -> None:
    """Environments overwrite their arrays at the next step."""
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
