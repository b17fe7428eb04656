"""Learner and actor compute equal Q-values from the stored state, with the weights that acted.

These tests cover recurrent Q-learning; test_impala.py covers IMPALA with and without memory.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Pull, YieldingContext, run_until

from thespis.core.context import Identity
from thespis.core.types import SequenceBatch, Stream, Unroll
from thespis.core.user_code import resolve
from thespis.envs.make import describe_env
from thespis.networks.inputs import TensorInputs, as_tensor
from thespis.networks.policy_runner import load_weights
from thespis.roles import Replay
from thespis.training.registry import architecture, defaults

SMALL: dict[str, Any] = {
    "actors": 1, "envs_per_actor": 3, "unroll_length": 5, "sequence_length": 9, "burn_in": 3, "epsilon": 0.6,
    "network": {"hidden": [16], "lstm": 8, "feedback": True},
    "replay": {"capacity": 4000, "warm_up": 1, "error": 1e9},
}  # fmt: skip


class Insert:
    """Forwards unrolls to the replay, until it has enough sequences."""

    name = "actor.replay.insert"

    def __init__(self, replay: Replay, wanted: int) -> None:
        self._replay, self._wanted = replay, wanted
        self.enough = asyncio.Event()

    async def __call__(self, stream: Stream, unroll: Unroll) -> int:
        await asyncio.sleep(0)
        inserted = await self._replay.insert(stream, unroll)
        if inserted >= self._wanted:
            self.enough.set()
        return inserted


async def act(program: Any, pull: Pull, wanted: int) -> Replay:
    """Run the program's actor and replay until the replay holds `wanted` sequences."""
    specs = {spec.role: spec for spec in program.roles}
    replay = specs["replay"].builder(
        YieldingContext(Identity("replay", 0, run_seed=5)), *specs["replay"].args, **specs["replay"].settings
    )
    insert = Insert(replay, wanted)
    cfg = specs["actor"].args[0]
    actor = specs["actor"].builder(YieldingContext(Identity("actor", 0, run_seed=5)), cfg, insert, pull)
    await run_until(insert.enough, actor)
    return replay  # type: ignore[no-any-return]


def replayed(made: Any, given: dict[int, Any], batch: SequenceBatch, i: int) -> Any:
    """Return Q of every step of a sequence, by the version that acted at the step: `[L + T, actions]`."""
    inputs: Any = batch.inputs
    state = tuple(as_tensor(part[i : i + 1]) for part in batch.state)
    rows: list[Any] = []
    for t in range(len(batch.valid)):
        if not batch.valid[t, i]:
            rows.append(None)
            continue
        load_weights(made, given[int(batch.versions[t, i])])
        one = [as_tensor(part[t : t + 1, i : i + 1].copy()) for part in
               (inputs.obs, inputs.first, inputs.last_action, inputs.last_reward)]  # fmt: skip
        output = made.forward(TensorInputs(*one), state)
        state = tuple(part[-1] for part in output.states)
        rows.append(output.params[0, 0].numpy())
    return rows


@pytest.mark.timeout(60)
@pytest.mark.parametrize("env", ["thespis/Recall-v0", "CartPole-v1"])
@pytest.mark.parametrize("name", ["r2d2", "r2d3"])
def test_the_learner_computes_the_values_that_were_stored(name: str, env: str) -> None:
    """Compare 50 sequences. Weights change much between unrolls, and sequences span several unrolls."""
    cfg: Any = defaults(name, env, SMALL)
    program = architecture(name).program(cfg)
    made: Any = cfg.algorithm.build_network(describe_env(resolve(cfg.env)), seed=1)
    pull = Pull(made)
    replay = asyncio.run(act(program, pull, 80))
    steps, window = replay._steps, replay._window
    keys = np.sort(steps.number(np.flatnonzero(replay._sampler.holds(np.arange(steps.capacity)))))[:50]
    assert len(keys) == 50
    batch: Any = window.batch(steps, keys, np.ones(50, np.float32), 0)
    opens = batch.inputs.first.any(0)
    assert opens.any() and not opens.all(), "some sequences start an episode, some start from a stored state"
    assert any(part[~opens].any() for part in batch.state)
    rows = window._walk(steps, keys).rows  # type: ignore[attr-defined]
    checked = 0
    with torch.inference_mode():
        for i in range(50):
            for t, q in enumerate(replayed(made, pull.given, batch, i)):
                if q is not None:
                    stored = steps.values[rows[t, i] % steps.capacity]
                    np.testing.assert_allclose([q[batch.actions[t, i]], q.max()], stored, atol=1e-5, rtol=1e-5)
                    checked += 1
    assert checked > 300
    assert len({int(version) for version in batch.versions[batch.valid]}) > 5
