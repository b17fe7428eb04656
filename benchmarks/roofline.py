"""Compares a real run of IMPALA with the limit that the costs of its parts imply.

Each agent step needs one environment step, one inference and one learning step. Their costs are measured one at a time
on one core. The limit is the speed of the machine's cores if nothing else took any time:
cores / (env + inference + learn). The ratio is the speed of the real run divided by the limit.

The speed of a shared machine may double from one second to the next. The benchmark therefore pauses the run about once
a second and measures the costs in the pause. Each slice of the run is compared with the costs right before and right
after it, and the result is the median ratio.

Two cores of a virtual machine are often threads of one physical core, and slower when both work. The costs are
therefore also measured while all other cores learn. The last line shows the limit with these costs.

    python benchmarks/roofline.py                          CartPole-v1, default settings
    python benchmarks/roofline.py --env ALE/Pong-v5        the Nature CNN
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch

from thespis.algorithms.updates.optimizers import build_optimizer, clip_gradients
from thespis.core.system.reaper import marked
from thespis.core.types import Unroll, Version
from thespis.envs.inputs import first_inputs, next_inputs
from thespis.envs.make import describe_env, make_envs
from thespis.experience.writers import UnrollWriter, concatenate
from thespis.runtime.process import ENVIRONMENT
from thespis.training.registry import defaults

_WARM_UP_SECONDS = 2.0
_SLICE_SECONDS = 0.8
_SLICE_UPDATES = 20
"""Minimum number of updates in a slice, because steps are counted when an unroll is complete."""
_EXPECTED = 0.7
"""Expected ratio, from which the benchmark computes the steps of the run."""


def seconds_per_call(work: Callable[[], Any], budget: float) -> float:
    """Return the median over batches of calls of about 20 ms each, so that a disturbance affects few of them."""
    work()
    started = time.perf_counter()
    work()
    batch = max(1, int(0.02 / (time.perf_counter() - started)))
    times: list[float] = []
    end = time.perf_counter() + budget
    while time.perf_counter() < end or len(times) < 3:
        started = time.perf_counter()
        for _ in range(batch):
            work()
        times.append((time.perf_counter() - started) / batch)
    return median(times)


class Parts:
    """The three parts of an agent step of a configuration, without the rest of a run."""

    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg
        spaces = describe_env(cfg.env)
        self.envs = make_envs(cfg.env, cfg.envs_per_actor)
        algorithm, rng = cfg.algorithm, np.random.default_rng(0)
        self.runner = algorithm.build_policy_runner(algorithm.build_network(spaces, seed=0), rng)
        self.update = algorithm.build_update(algorithm.build_network(spaces, seed=0), rng)
        self.optimizer = build_optimizer(algorithm.optimizer, self.update.parameters)
        self.inputs = first_inputs(self.envs.reset(0), self.envs)
        self.state = self.runner.initial_state(cfg.envs_per_actor)
        self.batch = concatenate([self._unroll() for _ in range(cfg.queue.batch_unrolls)])

    def _unroll(self) -> Unroll:
        writer = UnrollWriter(self.cfg.algorithm.items.unroll_length, self.inputs, self.state)
        while True:
            acted = self.runner.act(self.inputs, self.state)
            step = self.envs.step(acted.actions)
            self.inputs, self.state = next_inputs(step, acted.actions), acted.state
            unroll = writer.write(acted, Version(0, 0), step, self.inputs)
            if unroll is not None:
                return unroll

    def costs(self, budget: float) -> dict[str, float]:
        """Measure the seconds per agent step of each part."""
        raw = raw_vector(self.cfg.env, self.cfg.envs_per_actor)
        actions = raw.action_space.sample()
        raw.reset(seed=0)
        number = self.cfg.envs_per_actor
        costs = {
            "environment": seconds_per_call(lambda: raw.step(actions), budget) / number,
            "inference": seconds_per_call(lambda: self.runner.act(self.inputs, self.state), budget) / number,
            "learning": seconds_per_call(self._learn, budget) / self.batch.rewards.size,
        }
        raw.close()
        return costs

    def _learn(self) -> None:
        gradients = self.update.gradients(self.batch).values
        clip_gradients(gradients, self.cfg.algorithm.optimizer.clip)
        self.optimizer.step(gradients, self.cfg.algorithm.optimizer.learning_rate)


def raw_vector(env: str, number: int) -> Any:
    """Make the environment without the checks of Thespis, which count as overhead."""
    if env.startswith("ALE/"):
        from thespis.envs import atari

        return atari.make_atari(env, number, {})
    return gymnasium.make_vec(env, number)


def alone(parts: Parts, budget: float, cores: set[int]) -> dict[str, float]:
    """Measure the costs with one thread on one core; the mean over `cores`, because their speeds differ."""
    before = os.sched_getaffinity(0)
    torch.set_num_threads(1)
    measured: list[dict[str, float]] = []
    try:
        for core in sorted(cores):
            os.sched_setaffinity(0, {core})
            measured.append(parts.costs(budget / len(cores)))
    finally:
        os.sched_setaffinity(0, before)
    return {name: sum(each[name] for each in measured) / len(measured) for name in measured[0]}


def learn_forever(cfg: Any, core: int, going: Any) -> None:
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    parts = Parts(cfg)
    going.release()
    while True:
        parts._learn()


@contextmanager
def others_busy(cfg: Any) -> Iterator[None]:
    """Keep all cores but the first busy with learning."""
    context = multiprocessing.get_context("spawn")
    going = context.Semaphore(0)
    cores = sorted(os.sched_getaffinity(0))[1:]
    processes = [context.Process(target=learn_forever, args=(cfg, core, going), daemon=True) for core in cores]
    for process in processes:
        process.start()
    for _ in processes:
        going.acquire()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


class LiveRun:
    """A real run whose processes can be paused. A mark in their environment identifies them."""

    def __init__(self, env: str, changes: list[str], steps: int, run_dir: Path) -> None:
        self._mark = f"THESPIS_ROOFLINE={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        flags = [part for change in changes for part in ("--" + change.replace("_", "-")).split("=")]
        command = ["train", "impala", "--env", env, "--total-steps", str(steps), "--run-dir", str(run_dir), *flags]
        self._steps, self._metrics = steps, run_dir / "metrics.jsonl"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "thespis.cli.main", *command],
            env={**os.environ, name: value},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def row(self, after: float) -> dict[str, Any] | None:
        """Return the next row of metrics written after the time `after` of `time.monotonic`.

        None once all steps are taken, because the run then no longer trains.
        """
        known = len(self._rows())
        while self._process.poll() is None:
            rows = self._rows()
            if len(rows) > known:
                if time.monotonic() > after:
                    found: dict[str, Any] = json.loads(rows[-1])
                    return found if found["step"] < self._steps else None
                known = len(rows)
            time.sleep(0.005)
        return None

    def _rows(self) -> list[str]:
        """Return the complete rows."""
        return self._metrics.read_text().split("\n")[:-1] if self._metrics.exists() else []

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause all processes of the run."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        for pid in marked(self._mark):
            os.kill(pid, number)


def slices(live: LiveRun, parts: Parts, number: int, seconds: float, budget: float) -> Iterator[dict[str, float]]:
    """Yield the speed of each slice, and its limit from the costs before and after it."""
    cores = os.sched_getaffinity(0)
    row = live.row(0.0)
    while row is not None and not row["step"]:
        row = live.row(0.0)
    row = live.row(time.monotonic() + _WARM_UP_SECONDS)
    before: dict[str, float] | None = None
    reached = 0.0
    for _ in range(number + 1):
        if row is None:
            return
        with live.paused():
            costs = alone(parts, budget, cores)
        if before is not None:
            meant = {name: (before[name] + costs[name]) / 2 for name in costs}
            limit = len(cores) / sum(meant.values())
            yield meant | {"limit": limit, "reached": reached, "ratio": reached / limit, "lag": row["lag/mean"]}
        before, steps, went_on = costs, row["step"], time.monotonic()
        row = live.row(went_on + seconds)
        if row is not None:
            reached = (row["step"] - steps) / (time.monotonic() - went_on)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--slices", type=int, default=16, help="number of slices of the real run")
    parser.add_argument("--budget", type=float, default=0.2, help="seconds of each measurement of a part")
    parser.add_argument(
        "--settings", nargs="*", default=[], metavar="NAME=NUMBER", help="e.g. actors=1 envs_per_actor=64"
    )
    args = parser.parse_args()
    if not ENVIRONMENT.keys() <= os.environ.keys():
        # Measure the parts with the threads and the memory settings of a run's processes.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**ENVIRONMENT, **os.environ})

    changes = {name: int(value) for name, value in (setting.split("=") for setting in args.settings)}
    cfg: Any = defaults("impala", args.env, changes)
    cores = os.sched_getaffinity(0)
    length = cfg.algorithm.items.unroll_length
    print(f"{args.env}: {cfg.actors} actors x {cfg.envs_per_actor} environments, unrolls of {length}")
    over = f"limit/s on {len(cores)} cores"
    print(f"  us per step{'':8}environment  inference   learning  {over}      run/s  ratio   lag")
    parts = Parts(cfg)
    limit = len(cores) / sum(alone(parts, args.budget, cores).values())
    seconds = max(_SLICE_SECONDS, _SLICE_UPDATES * parts.batch.rewards.size / limit)
    # About the number of steps that the run will take, because the learning rate anneals to 0 over them.
    steps = int(_EXPECTED * limit * ((args.slices + 1) * seconds + _WARM_UP_SECONDS))
    measured: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as directory:
        live = LiveRun(args.env, args.settings, steps, Path(directory) / "run")
        try:
            for one in slices(live, parts, args.slices, seconds, args.budget):
                measured.append(one)
                show(f"slice {len(measured)}", one, f"{one['lag']:6.1f}")
        finally:
            live.end()
    if not measured:
        raise SystemExit("the run ended before its first slice was measured; give more --slices")
    middle = {name: median(each[name] for each in measured) for name in measured[0]}
    show("median", middle)
    with others_busy(cfg):
        together = alone(parts, 5 * args.budget, {min(cores)})
    crowded = len(cores) / sum(together.values())
    show("all cores busy", middle | together | {"limit": crowded, "ratio": middle["reached"] / crowded})
    print(json.dumps({"env": args.env, "slices": measured, "median": middle, "busy": together | {"limit": crowded}}))


def show(what: str, row: dict[str, float], more: str = "") -> None:
    costs = "".join(f"{row[name] * 1e6:11.2f}" for name in ("environment", "inference", "learning"))
    print(f"  {what:19}{costs}  {row['limit']:20,.0f} {row['reached']:10,.0f} {row['ratio']:6.2f}{more}", flush=True)


if __name__ == "__main__":
    main()
