"""Do more actors give more steps? Environments that only wait (10 ms a step), 1 to 128 actors, measured and predicted.

With one environment per actor the ideal is actors / 10 ms. Each setting runs on local processes, and in the simulation
with a cost model made of measured costs: work as it takes the same roles in one process, messages as they take a run
of one worker, and what else a step takes of a core as it does in a run of 128 actors. The table goes into
docs/scale.md; what is measured is kept, and not measured again.

python -m benchmarks.scale                           everything
python -m benchmarks.scale impala --actors 1 64      a part of it; --again to measure it anew
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import yaml

from benchmarks.pages import ROOT, keep, load, machine, replace_part, table
from thespis.config import Experiment
from thespis.envs.toys import Sleep
from thespis.launch import defaults, launch
from thespis.runtime.costs import CostModel, WorkCost, mean
from thespis.runtime.session import Session
from thespis.runtime.virtual import SimulatedContext

STEP_SECONDS = 0.01
ACTORS = (1, 2, 4, 8, 16, 32, 64, 128)
CALIBRATED = 128
"""Actors of the run that says what a step takes of a core: more of them than a few cores can serve."""
SETTLE_SECONDS, RISING = 4.0, 1.05
"""A run has settled when it makes no more than so many times the steps in so many seconds as in those before."""
OUT_OF_STEP = {"seed": 30.0}
"""Seconds more for SEED: its actors all begin when the server is up, and lag rises until they are out of step."""
START_SECONDS = 1.0
"""Virtual seconds in which simulated processes come up: a few unrolls, so that actors complete theirs at any time."""
STEPPING = ("actor", "worker")
"""Roles that step environments."""
CACHE_BYTES = 32 << 20
"""As much as the caches of a core hold, and about what it shares with others."""
REPORT_SECONDS = 0.25
"""Virtual seconds between two looks at a simulated run."""
PAGE = ROOT / "docs" / "scale.md"
SELDOM: dict[str, Any] = {  # nothing but training, and patience with 128 processes that start on a few cores
    "envs_per_actor": 1,
    "eval_episodes": 0,
    "total_steps": 100_000_000,
    "checkpoint_every": 1e6,
    "stall_timeout": 900.0,
}


def waiting() -> Sleep:
    return Sleep(STEP_SECONDS)


def instant() -> Sleep:
    """The same for the simulation, where time passes by itself."""
    return Sleep(0.0)


def impala(actors: int) -> dict[str, Any]:
    """About two updates in the time of an unroll, of at most the paper's 32 unrolls."""
    batch = min(32, max(1, actors // 2))
    return {"unroll_length": 20, "batch_unrolls": batch, "queue_capacity": 2 * batch}


def apex(actors: int) -> dict[str, Any]:
    """The paper's samples per insert: with more, on so small a network, the learner would be what is measured."""
    replay = {"samples_per_insert": 1.3, "warm_up": 200}
    return {"unroll_length": 20, "batch": 128, "batches_per_draw": 1, "replay": replay}


def a3c(actors: int) -> dict[str, Any]:
    return {"unroll_length": 20}


SETTINGS: dict[str, Callable[[int], dict[str, Any]]] = {"impala": impala, "apex": apex, "a3c": a3c, "seed": impala}


def configure(name: str, actors: int, env: Callable[..., Any], directory: str, **more: Any) -> Experiment:
    run_dir = Path(directory) / "run"
    return defaults(
        name, None, {**SELDOM, **SETTINGS[name](actors), "actors": actors, "env": env, "run_dir": run_dir, **more}
    )


# -- measured ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Moment:
    """Where a run is: to be compared with a later one."""

    seconds: float
    steps: int
    lag: float
    learned: float
    cpu: dict[str, float]
    """By the first role of a process."""
    calls: dict[str, int]
    waited: dict[str, float]
    """By edge, as the calls."""

    @classmethod
    def of(cls, session: Session) -> Moment:
        monitor = session.monitor
        edges = monitor.edges
        return cls(
            seconds=time.monotonic(),
            steps=monitor.env_steps,
            lag=monitor.lag.total,
            learned=monitor.lag.count,
            cpu=dict(monitor.cpu_seconds),
            calls={edge: traffic.calls for edge, traffic in edges.items()},
            waited={edge: traffic.waited for edge, traffic in edges.items()},
        )


class Watch(threading.Thread):
    """Waits until all actors are up and steps come no faster than before, measures, and ends the run.

    Being up is not enough: the first steps and the first update of a process take it many times as long as the next,
    and with many processes on a few cores it is half a minute until the last has them behind it.
    """

    def __init__(self, actors: int, patience: float, seconds: float) -> None:
        """`patience`: seconds to wait once steps come no faster. `seconds`: to measure for."""
        super().__init__(daemon=True)
        self.session: Session | None = None
        self.moments: list[Moment] = []
        self._actors, self._patience, self._seconds = actors, patience, seconds

    def began(self, session: Session) -> None:
        self.session = session
        self.start()

    def run(self) -> None:
        assert self.session is not None
        while not self._up(self.session) and self.session.stop_reason is None:
            time.sleep(0.2)
        made = [0, self._steps_in(SETTLE_SECONDS)]
        while made[-1] > RISING * made[-2] and self.session.stop_reason is None:
            made.append(self._steps_in(SETTLE_SECONDS))
        time.sleep(self._patience)
        self.moments.append(Moment.of(self.session))
        time.sleep(self._seconds)
        self.moments.append(Moment.of(self.session))
        self.session.end("measured")

    def _steps_in(self, seconds: float) -> int:
        assert self.session is not None
        before = self.session.monitor.env_steps
        time.sleep(seconds)
        return self.session.monitor.env_steps - before

    def _up(self, session: Session) -> bool:
        up = max((len(found) for found in list(session.monitor.rss_mb.values())), default=0)
        return up >= self._actors and session.monitor.updates > 0


def measure(name: str, actors: int, seconds: float) -> dict[str, Any]:
    """One run on local processes."""
    watch = Watch(actors, OUT_OF_STEP.get(name, 0.0), seconds)
    with tempfile.TemporaryDirectory() as directory:
        trained = launch(name, configure(name, actors, waiting, directory), quiet=True, began=watch.began)
    watch.join()
    assert watch.session is not None
    if watch.session.stop_reason != "measured":
        raise SystemExit(f"{name} with {actors} actors was not measured: {watch.session.stop_reason}")
    first, last = watch.moments
    passed = last.seconds - first.seconds
    calls, waited = _since(first.calls, last.calls), _since(first.waited, last.waited)
    memory = trained.summary["processes"]
    return {
        "steps": [first.steps, last.steps],
        "steps_per_second": (last.steps - first.steps) / passed,
        "lag": (last.lag - first.lag) / max(1.0, last.learned - first.learned),
        "cores_busy": {role: cpu / passed for role, cpu in _since(first.cpu, last.cpu).items()},
        "calls_per_second": {edge: made / passed for edge, made in calls.items()},
        "call_seconds": {edge: waited.get(edge, 0.0) / made for edge, made in calls.items()},
        "start_seconds": trained.summary["startup_seconds"],
        "mb_per_process": {kind: found["rss_mb"] for kind, found in memory.items()},
    }


def _since(first: Mapping[str, float], last: Mapping[str, float]) -> dict[str, float]:
    """By how much each number has grown, of those that have."""
    grown = {name: number - first.get(name, 0) for name, number in last.items()}
    return {name: number for name, number in grown.items() if number}


# -- predicted --------------------------------------------------------------------------------------------------------

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

    async def aside(self: SimulatedContext, kind: str, items: int, function: Callable[..., Any], *args: Any) -> Any:
        async with self.work(kind, items):
            return function(*args)

    timed = patch.multiple(SimulatedContext, work=work, aside=aside)
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
    costs["cores"] = os.cpu_count()


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
    waits = mean(env_step.wait)
    # Not from the steps counted: those of an unroll are counted together, and a hundredth of a wait is a lot of work.
    steps = stepped / (mean(env_step.base) + mean(env_step.per_item) + waits)
    needed = split(busy, steps)
    return {**needed, "stepping": needed["stepping"] - waits}


# -- the page ---------------------------------------------------------------------------------------------------------


def page(results: dict[str, Any]) -> str:
    parts = [f"Measured on {results['machine']}; the settings are in `benchmarks/scale.py`."]
    head = [
        "actors",
        "ideal",
        "measured",
        "of ideal",
        "predicted",
        "error",
        "lag",
        "predicted",
        "cores busy",
        "MB each",
    ]
    for name in SETTINGS:
        runs = {int(actors): run for actors, run in results.get("local", {}).get(name, {}).items()}
        if runs:
            guesses = results.get("simulation", {}).get(name, {})
            rows = [_row(actors, runs[actors], guesses.get(str(actors))) for actors in sorted(runs)]
            parts += [f"### {name}", table(head, rows)]
    return "\n\n".join(parts)


def _row(actors: int, run: dict[str, Any], guess: dict[str, float] | None) -> list[str]:
    ideal, speed = actors / STEP_SECONDS, run["steps_per_second"]
    predicted = (
        ["–", "–"]
        if guess is None
        else [f"{guess['steps_per_second']:,.0f}", f"{guess['steps_per_second'] / speed - 1:+.0%}"]
    )
    lag = "–" if guess is None or guess["lag"] is None else f"{guess['lag']:.1f}"
    size = next((found for kind, found in run["mb_per_process"].items() if kind in ("actor", "worker")), None)
    return [
        f"{actors}",
        f"{ideal:,.0f}",
        f"{speed:,.0f}",
        f"{speed / ideal:.2f}",
        *predicted,
        f"{run['lag']:.1f}",
        lag,
        f"{sum(run['cores_busy'].values()):.1f} of {os.cpu_count()}",
        f"{size:.0f}" if size else "–",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "architectures", nargs="*", metavar="ARCH", help=f"of {', '.join(SETTINGS)}; all of them by default"
    )
    parser.add_argument("--actors", type=int, nargs="*", default=ACTORS)
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="to measure each setting for, once all actors are up"
    )
    parser.add_argument("--again", action="store_true", help="also what has been measured")
    parser.add_argument("--no-page", action="store_true", help="leave docs/scale.md as it is")
    args = parser.parse_args()
    names = args.architectures or list(SETTINGS)
    if unknown := [name for name in names if name not in SETTINGS]:
        parser.error(f"unknown architecture {unknown[0]}; there is {', '.join(SETTINGS)}")

    results = load("scale")
    results["machine"] = machine()
    for name in names:
        _measure_all(name, args, results)
        _predict_all(name, args, results)
    if not args.no_page:
        replace_part(PAGE, "measured", page(results))
    print(page(results))


def _measure_all(name: str, args: argparse.Namespace, results: dict[str, Any]) -> None:
    runs = results.setdefault("local", {}).setdefault(name, {})
    for actors in args.actors:
        if args.again or "call_seconds" not in runs.get(str(actors), {}):
            runs[str(actors)] = run = measure(name, actors, args.seconds)
            keep("scale", results)
            print(f"{name} local {actors:4} actors {run['steps_per_second']:10,.0f} steps/s", flush=True)


def _predict_all(name: str, args: argparse.Namespace, results: dict[str, Any]) -> None:
    guesses = results.setdefault("simulation", {}).setdefault(name, {})
    missing = [actors for actors in args.actors if args.again or str(actors) not in guesses]
    if not missing:
        return
    if "latency" not in results:
        # Half of the round trip of a call that is waited for, on a machine with nothing else to do.
        results["latency"] = measure("a3c", 1, args.seconds)["call_seconds"]["worker.server.push"] / 2
    costs = results.setdefault("costs", {})[name] = cost_model(name, results["latency"])
    runs = results["local"][name]
    if str(CALIBRATED) in runs:
        calibrate(name, costs, runs[str(CALIBRATED)])
    for actors in missing:
        guesses[str(actors)] = guess = predict(name, actors, costs, runs[str(actors)]["steps"])
        keep("scale", results)
        print(f"{name} simulation {actors:4} actors {guess['steps_per_second']:10,.0f} steps/s", flush=True)


if __name__ == "__main__":
    main()
