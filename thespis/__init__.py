"""Thespis: classic distributed reinforcement-learning architectures that run, can be read, and can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thespis.trained import Trained

__all__ = ["Trained", "load", "train"]
__version__ = "0.1.0"


def train(architecture: str, *, quiet: bool = False, **settings: Any) -> Trained:
    """Train, and return the run. `settings` are the fields of the architecture's config; nested ones as dicts.

    >>> run = train("impala", env="CartPole-v1", stop_at_return=475, optimizer={"learning_rate": 1e-3})
    >>> run.policy.act(observation)
    """
    from pathlib import Path

    from thespis.launch import defaults, launch

    if settings.get("run_dir") is not None:
        settings["run_dir"] = Path(settings["run_dir"])
    trained: Trained = launch(architecture, defaults(architecture, None, settings), quiet=quiet)
    return trained


def load(path: str) -> Trained:
    """A run that was trained earlier, from its directory."""
    from thespis.trained import Trained

    return Trained(path)


def __getattr__(name: str) -> Any:
    if name == "Trained":
        from thespis.trained import Trained

        return Trained
    raise AttributeError(f"module 'thespis' has no attribute {name!r}")
