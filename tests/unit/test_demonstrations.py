"""Demonstrations: a round trip through files, refused damaged or foreign ones, and all sources."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from safetensors.numpy import load_file, save_file

from thespis.core.config import EnvConfig
from thespis.core.errors import ThespisError
from thespis.core.system.commit import commit_directory, stage
from thespis.envs.make import describe_env, make_envs
from thespis.envs.spaces import Spaces, env_actions, policy_actions
from thespis.experience.demonstrations import Demonstration, fitted, load_demonstrations, save_demonstrations, unrolls
from thespis.experience.recording import gather, record

VECTOR = Spaces(Box(-9.0, 9.0, (3,), np.float32), Discrete(4))
MIXED = Spaces(Dict({"a": Box(-9.0, 9.0, (2,), np.float32), "b": Discrete(7)}), Box(-2.0, 2.0, (1,), np.float32))


def episodes(spaces: Spaces, lengths: tuple[int, ...] = (3, 1, 5)) -> list[Demonstration]:
    rng = np.random.default_rng(0)
    made = []
    for number, steps in enumerate(lengths):
        obs: Any = rng.normal(size=(steps + 1, 3)).astype(np.float32)
        actions = rng.integers(0, 4, steps)
        if spaces is MIXED:
            obs = {"a": rng.normal(size=(steps + 1, 2)).astype(np.float32), "b": rng.integers(0, 7, steps + 1)}
            actions = rng.uniform(-2, 2, (steps, 1)).astype(np.float32)
        made.append(Demonstration(obs, actions, rng.normal(size=steps).astype(np.float32), number % 2 == 0))
    return made


def same(one: Demonstration, other: Demonstration) -> None:
    np.testing.assert_array_equal(one.actions, other.actions)
    np.testing.assert_array_equal(one.rewards, other.rewards)
    assert one.terminated == other.terminated
    np.testing.assert_equal(one.obs, other.obs)


@pytest.mark.parametrize("spaces", [VECTOR, MIXED], ids=["vector", "dict"])
def test_what_is_written_is_what_is_read(spaces: Spaces, tmp_path: Path) -> None:
    written = episodes(spaces)
    save_demonstrations(tmp_path / "new" / "demos", written, {"env": "some"})
    read = fitted(load_demonstrations(tmp_path / "new" / "demos"), spaces, "demos")
    assert [len(episode) for episode in read] == [3, 1, 5]
    for one, other in zip(written, read, strict=True):
        same(one, other)
    about = json.loads((tmp_path / "new" / "demos" / "about.json").read_text())
    assert (about["version"], about["episodes"], about["steps"], about["env"]) == (1, 3, 9, "some")
    with pytest.raises(ThespisError, match="already exists"):
        save_demonstrations(tmp_path / "new" / "demos", written, {})
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["demos"], "nothing half written"


def cut_off(path: Path) -> None:
    file = path / "episodes.safetensors"
    file.write_bytes(file.read_bytes()[:-7])


def change(path: Path) -> None:
    file = path / "episodes.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (cut_off, "episodes.safetensors has .* bytes instead of .*; record them again"),
        (change, "does not match its SHA-256; record them again"),
        (lambda path: (path / "about.json").unlink(), "about.json is missing; record them again"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing; record them again"),
    ],
)
def test_damage_is_named(damage: Callable[[Path], None], what: str, tmp_path: Path) -> None:
    save_demonstrations(tmp_path / "demos", episodes(VECTOR), {})
    damage(tmp_path / "demos")
    with pytest.raises(ThespisError, match=what):
        load_demonstrations(tmp_path / "demos")


def rewritten(path: Path, columns: dict[str, Any], about: dict[str, Any]) -> Path:
    """Rewrite the directory with other content and a valid manifest, as another program might."""
    staging = stage(path.parent)
    save_file(columns, staging / "episodes.safetensors")
    (staging / "about.json").write_text(json.dumps(about))
    commit_directory(staging, path.with_name("other"))
    return path.with_name("other")


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        ("rewards", None, "'rewards' is missing"),
        ("obs", None, "'obs' is missing"),
        ("terminated", np.ones(2, np.bool_), "do not match the lengths"),
        ("lengths", np.array([3, 0, 6]), "do not match the lengths"),
        ("actions", np.ones(4, np.int64), "do not match the lengths"),
        ("about", {"format": "thespis demonstrations", "version": 2}, "demonstrations 2, not thespis demonstrations 1"),
        ("about", {}, "cannot be read"),
        ("about", [], "cannot be read"),
    ],
)
def test_missing_and_contradicting_fields_are_named(column: str, value: Any, what: str, tmp_path: Path) -> None:
    save_demonstrations(tmp_path / "demos", episodes(VECTOR), {})
    columns = load_file(tmp_path / "demos" / "episodes.safetensors")
    about = json.loads((tmp_path / "demos" / "about.json").read_text())
    if column == "about":
        about = value
    elif value is None:
        del columns[column]
    else:
        columns[column] = value
    with pytest.raises(ThespisError, match=what):
        load_demonstrations(rewritten(tmp_path / "demos", columns, about))


def with_nan(obs: Any) -> Any:
    obs = obs.copy()
    obs[1, 1] = np.nan
    return obs


@pytest.mark.parametrize(
    ("spaces", "what"),
    [
        (Spaces(Box(-1, 1, (4,), np.float32), Discrete(4)), r"observation has shape \(5, 3\), 4 steps need \(5, 4\)"),
        (Spaces(VECTOR.observation_space, Discrete(3)), r"action 3 is not in Discrete\(3\)"),
        (Spaces(VECTOR.observation_space, Discrete(4, start=1)), "action 0 is not in"),
        (Spaces(VECTOR.observation_space, MultiDiscrete([4, 4])), r"the actions have shape \(4,\)"),
        (Spaces(Box(0, 255, (3,), np.uint8), Discrete(4)), "has dtype float32, the space says uint8"),
        (MIXED, "the observations are not a Dict"),
    ],
)
def test_other_spaces_are_refused(spaces: Spaces, what: str) -> None:
    (played,) = episodes(VECTOR, (4,))
    played = Demonstration(played.obs, np.arange(4), played.rewards, True)
    with pytest.raises(ThespisError, match=f"demos, episode 0: .*{what}"):
        fitted([played], spaces, "demos")


def test_numbers_that_are_none_are_refused() -> None:
    (good,) = episodes(VECTOR, (3,))
    bad = [
        Demonstration(with_nan(good.obs), good.actions, good.rewards, True),
        Demonstration(good.obs, good.actions, np.array([0.0, np.inf, 1.0]), True),
        Demonstration(good.obs, good.actions.astype(np.float64), good.rewards, True),
    ]
    for episode, what in zip(bad, ("observation holds nan", "finite numbers", "actions are float64"), strict=True):
        with pytest.raises(ThespisError, match=f"demos, episode 1: .*{what}"):
            fitted([good, episode], VECTOR, "demos")
    with pytest.raises(ThespisError, match="there are no episodes"):
        fitted([], VECTOR, "demos")


@pytest.mark.parametrize(
    "space",
    [
        Discrete(5), Discrete(5, start=-2), MultiDiscrete([3, 4]), Box(-2.0, 6.0, (3,), np.float32),
        Box(np.array([-np.inf, 0.0]), np.array([np.inf, 0.0]), dtype=np.float64),
    ],
)  # fmt: skip
def test_actions_of_a_policy_and_of_its_environment_are_the_same(space: gym.Space[Any]) -> None:
    space.seed(0)
    actions = np.stack([np.asarray(space.sample()) for _ in range(20)])
    np.testing.assert_allclose(env_actions(space)(policy_actions(space)(actions)), actions, atol=1e-5)


@pytest.mark.parametrize("terminated", [True, False])
def test_unrolls_join_to_the_episode(terminated: bool) -> None:
    (played,) = episodes(VECTOR, (7,))
    played = Demonstration(played.obs, played.actions, played.rewards, terminated)
    cut = list(unrolls(played, 3, VECTOR.action_space))
    assert [len(unroll.rewards) for unroll in cut] == [3, 3, 1]
    obs: Any = played.obs
    np.testing.assert_array_equal(np.concatenate([part.inputs.obs[:-1, 0] for part in cut]), obs[:-1])  # type: ignore[index]
    np.testing.assert_array_equal(cut[-1].inputs.obs[-1, 0], obs[-1])  # type: ignore[index]
    np.testing.assert_array_equal(np.concatenate([part.actions[:, 0] for part in cut]), played.actions)
    assert [part.inputs.first[:, 0].tolist() for part in cut] == [[True, False, False, False], [False] * 4, [False] * 2]
    assert cut[1].inputs.last_action[0, 0] == played.actions[2] and cut[1].inputs.last_reward[0] == played.rewards[2]
    ends = (
        np.concatenate([part.terminated[:, 0] for part in cut]),
        np.concatenate([part.truncated[:, 0] for part in cut]),
    )
    assert [flags.tolist() for flags in ends] == [[False] * 6 + [terminated], [False] * 6 + [not terminated]]


@pytest.mark.parametrize("truncate", [False, True])
def test_recorded_episodes_are_whole(truncate: bool) -> None:
    """An episode contains its last observation, and not the first one of the next episode."""
    envs = make_envs(EnvConfig("thespis/Chain-v0", {"length": 4, "truncate": truncate}), 1)
    played = record(envs, lambda inputs: np.zeros(1, np.int64), 3, seed=0)
    envs.close()
    for number, episode in enumerate(played):
        np.testing.assert_array_equal(episode.obs, [[number, time] for time in range(5)])
        assert episode.rewards.tolist() == [1, 2, 3, 4] and episode.terminated != truncate


def push(obs: Any) -> float:
    return float(np.clip(obs[2], -2, 2))


def pushing() -> Any:
    return lambda obs: np.array([push(obs)])


def wrong() -> Any:
    return lambda obs: 9


def broken() -> Any:
    raise RuntimeError("no idea")


def test_a_scripted_policy_acts_as_the_environment_does() -> None:
    """Pendulum's actions range from -2 to 2, a policy's from -1 to 1: the recording holds the applied ones."""
    played = gather(pushing, "Pendulum-v1", 2, seed=3)
    assert len(played) == 2 and not played[0].terminated and len(played[0]) == 200
    obs: Any = played[0].obs
    np.testing.assert_allclose(played[0].actions[:, 0], [push(row) for row in obs[:-1]], atol=1e-6)
    env = gym.make("Pendulum-v1").unwrapped
    env.reset(seed=0)
    env.state = np.array([np.arctan2(obs[0, 1], obs[0, 0]), obs[0, 2]])  # type: ignore[attr-defined]
    np.testing.assert_allclose(env.step(played[0].actions[0])[0], obs[1], atol=1e-5)
    for one, other in zip(gather(pushing, "Pendulum-v1", 2, seed=3), played, strict=True):
        same(one, other)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (wrong, r"returned 9, which is not in Discrete\(4\)"),
        (broken, "raised RuntimeError: no idea"),
        ("thespis.envs.toys::nobody", "cannot be loaded"),
        ("nowhere", "nowhere holds no demonstrations"),
        ("minari:no/such-v0", "'no/such-v0' cannot be read"),
    ],
)
def test_sources_that_cannot_be_used_are_named(
    source: Any, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(ThespisError, match=what):
        gather(source, "thespis/Lock-v0", 2, 0)


@pytest.mark.filterwarnings("ignore::UserWarning:minari")  # Minari warns without the name of an author
def test_a_minari_dataset_of_this_machine_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    from minari.data_collector.episode_buffer import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    played = gather("thespis.envs.toys::open_lock", "thespis/Lock-v0", 3, 0)
    buffers = [
        EpisodeBuffer(
            id=number, observations=list(episode.obs), actions=list(episode.actions),
            rewards=episode.rewards.tolist(), terminations=[False] * 9 + [True], truncations=[False] * 10,
        )
        for number, episode in enumerate(played)
    ]  # fmt: skip
    spaces = describe_env("thespis/Lock-v0")
    minari.create_dataset_from_buffers(
        "lock/opened-v0", buffers, observation_space=spaces.observation_space, action_space=spaces.action_space,
    )  # fmt: skip
    read = gather("minari:lock/opened-v0", "thespis/Lock-v0", 2, 0)
    assert len(read) == 2
    for one, other in zip(read, played, strict=False):
        same(one, other)
    with pytest.raises(ThespisError, match="minari:lock/opened-v0, episode 0: observation has shape"):
        gather("minari:lock/opened-v0", "CartPole-v1", 2, 0)
