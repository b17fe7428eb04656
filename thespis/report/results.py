"""The results of a comparison, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from thespis.report.statistics import Band, Estimate, mean_of


@dataclass(frozen=True)
class Entry:
    """The results of one architecture in a comparison. `limit`: a paragraph on what limits its speed."""

    name: str
    network: str
    actors: int
    envs_per_actor: int
    runs: list[dict[str, Any]]
    failed: list[dict[str, Any]]
    returns: Estimate
    greedy_returns: Estimate
    steps_per_second: Estimate
    updates_per_second: Estimate
    seconds_to_threshold: Estimate
    steps_to_threshold: Estimate
    samples_per_insert: Estimate
    lag: dict[str, Any]
    edges: dict[str, dict[str, Any]]
    roles: dict[str, dict[str, Any]]
    evaluators: list[str]
    processes: dict[str, dict[str, Any]]
    curves: dict[str, Band] = field(repr=False)
    limit: str = ""

    @property
    def training_roles(self) -> dict[str, dict[str, Any]]:
        """The roles without the evaluators."""
        return {role: share for role, share in self.roles.items() if role not in self.evaluators}

    @property
    def cores(self) -> float | None:
        """Mean number of cores in use: CPU seconds of all processes per second."""
        spent = [process["cpu_seconds"] for process in self.processes.values()]
        seconds = mean_of([run["wall_seconds"] for run in self.runs])
        return sum(spent) / seconds if spent and seconds and None not in spent else None


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison."""

    env: str
    on: str
    budget: str
    threshold: float | None
    seeds: int
    machine: dict[str, str]
    entries: list[Entry]
