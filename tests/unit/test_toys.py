"""The toys have the stated optimal returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import thespis.envs  # noqa: F401 - registers the toys
from thespis.core.config import EnvConfig
from thespis.core.errors import EnvError, ThespisError
from thespis.envs import toys
from thespis.envs.make import make_envs


def play(env: gym.Env[Any, Any], seed: int, policy: Any) -> float:
    obs, _ = env.reset(seed=seed)
    memory, total, over = obs, 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(policy(memory, obs))
        total, over = total + float(reward), terminated or truncated
    return total


@pytest.mark.parametrize("length", [2, 10])
def test_memory_pays_one_to_who_remembers_and_chance_to_who_does_not(length: int) -> None:
    env = gym.make("thespis/Memory-v0", length=length)
    assert all(play(env, seed, lambda first, obs: int(first[0] > 0)) == 1.0 for seed in range(50))
    blind = [play(env, seed, lambda first, obs: int(obs[0] > 0)) for seed in range(400)]
    assert set(blind) == {-1.0, 1.0} and abs(np.mean(blind)) < 0.2


def test_memory_shows_the_cue_only_once() -> None:
    env = gym.make("thespis/Memory-v0", length=5)
    obs, _ = env.reset(seed=0)
    assert abs(obs[0]) == 1 and obs[1] == 0
    later = [env.step(0)[0] for _ in range(5)]
    assert [row[0] for row in later] == [0] * 5
    assert [row[1] for row in later] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_recall_asks_again_and_again_for_what_it_showed_once() -> None:
    env = gym.make("thespis/Recall-v0", length=40, asks=0.25)
    questions, blind = 0, 0.0
    for seed in range(100):
        obs, _ = env.reset(seed=seed)
        assert obs[:2].sum() == 1 and obs[2:].tolist() == [0, 1]
        cue, over, steps = int(obs[1]), False, 0
        while not over:
            asked = bool(obs[2])
            answer = (cue + seed + steps) % 2
            obs, reward, over, truncated, _ = env.step(answer)
            assert reward == asked * (1.0 if answer == cue else -1.0)
            assert not obs[:2].any() and not truncated
            steps, questions, blind = steps + 1, questions + asked, blind + float(reward)
        assert steps == 40
    assert questions / (100 * 39) == pytest.approx(0.25, abs=0.03)
    assert abs(blind / questions) < 0.2


def test_reversal_turns_the_answer_and_says_so() -> None:
    env = gym.make("thespis/Reversal-v0", asks=1.0)
    for seed in range(4):
        cue = int(env.reset(seed=seed)[0][1])
        obs = env.step(0)[0]
        for time in range(1, 40):
            assert obs.tolist() == [0, 0, 1, float(time < 20)]
            obs, reward, over, *_ = env.step(cue if time < 20 else 1 - cue)
            assert reward == 1.0 and over == (time == 39)


def test_the_lock_opens_to_its_code_alone() -> None:
    env = gym.make("thespis/Lock-v0")
    code = toys.Lock().code
    assert len(code) == 10 and set(code) == {0, 1, 2, 3}

    def dial(digits: list[int], seed: int) -> tuple[list[float], list[Any]]:
        rewards, seen = [], [env.reset(seed=seed)[0].tolist()]
        for digit in digits:
            obs, reward, over, truncated, _ = env.step(digit)
            rewards.append(float(reward))
            seen.append(obs.tolist())
        assert over and not truncated
        return rewards, seen

    for seed in range(3):
        act = toys.open_lock()
        assert dial([act(np.zeros(5)) for _ in range(10)], seed)[0] == [0.0] * 9 + [1.0]
    for wrong in range(10):
        digits = code.copy()
        digits[wrong] = (digits[wrong] + 1) % 4
        rewards, seen = dial(digits, 0)
        assert not any(rewards)
        # The observation is the last digit, not the number of digits, so equal digits look the same.
        assert seen == [[0, 0, 0, 0, 1], *([float(digit == i) for i in range(4)] + [1] for digit in digits)]


@pytest.mark.parametrize("truncate", [False, True])
def test_chain_pays_its_step_number(truncate: bool) -> None:
    env = gym.make("thespis/Chain-v0", length=4, truncate=truncate)
    env.reset()
    rows = [env.step(0)[1:4] for _ in range(4)]
    assert rows[:3] == [(1.0, False, False), (2.0, False, False), (3.0, False, False)]
    assert rows[3] == (4.0, not truncate, truncate)
    assert play(env, 0, lambda first, obs: 0) == 10.0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", "env 0, episode 0, step 3: step raised RuntimeError: injected fault at step 3"),
        ("nan_reward", "env 0, episode 0, step 3: reward is nan"),
        ("nan_obs", "env 0, episode 0, step 3: observation holds nan"),
        ("shape", "env 0, episode 0, step 3: observation has shape (3,), the space says (2,)"),
    ],
)
def test_each_fault_is_named(fault: str, message: str) -> None:
    environments = make_envs(EnvConfig("thespis/Faulty-v0", {"fault": fault, "at_step": 3}), 2)
    environments.reset(0)
    for _ in range(2):
        environments.step(np.zeros(2, np.int64))
    with pytest.raises(EnvError) as caught:
        environments.step(np.zeros(2, np.int64))
    assert str(caught.value) == message


class Stuck(BaseException):
    """Raised in place of sleeping forever."""


def test_a_hang_is_announced_before_it_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        raise Stuck

    monkeypatch.setattr(toys.time, "sleep", sleep)
    entered: list[tuple[int, int, int]] = []
    environments = make_envs(
        EnvConfig("thespis/Faulty-v0", {"fault": "hang", "at_step": 2}), 2, on_env=lambda *at: entered.append(at)
    )
    environments.reset(0)
    environments.step(np.zeros(2, np.int64))
    with pytest.raises(Stuck):
        environments.step(np.zeros(2, np.int64))
    assert entered == [(0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1), (0, 0, 2)]


def test_a_fault_with_a_file_happens_once(tmp_path: Path) -> None:
    once = tmp_path / "once"
    kwargs = {"fault": "nan_reward", "at_step": 1, "once_file": str(once)}
    for expected in (True, False):
        environments = make_envs(EnvConfig("thespis/Faulty-v0", kwargs), 1)
        environments.reset(0)
        if expected:
            with pytest.raises(EnvError):
                environments.step(np.zeros(1, np.int64))
        else:
            assert environments.step(np.zeros(1, np.int64)).rewards.tolist() == [1.0]
    assert once.exists()


def test_sleep_sleeps_for_its_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(toys.time, "sleep", slept.append)
    environments = make_envs(EnvConfig("thespis/Sleep-v0", {"seconds": 0.25, "length": 3}), 2)
    environments.reset(0)
    environments.step(np.zeros(2, np.int64))
    assert slept == [0.25, 0.25]


def test_bad_settings_are_one_line_errors() -> None:
    with pytest.raises(ThespisError, match="Memory-v0.*at least 2"):
        make_envs(EnvConfig("thespis/Memory-v0", {"length": 1}), 1)
