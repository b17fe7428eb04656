"""Runs that start from another run's weights: loaded weights, messages on the others, and the loading roles."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thespis import load, resume, train
from thespis.core.errors import ThespisError
from thespis.core.types import Array
from thespis.runs.checkpoints import Checkpoints, policy_weights

SMALL: dict[str, Any] = {"on": "simulation", "eval_episodes": 0, "quiet": True}
STILL = {"optimizer": {"learning_rate": 1e-30}}
"""A learning rate too small to change a weight, so that a run ends with its initial weights."""


def weights(path: Path) -> dict[str, Array]:
    found = Checkpoints(path / "checkpoints", keep=1).newest_valid().path
    assert found is not None
    held = policy_weights(found)
    assert held is not None
    return held


def same(left: dict[str, Array], right: dict[str, Array], names: list[str] | None = None) -> bool:
    return all(np.allclose(left[name], right[name], rtol=0, atol=1e-20) for name in names or left)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of IMPALA with normalised observations, and another seed than the runs that start from it."""
    path = tmp_path_factory.mktemp("source") / "run"
    made = {"actors": 1, "envs_per_actor": 2, "network": {"normalize_observations": True}}
    train("impala", seed=5, total_steps=200, run_dir=path, **made, **SMALL)
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "run"
    train("impala", seed=5, total_steps=200, run_dir=path, actors=1, envs_per_actor=2, **SMALL)
    return path


@pytest.mark.parametrize("name", ["impala", "seed", "ppo", "a2c", "a3c", "parameter-server"])
def test_every_holder_of_weights_starts_from_them(plain: Path, tmp_path: Path, name: str) -> None:
    """Learner, parameter server and shared parameters load the weights, for any seed."""
    run = tmp_path / "run"
    some: dict[str, Any] = {"actors": 2, "envs_per_actor": 2, "total_steps": 100, "unroll_length": 8}
    train(name, run_dir=run, init_from=plain, network={"hidden": [64, 64]}, **some, **STILL, **SMALL)
    assert same(weights(run), weights(plain))
    assert "starting from 8 of 8 weights" in (run / "log.txt").read_text()


@pytest.mark.parametrize("name", ["dqn", "gorila"])
def test_action_values_start_from_action_values(tmp_path: Path, name: str) -> None:
    replay, network = {"warm_up": 16, "capacity": 1000}, {"hidden": [16]}
    some: dict[str, Any] = {"actors": 1, "envs_per_actor": 2, "total_steps": 50, "replay": replay, "network": network}
    some |= SMALL
    first, second = tmp_path / "first", tmp_path / "second"
    train(name, seed=5, run_dir=first, **some)
    train(name, run_dir=second, init_from=first, **some, **STILL)
    assert same(weights(first), weights(second))


def test_evolution_starts_from_weights_and_statistics(tmp_path: Path) -> None:
    some: dict[str, Any] = {"envs_per_actor": 4, "actors": 1, "pairs": 4, "total_steps": 100, **SMALL}
    network = {"hidden": [], "normalize_observations": True}
    first, second = tmp_path / "first", tmp_path / "second"
    train("es", seed=5, run_dir=first, network=network, **some)
    still = {"optimizer": {"learning_rate": 1e-30, "weight_decay": 0.0}}
    train("es", run_dir=second, network=network, init_from=first, **some, **still)
    before, after = weights(first), weights(second)
    assert same(before, after, ["policy.weight", "policy.bias"])
    (count,) = (name for name in before if name.endswith("normalizer.count"))
    assert after[count] > before[count] > 0, "statistics continue from those of the first run"


def test_members_of_a_population_start_from_them(plain: Path, tmp_path: Path) -> None:
    tune = ("optimizer.learning_rate", "choice", "1e-30", "2e-30")
    some: dict[str, Any] = {"population": 2, "interval": 50, "total_steps": 100, "envs_per_actor": 2}
    train("pbt", run_dir=tmp_path / "run", tune=tune, init_from=plain, **some, **SMALL)
    members = [path.parent for path in (tmp_path / "run" / "members").glob("*/checkpoints")]
    assert members and all(same(weights(member), weights(plain)) for member in members)


