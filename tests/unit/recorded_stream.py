"""A complete recording of environment steps, to compare unrolls with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from thespis.core.types import Inputs, Unroll, Version
from thespis.envs.autoreset import EnvStep
from thespis.envs.inputs import next_inputs


@dataclass
class Moment:
    """A complete copy of one step of the stream."""

    inputs: Inputs
    state: tuple[np.ndarray, ...]
    actions: np.ndarray
    logp: np.ndarray
    step: EnvStep
    version: Version


def obs_at(time: int, batch: int, tree: bool) -> Any:
    """Return observations that hold their time and environment."""
    plain = np.stack([np.full(batch, time), np.arange(batch)], axis=1).astype(np.float32)
    return {"a": plain, "b": (plain[:, :1] * 2).astype(np.uint8)} if tree else plain


def stream(steps: int, batch: int, rng: np.random.Generator, *, tree: bool, same_step: bool) -> list[Moment]:
    """A stream with random episode ends; in next-step mode the row after an end is not a transition."""
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


def leaves(tree: Any) -> list[Any]:
    return [tree[key] for key in sorted(tree)] if isinstance(tree, dict) else [tree]


def check(unroll: Unroll, moments: list[Moment], start: int, length: int) -> None:
    """Compare an unroll, element by element, with the recorded steps."""
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


@st.composite
def streams(draw: st.DrawFn) -> list[Moment]:
    """Streams of up to 30 steps, in both autoreset modes, with plain observations and trees."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    steps, batch = draw(st.integers(0, 30)), draw(st.integers(1, 4))
    return stream(steps, batch, rng, tree=draw(st.booleans()), same_step=draw(st.booleans()))
