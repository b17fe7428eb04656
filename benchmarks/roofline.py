"""How much of the machine does training use? The limit from the cost of its parts, the real run, and their ratio.

Each agent step needs one environment step, one inference and one learning step. Measured one at a time, on one core and
in the same run, their costs give the most steps per second that the machine's cores could do if nothing else
took any time: cores / (env + inference + learn). The ratio is what the real run reaches of that. Machines are shared
and their speed changes from one moment to the next, so this is done several times, and the median ratio counts.

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
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch

from thespis import train
from thespis.algorithms.actor_critic import VTraceUpdate
from thespis.algorithms.optimizers import build_optimizer, clip_gradients
from thespis.architectures.parts import network
from thespis.envs.make import describe, make
from thespis.experience.writers import UnrollWriter, concatenate
from thespis.launch import defaults
from thespis.networks.acting import Stepper
from thespis.roles.actor import first_inputs, next_inputs
from thespis.types import Unroll, Version


def seconds_per_call(work: Callable[[], Any], budget: float) -> float:
    """The median over batches of calls that last about 20 ms each, so that a disturbance spoils few of them."""
    work()
    started = time.perf_counter()
    work()
    batch = max(1, int(0.02 / (time.perf_counter() - started)))
    times = []
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
        spaces = describe(cfg.env)
        self.envs = make(cfg.env, cfg.envs_per_actor)
        net = network(cfg.network, spaces, seed=0)
        self.stepper = Stepper(network(cfg.network, spaces, seed=0), np.random.default_rng(0))
        self.update = VTraceUpdate(net, cfg)
        self.optimizer = build_optimizer(cfg.optimizer, self.update.parameters)
        self.inputs = first_inputs(self.envs.reset(0), self.envs)
        self.state = self.stepper.initial_state(cfg.envs_per_actor)
        self.batch = concatenate([self._unroll() for _ in range(cfg.batch_unrolls)])

    def _unroll(self) -> Unroll:
        writer = UnrollWriter(self.cfg.unroll_length, self.inputs, self.state)
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
        clip_gradients(gradients, self.cfg.optimizer.clip)
        self.optimizer.step(gradients, self.cfg.optimizer.learning_rate)


def raw_vector(env: str, number: int) -> Any:
    """The environment as Gymnasium gives it, without Thespis' checks: those count as overhead."""
    if env.startswith("ALE/"):
        from thespis.envs import atari

        return atari.make(env, number, {})
    return gymnasium.make_vec(env, number)


def measure(cfg: Any, budget: float) -> dict[str, float]:
    """Costs on one core with one thread."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    torch.set_num_threads(1)
    try:
        return Parts(cfg).costs(budget)
    finally:
        os.sched_setaffinity(0, before)


def learn_for_ever(cfg: Any, core: int, going: Any) -> None:
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    parts = Parts(cfg)
    going.release()
    while True:
        parts._learn()


@contextmanager
def others_busy(cfg: Any) -> Iterator[None]:
    """All cores but the one that `measure` uses are learning."""
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


def reach(env: str, changes: dict[str, int], steps: int) -> dict[str, Any]:
    """The summary of a real run."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        return train("impala", **changes, env=env, total_steps=steps, run_dir=run_dir, quiet=True).summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--rounds", type=int, default=5, help="how often to measure costs, run, and measure again")
    parser.add_argument("--seconds", type=float, default=6.0, help="about how long the real run of a round should take")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds to measure each piece for, each time")
    parser.add_argument(
        "--settings", nargs="*", default=[], metavar="NAME=NUMBER", help="e.g. actors=1 envs_per_actor=64"
    )
    args = parser.parse_args()

    changes = {name: int(value) for name, value in (setting.split("=") for setting in args.settings)}
    cfg = defaults("impala", args.env, changes)
    cores = len(os.sched_getaffinity(0))
    print(f"{args.env}: {cfg.actors} actors x {cfg.envs_per_actor} environments, unrolls of {cfg.unroll_length}")
    print(f"  us per step{'':8}environment  inference   learning  limit/s on {cores} cores      run/s  ratio   lag")
    rounds: list[dict[str, float]] = []
    costs = measure(cfg, args.budget)
    for _ in range(args.rounds):
        before = costs
        summary = reach(args.env, changes, int(cores / sum(before.values()) * args.seconds))
        costs = measure(cfg, args.budget)
        # The machine may be shared: what a step costs during the run is the mean of before and after it.
        meant = {name: (before[name] + costs[name]) / 2 for name in costs}
        limit, reached = cores / sum(meant.values()), summary["steps_per_second"]
        rounds.append(meant | {"limit": limit, "reached": reached, "ratio": reached / limit})
        show(f"round {len(rounds)}", rounds[-1], f"{summary['lag']['mean']:6.1f}")
    middle = {name: median(each[name] for each in rounds) for name in rounds[0]}
    show("median", middle)
    with others_busy(cfg):
        together = measure(cfg, args.budget)
    crowded = cores / sum(together.values())
    show("all cores busy", middle | together | {"limit": crowded, "ratio": middle["reached"] / crowded})
    print(json.dumps({"env": args.env, "rounds": rounds, "median": middle, "busy": together | {"limit": crowded}}))


def show(what: str, row: dict[str, float], more: str = "") -> None:
    costs = "".join(f"{row[name] * 1e6:11.2f}" for name in ("environment", "inference", "learning"))
    print(f"  {what:19}{costs}  {row['limit']:20,.0f} {row['reached']:10,.0f} {row['ratio']:6.2f}{more}", flush=True)


if __name__ == "__main__":
    main()
