"""The settings of a population's members, derived from the population's settings."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from thespis.core.config import Experiment
from thespis.core.errors import ThespisError
from thespis.envs.spaces import Spaces
from thespis.population.memory import refuse_more_than_fits
from thespis.population.search_space import assign, pairs
from thespis.training.registry import architecture, defaults

_PASSED_ON = (
    "env", "env_kwargs", "wrapper", "frame_stack", "time_limit", "seed", "actors", "envs_per_actor", "report_every",
    "checkpoint_every", "keep", "env_timeout", "stall_timeout", "placement_timeout", "cost_model", "track_info",
    "init_from", "init_checkpoint", "init_only",
)  # fmt: skip
"""Settings that members inherit from the population."""


def member_settings(member: str, settings: tuple[str, ...], population: Experiment, **own: Any) -> Experiment:
    """The settings that all members, which are runs of the architecture `member`, share.

    `settings`: PATH=VALUE words that replace defaults. `own`: settings that differ from the population's.
    """
    given, shared = pairs(settings, "--settings"), {part.name for part in fields(Experiment)}
    for path in shared.intersection(given):
        flag = path.replace("_", "-")
        raise ThespisError(f"--settings {path}: members inherit it from the population; give --{flag} instead")
    chosen = {name: given.pop(name) for name in ("algorithm",) if name in given}  # determines which settings exist
    env = population.env if isinstance(population.env, str) else None
    cfg = assign(defaults(member, env, chosen), given)
    passed = {name: getattr(population, name) for name in _PASSED_ON}
    return replace(cfg, eval_episodes=0, **passed, **own)


def validate_members(member: str, cfg: Experiment, spaces: Spaces, at_once: int | None) -> None:
    """Refuse members that cannot train.

    `at_once`: number of members that share this machine's memory; None on a cluster, which checks its own resources.
    """
    module = architecture(member)
    program = module.program(cfg)
    program.check()
    if hasattr(module, "validate"):
        module.validate(cfg, spaces)
    if at_once is not None:
        refuse_more_than_fits(cfg, spaces, len(program.processes) if cfg.on == "local" else 0, at_once)
