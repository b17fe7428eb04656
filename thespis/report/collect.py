"""Collects the results of a comparison from its run directories. All reports and `results.json` use them."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
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
from thespis.report.bottleneck import explain_bottleneck
from thespis.report.plan import FINISHED, Plan, network_line
from thespis.report.results import Comparison, Entry
from thespis.report.run_plan import Failure
from thespis.report.statistics import band, estimate, mean_of
from thespis.runs.directory import RunDirectory
from thespis.runs.monitor import WINDOW
from thespis.runs.run_clock import Mark
from thespis.training.trained_run import TrainedRun


class Run:
    """The files of a run. Seconds count from the first step, because start-up time depends on the machine's load."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trained = TrainedRun(path)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        return self.trained.summary

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl. An incomplete last line is skipped."""
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
        """Names of the roles that only evaluate; empty for runs of earlier versions."""
        roles = json.loads(read_text(self.path / "topology.json")).get("roles", {})
        return [role for role, described in roles.items() if described["evaluates"]]

    def curve(self, x: str, metric: str = "rollout/ep_rew_mean") -> tuple[Array, Array]:
        """Return a metric over `steps` or `seconds`, as x and y."""
        rows = [row for row in self.rows if row.get(metric) is not None and row["step"] > 0]
        y = np.array([row[metric] for row in rows], float)
        if x == "steps":
            return np.array([row["step"] for row in rows], float), y
        return np.array([max(0.0, row["time"] - self._began) for row in rows]), y

    @cached_property
    def _began(self) -> float:
        """Run time at the first step; 0 for an unfinished run."""
        summary = self.path / "summary.json"
        return self.summary.get("first_step_seconds") or 0.0 if summary.is_file() else 0.0

    def reached(self, threshold: float | None) -> Mark | None:
        """Return the first row at which the mean return of 100 training episodes reached the threshold, or None."""
        if threshold is None:
            return None
        seconds, returns = self.curve("seconds")
        steps, _ = self.curve("steps")
        counts = self.curve("steps", "time/episodes")[1]
        there = np.flatnonzero((returns >= threshold) & (counts >= WINDOW))
        return Mark(float(seconds[there[0]]), int(steps[there[0]])) if len(there) else None


def collect(plan: Plan, failures: Sequence[Failure]) -> Comparison:
    """Collect the results of the finished runs of a plan."""
    entries = []
    for name in plan.architectures:
        paths = [plan.path(name, seed) for seed in range(plan.seeds)]
        runs = [Run(path) for path in paths if (path / "summary.json").is_file()]
        failed = [{"seed": each.seed, "error": each.error} for each in failures if each.architecture == name]
        runs = [run for run in runs if run.summary["exit_reason"] in FINISHED]
        entries.append(
            explain_bottleneck(build_entry(name, plan.config(name, 0), runs, failed, plan.threshold), plan.threshold)
        )
    return Comparison(plan.env, plan.on, plan.budget, plan.threshold, plan.seeds, describe_machine(), entries)


def build_entry(name: str, cfg: Any, runs: list[Run], failed: list[dict[str, Any]], threshold: float | None) -> Entry:
    """Aggregate the runs of one architecture."""
    summaries = [run.summary for run in runs]
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
        greedy_returns=estimate([summary["eval_return_mean"] for summary in summaries]),
        steps_per_second=estimate([summary["steps_per_second"] for summary in summaries]),
        updates_per_second=estimate([summary["updates_per_second"] for summary in summaries]),
        seconds_to_threshold=estimate([mark and mark.seconds for mark in marks]),
        steps_to_threshold=estimate([mark and float(mark.env_steps) for mark in marks]),
        samples_per_insert=estimate([summary["samples_per_insert"] for summary in summaries]),
        lag={
            "mean": mean_of([summary["lag"]["mean"] for summary in summaries]),
            "max": max((summary["lag"]["max"] or 0 for summary in summaries), default=None),
            "counts": _summed([summary["lag_counts"] for summary in summaries]),
        },
        edges=_edges(runs),
        roles=_averaged([summary["roles"] for summary in summaries]),
        evaluators=sorted({role for run in runs for role in run.evaluators}),
        processes=_averaged([summary["processes"] for summary in summaries]),
        curves={
            "steps": band([run.curve("steps") for run in runs], even=False),
            "seconds": band([run.curve("seconds") for run in runs]),
        },
    )


def _brief(run: Run) -> dict[str, Any]:
    keys = ("seed", "exit_reason", "env_steps", "updates", "episodes", "wall_seconds", "startup_seconds", "restarts")
    return {**{key: run.summary[key] for key in keys}, "dropped": run.summary["dropped"], "path": str(run.path)}


def _edges(runs: list[Run]) -> dict[str, dict[str, Any]]:
    """Return bytes per environment step and calls of each edge, over all runs."""
    steps = sum(run.summary["env_steps"] for run in runs)
    edges: dict[str, dict[str, Any]] = {}
    for run in runs:
        for name, traffic in run.summary["edges"].items():
            edge = edges.setdefault(name, {"kind": run.edges.get(name, "edge"), "bytes_per_step": 0.0, "calls": 0})
            edge["bytes_per_step"] += traffic["bytes"] / max(1, steps)
            edge["calls"] += traffic["calls"]
    return edges


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for key, count in each.items():
            total[key] = total.get(key, 0) + count
    return {key: total[key] for key in sorted(total, key=int)}


def _averaged(tables: Sequence[Any]) -> Any:
    """Average nested tables number by number. A missing number does not count in its mean."""
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


def describe_machine() -> dict[str, str]:
    """Return the CPU, memory and software versions of this machine."""
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
