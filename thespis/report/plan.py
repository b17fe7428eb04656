"""What is compared: the same environment, network and budget for every architecture and every seed."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thespis.core.config import Experiment
from thespis.core.config_io import load_yaml, to_dict, updated
from thespis.core.errors import ThespisError
from thespis.core.settings import names
from thespis.core.user_code import resolve
from thespis.runs.figures import number
from thespis.training.launch import check
from thespis.training.registry import defaults

FINISHED = ("total_steps", "total_seconds", "return_reached")
"""Reasons for which a run ends that has had its budget."""


@dataclass(frozen=True)
class Plan:
    """A comparison before anything runs. `settings` are those that the user gave for all runs."""

    architectures: tuple[str, ...]
    env: str
    seeds: int
    total_steps: int | None
    total_seconds: float | None
    hidden: tuple[int, ...]
    on: str = "local"
    out: Path = Path("comparisons")
    threshold: float | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def budget(self) -> str:
        """In words."""
        virtual = "virtual " if self.on == "simulation" else ""
        limits = [f"{self.total_seconds:g} {virtual}seconds"] if self.total_seconds is not None else []
        limits += [f"{self.total_steps:,} steps"] if self.total_steps is not None else []
        return " or ".join(limits)

    def runs(self) -> list[tuple[str, int]]:
        """In turns, so that a machine that slows down does so for all, and half a comparison is a fair one."""
        return [(name, seed) for seed in range(self.seeds) for name in self.architectures]

    def path(self, name: str, seed: int) -> Path:
        return self.out / "runs" / f"{Path(name).stem}-s{seed}"

    def config(self, name: str, seed: int) -> Experiment:
        """The preset for the environment, with what must be the same made the same."""
        data: dict[str, Any] = {"on": self.on, "seed": seed, "eval_every": 0.0, "report_every": self._report_every}
        data |= {"total_steps": self.total_steps, "total_seconds": self.total_seconds}
        data |= {**self.settings, "run_dir": str(self.path(name, seed))}
        cfg: Experiment = alike(defaults(name, self.env, data), self.hidden)
        return cfg

    @property
    def _report_every(self) -> float:
        """Virtual seconds pass quickly, and a curve of a short run needs points too."""
        if self.on == "simulation":
            return 0.05
        return min(1.0, max(0.1, (self.total_seconds or 60.0) / 200))

    def check(self) -> None:
        """Refuse what cannot be compared, all of it in one sentence, before anything starts."""
        refusals = []
        for name in self.architectures:
            try:
                check(name, self.config(name, 0))
            except ThespisError as error:
                refusals.append(f"{name}: {error}")
        if refusals:
            raise ThespisError(f"nothing was started; leave out or change what cannot be: {'; '.join(refusals)}")
        for name, seed in self.runs():
            self.finished(name, seed)

    def finished(self, name: str, seed: int) -> bool:
        """Whether this run is there already. One with other settings is an error: it would be compared unnoticed."""
        path = self.path(name, seed)
        if not (path / "summary.json").is_file() or not (path / "config.yaml").is_file():
            return False
        was = load_yaml(path / "config.yaml")
        now = to_dict(self.config(name, seed))
        # As it is after a turn through YAML: what is a number there may be text here, and the other way round.
        changed = [key for key, value in now.items() if key != "run_dir" and str(was.get(key)) != str(value)]
        if changed:
            key = changed[0]
            raise ThespisError(
                f"{path} was run with {key} {was.get(key)}, not {now[key]}; give another --out to compare anew"
            )
        return True


def alike(cfg: Experiment, hidden: tuple[int, ...]) -> Experiment:
    """The config with these hidden layers in the network of its algorithm, if it has one."""
    return updated(cfg, {"network": {"hidden": hidden}}) if "network" in names(cfg) else cfg


def network_line(cfg: Any) -> str:
    """The network an architecture used, in a few words."""
    if cfg.learned is None:
        return "its own"
    network = cfg.learned.network
    if network.factory:
        return str(network.factory)
    torso = "" if network.torso == "auto" else f"{network.torso} "
    parts = [f"{torso}{' × '.join(map(str, network.hidden))} {network.activation}"]
    if network.lstm:
        parts.append(f"LSTM {network.lstm}")
    if getattr(network, "dueling", False):
        parts.append("dueling")
    return ", ".join(parts)


def default_out(env: str, total_steps: int | None, total_seconds: float | None, on: str) -> Path:
    """The same for the same comparison, so that calling it again goes on with it."""
    budget = [f"{total_seconds:g}s"] if total_seconds is not None else []
    budget += [number(total_steps)] if total_steps is not None else []
    return Path("comparisons") / re.sub(r"[^\w.+-]", "-", "-".join([env.rpartition("::")[2], *budget, on]))


def threshold_of(env: str) -> float | None:
    """The return at which an environment says it is solved, if it does."""
    import gymnasium

    if not isinstance(resolve(env), str):
        return None
    try:
        return gymnasium.spec(env).reward_threshold
    except gymnasium.error.Error:
        return None
