"""Settings of an environment: constructor arguments, wrappers, frame stack, time limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from thespis import load, train
from thespis.cli import train as command
from thespis.cli.env_kwargs import take_env_kwargs
from thespis.core.config import EnvConfig
from thespis.core.errors import ThespisError
from thespis.envs.autoreset import Environments
from thespis.envs.make import describe_env, make_envs
from thespis.envs.sync import SyncVector
from thespis.envs.toys import Chain

SMALL = {"actors": 1, "envs_per_actor": 2, "eval_episodes": 1, "total_steps": 200, "quiet": True, "on": "simulation"}


class Doubled(gym.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> float:
        return 2.0 * float(reward)


class Plus(gym.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> float:
        return float(reward) + 1.0


class Fixed(gym.Env[Any, Any]):
    """Observations of any space, filled with the number of steps since the reset."""

    def __init__(self, space: Any) -> None:
        self.observation_space, self.action_space, self._time = space, Discrete(2), 0

    def _look(self, space: Any) -> Any:
        if isinstance(space, Dict):
            return {key: self._look(part) for key, part in space.spaces.items()}
        if isinstance(space, Tuple):
            return tuple(self._look(part) for part in space.spaces)
        if isinstance(space, Discrete):
            return self._time
        return np.full(space.shape, self._time, space.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._time = 0
        return self._look(self.observation_space), {}

    def step(self, action: Any) -> Any:
        self._time += 1
        return self._look(self.observation_space), 1.0, False, False, {}


def lengths(envs: Environments, steps: int) -> list[int]:
    envs.reset(0)
    actions = np.zeros(envs.num_envs, np.int64)
    return [episode.length for _ in range(steps) for episode in envs.step(actions).episodes]


def first_rewards(cfg: EnvConfig) -> list[float]:
    envs = make_envs(cfg, 2)
    envs.reset(0)
    return envs.step(np.zeros(2, np.int64)).rewards.tolist()


def test_wrappers_are_applied_in_their_order() -> None:
    here = Path(__file__)
    assert first_rewards(EnvConfig(Chain, wrappers=(Doubled, Plus))) == [3.0, 3.0]
    assert first_rewards(EnvConfig(Chain, wrappers=(f"{here}::Plus", f"{here}::Doubled"))) == [4.0, 4.0]


def test_a_wrapper_that_makes_no_environment_is_named() -> None:
    with pytest.raises(ThespisError, match=r"test_env_config::.* makes an object of int; return an instance"):
        make_envs(EnvConfig("CartPole-v1", wrappers=(lambda env: 3,)), 1)


def test_a_time_limit_replaces_that_of_the_id_in_native_vectors_and_elsewhere() -> None:
    native = make_envs(EnvConfig("CartPole-v1", time_limit=7), 3)
    assert isinstance(native._vector.unwrapped, CartPoleVectorEnv)
    assert lengths(native, 8) == [7, 7, 7]
    wrapped = make_envs(EnvConfig("CartPole-v1", time_limit=7, wrappers=(Plus,)), 3)
    assert isinstance(wrapped._vector, SyncVector) and lengths(wrapped, 8) == [7, 7, 7]
    assert lengths(make_envs(EnvConfig("MountainCar-v0", time_limit=250), 1), 251) == [250], "the id's own limit is 200"
    assert lengths(make_envs(EnvConfig(lambda: Chain(100), time_limit=4), 1), 10) == [4, 4]


@pytest.mark.parametrize(
    ("space", "stacked"),
    [
        (Box(-1.0, 9.0, (2,), np.float32), (6,)),
        (Box(0, 255, (4, 5), np.uint8), (3, 4, 5)),
        (Box(0, 255, (8, 9, 2), np.uint8), (8, 9, 6)),
        (Box(0, 255, (2, 8, 9), np.uint8), (6, 8, 9)),
        (Discrete(9), (3,)),
        (MultiDiscrete([9, 9]), (6,)),
        (MultiBinary(2), (6,)),
    ],
    ids=str,
)
def test_frames_are_stacked_along_the_axis_that_networks_read(space: Any, stacked: tuple[int, ...]) -> None:
    envs = make_envs(EnvConfig(lambda: Fixed(space), frame_stack=3), 2)
    assert envs.observation_space.shape == stacked
    first = np.array(envs.reset(0))
    assert first.shape == (2, *stacked) and not first.any(), "an episode starts with copies of its first observation"
    second = np.array(envs.step(np.zeros(2, np.int64)).obs)
    assert second.sum() * 3 == second.size, "one frame of three is new"
    if space.shape == (4, 5):
        assert second[:, 2].all(), "the newest frame is the last"


def test_every_part_of_a_dict_or_tuple_is_stacked() -> None:
    parts = {"a": Box(0.0, 9.0, (2,), np.float32), "b": Discrete(9)}
    for space, keys in ((Dict(parts), "ab"), (Tuple(list(parts.values())), "01")):
        made = describe_env(EnvConfig(lambda space=space: Fixed(space), frame_stack=2)).observation_space
        assert isinstance(made, Dict) and [made[key].shape for key in keys] == [(4,), (2,)]


def test_atari_stacks_in_the_emulator_and_can_be_wrapped() -> None:
    pytest.importorskip("ale_py")
    assert describe_env(EnvConfig("ALE/Pong-v5", frame_stack=2)).observation_space.shape == (2, 84, 84)
    wrapped = make_envs(EnvConfig("ALE/Pong-v5", wrappers=(Plus,), time_limit=5), 2)
    assert wrapped.observation_space.shape == (4, 84, 84)
    assert lengths(wrapped, 6) == [5, 5]


def test_flags_with_names_of_the_environments_own() -> None:
    words = [
        "--seed",
        "3",
        "--env-kwargs.map-name",
        "8x8",
        "--env-kwargs.rate=1e-3",
        "--env_kwargs.slip",
        "false",
        "--actors",
        "2",
    ]
    rest, found = take_env_kwargs([*words, "--env-kwargs.desc", '["SF", "HG"]', "--env-kwargs.low", "-2"])
    assert rest == ["--seed", "3", "--actors", "2"]
    assert found == {"map_name": "8x8", "rate": 1e-3, "slip": False, "desc": ["SF", "HG"], "low": -2}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--env-kwargs size=3", "--env-kwargs names no argument"),
        ("--env-kwargs. 3", "names no argument"),
        ("--env-kwargs.a.b 3", "names no argument"),
        ("--env-kwargs.size", "--env-kwargs.size has no value; give --env-kwargs.NAME VALUE"),
        ("--env-kwargs.size --seed 3", "has no value"),
        ("--env-kwargs.size [1", "neither JSON nor YAML"),
    ],
)
def test_junk_among_them_is_one_line(words: str, said: str) -> None:
    with pytest.raises(ThespisError, match=said):
        take_env_kwargs(words.split())


def test_flags_go_over_those_of_a_config_file_name_by_name(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("architecture: impala\nenv: thespis/Chain-v0\nenv_kwargs: {length: 3, truncate: true}\n")
    flags = f"--config {file} --env-kwargs.length 4 --wrapper a.py::A --wrapper b.py::B --frame-stack 2 --time-limit 9"
    cfg = command.parse_settings("impala", flags.split())
    assert cfg.env_config == EnvConfig(
        "thespis/Chain-v0", {"length": 4, "truncate": True}, ("a.py::A", "b.py::B"), frame_stack=2, time_limit=9
    )


def test_what_config_yaml_cannot_hold_is_refused() -> None:
    with pytest.raises(ThespisError, match=r"env_kwargs.reward is a function, which config.yaml cannot hold"):
        train("impala", env=Chain, env_kwargs={"reward": lambda x: x}, **SMALL)  # type: ignore[arg-type]
    with pytest.raises(ThespisError, match="--time-limit is 0; give at least 1"):
        train("impala", env=Chain, time_limit=0, **SMALL)  # type: ignore[arg-type]


def test_a_run_keeps_them_and_uses_them_again(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"env_kwargs": {"length": np.int64(50)}, "wrapper": [Doubled], "frame_stack": 2}
    run = train("impala", env="thespis/Chain-v0", time_limit=3, run_dir=tmp_path / "run", **settings, **SMALL)  # type: ignore[arg-type]
    assert run.summary["eval_return_mean"] == 2 * (1 + 2 + 3)
    loaded = load(str(tmp_path / "run"))
    assert loaded.config.env_config == EnvConfig(
        "thespis/Chain-v0", {"length": 50}, (f"{__name__}::Doubled",), frame_stack=2, time_limit=3
    )
    assert loaded.policy.act(np.zeros(4, np.float32)) in (0, 1)
