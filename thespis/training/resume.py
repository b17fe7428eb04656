"""Going on with a run under other settings: which may change, and how config.yaml keeps up.

Settings of the run as a whole (budget, evaluation, actors, runtime, limits) may change, except those that `FIXED` of
their class names. Of an architecture's own settings a number with a fraction is a strength, a rate or a time, and may
change; everything else says what the saved state is made of and stays, unless `MAY_CHANGE` of its class names it.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from thespis.core.config import Experiment
from thespis.core.config_io import updated as replaced
from thespis.core.errors import ThespisError
from thespis.core.settings import chooser, is_inline
from thespis.runs import trust
from thespis.runs.directory import RunDirectory
from thespis.training.launch import launch
from thespis.training.registry import config_of_run, load_config, write_config

if TYPE_CHECKING:
    from thespis.runtime.session import Session
    from thespis.training.run import Trained

_ENV = ("env", "env_kwargs", "wrapper", "frame_stack", "time_limit")
"""Settings of the environment: they may change if observations and actions stay what they are."""


class Change(NamedTuple):
    """One setting, by its path, that differs between two configs."""

    path: str
    before: Any
    after: Any
    allowed: bool

    def __str__(self) -> str:
        return f"{self.path} {self.before} -> {self.after}"


def resume(
    path: Path, change: Callable[[Experiment], Experiment], *, quiet: bool = False, callbacks: Sequence[Any] = ()
) -> Trained:
    """Go on from the newest valid checkpoint. `change` makes the new settings of the old ones."""
    name, data = load_config(RunDirectory.open(path).config)
    old = config_of_run(path, name, data)
    new = change(old)
    changes = list(differences(old, new))
    refuse(path, old, new, changes)

    def resumed(session: Session) -> None:
        try:
            kept = replace_config(session.run, name, new)
            session.run.keep()
            session.log(f"changed {', '.join(map(str, changes))}; {kept.name} has the settings before")
        except OSError as error:
            session.log(f"config.yaml not updated ({error}); it still has the settings before")

    told = resumed if changes else None
    return launch(name, new, resume=path, quiet=quiet, callbacks=callbacks, resumed=told)


def check_trust(path: Path) -> None:
    """Raise `Untrusted` if the run names code that this user has not trained with."""
    trust.check(path, trust.code_of(*load_config(RunDirectory.open(path).config)))


def elsewhere(cfg: Experiment, on: Any) -> Experiment:
    """The settings on another runtime, without those that belong to the one before."""
    gone: dict[str, Any] = {}
    if on != "ray":
        gone |= {"ray_address": None, "actors_per_node": None}
    if on != "simulation":
        gone |= {"faults": (), "cost_model": None}
    return dataclasses.replace(cfg, on=on, **gone)


def updated(cfg: Experiment, settings: dict[str, Any]) -> Experiment:
    """The settings with some of them replaced, nested ones by dicts."""
    return replaced(elsewhere(cfg, settings["on"]) if "on" in settings else cfg, settings)


def differences(old: Any, new: Any, prefix: str = "") -> Iterator[Change]:
    """All settings in which two configs of one class differ."""
    hints = typing.get_type_hints(type(old))
    for part in dataclasses.fields(old):
        before, after, path = getattr(old, part.name), getattr(new, part.name), f"{prefix}{part.name}"
        fixed = _stays(type(old), part.name, hints[part.name])
        if is_inline(part) and type(before) is type(after):
            yield from differences(before, after, prefix)
        elif chooser(part) is not None:
            yield Change(path, before.name, after.name, False)
        elif dataclasses.is_dataclass(before) and type(before) is type(after):
            inner = differences(before, after, f"{path}.")
            # What is nested in a part that stays, as the search in a network of action values, stays with it.
            yield from (change._replace(allowed=change.allowed and not _all_stays(type(old))) for change in inner)
        elif before != after:
            yield Change(path, before, after, not fixed)


def _stays(config: type[Any], name: str, hint: Any) -> bool:
    if name in _marked(config, "FIXED") or _all_stays(config):
        return True
    common = issubclass(config, Experiment) and any(part.name == name for part in dataclasses.fields(Experiment))
    return not (common or hint is float or name in _marked(config, "MAY_CHANGE"))


def _all_stays(config: type[Any]) -> bool:
    return "*" in _marked(config, "FIXED")


def _marked(config: type[Any], mark: str) -> set[str]:
    """Names that a class, or one that it extends, has in its `FIXED` or `MAY_CHANGE`."""
    return {name for base in config.__mro__ for name in vars(base).get(mark, ())}


def refuse(path: Path, old: Experiment, new: Experiment, changes: list[Change]) -> None:
    """Say which of the changes the saved state cannot bear."""
    refused = [change for change in changes if not change.allowed]
    if refused:
        flags = ", ".join(f"--{change.path.replace('_', '-')}" for change in refused)
        raise ThespisError(
            f"{path} cannot be resumed with another {flags}: what it has saved depends on it "
            f"({', '.join(map(str, refused))}); start a new run, perhaps with --init-from {path}"
        )
    if any(change.path.partition(".")[0] in _ENV for change in changes):
        from thespis.envs.make import describe
        from thespis.training.run import Trained

        before, after = Trained(path, trust=True).spaces, describe(new.env_config)
        if before != after:
            raise ThespisError(
                f"{path} cannot be resumed in an environment whose observations or actions differ "
                f"({before} before, {after} now); start a new run, perhaps with --init-from {path}"
            )


def replace_config(run: RunDirectory, name: str, cfg: Experiment) -> Path:
    """Write the new settings as config.yaml; returns the file that keeps those before."""
    from thespis.core.system.commit import commit_file

    number = 1
    while (kept := run.path / f"config-{number}.yaml").exists():
        number += 1
    commit_file(kept, run.config.read_bytes())
    write_config(run.config, name, cfg)
    return kept
