"""`thespis.train`: a run from Python. Editors and type checkers see its settings in _train.pyi."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thespis.training.launch import launch
from thespis.training.registry import defaults

if TYPE_CHECKING:
    from thespis.training.trained_run import TrainedRun


def train(
    architecture: str | Path, *, callbacks: Sequence[Any] = (), quiet: bool = False, **settings: Any
) -> TrainedRun:
    """Train, and return the run. `settings` are fields of the architecture's config; nested configs are dicts.

    `callbacks`: objects, classes or functions that receive the events of the run, or their names (docs/callbacks.md).

    >>> run = train("impala", env="CartPole-v1", stop_at_return=475, optimizer={"learning_rate": 1e-3})
    >>> run.policy.act(observation)
    """
    if settings.get("run_dir") is not None:
        settings["run_dir"] = Path(settings["run_dir"])
    # The config stores callback names, so that a resumed run has the same callbacks.
    named = [each for each in callbacks if isinstance(each, str)]
    if named:
        settings["callback"] = (*settings.get("callback", ()), *named)
    given = [each for each in callbacks if not isinstance(each, str)]
    name = str(architecture)
    return launch(name, defaults(name, None, settings), quiet=quiet, callbacks=given)
