"""Measures what several learners gain, on the cores of this machine and on a simulated network.

python benchmarks/learners.py [--learners 2] [--seconds 20] [--rounds 3] [--batch 64] [--simulated 1 4 16]

On this machine the learners train the convolutional network of DQN on replayed images; the actors have almost no
work, and no run writes a checkpoint before its end, because writing one competes with the learners for the cores. Runs
of one learner and of several follow each other, and the figure is the median of their ratios. In the simulation an
update takes 20 ms and a message 1 ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

COSTS = """
work:
  learn: {base: 2.0e-2}
edges:
  default: {latency: 1.0e-3, bandwidth: 1.25e9}
"""
REPLAY = "--replay.warm-up 500 --replay.capacity 4000 --replay.samples-per-insert 64"


class Images(gym.Env[np.ndarray, np.int64]):
    """Images that cost nothing, of the size of stacked Atari frames."""

    observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(6)

    def __init__(self) -> None:
        self._image = np.random.default_rng(0).integers(0, 256, (4, 84, 84), np.uint8)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return self._image, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._image, float(action == 0), self._steps == 100, False, {}


def train(words: list[str], run: Path) -> None:
    command = [sys.executable, "-m", "thespis.cli.main", "train", *words, "--eval-episodes", "0", "--run-dir", str(run)]
    subprocess.run(command, check=True, capture_output=True)


def updates_per_second(run: Path) -> float:
    """Updates per second from the first update to the last, which leaves out the start."""
    return float(json.loads((run / "summary.json").read_text())["updates_per_second"])


def on_this_machine(learners: int, batch: int, seconds: float) -> float:
    """Steps per second that the learners learn from."""
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        flags = f"--env {Path(__file__).resolve()}::Images --learners {learners} --actors {learners} {REPLAY}"
        ends = f"--envs-per-actor 1 --batch {batch} --total-seconds {seconds} --checkpoint-every {2 * seconds}"
        train(["dqn", *flags.split(), *ends.split()], run)
        return learners * batch * updates_per_second(run)


def simulated(learners: int) -> float:
    """Updates per virtual second."""
    with tempfile.TemporaryDirectory() as directory:
        costs, run = Path(directory) / "costs.yaml", Path(directory) / "run"
        costs.write_text(COSTS)
        flags = f"--learners {learners} --actors {2 * learners} --envs-per-actor 4 --total-seconds 4"
        train(["impala", "--on", "simulation", "--cost-model", str(costs), *flags.split()], run)
        return float(json.loads((run / "summary.json").read_text())["updates"]) / 4.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--learners", type=int, default=2, help="learners on this machine")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run on this machine")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs on this machine")
    parser.add_argument("--batch", type=int, default=64, help="of each learner on this machine")
    parser.add_argument("--simulated", type=int, nargs="*", default=[1, 4, 16], help="learners in the simulation")
    args = parser.parse_args()
    alone = 0.0
    for learners in args.simulated:
        rate = simulated(learners)
        alone = alone or rate / learners
        print(
            f"simulation: {learners} learners, {rate:.0f} updates/s, {rate * learners / alone:.2f} x the steps of one"
        )
    ratios = []
    for _ in range(args.rounds):
        one, several = (on_this_machine(learners, args.batch, args.seconds) for learners in (1, args.learners))
        ratios.append(several / one)
        print(f"this machine: 1 learner {one:,.0f} steps/s, {args.learners} learners {several:,.0f}: {ratios[-1]:.2f}")
    if ratios:
        print(f"median {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
