"""What the simulation says of the scaling benchmark's runs, with a cost model that is made of measured costs."""

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
"""Actors of the run that says what a step takes of a core: more of them than a few cores can serve."""
START_SECONDS = 1.0
"""Virtual seconds in which simulated processes come up: a few unrolls, so that actors complete theirs at any time."""
REPORT_SECONDS = 0.25
"""Virtual seconds between two looks at a simulated run."""
STEPPING = ("actor", "worker")
"""Roles that step environments."""
CACHE_BYTES = 32 << 20
"""About as much as the caches hold that cores share."""

Times = dict[str, list[tuple[int, float]]]
"""By kind of work: how many items, and how many seconds it took."""


def time_work(name: str, actors: int, settings: dict[str, Any], times: Times) -> None:
    """Run roles of a few actors in one process, one at a time, and add how long each stretch of work really took.

    Each finds the caches full of something else, as in a process that comes back when others have used its core.
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
    """Seconds per call and per item: a line through the medians of each number of items."""
    by_items: dict[int, list[float]] = defaultdict(list)
    for items, seconds in found:
        by_items[items].append(seconds)
    if len(by_items) == 1:
        return {"base": median(seconds for _, seconds in found)}
    calls = [len(seconds) for seconds in by_items.values()]
    slope, base = np.polyfit(list(by_items), [median(seconds) for seconds in by_items.values()], 1, w=np.sqrt(calls))
    return {"base": max(0.0, float(base)), "per_item": max(0.0, float(slope))}


def sleep_seconds() -> list[float]:
    """How long a wait of `STEP_SECONDS` really is: a range that nine of ten waits are in."""
    took = []
    for _ in range(100):
        started = time.perf_counter()
        time.sleep(STEP_SECONDS)
        took.append(time.perf_counter() - started)
    return np.quantile(took, [0.05, 0.95]).tolist()


def cost_model(name: str, latency: float) -> dict[str, Any]:
    """Costs of work from batches as small and as large as they get, of messages from what one way of them takes."""
    times: Times = defaultdict(list)
    for actors, scale in ((2, 1), (16, 64)):
        time_work(name, actors, SETTINGS[name](scale), times)
    work = {kind: fit(found) for kind, found in times.items()}
    work["env_step"]["wait"] = sleep_seconds()
    return {"work": work, "edges": {"default": {"latency": latency}}, "start": [0.0, START_SECONDS]}


def calibrate(name: str, costs: dict[str, Any], run: dict[str, Any]) -> None:
    """Let a step take as much of a core as it took in `run`, and all roles share the cores of this machine.

    More than the work in it: messages, and caches that are cold whenever a process comes back from its wait. Processes
    that step nothing tell what a message takes at one end.
    """
    known = predict(name, CALIBRATED, costs, run["steps"])["core_seconds"]
    taken = split(run["cores_busy"], run["steps_per_second"])
    stepping, serving = ends(run["calls_per_second"], run["steps_per_second"])
    cpu = max(0.0, taken["serving"] - known["serving"]) / serving
    costs["work"]["env_step"]["base"] += max(0.0, taken["stepping"] - known["stepping"] - cpu * stepping)
    edge = costs["edges"]["default"]
    # The latency is half of what a call takes, in which a message is sent and taken in at both ends.
    edge["cpu"], edge["latency"] = cpu, max(0.0, edge["latency"] - 2 * cpu)
    costs["cores"] = available_cores()


def split(busy: dict[str, float], steps: float) -> dict[str, float]:
    """Core seconds per step of the roles that step environments, and of all others."""
    stepping = sum(seconds for role, seconds in busy.items() if role in STEPPING)
    return {"stepping": stepping / steps, "serving": (sum(busy.values()) - stepping) / steps}


def ends(calls: dict[str, float], steps: float) -> tuple[float, float]:
    """Per step, how often a message leaves or reaches a process that steps environments, and any other."""
    made = sum(number for edge, number in calls.items() if edge.split(".")[0] in STEPPING)
    return 2 * made / steps, 2 * (2 * sum(calls.values()) - made) / steps


def predict(name: str, actors: int, costs: dict[str, Any], steps: Sequence[int]) -> dict[str, Any]:
    """The same setting in the simulation, from one number of steps to another.

    The same as in the real run, because a replay that fills up holds older and older steps: lag is then how long the
    run has been going.
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
    """What roles need of a core for a step, from the shares of their time that they work."""
    busy = {name: sum(role.get("busy", {}).values()) * role["count"] for name, role in roles.items()}
    stepped = sum(role.get("busy", {}).get("env_step", 0.0) * role["count"] for role in roles.values())
    waits = mean_seconds(env_step.wait)
    # Not from the steps counted: those of an unroll are counted together, and a hundredth of a wait is a lot of work.
    steps = stepped / (mean_seconds(env_step.base) + mean_seconds(env_step.per_item) + waits)
    needed = split(busy, steps)
    return {**needed, "stepping": needed["stepping"] - waits}
