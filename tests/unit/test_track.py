"""Trackers, against small fakes of their packages: logged values, steps, and resumed runs."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

import thespis
from thespis.cli.main import main
from thespis.core.errors import ThespisError
from thespis.training.trackers import Mlflow, Wandb


class FakeWandb(types.ModuleType):
    """A fake of the parts of wandb that `Wandb` uses, with the same signatures."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.inits: list[dict[str, Any]] = []
        self.runs: list[FakeRun] = []

    def init(self, *, project: str, name: str, dir: str, config: dict[str, Any], **more: Any) -> FakeRun:
        self.inits.append({"project": project, "name": name, "dir": dir, "config": config, **more})
        self.runs.append(FakeRun(more.get("id", "abc123")))
        return self.runs[-1]

    class Artifact:
        def __init__(self, name: str, type: str) -> None:
            self.name, self.type, self.files = name, type, list[str]()

        def add_dir(self, local_path: str) -> None:
            self.files = sorted(path.name for path in Path(local_path).iterdir())


class FakeRun:
    def __init__(self, id: str) -> None:
        self.id, self.summary = id, dict[str, Any]()
        self.metrics: list[tuple[str, str | None]] = []
        self.rows: list[dict[str, Any]] = []
        self.artifacts: list[Any] = []
        self.exit_code: int | None = None

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.metrics.append((name, step_metric))

    def log(self, data: dict[str, Any]) -> None:
        self.rows.append(data)

    def log_artifact(self, artifact: Any) -> None:
        self.artifacts.append(artifact)

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


class FakeMlflow(types.ModuleType):
    """A fake of the parts of mlflow that `Mlflow` uses."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.calls: list[tuple[str, Any]] = []

    def active_run(self) -> None:
        return None

    def set_experiment(self, name: str) -> None:
        self.calls.append(("experiment", name))

    def start_run(self, run_id: str | None = None, run_name: str | None = None, nested: bool = False) -> Any:
        self.calls.append(("start", run_id or run_name))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id or "f00d"))

    def log_params(self, params: dict[str, Any]) -> None:
        self.calls.append(("params", params))

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        assert all(isinstance(value, float | int) for value in metrics.values())
        self.calls.append(("metrics", (step, metrics)))

    def log_dict(self, dictionary: dict[str, Any], artifact_file: str) -> None:
        self.calls.append((artifact_file, dictionary))

    def log_artifacts(self, local_dir: str, artifact_path: str) -> None:
        self.calls.append(("artifacts", (Path(local_dir).is_dir(), artifact_path)))

    def end_run(self, status: str) -> None:
        self.calls.append(("end", status))

    def of(self, kind: str) -> list[Any]:
        return [result for name, result in self.calls if name == kind]


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.setitem(sys.modules, "wandb", made := FakeWandb())
    return made


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMlflow:
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setitem(sys.modules, "mlflow", made := FakeMlflow())
    return made


def small(path: Path, *callbacks: Any) -> thespis.TrainedRun:
    return thespis.train(
        "impala", env="CartPole-v1", on="simulation", actors=1, envs_per_actor=2, eval_episodes=0, total_steps=300,
        report_every=0.02, network={"hidden": (4,)}, callbacks=callbacks, run_dir=path, quiet=True,
    )  # fmt: skip


def test_wandb_gets_settings_rows_and_summary(tmp_path: Path, wandb: FakeWandb) -> None:
    run = small(tmp_path / "run", Wandb(artifact=True, group="mine"))
    (init,), (result,) = wandb.inits, wandb.runs
    assert init["project"] == "thespis" and init["name"] == "run" and init["group"] == "mine" and "id" not in init
    assert init["config"]["optimizer"]["kind"] == "adam" and init["config"]["env"] == "CartPole-v1"
    assert result.metrics == [("step", None), ("*", "step")]
    steps = [row["step"] for row in result.rows]
    assert steps == sorted(steps) and steps[-1] == run.summary["env_steps"]
    assert "rollout/ep_rew_mean" in result.rows[-1]
    assert result.summary == run.summary and result.exit_code == 0
    assert result.artifacts[0].type == "model" and "meta.json" in result.artifacts[0].files


def test_a_resumed_run_goes_on_in_the_same_wandb_run(tmp_path: Path, wandb: FakeWandb) -> None:
    small(tmp_path / "run", "wandb")
    assert main(["resume", str(tmp_path / "run"), "--total-steps", "3000"]) == 0
    assert [init.get("id") for init in wandb.inits] == [None, "abc123"]
    assert wandb.inits[1]["resume"] == "allow"


def test_mlflow_gets_settings_rows_and_summary(tmp_path: Path, mlflow: FakeMlflow) -> None:
    run = small(tmp_path / "run", Mlflow(artifact=True))
    assert mlflow.of("experiment") == ["thespis"] and mlflow.of("start") == ["run"] and mlflow.of("end") == ["FINISHED"]
    (params,) = mlflow.of("params")
    assert params["optimizer.kind"] == "adam" and params["network.hidden"] == [4]
    step, metrics = mlflow.of("metrics")[-1]
    assert step == run.summary["env_steps"] and "rollout/ep_rew_mean" in metrics and "step" not in metrics
    assert mlflow.of("summary.json") == [run.summary]
    ((there, _),) = mlflow.of("artifacts")
    assert there
    # Resumed: the same MLflow run, whose parameters cannot change.
    tracker = Mlflow()
    tracker.on_start(run)
    assert mlflow.of("start") == ["run", "f00d"] and len(mlflow.of("params")) == 1


def test_a_tracker_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        ThespisError, match=r'needs the package wandb .*; install it with: pip install "thespis\[track\]"'
    ):
        small(tmp_path / "run", "wandb")
    assert not (tmp_path / "run").exists()
