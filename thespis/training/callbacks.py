"""Callbacks: what a user's code is told of a run while it runs (docs/callbacks.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from thespis.core.errors import ThespisError
from thespis.core.user_code import resolve

if TYPE_CHECKING:
    from thespis.training.run import Trained

METHODS = ("on_start", "on_report", "on_checkpoint", "on_end")
SHIPPED = {"wandb": "thespis.training.track::Wandb", "mlflow": "thespis.training.track::Mlflow"}
"""Callbacks with a short name."""


class Callback:
    """Override what you need. Any object with some of these methods will do; none of them is required."""

    def on_start(self, run: Trained) -> None:
        """Before any process starts. `run` has its `path` and `config`. An error refuses the run."""

    def on_report(self, row: dict[str, Any]) -> Literal["stop"] | None:
        """A row of metrics, as in metrics.jsonl: `step` (environment steps), `time`, and one number per metric.

        Return "stop" to end the run; it still saves a checkpoint and evaluates.
        """
        return None

    def on_checkpoint(self, path: Path) -> None:
        """A checkpoint was saved. Later ones replace it (--keep), so copy what you want to keep."""

    def on_end(self, summary: dict[str, Any]) -> None:
        """The run is over, however it ended; `summary` is the content of summary.json."""


class Reporter(Callback):
    """A plain function as a callback: it is called with each row."""

    def __init__(self, function: Callable[[dict[str, Any]], Any]) -> None:
        self._function = function

    def on_report(self, row: dict[str, Any]) -> Any:
        return self._function(row)


def find(given: Any) -> tuple[str, Any]:
    """A callback and its name, from an object, a class, a function, `file.py::name`, `module::name` or a short name."""
    name = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    if isinstance(given, str):
        spec = SHIPPED.get(given, given)
        if "::" not in spec:
            raise ThespisError(f"callback {given!r} is not known; give file.py::name or one of {', '.join(SHIPPED)}")
        given = resolve(spec)
    if isinstance(given, type):
        try:
            given = given()
        except ThespisError:
            raise
        except Exception as error:
            raise ThespisError(f"callback {name} cannot be made: {type(error).__name__}: {error}") from error
    if any(callable(getattr(given, method, None)) for method in METHODS):
        return name, given
    if callable(given):
        return name, Reporter(given)
    raise ThespisError(f"callback {name} has none of {', '.join(METHODS)}, and is no function; see docs/callbacks.md")
