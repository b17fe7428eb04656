"""Making environments: ids, spaces, actions, seeds, and user errors."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Space, Text, Tuple

from thespis.core.config import EnvConfig
from thespis.core.errors import EnvError, ThespisError
from thespis.envs.autoreset import Environments
from thespis.envs.make import describe_env, make_envs
from thespis.envs.spaces import env_actions, observation_space
from thespis.envs.sync import SEED_LIMIT, SyncVector
from thespis.envs.toys import Chain


class Probe(gym.Env[Any, Any]):
    """An environment that returns given results, and records its seeds and actions."""

    def __init__(
        self,
        obs: Any = 0.0,
        space: Space[Any] | None = None,
        action_space: Space[Any] | None = None,
        reward: Any = 1.0,
        terminated: Any = False,
        length: int = 3,
    ) -> None:
        self.observation_space = space or Box(-1.0, 1.0, (), np.float32)
        self.action_space = action_space or Discrete(2)
        self.obs, self.reward, self.terminated, self.length = obs, reward, terminated, length
        self.seeds: list[int] = []
        self.actions: list[Any] = []
        self.time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        assert seed is not None
        self.seeds.append(seed)
        self.time = 0
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        self.actions.append(action)
        self.time += 1
        return self.obs, self.reward, self.terminated, self.time == self.length, {}


def run_probes(seed: int, count: int = 3, steps: int = 60) -> list[list[int]]:
    probes: list[Probe] = []

    def build() -> Probe:
        probes.append(Probe())
        return probes[-1]

    environments = make_envs(build, count)
    environments.reset(seed)
    for _ in range(steps):
        environments.step(np.zeros(count, np.int64))
    return [probe.seeds for probe in probes]


def test_seeds_are_distinct_across_environments_and_episodes_and_reproducible() -> None:
    seeds = run_probes(1)
    everything = [seed for one in seeds for seed in one]
    assert len(everything) == 48 and len(set(everything)) == 48
    assert all(0 <= seed < SEED_LIMIT for seed in everything)
    assert seeds == run_probes(1)
    assert not set(everything) & {seed for one in run_probes(2) for seed in one}


def test_seeds_of_long_episodes_equal_those_of_short_ones() -> None:
    """The start of episode e does not depend on the length of earlier episodes."""
    probes = [Probe(length=2), Probe(length=5)]
    remaining = iter(probes)
    short = SyncVector(lambda: next(remaining), 2)
    short.reset(seed=2**31 - 1)
    for _ in range(30):
        short.step(np.zeros(2, np.int64))
    assert probes[0].seeds[:3] == [2**31 - 1, 1, 3]
    assert probes[1].seeds[:3] == [0, 2, 4]


def test_the_same_seed_gives_the_same_stream() -> None:
    def returns(seed: int) -> list[list[float]]:
        environments = make_envs("Pendulum-v1", 2)
        first = np.asarray(environments.reset(seed)).copy()
        last = environments.step(np.zeros((2, 1), np.float32))
        return [first.ravel().tolist(), last.rewards.tolist()]

    assert returns(3) == returns(3)
    assert returns(3) != returns(4)


def test_native_vectors_are_used_and_others_run_one_after_the_other() -> None:
    assert isinstance(make_envs("CartPole-v1", 4)._vector.unwrapped, CartPoleVectorEnv)
    assert isinstance(make_envs("Pendulum-v1", 4)._vector, SyncVector)
    assert isinstance(make_envs(lambda: Chain(3), 4), Environments)


def test_a_native_vector_still_refuses_an_impossible_action() -> None:
    environments = make_envs("CartPole-v1", 3)
    environments.reset(0)
    with pytest.raises(EnvError, match="invalid"):
        environments.step(np.array([0, 1, 2]))
    environments.close()


def test_cartpole_counts_its_episodes() -> None:
    environments = make_envs("CartPole-v1", 8)
    environments.reset(0)
    steps = [environments.step(np.zeros(8, np.int64)) for _ in range(50)]
    episodes = [episode for step in steps for episode in step.episodes]
    assert len(episodes) >= 24
    assert all(episode.reward == episode.length and 8 <= episode.length <= 12 for episode in episodes)
    assert sum(int(step.valid.sum()) for step in steps) >= sum(episode.length for episode in episodes)


def test_describe_says_what_a_policy_sees() -> None:
    spaces = describe_env("CartPole-v1")
    assert spaces.observation_space.shape == (4,) and spaces.action_space == Discrete(2)
    assert describe_env(EnvConfig("thespis/Chain-v0", {"length": 3})).observation_space.shape == (2,)


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("CartPol-v1", "Did you mean: `CartPole`"),
        ("CartPole-v7", "versioned environments"),
        ("CartPole", "latest is 'CartPole-v1'"),
        ("thespis/Memori-v0", "Did you mean: `Memory`"),
        ("nowhere/Thing-v0", "Namespace nowhere not found"),
        ("no_such_module:Thing-v0", "'no_such_module' cannot be imported"),
        ("not an id", "Malformed"),
    ],
)
def test_an_unknown_id_is_one_line(env_id: str, words: str) -> None:
    with pytest.raises(ThespisError, match=words) as caught:
        make_envs(env_id, 1)
    assert "\n" not in str(caught.value)


def test_a_module_registers_its_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "envs_for_test.py").write_text(
        "import gymnasium\ngymnasium.register(id='FromModule-v0', entry_point='thespis.envs.toys:Chain')\n"
    )
    (tmp_path / "broken_for_test.py").write_text("raise RuntimeError('two\\nlines')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert make_envs("envs_for_test:FromModule-v0", 2).num_envs == 2
    with pytest.raises(ThespisError, match="'broken_for_test' cannot be imported: RuntimeError: two lines$"):
        make_envs("broken_for_test:FromModule-v0", 2)


def needs_an_extra(**kwargs: Any) -> gym.Env[Any, Any]:
    raise gym.error.DependencyNotInstalled('Physics is missing,\n run `pip install "gymnasium[physics]"`')


def test_environments_that_cannot_be_built_are_one_line() -> None:
    with pytest.raises(ThespisError, match=r"needs_an_extra' cannot be made: Physics is missing, run `pip install"):
        make_envs(needs_an_extra, 1)
    with pytest.raises(ThespisError, match="'Pendulum-v1' cannot be made: TypeError: .*colour"):
        make_envs(EnvConfig("Pendulum-v1", {"colour": 3}), 1)
    with pytest.raises(ThespisError, match="'CartPole-v1' cannot be made: TypeError: .*colour"):
        make_envs(EnvConfig("CartPole-v1", {"colour": 3}), 1)
    with pytest.raises(ThespisError, match="at least 1"):
        make_envs("CartPole-v1", 0)


def test_a_missing_ale_py_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ThespisError, match=r"thespis\[atari\]"):
        make_envs("ALE/Pong-v5", 1)


def test_making_prints_no_warnings() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_envs("CartPole-v0", 2).reset(0)
        make_envs("MountainCar-v0", 2).reset(0)
    assert caught == []


def test_what_was_built_is_closed_when_the_rest_cannot_be() -> None:
    closed = []

    class Closing(Chain):
        def __init__(self, text: bool = False) -> None:
            super().__init__()
            if text:
                self.action_space = Text(3)  # type: ignore[assignment]

        def close(self) -> None:
            closed.append(self)

    with pytest.raises(ThespisError, match="not supported"):
        make_envs(lambda: Closing(text=True), 1)
    assert len(closed) == 1
    builds = iter([Closing, Closing])
    with pytest.raises(ThespisError):
        make_envs(lambda: next(builds)(), 3)
    assert len(closed) == 3


@pytest.mark.parametrize(
    ("probe", "message"),
    [
        ({"reward": np.array([1.0])}, "env 1, episode 1, step 1: reward is a ndarray of shape (1,), not a number"),
        ({"reward": None}, "env 1, episode 1, step 1: reward is a NoneType, not a number"),
        ({"terminated": 0}, "env 1, episode 1, step 1: terminated is 0, not a bool"),
        ({"obs": np.zeros(5)}, "env 1, episode 1, step 1: observation has shape (5,), the space says ()"),
        ({"obs": 1e300}, "env 1, episode 1, step 1: observation holds inf"),
        ({"obs": 1j}, "env 1, episode 1, step 1: observation has dtype complex128, the space says float32"),
    ],
)
def test_a_python_environment_that_goes_wrong_later_is_named(probe: dict[str, Any], message: str) -> None:
    probes: list[Probe] = []

    def build() -> Probe:
        probes.append(Probe(length=2))
        return probes[-1]

    environments = make_envs(build, 3)
    environments.reset(0)
    for _ in range(3):  # two steps, then the reset row
        environments.step(np.zeros(3, np.int64))
    for name, value in probe.items():
        setattr(probes[1], name, value)
    with pytest.raises(EnvError) as caught:
        environments.step(np.zeros(3, np.int64))
    assert str(caught.value) == message


def test_a_reset_that_raises_is_step_0_with_its_cause() -> None:
    class Broken(Chain):
        def reset(self, **kwargs: Any) -> Any:
            raise OSError("no display")

    environments = make_envs(lambda: Broken(), 1)
    with pytest.raises(EnvError, match="env 0, episode 0, step 0: reset raised OSError: no display") as caught:
        environments.reset(0)
    assert isinstance(caught.value.__cause__, OSError)


def test_observations_take_the_dtype_of_their_space() -> None:
    space = Dict({"image": Box(0, 255, (2, 2), np.uint8), "speed": Box(-1, 1, (1,), np.float64), "gear": Discrete(5)})
    obs = {"image": np.ones((2, 2), np.uint8), "speed": [0.5], "gear": 4}
    environments = make_envs(lambda: Probe(obs, space), 2)
    tree = environments.reset(0)
    assert isinstance(tree, dict)
    assert {key: (leaf.shape, leaf.dtype) for key, leaf in tree.items()} == {
        "image": ((2, 2, 2), np.uint8),
        "speed": ((2, 1), np.float32),
        "gear": ((2,), np.int64),
    }
    assert environments.observation_space == Dict(
        {"image": space["image"], "speed": Box(-1, 1, (1,), np.float32), "gear": Discrete(5)}
    )
    with pytest.raises(EnvError, match="step 0: observation 'gear' has dtype float64, the space says int64"):
        make_envs(lambda: Probe(obs | {"gear": 1.5}, space), 1).reset(0)
    with pytest.raises(EnvError, match="step 0: observation 'speed' is missing"):
        make_envs(lambda: Probe({"image": obs["image"], "gear": 4}, space), 1).reset(0)


@pytest.mark.parametrize(
    "space",
    [
        Tuple((Discrete(2), Discrete(2))),
        Text(5),
        Graph(Discrete(2), None),
        Dict({"inner": Dict({"x": Discrete(2)})}),
        Dict({"text": Text(5)}),
    ],
)
def test_unsupported_observations_are_refused_in_one_line(space: Space[Any]) -> None:
    with pytest.raises(ThespisError, match="not supported") as caught:
        observation_space(space)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("space", [Tuple((Tuple((Discrete(2),)),)), Box(0, 9, (2,), np.int64), MultiBinary(3), Text(5)])
def test_unsupported_actions_are_refused(space: Space[Any]) -> None:
    with pytest.raises(ThespisError, match="action space .* is not supported"):
        make_envs(lambda: Probe(action_space=space), 1)


def test_discrete_actions_start_where_the_space_does() -> None:
    probes: list[Probe] = []

    def build() -> Probe:
        probes.append(Probe(action_space=Discrete(3, start=-1)))
        return probes[-1]

    environments = make_envs(build, 2)
    environments.reset(0)
    environments.step(np.array([0, 2]))
    assert [probe.actions for probe in probes] == [[-1], [1]]
    multi = env_actions(MultiDiscrete([3, 4], start=[1, -2]))
    assert multi(np.array([[0, 0], [2, 3]])).tolist() == [[1, -2], [3, 1]]


def test_pendulum_gets_torques_in_its_own_units() -> None:
    environments = make_envs("Pendulum-v1", 2)
    environments.reset(0)
    environments.step(np.array([[1.0], [-0.5]], np.float32))
    assert [float(env.unwrapped.last_u) for env in environments._vector.envs] == [2.0, -1.0]  # type: ignore[attr-defined]


def test_pictures_of_one_environment() -> None:
    pytest.importorskip("pygame")
    environments = make_envs("CartPole-v1", 1, render_mode="rgb_array")
    environments.reset(0)
    frame = environments.render()
    assert frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3
    environments.close()
    blank = make_envs("thespis/Chain-v0", 1)
    blank.reset(0)
    with pytest.raises(ThespisError, match="renders no frames"):
        blank.render()


def play(environments: Environments, seed: int, steps: int) -> tuple[list[Any], list[float]]:
    observations = [np.asarray(environments.reset(seed)).copy()]
    rewards: list[float] = []
    actions = np.random.default_rng(0).integers(0, 6, steps)
    for action in actions:
        step = environments.step(np.full(environments.num_envs, action))
        observations.append(np.asarray(step.obs).copy())
        rewards += step.rewards.tolist()
    environments.close()
    return observations, rewards


def test_atari_has_the_preset_shape_and_pong_its_own_rewards() -> None:
    pytest.importorskip("ale_py")
    environments = make_envs("ALE/Pong-v5", 2)
    assert environments.observation_space == Box(0, 255, (4, 84, 84), np.uint8)
    assert environments.action_space == Discrete(6)
    observations, rewards = play(environments, 0, 100)
    assert observations[0].shape == (2, 4, 84, 84) and observations[0].dtype == np.uint8
    assert set(rewards) == {0.0, -1.0}
    assert not np.array_equal(observations[50][0], observations[50][1])


def test_atari_rewards_are_not_clipped() -> None:
    pytest.importorskip("ale_py")
    _, rewards = play(make_envs("ALE/MsPacman-v5", 1), 0, 100)
    assert max(rewards) >= 10.0


def test_atari_actions_stick_as_the_id_says() -> None:
    """Without random no-ops, two seeds differ only by sticky actions."""
    pytest.importorskip("ale_py")

    def last(seed: int, **kwargs: Any) -> list[int]:
        observations, _ = play(make_envs(EnvConfig("ALE/Pong-v5", {"noop_max": 0, **kwargs}), 1), seed, 40)
        return np.concatenate(observations).sum(axis=(1, 2, 3)).tolist()

    assert last(1) != last(2)
    assert last(1, repeat_action_probability=0.0) == last(2, repeat_action_probability=0.0)
    spec = make_envs("ALE/Pong-v5", 1)._vector.spec
    assert spec is not None and spec.kwargs["repeat_action_probability"] == 0.25


def test_atari_time_limit_is_in_frames_and_truncates() -> None:
    pytest.importorskip("ale_py")
    environments = make_envs(EnvConfig("ALE/Pong-v5", {"max_num_frames_per_episode": 80}), 1)
    environments.reset(0)
    steps = [environments.step(np.zeros(1, np.int64)) for _ in range(20)]
    assert steps[-1].truncated.tolist() == [True] and not steps[-1].terminated.any()
    assert steps[-1].episodes[0].length == 20


def test_filmed_atari_plays_the_game_that_training_saw() -> None:
    pytest.importorskip("ale_py")
    filmed = make_envs("ALE/Pong-v5", 1, render_mode="rgb_array")
    seen, _ = play(make_envs("ALE/Pong-v5", 1), 5, 60)
    shown, _ = play(filmed, 5, 60)
    assert all(np.array_equal(a, b) for a, b in zip(seen, shown, strict=True))
    frame = filmed.render()
    assert frame.shape == (210, 160, 3) and frame.dtype == np.uint8 and len(np.unique(frame)) > 3
    second = make_envs("ALE/Pong-v5", 2, render_mode="rgb_array")
    second.reset(0)
    assert second.render().shape == (210, 160, 3)


def test_atari_uses_one_thread_of_its_own() -> None:
    pytest.importorskip("ale_py")
    if not Path("/proc/self/task").exists():
        pytest.skip("threads are counted in /proc")
    before = len(list(Path("/proc/self/task").iterdir()))
    environments = make_envs("ALE/Pong-v5", 8)
    assert len(list(Path("/proc/self/task").iterdir())) == before + 1
    environments.close()
