"""What a run was given that nobody can find again by its name, and what follows from that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from thespis.core.config import Experiment
from thespis.core.env_config import EnvConfig
from thespis.core.errors import ThespisError
from thespis.core.user_code import lost

_AGAIN = "give it anew, as --env file.py::function on the command line or env=... in Python"


def refuse_lost(cfg: Experiment) -> None:
    """Refuse what could not be trained, or what could not be loaded after it was.

    A policy is loaded without its environment, so any function will do for that, as long as it is here. A network is
    built anew whenever its weights are loaded, and its algorithm builds it.
    """
    refuse_lost_env(cfg.env_config)
    for flag, code in _builders(cfg):
        if (reason := lost(code)) is not None:
            raise ThespisError(f"the policy could not be loaded again: of {flag} {reason}; define it by name in a file")


def _builders(cfg: Experiment) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The code that builds a policy when it is loaded, by the flag that names it."""
    if cfg.learned is not None:
        yield "--algorithm", type(cfg.learned)
        if callable(cfg.learned.network.factory):
            yield "--network.factory", cfg.learned.network.factory


def refuse_lost_env(cfg: EnvConfig) -> None:
    """Refuse an environment or a wrapper of which only a name is left that leads nowhere."""
    for spec, what in ((cfg.env, "environment"), *((wrapper, "wrapper") for wrapper in cfg.wrappers)):
        if isinstance(spec, str) and (reason := lost(spec)) is not None:
            how = _AGAIN if what == "environment" else "give it anew, as --wrapper file.py::name"
            raise ThespisError(f"the {what} of this run, {spec}, cannot be found again: {reason}; {how}")


def lost_notes(cfg: Experiment) -> list[str]:
    """What to say of functions that only this process knows."""
    said = [
        f"another process cannot find the environment again: {reason}. The policy can be loaded all the same; "
        "`thespis eval` and `thespis resume` will need --env"
        for spec in (cfg.env, *cfg.wrapper)
        if callable(spec) and (reason := lost(spec, elsewhere=True)) is not None
    ]
    said += [
        f"the policy can be loaded only where {flag} is defined again: {reason}"
        for flag, code in _builders(cfg)
        if (reason := lost(code, elsewhere=True)) is not None
    ]
    return said[:1]
