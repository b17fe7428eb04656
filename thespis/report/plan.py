"""The plan of a comparison: the same environment, network and budget for every architecture and seed."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thespis.core.config import Experiment
from thespis.core.config_io import load_yaml, to_dict, with_settings
from thespis.core.errors import ThespisError
from thespis.core.settings import names
from thespis.core.user_code import resolve
from thespis.runs.terminal.formatting import format_number
from thespis.training.launch import check_settings
from thespis.training.registry import defaults

FINISHED = ("total_steps", "total_seconds", "return_reached")
"""Exit reasons of a finished run."""


@dataclass(frozen=True)
class Plan:
    """A comparison before any run. `settings`: the user's settings for all runs."""

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
        """The budget of each run, in words."""
        virtual = "virtual " if self.on == "simulation" else ""
        limits = [f"{self.total_seconds:g} {virtual}seconds"] if self.total_seconds is not None else []
        limits += [f"{self.total_steps:,} steps"] if self.total_steps is not None else []
        return " or ".join(limits)

    def runs(self) -> list[tuple[str, int]]:
        """Return architectures and seeds in alternation, so that a change of machine speed affects all of them."""
        return [(name, seed) for seed in range(self.seeds) for name in self.architectures]

    def path(self, name: str, seed: int) -> Path:
        """Return the directory of a run."""
        return self.out / "runs" / f"{Path(name).stem}-s{seed}"

    def config(self, name: str, seed: int) -> Experiment:
        """Return the settings of a run: the preset of its architecture, with the common settings of the plan."""
        data: dict[str, Any] = {"on": self.on, "seed": seed, "eval_every": 0.0, "report_every": self._report_every}
        data |= {"total_steps": self.total_steps, "total_seconds": self.total_seconds}
        data |= {**self.settings, "run_dir": str(self.path(name, seed))}
        cfg: Experiment = with_hidden(defaults(name, self.env, data), self.hidden)
        return cfg

    @property
    def _report_every(self) -> float:
        """Seconds between rows; short and simulated runs need more rows for a curve."""
        if self.on == "simulation":
            return 0.05
        return min(1.0, max(0.1, (self.total_seconds or 60.0) / 200))

    def check(self) -> None:
        """Check every run before any run starts; one error lists all problems."""
        refusals = []
        for name in self.architectures:
            try:
                check_settings(name, self.config(name, 0))
            except ThespisError as error:
                refusals.append(f"{name}: {error}")
        if refusals:
            raise ThespisError(f"no run was started; remove or change the invalid ones: {'; '.join(refusals)}")
        for name, seed in self.runs():
            self.finished(name, seed)

    def finished(self, name: str, seed: int) -> bool:
        """Return whether this run is on disk. A run with other settings is an error, because it is not comparable."""
        path = self.path(name, seed)
        if not (path / "summary.json").is_file() or not (path / "config.yaml").is_file():
            return False
        was = load_yaml(path / "config.yaml")
        now = to_dict(self.config(name, seed))
        # Compare as text, because YAML may turn a number into text or text into a number.
        changed = [key for key, value in now.items() if key != "run_dir" and str(was.get(key)) != str(value)]
        if changed:
            key = changed[0]
            raise ThespisError(
                f"{path} was run with {key} {was.get(key)}, not {now[key]}; give another --out for a new comparison"
            )
        return True


def with_hidden(cfg: Experiment, hidden: tuple[int, ...]) -> Experiment:
    """Set the hidden layer sizes of the algorithm's network, if there is one."""
    return with_settings(cfg, {"network": {"hidden": hidden}}) if "network" in names(cfg) else cfg


def network_line(cfg: Any) -> str:
    """Describe the network of an architecture in a few words."""
    if cfg.learned is None:
        return "custom"
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
    """Return the default output directory. It depends only on the comparison, so that a second call continues it."""
    budget = [f"{total_seconds:g}s"] if total_seconds is not None else []
    budget += [format_number(total_steps)] if total_steps is not None else []
    return Path("comparisons") / re.sub(r"[^\w.+-]", "-", "-".join([env.rpartition("::")[2], *budget, on]))


def threshold_of(env: str) -> float | None:
    """Return the reward threshold of an environment, or None."""
    import gymnasium

    if not isinstance(resolve(env), str):
        return None
    try:
        return gymnasium.spec(env).reward_threshold
    except gymnasium.error.Error:
        return None
