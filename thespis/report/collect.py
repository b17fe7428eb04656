"""From run directories to the figures of a comparison; what `results.json` holds, and all reports are made of."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from thespis.core.config_io import load_yaml
from thespis.core.errors import ThespisError
from thespis.core.system.cores import available_cores
from thespis.core.system.files import read_text
from thespis.core.types import Array
from thespis.report.perform import Failure
from thespis.report.plan import FINISHED, Plan, network_line
from thespis.report.statistics import Band, Estimate, band, estimate
from thespis.runs.directory import RunDirectory
from thespis.runs.monitor import WINDOW, Mark
from thespis.training.run import Trained


class Run:
    """What a run wrote. Its seconds are counted from its first step: start-up depends on what else the machine does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trained = Trained(path)

    @cached_property
    def summary(self) -> dict[str, Any]:
        return self.trained.summary

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        try:
            lines = read_text(self.path / "metrics.jsonl").splitlines()
        except OSError as error:
            raise ThespisError(f"{self.path} has no metrics ({error.strerror}); give a run directory") from None
        return [json.loads(line) for line in lines if line.endswith("}")]

    @cached_property
    def virtual(self) -> bool:
        """Whether its seconds are virtual."""
        return load_yaml(RunDirectory(self.path).config).get("on") == "simulation"

    @cached_property
    def edges(self) -> dict[str, str]:
        """The kind of each edge."""
        edges = json.loads(read_text(self.path / "topology.json"))["edges"]
        return {f"{edge['caller']}.{edge['service']}.{edge['method']}": edge["kind"] for edge in edges}

    @cached_property
    def evaluators(self) -> list[str]:
        """Names of the roles that only evaluate; runs of an earlier version do not say."""
        roles = json.loads(read_text(self.path / "topology.json")).get("roles", {})
        return [role for role, said in roles.items() if said["evaluates"]]

    def curve(self, x: str, metric: str = "rollout/ep_rew_mean") -> tuple[Array, Array]:
        """A metric against `steps` or `seconds`."""
        rows = [row for row in self.rows if row.get(metric) is not None and row["step"] > 0]
        y = np.array([row[metric] for row in rows], float)
        if x == "steps":
            return np.array([row["step"] for row in rows], float), y
        return np.array([max(0.0, row["time"] - self._began) for row in rows]), y

    @cached_property
    def _began(self) -> float:
        """Run time at the first step; not known of a run that has not ended."""
        summary = self.path / "summary.json"
        return self.summary.get("first_step_seconds") or 0.0 if summary.is_file() else 0.0

    def reached(self, threshold: float | None) -> Mark | None:
        """When the mean return of 100 training episodes first was there, to the row."""
        if threshold is None:
            return None
        seconds, returns = self.curve("seconds")
        steps, _ = self.curve("steps")
        counts = self.curve("steps", "time/episodes")[1]
        there = np.flatnonzero((returns >= threshold) & (counts >= WINDOW))
        return Mark(float(seconds[there[0]]), int(steps[there[0]])) if len(there) else None


@dataclass(frozen=True)
class Entry:
    """One architecture in a comparison. `limit`: in words, what kept it from being faster."""

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
        """The roles that take part in training."""
        return {role: share for role, share in self.roles.items() if role not in self.evaluators}

    @property
    def cores(self) -> float | None:
        """CPU seconds of all processes per second."""
        spent = [process["cpu_seconds"] for process in self.processes.values()]
        seconds = mean([run["wall_seconds"] for run in self.runs])
        return sum(spent) / seconds if spent and seconds and None not in spent else None


@dataclass(frozen=True)
class Comparison:
    """All there is to report."""

    env: str
    on: str
    budget: str
    threshold: float | None
    seeds: int
    machine: dict[str, str]
    entries: list[Entry]


