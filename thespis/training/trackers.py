"""Experiment trackers as callbacks: `--callback wandb`, `--callback mlflow` (pip install "thespis[track]").

Both trackers receive every setting at the start, every row of metrics by environment steps, and the summary at the end.
A resumed run continues its tracker run.
"""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thespis.core.config_io import to_dict
from thespis.core.errors import ThespisError
from thespis.core.system.commit import commit_file, to_json
from thespis.training.callbacks import Callback

if TYPE_CHECKING:
    from thespis.training.trained_run import TrainedRun

_FAILED = ("error", "stalled", "deadlock")


class Wandb(Callback):
    """Logs a run to Weights & Biases, which reads `WANDB_PROJECT`, `WANDB_ENTITY` and `WANDB_MODE` as usual.

    `artifact`: upload the last checkpoint at the end. `init`: arguments of wandb.init.
    """

    def __init__(self, *, artifact: bool = False, **init: Any) -> None:
        self._wandb = _package("wandb")
        self._artifact, self._init = artifact, init
        self._run: Any = None
        self._last: Path | None = None

    def on_start(self, run: TrainedRun) -> None:
        """Start or continue the tracker's run, and log all settings."""
        known = _read_id(run.path, "wandb")
        given = {
            "project": os.environ.get("WANDB_PROJECT", "thespis"),
            "name": run.path.name,
            "dir": str(run.path),
            "config": to_dict(run.config),
            **({"id": known, "resume": "allow"} if known else {}),
        }
        self._run = self._wandb.init(**{**given, **self._init})
        # The x axis is environment steps; the step of W&B would count rows.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        _write_id(run.path, "wandb", self._run.id)

    def on_report(self, row: dict[str, Any]) -> None:
        """Log a row of metrics."""
        self._run.log(row)

    def on_checkpoint(self, path: Path) -> None:
        """Remember the checkpoint for the upload at the end."""
        self._last = path

    def on_end(self, summary: dict[str, Any]) -> None:
        """Log the summary, upload the checkpoint if requested, and end the tracker's run."""
        self._run.summary.update(summary)
        if self._artifact and self._last is not None:
            made = self._wandb.Artifact(f"checkpoint-{self._run.id}", type="model")
            made.add_dir(str(self._last))
            self._run.log_artifact(made)
        self._run.finish(exit_code=1 if summary["exit_reason"] in _FAILED else 0)


class Mlflow(Callback):
    """Logs a run to MLflow, which reads `MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME` (default: `thespis`).

    `artifact`: upload the last checkpoint at the end. `start`: arguments of mlflow.start_run.
    """

    def __init__(self, *, artifact: bool = False, **start: Any) -> None:
        self._mlflow = _package("mlflow")
        self._artifact, self._start = artifact, start
        self._last: Path | None = None

    def on_start(self, run: TrainedRun) -> None:
        """Start or continue the tracker's run, and log all settings."""
        mlflow = self._mlflow
        if not any(name in os.environ for name in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID")):
            mlflow.set_experiment("thespis")
        known = _read_id(run.path, "mlflow")
        nested = mlflow.active_run() is not None  # the user has an open run in this thread
        given = {"run_id": known} if known else {"run_name": run.path.name}
        started = mlflow.start_run(**{**given, "nested": nested, **self._start})
        if known is None:  # the parameters of an MLflow run cannot change
            mlflow.log_params(dict(_flat(to_dict(run.config))))
        _write_id(run.path, "mlflow", started.info.run_id)

    def on_report(self, row: dict[str, Any]) -> None:
        """Log a row of metrics."""
        numbers = {name: value for name, value in row.items() if name != "step" and math.isfinite(value)}
        self._mlflow.log_metrics(numbers, step=row["step"])

    def on_checkpoint(self, path: Path) -> None:
        """Remember the checkpoint for the upload at the end."""
        self._last = path

    def on_end(self, summary: dict[str, Any]) -> None:
        """Log the summary, upload the checkpoint if requested, and end the tracker's run."""
        self._mlflow.log_dict(summary, "summary.json")
        if self._artifact and self._last is not None:
            self._mlflow.log_artifacts(str(self._last), artifact_path=self._last.name)
        reason = summary["exit_reason"]
        self._mlflow.end_run("FAILED" if reason in _FAILED else "KILLED" if reason == "interrupted" else "FINISHED")


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ThespisError(
            f'--callback {name} needs the package {name} ({error}); install it with: pip install "thespis[track]"'
        ) from error


def _flat(settings: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    """Flatten nested settings to paths such as `optimizer.learning_rate`."""
    pairs: list[tuple[str, Any]] = []
    for name, value in settings.items():
        pairs += _flat(value, f"{above}{name}.") if isinstance(value, Mapping) else [(f"{above}{name}", value)]
    return pairs


def _read_id(path: Path, tracker: str) -> str | None:
    """Read the tracker's id of this run, or None if no earlier part of the run was tracked."""
    try:
        found: dict[str, str] = json.loads((path / "track.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found.get(tracker)


def _write_id(path: Path, tracker: str, run_id: str) -> None:
    file = path / "track.json"
    known = json.loads(file.read_bytes()) if file.is_file() else {}
    commit_file(file, to_json({**known, tracker: run_id}))
