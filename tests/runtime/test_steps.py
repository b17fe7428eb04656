"""Environment steps: reported steps equal the environments' own count, and exceed the budget by little."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box, Discrete

from thespis import train
from thespis.core.step_count import StepCount, shared_steps
from thespis.envs.make import make_envs
from thespis.training.launch import launch
from thespis.training.registry import defaults
from thespis.training.trained_run import TrainedRun


class Counting(gym.Env[Any, Any]):
    """Episodes of 1 to 12 steps, by seed. All environments share one count of steps."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Discrete(2)
    taken = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(1, 13))
        return self._see(), {}

    def step(self, action: Any) -> Any:
        Counting.taken += 1
        self._left -= 1
        return self._see(), float(action == 1), self._left == 0, False, {}

    def _see(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)


@pytest.fixture(autouse=True)
def from_zero() -> None:
    Counting.taken = 0


def run(path: Path, name: str, env: Any = Counting, on: str = "simulation", **settings: Any) -> TrainedRun:
    chosen = {"actors": 2, "envs_per_actor": 4, "total_steps": 700, "eval_episodes": 0, **settings}
    return train(name, env=env, on=on, run_dir=path / name, quiet=True, **chosen)


def simulate(path: Path, name: str, env: Any = Counting, **settings: Any) -> dict[str, Any]:
    return run(path, name, env, **settings).summary


ALL: dict[str, dict[str, Any]] = {
    "impala": {}, "a3c": {}, "ppo": {}, "seed": {}, "parameter-server": {},
    "dqn": {"replay": {"warm_up": 100, "capacity": 1000, "samples_per_insert": 1.0}},
    "es": {"pairs": 4, "noise_table": 20_000},
    "pbt": {"population": 2, "interval": 400, "actors": 1, "member": "a3c", "total_steps": 1600},
}  # fmt: skip


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ALL)
def test_what_is_reported_was_taken(name: str, tmp_path: Path) -> None:
    """Steps of unfinished unrolls count, and so do steps of members that finished before others."""
    ended = run(tmp_path, name, **ALL[name])
    result: dict[str, Any] = ended.summary
    cfg: Any = ended.config
    assert result["exit_reason"] == "total_steps" and result["updates"] > 0
    assert result["env_steps"] == Counting.taken
    if name not in ("es", "pbt"):  # es ends with a generation, pbt with an interval of each member
        assert 0 <= result["env_steps"] - 700 <= cfg.actors * cfg.envs_per_actor * cfg.algorithm.items.unroll_length


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "role"), [("impala", "actor"), ("seed", "inference"), ("es", "worker")])
def test_steps_of_a_killed_role_were_taken(name: str, role: str, tmp_path: Path) -> None:
    result = simulate(tmp_path, name, faults=(f"kill {role} 0 at 0.003",), total_steps=3000, **ALL[name])
    assert result["restarts"] >= 1 and sum(result["dropped"].values()) > 0
    assert result["env_steps"] == Counting.taken


@pytest.mark.timeout(60)
def test_evaluations_are_not_training(tmp_path: Path) -> None:
    result = simulate(tmp_path, "impala", eval_episodes=5, eval_every=0.02)
    assert result["env_steps"] + 5 <= Counting.taken


@pytest.mark.timeout(60)
def test_a_native_vector_steps_members_that_are_over_and_they_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, taken = CartPoleVectorEnv.step, []

    def counting(self: Any, actions: Any) -> Any:
        taken.append(int(np.count_nonzero(~self.prev_done)))
        return step(self, actions)

    monkeypatch.setattr(CartPoleVectorEnv, "step", counting)
    result = simulate(tmp_path, "es", "CartPole-v1", **ALL["es"])
    assert result["env_steps"] == sum(taken) > 0


def test_a_parked_environment_is_left_alone() -> None:
    envs = make_envs(Counting, 3)
    envs.reset(1)
    actions = np.ones(3, np.int64)
    assert envs.park(np.array([False, True, False])) == 2
    before = Counting.taken
    for _ in range(20):
        step = envs.step(actions)
        assert not step.valid[1] and not step.first[1] and step.rewards[1] == 0.0 and not step.mid_episode
        before += step.env_steps
    assert Counting.taken == before > 20
    envs.reset(1)
    assert envs.step(actions).env_steps == 3


# -- the requested steps, and few more ---------------------------------------------------------------


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["impala", "a3c", "ppo", "seed"])
def test_a_budget_below_one_unroll_still_learns_from_it(name: str, tmp_path: Path) -> None:
    ended = run(tmp_path, name, total_steps=10)
    cfg: Any = ended.config
    assert ended.summary["updates"] > 0
    assert 10 <= ended.summary["env_steps"] <= 10 + cfg.actors * cfg.envs_per_actor * cfg.algorithm.items.unroll_length


@pytest.mark.timeout(60)
def test_a_resumed_run_takes_what_is_left(tmp_path: Path) -> None:
    first = run(tmp_path, "impala", total_steps=700)
    settings = {"on": "simulation", "env": Counting, "actors": 2, "envs_per_actor": 4, "eval_episodes": 0}
    again = launch("impala", defaults("impala", None, {**settings, "total_steps": 1500}), resume=first.path, quiet=True)
    cfg: Any = again.config
    assert 1500 <= again.summary["env_steps"] <= 1500 + 8 * cfg.algorithm.items.unroll_length
    assert again.summary["env_steps"] == Counting.taken


@pytest.mark.timeout(90)
def test_processes_take_no_more_and_those_of_a_killed_one_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("THESPIS_TEST_COUNT", str(tmp_path / "count"))
    result = run(tmp_path, "impala", "counted::make", "local", total_steps=5000).summary
    assert (result["exit_reason"], result["restarts"]) == ("total_steps", 1)
    taken = (tmp_path / "count").stat().st_size
    # Not all environments of the killed actor took its last step, which was not reported.
    assert 0 <= taken - result["env_steps"] < 4
    assert result["env_steps"] <= 5000 + 2 * 4 * 20


def test_processes_count_together() -> None:
    memory = shared_steps(100, 3)
    mine, other = StepCount.map(memory, 0), StepCount.map(memory, 2)
    mine.add(60)
    assert not other.exhausted
    other.add(40)
    assert mine.exhausted and (mine.of(0), mine.of(1), mine.of(2)) == (60, 0, 40)
    again = StepCount.map(memory, 2)  # the next incarnation of a killed process
    again.add(2)
    assert mine.of(2) == 42
    os.close(memory)
    unlimited = StepCount.single_process(None)
    unlimited.add(1 << 40)
    assert not unlimited.exhausted and StepCount.single_process(0).exhausted