def test_the_normaliser_comes_along_and_parts_can_be_chosen(source: Path, tmp_path: Path) -> None:
    some: dict[str, Any] = {"actors": 1, "envs_per_actor": 2, "total_steps": 50, "unroll_length": 8, **STILL, **SMALL}
    network = {"normalize_observations": True}
    run = tmp_path / "run"
    train("ppo", env="Acrobot-v1", run_dir=tmp_path / "other", init_from=source, init_only=("value",), **some)
    assert same(weights(tmp_path / "other"), weights(source), ["value.weight", "value.bias"])
    train("ppo", run_dir=run, init_from=source, init_only=("torso",), network=network, **some)
    before, after = weights(source), weights(run)
    assert same(before, after, [name for name in before if name.endswith("weight") and "torso" in name])
    assert not same(before, after, ["policy.weight"])
    (count,) = (name for name in before if name.endswith("normalizer.count"))
    assert after[count] > before[count] > 0
    said = (run / "log.txt").read_text()
    assert "starting from 7 of 11 weights" in said and "encoder, torsos, normalizer" in said


def test_what_differs_is_listed_in_one_line(plain: Path, tmp_path: Path) -> None:
    some: dict[str, Any] = {"run_dir": tmp_path / "run", "init_from": plain, **SMALL}
    with pytest.raises(ThespisError) as refusal:
        train("impala", network={"hidden": [32, 64]}, **some)
    complaint = str(refusal.value)
    assert "encoder.torsos.0.mlp.layers.0.weight is [64, 4] in the other run and [32, 4] in this network" in complaint
    assert "--init-only" in complaint and "\n" not in complaint
    with pytest.raises(ThespisError, match=r"advantage.weight is only in this network.* and \d+ more; give"):
        train("dqn", network={"hidden": [32, 32]}, **some)
    with pytest.raises(ThespisError, match="no weight has legs in its name.* of encoder, torsos, policy, value"):
        train("impala", init_only=("legs",), **some)
    assert not (tmp_path / "run").exists(), "a refusal leaves nothing behind"
    train("impala", network={"hidden": [64, 32]}, init_only=("torso",), total_steps=20, actors=1, **some)
    said = (tmp_path / "run" / "log.txt").read_text()
    assert "starting from 2 of 8 weights" in said
    assert "not taken: encoder.torsos.0.mlp.layers.1.weight is [64, 64] in the other run and [32, 64]" in said


def test_a_checkpoint_can_be_named_and_a_wrong_place_is_refused(plain: Path, tmp_path: Path) -> None:
    some: dict[str, Any] = {"actors": 1, "envs_per_actor": 2, "total_steps": 50, **STILL, **SMALL}
    checkpoint = Checkpoints(plain / "checkpoints", keep=1).newest_valid().path
    train("impala", run_dir=tmp_path / "run", init_from=checkpoint, **some)
    assert same(weights(tmp_path / "run"), weights(plain))
    for place, why in ((tmp_path / "nowhere", "no such directory"), (tmp_path, "holds no run")):
        with pytest.raises(ThespisError, match=why):
            train("impala", run_dir=tmp_path / "other", init_from=place, **some)
    with pytest.raises(ThespisError, match="need --init-from"):
        train("impala", init_only=("torso",), **some)


def test_a_resumed_run_does_not_need_the_other(plain: Path, tmp_path: Path) -> None:
    first, run = tmp_path / "first", tmp_path / "run"
    shutil.copytree(plain, first)
    some: dict[str, Any] = {"actors": 1, "envs_per_actor": 2, **SMALL}
    train("impala", run_dir=run, init_from=first, total_steps=100, **some)
    shutil.rmtree(first)
    resume(str(run), total_steps=2000, quiet=True)
    assert load(str(run)).config.init_from == first
    assert not same(weights(run), weights(plain)), "a restarted learner continues from its checkpoint"


def test_a_learner_that_dies_before_the_first_checkpoint_starts_from_them_again(plain: Path, tmp_path: Path) -> None:
    some: dict[str, Any] = {"actors": 1, "envs_per_actor": 2, "total_steps": 300, **STILL, **SMALL}
    train("impala", run_dir=tmp_path / "run", init_from=plain, faults=("kill learner 0 at 0.01",), **some)
    assert "restarting" in (tmp_path / "run" / "log.txt").read_text()
    assert same(weights(tmp_path / "run"), weights(plain))
