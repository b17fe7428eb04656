"""How much of the machine does training use? The limit from the cost of its parts, the real run, and their ratio.

Each agent step needs one environment step, one inference and one learning step. Measured one at a time and on one
core, their costs give the most steps per second that the machine's cores could do if nothing else took any time:
cores / (env + inference + learn). The ratio is what the real run reaches of that.

Machines are shared, and their speed may double from one second to the next. So the run is held still about once a
second, and the costs are measured before it goes on: each slice of it is compared with what the machine could do right
before and right after, and the median ratio counts.

Cores of a virtual machine are often halves of one, and slower when both work. So the costs are also measured while all
other cores learn: what the machine could do then is the limit in the last line.

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
"""A slice has at least so many updates, for steps are counted when an unroll is whole."""
_EXPECTED = 0.7
"""The ratio that is expected, to know how many steps the run will make."""


def seconds_per_call(work: Callable[[], Any], budget: float) -> float:
    """The median over batches of calls that last about 20 ms each, so that a disturbance spoils few of them."""
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
    """The three pieces of work of a configuration, apart from everything that surrounds them in a real run."""

    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg
        spaces = describe_env(cfg.env)
        self.envs = make_envs(cfg.env, cfg.envs_per_actor)
        algorithm, rng = cfg.algorithm, np.random.default_rng(0)
        self.stepper = algorithm.build_policy_runner(algorithm.build_network(spaces, seed=0), rng)
        self.update = algorithm.build_update(algorithm.build_network(spaces, seed=0), rng)
        self.optimizer = build_optimizer(algorithm.optimizer, self.update.parameters)
        self.inputs = first_inputs(self.envs.reset(0), self.envs)
        self.state = self.stepper.initial_state(cfg.envs_per_actor)
        self.batch = concatenate([self._unroll() for _ in range(cfg.queue.batch_unrolls)])

    def _unroll(self) -> Unroll:
        writer = UnrollWriter(self.cfg.algorithm.items.unroll_length, self.inputs, self.state)
        while True:
            acted = self.stepper.act(self.inputs, self.state)
            step = self.envs.step(acted.actions)
            self.inputs, self.state = next_inputs(step, acted.actions), acted.state
            unroll = writer.write(acted, Version(0, 0), step, self.inputs)
            if unroll is not None:
                return unroll

    def costs(self, budget: float) -> dict[str, float]:
        """Seconds per agent step of each piece."""
        raw = raw_vector(self.cfg.env, self.cfg.envs_per_actor)
        actions = raw.action_space.sample()
        raw.reset(seed=0)
        number = self.cfg.envs_per_actor
        costs = {
            "environment": seconds_per_call(lambda: raw.step(actions), budget) / number,
            "inference": seconds_per_call(lambda: self.stepper.act(self.inputs, self.state), budget) / number,
            "learning": seconds_per_call(self._learn, budget) / self.batch.rewards.size,
        }
        raw.close()
        return costs

    def _learn(self) -> None:
        gradients, _ = self.update.gradients(self.batch)
        clip_gradients(gradients, self.cfg.algorithm.optimizer.clip)
        self.optimizer.step(gradients, self.cfg.algorithm.optimizer.learning_rate)


def raw_vector(env: str, number: int) -> Any:
    """The environment as Gymnasium gives it, without Thespis' checks: those count as overhead."""
    if env.startswith("ALE/"):
        from thespis.envs import atari

        return atari.make_atari(env, number, {})
    return gymnasium.make_vec(env, number)


def alone(parts: Parts, budget: float, cores: set[int]) -> dict[str, float]:
    """Costs with one thread on one core, the mean over these cores: they are not always equally fast."""
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


def learn_for_ever(cfg: Any, core: int, going: Any) -> None:
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    parts = Parts(cfg)
    going.release()
    while True:
        parts._learn()


@contextmanager
def others_busy(cfg: Any) -> Iterator[None]:
    """All cores but the first are learning."""
    context = multiprocessing.get_context("spawn")
    going = context.Semaphore(0)
    cores = sorted(os.sched_getaffinity(0))[1:]
    processes = [context.Process(target=learn_for_ever, args=(cfg, core, going), daemon=True) for core in cores]
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


class Live:
    """A real run whose processes can be held still. They are known by a mark in their environment."""

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
        """The next row of metrics that is written later than `after`, by the clock of `time.monotonic`.

        None when all steps are made: what comes then is no training.
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
        """The rows that have been written to their end."""
        return self._metrics.read_text().split("\n")[:-1] if self._metrics.exists() else []

    @contextmanager
    def held(self) -> Iterator[None]:
        """All its processes stand still."""
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


def slices(live: Live, parts: Parts, number: int, seconds: float, budget: float) -> Iterator[dict[str, float]]:
    """What slices of the run reach, each with the costs from before and after it."""
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
        with live.held():
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
    parser.add_argument("--slices", type=int, default=16, help="how many slices of the real run to look at")
    parser.add_argument("--budget", type=float, default=0.2, help="seconds to measure each piece for, each time")
    parser.add_argument(
        "--settings", nargs="*", default=[], metavar="NAME=NUMBER", help="e.g. actors=1 envs_per_actor=64"
    )
    args = parser.parse_args()
    if not ENVIRONMENT.keys() <= os.environ.keys():
        # The pieces are measured with the threads and the memory that the processes of a run have.
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
    # About as many as it will make, for the learning rate goes down to nothing by then.
    steps = int(_EXPECTED * limit * ((args.slices + 1) * seconds + _WARM_UP_SECONDS))
    looked: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as directory:
        live = Live(args.env, args.settings, steps, Path(directory) / "run")
        try:
            for one in slices(live, parts, args.slices, seconds, args.budget):
                looked.append(one)
                show(f"slice {len(looked)}", one, f"{one['lag']:6.1f}")
        finally:
            live.end()
    if not looked:
        raise SystemExit("the run ended before a slice of it was measured; give more --slices, or try it by itself")
    middle = {name: median(each[name] for each in looked) for name in looked[0]}
    show("median", middle)
    with others_busy(cfg):
        together = alone(parts, 5 * args.budget, {min(cores)})
    crowded = len(cores) / sum(together.values())
    show("all cores busy", middle | together | {"limit": crowded, "ratio": middle["reached"] / crowded})
    print(json.dumps({"env": args.env, "slices": looked, "median": middle, "busy": together | {"limit": crowded}}))


def show(what: str, row: dict[str, float], more: str = "") -> None:
    costs = "".join(f"{row[name] * 1e6:11.2f}" for name in ("environment", "inference", "learning"))
    print(f"  {what:19}{costs}  {row['limit']:20,.0f} {row['reached']:10,.0f} {row['ratio']:6.2f}{more}", flush=True)


if __name__ == "__main__":
    main()
