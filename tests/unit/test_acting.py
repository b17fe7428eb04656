"""The user's interface of a policy: single observations and batches, state per row, errors for wrong inputs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

import thespis
from thespis.algorithms.base import Algorithm
from thespis.algorithms.r2d2 import R2D2
from thespis.algorithms.vtrace import VTrace
from thespis.core.config import QNetworkConfig
from thespis.core.errors import ThespisError
from thespis.envs.observations import ObservationReader
from thespis.envs.spaces import Spaces
from thespis.training.policy import ActingPolicy

VECTOR, ACTIONS = Box(-1.0, 1.0, (3,), np.float32), Discrete(4, start=2)
ROWS = np.random.default_rng(0).uniform(-1.0, 1.0, (5, 6, 3)).astype(np.float32)
"""Five steps of six environments."""


def policy(algorithm: Algorithm[Any], actions: Any = ACTIONS) -> ActingPolicy:
    spaces = Spaces(VECTOR, actions)
    made = algorithm.build_network(spaces, seed=3)
    return ActingPolicy(algorithm.build_policy_runner(made, np.random.default_rng(0)), spaces)


def recurrent() -> ActingPolicy:
    return policy(R2D2(network=QNetworkConfig(lstm=8)))


def test_rows_of_a_batch_act_as_single_observations_do() -> None:
    batched = policy(VTrace())
    together = batched.act(ROWS[0])
    assert together.shape == (6,) and set(together) <= {2, 3, 4, 5}
    assert [batched.act(row) for row in ROWS[0]] == together.tolist()
    assert isinstance(batched.act(ROWS[0, 0]), int)
    continuous = policy(VTrace(), Box(-3.0, 3.0, (2,), np.float32))
    assert continuous.act(ROWS[0]).shape == (6, 2) and continuous.act(ROWS[0, 0]).shape == (2,)


def test_each_row_has_a_recurrent_state_of_its_own() -> None:
    batched = recurrent()
    ends = np.arange(6) == 4
    together = []
    for step in range(5):
        together.append(batched.act(ROWS[step], last_reward=np.arange(6)))
        if step == 2:
            batched.reset(ends)
    for row in range(6):
        alone, actions = recurrent(), []
        for step in range(5):
            actions.append(alone.act(ROWS[step, row], last_reward=row))
            if step == 2 and ends[row]:
                alone.reset()
        assert actions == [result[row] for result in together]


def test_a_batch_in_the_middle_of_episodes_keeps_its_size() -> None:
    batched = recurrent()
    batched.act(ROWS[0])
    with pytest.raises(ThespisError, match=r"middle of episodes of a batch of 6 but got .* batch of 2; call res"):
        batched.act(ROWS[0, :2])
    with pytest.raises(ThespisError, match=r"one bool per row \(6\)"):
        batched.reset(np.zeros(5, np.bool_))
    with pytest.raises(ThespisError, match=r"one number or one per row \(6\)"):
        batched.act(ROWS[0], last_reward=np.zeros(5))
    batched.reset()
    assert batched.act(ROWS[0, :2]).shape == (2,)


def test_predict_returns_what_stable_baselines_does() -> None:
    plain = policy(VTrace())
    actions, state = plain.predict(ROWS[0], deterministic=True)
    assert actions.tolist() == plain.act(ROWS[0]).tolist() and state is None
    action, _ = plain.predict(ROWS[0, 0], deterministic=True)
    assert isinstance(action, np.ndarray) and action.shape == () and action == actions[0]
    drawn = {int(plain.predict(ROWS[0, 0])[0]) for _ in range(100)}
    assert len(drawn) > 1, "actions are sampled unless `deterministic` is true"


def test_predict_passes_the_recurrent_state_through_the_caller() -> None:
    one, other = recurrent(), recurrent()
    state, starts = None, np.zeros(6, np.bool_)
    for step in range(5):
        actions, state = one.predict(ROWS[step], state, episode_start=starts, deterministic=True)
        assert actions.tolist() == other.act(ROWS[step]).tolist()
        starts = np.arange(6) == (4 if step == 2 else -1)
        other.reset(starts)
    again, _ = one.predict(ROWS[0], None, deterministic=True)
    other.reset()
    assert again.tolist() == other.act(ROWS[0]).tolist(), "the policy keeps no state between calls"
    with pytest.raises(ThespisError, match="give the state that predict returned for the same rows"):
        one.predict(ROWS[0, :2], state)
    with pytest.raises(ThespisError, match=r"episode_start has shape \(2,\)"):
        one.predict(ROWS[0], None, episode_start=[True, False])


PAIR = Dict({"picture": Box(0, 255, (4, 4, 1), np.uint8), "place": Discrete(5)})
PICTURE = np.zeros((4, 4, 1), np.uint8)


@pytest.mark.parametrize(
    ("space", "obs", "said"),
    [
        (VECTOR, np.zeros(4), r"observation has shape \(4,\); one is float32 of shape \(3,\), a batch is \(rows, 3\)"),
        (VECTOR, np.zeros((2, 2, 3)), r"has shape \(2, 2, 3\)"),
        (VECTOR, np.zeros((0, 3)), "batch of 0 rows"),
        (VECTOR, ["left", "right", "up"], "cannot be read: observation has dtype <U5, the space says float32"),
        (VECTOR, [[1.0], [1.0, 2.0]], "cannot be read"),
        (VECTOR, [0.0, np.nan, 0.0], "observation holds nan"),
        (VECTOR, [[0.0, 0.0, 0.0], [0.0, 1e39, 0.0]], "observation holds inf"),
        (VECTOR, None, "cannot be read: observation has dtype object"),
        (VECTOR, {"x": 1}, r"is a dict of 'x'; the policy takes one array of shape \(3,\)"),
        (Discrete(3), 3, r"observation holds 3, which is not in Discrete\(3\)"),
        (Discrete(3), [0, -1], "holds -1"),
        (Discrete(3), 1.5, "has dtype float64, the space says int64"),
        (MultiBinary(2), np.zeros((2, 3), np.int8), r"has shape \(2, 3\); one is int8 of shape \(2,\)"),
        (PAIR, PICTURE, "is a ndarray; the policy takes a dict of 'picture', 'place'"),
        (PAIR, {"picture": PICTURE}, "lacks 'place'"),
        (PAIR, {"picture": PICTURE, "place": 1, "time": 2}, "has the unknown 'time'"),
        (PAIR, {"picture": PICTURE / 255, "place": 1}, "observation 'picture' has dtype float64, the space says uint8"),
        (PAIR, {"picture": PICTURE.transpose(2, 0, 1), "place": 1}, r"has shape \(1, 4, 4\)"),
        (PAIR, {"picture": PICTURE[None], "place": 1}, r"'picture': 1 rows, observation 'place': one"),
    ],
)
def test_wrong_observations_are_named(space: Any, obs: Any, said: str) -> None:
    with pytest.raises(ThespisError, match=said):
        ObservationReader(space).read(obs)


def test_dicts_are_read_as_one_and_as_a_batch() -> None:
    tree, batched = ObservationReader(PAIR).read({"picture": PICTURE, "place": 4})
    assert isinstance(tree, dict) and not batched and tree["place"].tolist() == [4]
    tree, batched = ObservationReader(PAIR).read({"picture": PICTURE[None].repeat(3, 0), "place": [0, 1, 2]})
    assert isinstance(tree, dict) and batched and tree["picture"].shape == (3, 4, 4, 1)


def test_a_tuple_is_a_dict_whose_keys_are_numbers() -> None:
    tree, batched = ObservationReader(Dict({"0": VECTOR, "1": Discrete(3)})).read((np.zeros((2, 3)), [1, 2]))
    assert isinstance(tree, dict) and batched and tree["1"].tolist() == [1, 2]


def other_env(**kwargs: Any) -> gym.Env[Any, Any]:
    return gym.make("Acrobot-v1", **kwargs)


def test_a_loaded_run_evaluates_its_policy(tmp_path: Path) -> None:
    thespis.train(
        "impala", env="CartPole-v1", on="simulation", actors=1, envs_per_actor=2, total_steps=100, eval_episodes=0,
        network={"hidden": (4,)}, run_dir=tmp_path / "run", quiet=True,
    )  # fmt: skip
    run = thespis.load(tmp_path / "run")
    played = run.evaluate(episodes=3, seed=1)
    assert played == run.evaluate(episodes=3, seed=1, env="CartPole-v1")
    assert len(played.returns) == len(played.lengths) == 3
    assert played.mean == np.mean(played.returns) and played.std == np.std(played.returns)
    assert played.mean_length == played.mean, "a reward of 1 per step"
    assert played.returns != run.evaluate(episodes=3, seed=2, greedy=False).returns
    with pytest.raises(ThespisError, match="environment has observation space"):
        run.evaluate(episodes=1, env=other_env)
    with pytest.raises(ThespisError, match=r"has shape \(5,\)"):
        run.policy.act(np.zeros(5))
    assert run.policy.predict(np.zeros((7, 4), np.float32))[0].shape == (7,)


def changing_env() -> gym.Env[Any, Any]:
    return gym.make(os.environ["TASK"])


def test_an_environment_that_changed_since_training_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASK", "CartPole-v1")
    run = thespis.train(
        "impala", env=changing_env, on="simulation", actors=1, envs_per_actor=2, total_steps=100, eval_episodes=0,
        network={"hidden": (4,)}, run_dir=tmp_path / "run", quiet=True,
    )  # fmt: skip
    monkeypatch.setenv("TASK", "Acrobot-v1")
    with pytest.raises(ThespisError, match=r"the environment has observation space .*, but the policy has"):
        run.evaluate(episodes=1)
