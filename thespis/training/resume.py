"""Resuming a run with other settings: the rules for changes, and the update of config.yaml.

Settings of the run as a whole (budget, evaluation, actors, runtime, limits) may change, except the names in `FIXED` of
their class. Among an architecture's own settings, floats are weights, rates or times and may change. All others
determine the shape of the saved state and must stay, except the names in `MAY_CHANGE` of their class.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from thespis.core.config import Experiment
from thespis.core.config_io import with_settings as replaced
from thespis.core.errors import ThespisError
from thespis.core.settings import chooser, is_inline
from thespis.core.system.commit import commit_file
from thespis.runs import trust
from thespis.runs.directory import RunDirectory
from thespis.training.launch import launch
from thespis.training.registry import config_of_run, load_config, write_config

if TYPE_CHECKING:
    from thespis.runtime.session import Session
    from thespis.training.trained_run import TrainedRun

_ENV = ("env", "env_kwargs", "wrapper", "frame_stack", "time_limit")
"""Settings of the environment. They may change if the observation and action spaces stay the same."""


class Change(NamedTuple):
    """A setting that differs between two configs, by its path."""

    path: str
    before: Any
    after: Any
    allowed: bool

    def __str__(self) -> str:
        return f"{self.path} {self.before} -> {self.after}"


def resume(
    path: str | PathLike[str],
    *,
    trust: bool = False,
    callbacks: Sequence[Any] = (),
    quiet: bool = False,
    **settings: Any,
) -> TrainedRun:
    """Continue a run from its newest valid checkpoint, and return it. `settings` override the settings of the run.

    `callbacks`: objects in addition to the callbacks of the run's settings. `trust`: execute the code that the run
    names, regardless of its origin.

    >>> resume("runs/impala-CartPole-v1-s0-1", total_steps=2_000_000, optimizer={"learning_rate": 1e-4})
    """
    directory = Path(path)
    if not trust:
        check_trust(directory)
    return resume_run(directory, lambda cfg: updated_config(cfg, settings), quiet=quiet, callbacks=callbacks)


def resume_run(
    path: Path, change: Callable[[Experiment], Experiment], *, quiet: bool = False, callbacks: Sequence[Any] = ()
) -> TrainedRun:
    """Continue from the newest valid checkpoint. `change` returns the new settings, given the old ones."""
    name, data = load_config(RunDirectory.open(path).config)
    old = config_of_run(path, name, data)
    new = change(old)
    changes = list(differences(old, new))
    validate_changes(path, old, new, changes)

    def resumed(session: Session) -> None:
        try:
            kept = replace_config(session.run, name, new)
            session.run.keep()
            session.log(f"changed {', '.join(map(str, changes))}; {kept.name} has the previous settings")
        except OSError as error:
            session.log(f"config.yaml not updated ({error}); it still has the previous settings")

    on_resumed = resumed if changes else None
    return launch(name, new, resume=path, quiet=quiet, callbacks=callbacks, resumed=on_resumed)


def check_trust(path: Path) -> None:
    """Raise `Untrusted` if the run names code that this user has not trained with."""
    trust.check_trusted(path, trust.code_of(*load_config(RunDirectory.open(path).config)))


def with_runtime(cfg: Experiment, on: Any) -> Experiment:
    """Move the settings to another runtime, and reset the settings of the previous runtime."""
    reset: dict[str, Any] = {}
    if on != "ray":
        reset |= {"ray_address": None, "actors_per_node": None}
    if on != "simulation":
        reset |= {"faults": (), "cost_model": None}
    return dataclasses.replace(cfg, on=on, **reset)


def updated_config(cfg: Experiment, settings: dict[str, Any]) -> Experiment:
    """Replace some settings; a dict replaces nested settings."""
    return replaced(with_runtime(cfg, settings["on"]) if "on" in settings else cfg, settings)


def differences(old: Any, new: Any, prefix: str = "") -> Iterator[Change]:
    """Yield the settings that differ between two configs of one class."""
    hints = typing.get_type_hints(type(old))
    for part in dataclasses.fields(old):
        before, after, path = getattr(old, part.name), getattr(new, part.name), f"{prefix}{part.name}"
        fixed = _is_fixed(type(old), part.name, hints[part.name])
        if is_inline(part) and type(before) is type(after):
            yield from differences(before, after, prefix)
        elif chooser(part) is not None:
            yield Change(path, before.name, after.name, False)
        elif dataclasses.is_dataclass(before) and type(before) is type(after):
            inner = differences(before, after, f"{path}.")
            # A nested part of a fixed config is fixed too, e.g. the CEM search in a Q-function's network.
            yield from (change._replace(allowed=change.allowed and not _all_fixed(type(old))) for change in inner)
        elif before != after:
            yield Change(path, before, after, not fixed)


def _is_fixed(config: type[Any], name: str, hint: Any) -> bool:
    if name in _marked(config, "FIXED") or _all_fixed(config):
        return True
    common = issubclass(config, Experiment) and any(part.name == name for part in dataclasses.fields(Experiment))
    return not (common or hint is float or {name, "*"} & _marked(config, "MAY_CHANGE"))


def _all_fixed(config: type[Any]) -> bool:
    return "*" in _marked(config, "FIXED")


def _marked(config: type[Any], mark: str) -> set[str]:
    """The names in `FIXED` or `MAY_CHANGE` of a class and its bases; `*` stands for all."""
    return {name for base in config.__mro__ for name in vars(base).get(mark, ())}


def validate_changes(path: Path, old: Experiment, new: Experiment, changes: list[Change]) -> None:
    """Reject changes that the saved state does not support."""
    refused = [change for change in changes if not change.allowed]
    if refused:
        flags = ", ".join(f"--{change.path.replace('_', '-')}" for change in refused)
        raise ThespisError(
            f"{path} cannot be resumed with another {flags}: its saved state depends on it "
            f"({', '.join(map(str, refused))}); start a new run, perhaps with --init-from {path}"
        )
    if any(change.path.partition(".")[0] in _ENV for change in changes):
        from thespis.envs.make import describe_env
        from thespis.training.trained_run import TrainedRun

        before, after = TrainedRun(path, trust=True).spaces, describe_env(new.env_config)
        if before != after:
            raise ThespisError(
                f"{path} cannot be resumed in an environment whose observations or actions differ "
                f"({before} before, {after} now); start a new run, perhaps with --init-from {path}"
            )


def replace_config(run: RunDirectory, name: str, cfg: Experiment) -> Path:
    """Write the new settings to config.yaml, and return the file that keeps the previous settings."""
    number = 1
    while (kept := run.path / f"config-{number}.yaml").exists():
        number += 1
    commit_file(kept, run.config.read_bytes())
    write_config(run.config, name, cfg)
    return kept
