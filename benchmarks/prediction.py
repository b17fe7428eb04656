"""Predicts the runs of the scaling benchmark in the simulation, with a cost model made from measured costs."""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import yaml

from benchmarks.waiting import SETTINGS, STEP_SECONDS, configure, instant
from thespis.core.system.cores import available_cores
from thespis.runtime.cost_model import CostModel, WorkCost, mean_seconds
from thespis.runtime.virtual_time import SimulatedContext
from thespis.training.launch import launch

CALIBRATED = 128
"""Number of actors in the run that calibrates the CPU time of a step: more than a few cores can serve."""
START_SECONDS = 1.0
"""Virtual seconds within which simulated processes start: a few unrolls, so that actors are out of step."""
REPORT_SECONDS = 0.25
"""Virtual seconds between two reports of a simulated run."""
STEPPING = ("actor", "worker")
"""Roles that step environments."""
CACHE_BYTES = 32 << 20
"""About the size of the caches that cores share."""

Times = dict[str, list[tuple[int, float]]]
"""Measurements by kind of work: number of items, and seconds."""


def time_work(name: str, actors: int, settings: dict[str, Any], times: Times) -> None:
    """Run the roles of a few actors in one process, one at a time, and add the real duration of each piece of work.

    The caches are overwritten before each piece, as in a process that waited while others used its core.
    """
    others = np.ones(CACHE_BYTES, np.uint8)

    @asynccontextmanager
    async def work(self: SimulatedContext, kind: str, items: int = 1) -> AsyncIterator[None]:
        others[::64].sum()
        started = time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        times[kind].append((items, seconds))
        await self.sleep(seconds)

    async def run_in_thread(
        self: SimulatedContext, kind: str, items: int, function: Callable[..., Any], *args: Any
    ) -> Any:
        async with self.work(kind, items):
            return function(*args)

    timed = patch.multiple(SimulatedContext, work=work, run_in_thread=run_in_thread)
    with tempfile.TemporaryDirectory() as directory, timed:
        more = {**settings, "on": "simulation", "total_steps": 4_000}
        launch(name, configure(name, actors, instant, directory, **more), quiet=True)


def fit(found: list[tuple[int, float]]) -> dict[str, float]:
    """Fit seconds per call and per item: a line through the medians of each number of items."""
    by_items: dict[int, list[float]] = defaultdict(list)
    for items, seconds in found:
        by_items[items].append(seconds)
    if len(by_items) == 1:
        return {"base": median(seconds for _, seconds in found)}
    calls = [len(seconds) for seconds in by_items.values()]
    slope, base = np.polyfit(list(by_items), [median(seconds) for seconds in by_items.values()], 1, w=np.sqrt(calls))
    return {"base": max(0.0, float(base)), "per_item": max(0.0, float(slope))}


def sleep_seconds() -> list[float]:
    """Return the range of real durations of a wait of `STEP_SECONDS`, which contains nine of ten waits."""
    took = []
    for _ in range(100):
        started = time.perf_counter()
        time.sleep(STEP_SECONDS)
        took.append(time.perf_counter() - started)
    return np.quantile(took, [0.05, 0.95]).tolist()


def cost_model(name: str, latency: float) -> dict[str, Any]:
    """Return a cost model: work measured with the smallest and the largest batches, and `latency` for every message."""
    times: Times = defaultdict(list)
    for actors, scale in ((2, 1), (16, 64)):
        time_work(name, actors, SETTINGS[name](scale), times)
    work = {kind: fit(found) for kind, found in times.items()}
    work["env_step"]["wait"] = sleep_seconds()
    return {"work": work, "edges": {"default": {"latency": latency}}, "start": [0.0, START_SECONDS]}


def calibrate(name: str, costs: dict[str, Any], run: dict[str, Any]) -> None:
    """Adjust the CPU time of a step to that of `run`, and let all roles share the cores of this machine.

    A step takes more CPU time than its work: messages, and cold caches after every wait. The processes that step no
    environment determine the CPU time of a message at one end.
    """
    known = predict(name, CALIBRATED, costs, run["steps"])["core_seconds"]
    taken = split(run["cores_busy"], run["steps_per_second"])
    stepping, serving = ends(run["calls_per_second"], run["steps_per_second"])
    cpu = max(0.0, taken["serving"] - known["serving"]) / serving
    costs["work"]["env_step"]["base"] += max(0.0, taken["stepping"] - known["stepping"] - cpu * stepping)
    edge = costs["edges"]["default"]
    # The latency is half the duration of a call, which includes sending and receiving at both ends.
    edge["cpu"], edge["latency"] = cpu, max(0.0, edge["latency"] - 2 * cpu)
    costs["cores"] = available_cores()


def split(busy: dict[str, float], steps: float) -> dict[str, float]:
    """Return the core seconds per step of the roles that step environments, and of all other roles."""
    stepping = sum(seconds for role, seconds in busy.items() if role in STEPPING)
    return {"stepping": stepping / steps, "serving": (sum(busy.values()) - stepping) / steps}


def ends(calls: dict[str, float], steps: float) -> tuple[float, float]:
    """Return messages sent or received per step by processes that step environments, and by all other processes."""
    made = sum(number for edge, number in calls.items() if edge.split(".")[0] in STEPPING)
    return 2 * made / steps, 2 * (2 * sum(calls.values()) - made) / steps


def predict(name: str, actors: int, costs: dict[str, Any], steps: Sequence[int]) -> dict[str, Any]:
    """Simulate the setting, and measure it between the same numbers of steps as the real run.

    In a replay that is still filling, steps get older, so lag grows with the length of the run.
    """
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "costs.yaml"
        model.write_text(yaml.safe_dump(costs))
        more = {"on": "simulation", "cost_model": model, "total_steps": steps[1], "report_every": REPORT_SECONDS}
        trained = launch(name, configure(name, actors, instant, directory, **more), quiet=True)
        if trained.summary["exit_reason"] == "interrupted":
            raise SystemExit(f"{name} with {actors} actors was not predicted: interrupted")
        lines, roles = (trained.path / "metrics.jsonl").read_text().splitlines(), trained.summary["roles"]
        env_step = CostModel.load(model).work["env_step"]
    rows = [row for row in map(json.loads, lines) if row["step"] >= steps[0] and "lag/mean" in row]
    learned = [(after["lag/mean"], after["step"] - before["step"]) for before, after in pairwise(rows)]
    return {
        "steps_per_second": (rows[-1]["step"] - rows[0]["step"]) / (rows[-1]["time"] - rows[0]["time"]),
        "lag": sum(lag * steps for lag, steps in learned) / sum(steps for _, steps in learned),
        "core_seconds": core_seconds(roles, env_step),
    }


def core_seconds(roles: dict[str, Any], env_step: WorkCost) -> dict[str, float]:
    """Return the core seconds per step that roles need, from their work shares."""
    busy = {name: sum(role.get("busy", {}).values()) * role["count"] for name, role in roles.items()}
    stepped = sum(role.get("busy", {}).get("env_step", 0.0) * role["count"] for role in roles.values())
    waits = mean_seconds(env_step.wait)
    # Not from counted steps: steps of an unroll are counted together, and 1% of a wait exceeds much of the work.
    steps = stepped / (mean_seconds(env_step.base) + mean_seconds(env_step.per_item) + waits)
    needed = split(busy, steps)
    return {**needed, "stepping": needed["stepping"] - waits}
