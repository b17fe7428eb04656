"""The spaces of a run's environment, from its spaces.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from thespis.core.config import Experiment
from thespis.core.system.files import read_text
from thespis.runs.directory import RunDirectory

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces


def written_spaces(run: Path) -> Spaces | None:
    """The spaces in the run directory, if any."""
    from thespis.envs.space_json import load_spaces

    file = RunDirectory(run).spaces
    return load_spaces(read_text(file), str(file)) if file.exists() else None


def spaces_of(cfg: Experiment) -> Spaces:
    """The observation and action space of a role's network.

    Makes an environment only if the run directory has no spaces: making one takes time, and its `close` may fail or
    hang.
    """
    from thespis.envs.make import describe_env

    found = None if cfg.run_dir is None else written_spaces(cfg.run_dir)
    return describe_env(cfg.env_config) if found is None else found
