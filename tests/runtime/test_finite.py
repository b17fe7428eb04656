"""Weights that overflow: the run ends with the reason, and no checkpoint contains them."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Stage

from thespis.core.config import Experiment
from thespis.core.errors import ThespisError
from thespis.core.finite_weights import NonFiniteWeights, check_finite_weights
from thespis.population.history import Reached
from thespis.population.trainer import Segment, Training
from thespis.runs.checkpoints import Checkpoints, policy_weights
from thespis.runtime.session import Session
from thespis.training.launch import launch
from thespis.training.registry import defaults
from thespis.training.trained_run import RunFailed

SETTINGS: dict[str, dict[str, Any]] = {
    "impala": {},
    "ppo": {},
    "a2c": {},
    "dqn": {"replay": {"warm_up": 100}},
    "es": {"pairs": 4, "envs_per_actor": 8},
}


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the check of settings, so that a learning rate of NaN makes the weights NaN at the first update."""
    for module in ("core.config", "training.launch"):
        monkeypatch.setattr(f"thespis.{module}.check_numbers", lambda cfg: None)


def small(name: str, path: Path, **settings: Any) -> Experiment:
    shared = {
        "on": "simulation", "actors": 1, "eval_episodes": 0, "total_steps": 20_000, "checkpoint_every": 0.05,
        "run_dir": path, "optimizer": {"learning_rate": math.nan},
    }  # fmt: skip
    return defaults(name, None, {"env": "CartPole-v1", **shared, **SETTINGS[name], **settings})


def finite(run: Path) -> bool:
    """Whether the weights of the newest checkpoint, if there is one, are finite."""
    found = Checkpoints(run / "checkpoints", keep=9).newest_valid().path
    return found is None or all(np.isfinite(array).all() for array in (policy_weights(found) or {}).values())


@pytest.mark.parametrize("name", SETTINGS)
def test_the_run_ends_with_the_reason(name: str, tmp_path: Path) -> None:
    with pytest.raises(ThespisError, match="0: the weights are no longer finite .*lower the learning rate"):
        launch(name, small(name, tmp_path / "run"), quiet=True)
    assert finite(tmp_path / "run")


@pytest.mark.parametrize("name", ["impala", "a2c", "es"])
def test_a_checkpoint_never_holds_them(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same if the run reaches its last step before the first check of the weights."""
    for role in ("learner", "parameter_server", "coordinator"):
        monkeypatch.setattr(f"thespis.roles.{role}.check_finite_weights", lambda weights, who: None)
    cfg = small(name, tmp_path / "run", total_steps=3000, checkpoint_every=1e6)
    with pytest.raises(ThespisError, match="0: the weights are no longer finite"):
        launch(name, cfg, quiet=True)
    assert not list((tmp_path / "run" / "checkpoints").glob("update-*"))


def test_processes_end_with_the_reason_without_a_restart(tmp_path: Path) -> None:
    sessions: list[Session] = []
    with pytest.raises(ThespisError, match="learner 0: the weights are no longer finite"):
        launch("impala", small("impala", tmp_path / "run", on="local"), quiet=True, began=sessions.append)
    assert finite(tmp_path / "run") and not sum(sessions[0].monitor.restarts.values())


def test_returns_beyond_float32_are_kept_in_checkpoints(stage: Stage) -> None:
    cfg = small("es", stage.run, env="es_envs::Huge", total_steps=3000, save_every=200, optimizer={})
    summary = launch("es", cfg, quiet=True).summary
    assert summary["exit_reason"] == "total_steps" and summary["return_mean_100"] > 3e38
    assert len(list((stage.run / "checkpoints").glob("update-*"))) > 1


def test_a_run_whose_losses_are_all_nan_has_failed(tmp_path: Path) -> None:
    """Every loss is NaN, so the weights are still the initial ones."""
    cfg = small("impala", tmp_path / "run", optimizer={}, discount=math.nan, total_steps=2000)
    with pytest.raises(RunFailed, match="nothing was learned: the loss of all .* batches was not finite"):
        launch("impala", cfg, quiet=True)


@pytest.mark.parametrize("checkpoint_every", [1e6, 0.2])
def test_a_loss_that_stays_not_finite_ends_the_run(checkpoint_every: float, tmp_path: Path) -> None:
    """Weights that are finite but huge, with non-finite losses: a restart would not help, so the run must fail.

    The simulation rebuilds its roles at each checkpoint, so a checkpoint must hold the count of such losses.
    """
    huge = {"learning_rate": 1e38, "kind": "sgd", "clip": 0.0}
    often = {"unroll_length": 4, "total_steps": 30_000, "checkpoint_every": checkpoint_every}
    cfg = small("impala", tmp_path / "run", optimizer=huge, **often)
    with pytest.raises(ThespisError, match="learner 0: the loss of 100 batches in a row was not finite; lower the"):
        launch("impala", cfg, quiet=True)


@pytest.mark.parametrize("updates", [0, 7])
def test_a_population_goes_on_without_a_member_that_learned(updates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that fails before its first update has an error in the settings of all members."""

    def diverge(*args: Any, began: Any, **settings: Any) -> None:
        began(SimpleNamespace(monitor=SimpleNamespace(updates=updates)))
        raise ThespisError("learner 0: the weights are no longer finite")

    monkeypatch.setattr("thespis.population.trainer.launch", diverge)
    members: Any = SimpleNamespace(name="impala", config=lambda *of: None, path=Path)
    training = Training(members, Segment(0, "run", {}, Reached(0, 0, 0, 0.0), 10))
    if updates:
        assert training._train(resuming=False) == "learner 0: the weights are no longer finite"
    else:
        with pytest.raises(ThespisError):
            training._train(resuming=False)


def test_what_counts_as_finite() -> None:
    check_finite_weights({"a": np.full(9, 3e38, np.float32), "b": np.arange(3), "c": np.ones(2, bool)}, "learner 0")
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(NonFiniteWeights, match=r"learner 0: .* \(b\)"):
            check_finite_weights({"a": np.zeros(2, np.float32), "b": np.array([1.0, bad], np.float32)}, "learner 0")
