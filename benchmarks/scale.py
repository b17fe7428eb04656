"""Measures and predicts how steps per second scale from 1 to 128 actors, with environments that wait 10 ms per step.

With one environment per actor the ideal is actors / 10 ms. Each setting runs on local processes, and in the simulation
with a measured cost model. The cost of work comes from the same roles in one process, the cost of messages from a run
of one worker, and the remaining CPU time of a step from a run of 128 actors. The table goes into docs/scale.md.
Measurements are saved and not repeated.

python -m benchmarks.scale                           everything
python -m benchmarks.scale impala --actors 1 64      a part; --again repeats saved measurements
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.pages import ROOT, keep, load, machine, replace_part, table
from benchmarks.prediction import CALIBRATED, calibrate, cost_model, predict
from benchmarks.waiting import SETTINGS, STEP_SECONDS, configure, waiting
from thespis.core.system.cores import available_cores
from thespis.runtime.session import Session
from thespis.training.launch import launch

ACTORS = (1, 2, 4, 8, 16, 32, 64, 128)
SETTLE_SECONDS, RISING = 4.0, 1.05
"""A run has settled when a period of `SETTLE_SECONDS` has at most `RISING` times the steps of the previous period."""
OUT_OF_STEP = {"seed": 30.0}
"""Additional seconds for SEED: its actors all start with the server, and lag rises until they are out of step."""
PAGE = ROOT / "docs" / "scale.md"


# -- measured ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Moment:
    """Counters of a run at one moment, to subtract from later ones."""

    seconds: float
    steps: int
    lag: float
    learned: float
    cpu: dict[str, float]
    """CPU seconds by the first role of each process."""
    calls: dict[str, int]
    waited: dict[str, float]
    """Seconds of waiting by edge; `calls` is by edge, too."""

    @classmethod
    def of(cls, session: Session) -> Moment:
        monitor = session.monitor
        return cls(
            seconds=time.monotonic(),
            steps=monitor.env_steps,
            lag=monitor.lag.total,
            learned=monitor.lag.count,
            cpu=dict(monitor.cpu_seconds),
            calls={edge: traffic.calls for edge, traffic in monitor.edges.items()},
            waited={edge: traffic.waited for edge, traffic in monitor.edges.items()},
        )


class Watch(threading.Thread):
    """Waits until all actors are up and the speed no longer rises, measures, and ends the run.

    Being up is not enough: the first steps and the first update of a process take many times as long as later ones.
    With many processes on a few cores this lasts for half a minute.
    """

    def __init__(self, actors: int, patience: float, seconds: float) -> None:
        """`patience`: seconds to wait once the speed no longer rises. `seconds`: duration of the measurement."""
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
    """Measure one run on local processes."""
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
    """Return the increase of each number, without those that did not change."""
    grown = {name: number - first.get(name, 0) for name, number in last.items()}
    return {name: number for name, number in grown.items() if number}


# -- the page ---------------------------------------------------------------------------------------------------------


def page(results: dict[str, Any]) -> str:
    parts = [f"Measured on {results['machine']}; the settings are in `benchmarks/waiting.py`."]
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
        f"{sum(run['cores_busy'].values()):.1f} of {available_cores()}",
        f"{size:.0f}" if size else "–",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "architectures", nargs="*", metavar="ARCH", help=f"one of {', '.join(SETTINGS)}; all by default"
    )
    parser.add_argument("--actors", type=int, nargs="*", default=ACTORS)
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="duration of each measurement, once all actors are up"
    )
    parser.add_argument("--again", action="store_true", help="repeat saved measurements")
    parser.add_argument("--no-page", action="store_true", help="do not write docs/scale.md")
    args = parser.parse_args()
    names = args.architectures or list(SETTINGS)
    if unknown := [name for name in names if name not in SETTINGS]:
        parser.error(f"unknown architecture {unknown[0]}; choose {', '.join(SETTINGS)}")

    results = load("scale")
    results["machine"] = machine()
    for name in names:
        for actors in args.actors:
            _measured(name, actors, args, results, args.again)
        _predict_all(name, args, results)
    if not args.no_page:
        replace_part(PAGE, "measured", page(results))
    print(page(results))


def _measured(name: str, actors: int, args: argparse.Namespace, results: dict[str, Any], again: bool) -> dict[str, Any]:
    """Return a saved run, or measure it now."""
    runs: dict[str, Any] = results.setdefault("local", {}).setdefault(name, {})
    if again or "call_seconds" not in runs.get(str(actors), {}):
        runs[str(actors)] = run = measure(name, actors, args.seconds)
        keep("scale", results)
        print(f"{name} local {actors:4} actors {run['steps_per_second']:10,.0f} steps/s", flush=True)
    return dict(runs[str(actors)])


def _predict_all(name: str, args: argparse.Namespace, results: dict[str, Any]) -> None:
    guesses = results.setdefault("simulation", {}).setdefault(name, {})
    missing = [actors for actors in args.actors if args.again or str(actors) not in guesses]
    if not missing:
        return
    if "latency" not in results:
        # Half of the round trip of an awaited call on an otherwise idle machine.
        results["latency"] = _measured("a3c", 1, args, results, False)["call_seconds"]["worker.server.push"] / 2
    costs = results.setdefault("costs", {})[name] = cost_model(name, results["latency"])
    calibrate(name, costs, _measured(name, CALIBRATED, args, results, False))
    for actors in missing:
        guesses[str(actors)] = guess = predict(name, actors, costs, results["local"][name][str(actors)]["steps"])
        keep("scale", results)
        print(f"{name} simulation {actors:4} actors {guess['steps_per_second']:10,.0f} steps/s", flush=True)


if __name__ == "__main__":
    main()
