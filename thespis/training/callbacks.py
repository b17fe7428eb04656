"""Callbacks: user code that receives the events of a run (docs/callbacks.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from thespis.core.errors import ThespisError
from thespis.core.user_code import resolve

if TYPE_CHECKING:
    from thespis.training.trained_run import TrainedRun

METHODS = ("on_start", "on_report", "on_checkpoint", "on_end")
SHIPPED = {"wandb": "thespis.training.trackers::Wandb", "mlflow": "thespis.training.trackers::Mlflow"}
"""Callbacks that a short name selects."""


class Callback:
    """Receives the events of a run; override the methods you need.

    A callback need not extend this class: any object with at least one of these methods works.
    """

    def on_start(self, run: TrainedRun) -> None:
        """Called before any process starts. `run` has `path` and `config`. An exception prevents the run."""

    def on_report(self, row: dict[str, Any]) -> Literal["stop"] | None:
        """Called with each row of metrics.jsonl: `step` (environment steps), `time`, and one number per metric.

        Return "stop" to end the run. The run still saves a checkpoint and evaluates.
        """
        return None

    def on_checkpoint(self, path: Path) -> None:
        """Called when a checkpoint is saved. The run deletes old checkpoints (--keep); copy the ones you need."""

    def on_end(self, summary: dict[str, Any]) -> None:
        """Called when the run ends, also after a failure. `summary` is the content of summary.json."""


class Reporter(Callback):
    """A callback that calls a function with each row of metrics."""

    def __init__(self, function: Callable[[dict[str, Any]], Any]) -> None:
        self._function = function

    def on_report(self, row: dict[str, Any]) -> Any:
        """Call the function and return its result."""
        return self._function(row)


def find_callback(given: Any) -> tuple[str, Any]:
    """Return the name and the object of a callback.

    `given`: an object, a class, a function, `file.py::name`, `module::name` or a short name.
    """
    name = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    if isinstance(given, str):
        spec = SHIPPED.get(given, given)
        if "::" not in spec:
            raise ThespisError(f"unknown callback {given!r}; give file.py::name or one of {', '.join(SHIPPED)}")
        given = resolve(spec)
    if isinstance(given, type):
        try:
            given = given()
        except ThespisError:
            raise
        except Exception as error:
            raise ThespisError(f"callback {name} cannot be created: {type(error).__name__}: {error}") from error
    if any(callable(getattr(given, method, None)) for method in METHODS):
        return name, given
    if callable(given):
        return name, Reporter(given)
    raise ThespisError(f"callback {name} is not a function and has none of {', '.join(METHODS)}; see docs/callbacks.md")