def collect(plan: Plan, failures: Sequence[Failure]) -> Comparison:
    """The figures of all runs of a plan that are there."""
    from thespis.report.limits import limit

    entries = []
    for name in plan.architectures:
        paths = [plan.path(name, seed) for seed in range(plan.seeds)]
        runs = [Run(path) for path in paths if (path / "summary.json").is_file()]
        failed = [{"seed": each.seed, "error": each.error} for each in failures if each.architecture == name]
        runs = [run for run in runs if run.summary["exit_reason"] in FINISHED]
        entries.append(limit(entry(name, plan.config(name, 0), runs, failed, plan.threshold), plan.threshold))
    return Comparison(plan.env, plan.on, plan.budget, plan.threshold, plan.seeds, machine(), entries)


def entry(name: str, cfg: Any, runs: list[Run], failed: list[dict[str, Any]], threshold: float | None) -> Entry:
    told = [run.summary for run in runs]
    marks = [run.reached(threshold) for run in runs]
    last = [run.curve("steps")[1][-1:] for run in runs]
    return Entry(
        name=Path(name).stem,
        network=network_line(cfg),
        actors=cfg.actors,
        envs_per_actor=cfg.envs_per_actor,
        runs=[_brief(run) for run in runs],
        failed=failed,
        returns=estimate([float(value[0]) if len(value) else None for value in last]),
        greedy_returns=estimate([summary["eval_return_mean"] for summary in told]),
        steps_per_second=estimate([summary["steps_per_second"] for summary in told]),
        updates_per_second=estimate([summary["updates_per_second"] for summary in told]),
        seconds_to_threshold=estimate([mark and mark.seconds for mark in marks]),
        steps_to_threshold=estimate([mark and float(mark.env_steps) for mark in marks]),
        samples_per_insert=estimate([summary["samples_per_insert"] for summary in told]),
        lag={
            "mean": mean([summary["lag"]["mean"] for summary in told]),
            "max": max((summary["lag"]["max"] or 0 for summary in told), default=None),
            "counts": _summed([summary["lag_counts"] for summary in told]),
        },
        edges=_edges(runs),
        roles=_averaged([summary["roles"] for summary in told]),
        evaluators=sorted({role for run in runs for role in run.evaluators}),
        processes=_averaged([summary["processes"] for summary in told]),
        curves={
            "steps": band([run.curve("steps") for run in runs], even=False),
            "seconds": band([run.curve("seconds") for run in runs]),
        },
    )


def _brief(run: Run) -> dict[str, Any]:
    keys = ("seed", "exit_reason", "env_steps", "updates", "episodes", "wall_seconds", "startup_seconds", "restarts")
    return {**{key: run.summary[key] for key in keys}, "dropped": run.summary["dropped"], "path": str(run.path)}


def _edges(runs: list[Run]) -> dict[str, dict[str, Any]]:
    """Bytes and calls per environment step on each edge, over all runs."""
    steps = sum(run.summary["env_steps"] for run in runs)
    edges: dict[str, dict[str, Any]] = {}
    for run in runs:
        for name, traffic in run.summary["edges"].items():
            edge = edges.setdefault(name, {"kind": run.edges.get(name, "edge"), "bytes_per_step": 0.0, "calls": 0})
            edge["bytes_per_step"] += traffic["bytes"] / max(1, steps)
            edge["calls"] += traffic["calls"]
    return edges


def mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for key, count in each.items():
            total[key] = total.get(key, 0) + count
    return {key: total[key] for key in sorted(total, key=int)}


def _averaged(tables: Sequence[Any]) -> Any:
    """The mean of tables of the same form, number by number; a number that some lack is the mean of the others."""
    tables = [table for table in tables if table is not None]
    if not tables:
        return {}
    if isinstance(tables[0], dict):
        keys = list(dict.fromkeys(key for table in tables for key in table))
        found = {key: [table[key] for table in tables if table.get(key) is not None] for key in keys}
        return {key: _averaged(values) if values else None for key, values in found.items()}
    if isinstance(tables[0], (int, float)):
        average = sum(tables) / len(tables)
        return int(average) if all(isinstance(value, int) for value in tables) and average == int(average) else average
    return tables[0]


def machine() -> dict[str, str]:
    """What it was measured on."""
    model = platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            model = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), model)
    except OSError:
        pass
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": model,
        "cores": str(available_cores()),
        "memory": f"{memory:.0f} GB",
        "python": platform.python_version(),
        "torch": version("torch"),
        "gymnasium": version("gymnasium"),
    }
