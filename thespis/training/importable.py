"""Checks that a run can import its code again by name: environment, wrappers, algorithm and network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from thespis.core.config import Experiment
from thespis.core.env_config import EnvConfig
from thespis.core.errors import ThespisError
from thespis.core.user_code import why_unresolvable

_GIVE_ENV = "give it again, as --env file.py::function on the command line or env=... in Python"


def validate_importable(cfg: Experiment) -> None:
    """Reject settings whose code cannot be imported for training, or for loading the policy afterwards.

    Loading a policy needs no environment, so any function of this process can be the environment. Loading does build
    the network again, so the algorithm and the network factory must be importable by name.
    """
    validate_env_importable(cfg.env_config)
    for flag, code in _builders(cfg):
        if (reason := why_unresolvable(code)) is not None:
            raise ThespisError(f"{flag} cannot be imported to load the policy: {reason}; define it by name in a file")


def _builders(cfg: Experiment) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the code that builds a policy on loading, with the flag that names it."""
    if cfg.learned is not None:
        yield "--algorithm", type(cfg.learned)
        if callable(cfg.learned.network.factory):
            yield "--network.factory", cfg.learned.network.factory


def validate_env_importable(cfg: EnvConfig) -> None:
    """Reject an environment or wrapper whose name cannot be imported."""
    for spec, what in ((cfg.env, "environment"), *((wrapper, "wrapper") for wrapper in cfg.wrappers)):
        if isinstance(spec, str) and (reason := why_unresolvable(spec)) is not None:
            how = _GIVE_ENV if what == "environment" else "give it again, as --wrapper file.py::name"
            raise ThespisError(f"the {what} of this run, {spec}, cannot be imported: {reason}; {how}")


def import_notes(cfg: Experiment) -> list[str]:
    """Return a note if another process cannot import some code of the run."""
    notes = [
        f"another process cannot import the environment: {reason}. The policy can still be loaded; "
        "`thespis eval` and `thespis resume` will need --env"
        for spec in (cfg.env, *cfg.wrapper)
        if callable(spec) and (reason := why_unresolvable(spec, elsewhere=True)) is not None
    ]
    notes += [
        f"the policy can be loaded only where {flag} is defined again: {reason}"
        for flag, code in _builders(cfg)
        if (reason := why_unresolvable(code, elsewhere=True)) is not None
    ]
    return notes[:1]
