"""What compressed gradients cost in learning: environment steps until CartPole-v1 is solved, in the simulation.

python benchmarks/compression_learning.py [--seeds 10] [--processes 2]

Medians over the seeds, with and without error feedback; the steps do not depend on the speed of the machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "impala": {"learners": 2, "actors": 2, "envs_per_actor": 16},
    "a2c": {},
    "parameter-server": {},
}
METHODS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {},
    "powersgd": {},
    "topk, share 0.1": {"gradients_share": 0.1},
    "sign": {},
    "topk": {},
}
MOST_STEPS = 600_000


class Job(NamedTuple):
    """One run."""

    architecture: str
    method: str
    feedback: bool
    seed: int


class Found(NamedTuple):
    """Steps until the return is reached, at most `MOST_STEPS`, and the last return."""

    steps: int
    final: float


def run(job: Job) -> Found:
    """Train until the mean return of 100 episodes is 475."""
    from thespis import train

    settings = ARCHITECTURES[job.architecture] | METHODS[job.method]
    if not job.feedback:
        settings |= {"gradients_feedback": False}
    with tempfile.TemporaryDirectory() as directory:
        summary = train(
            job.architecture, env="CartPole-v1", on="simulation", run_dir=Path(directory) / "run", quiet=True,
            seed=job.seed, gradients=job.method.partition(",")[0], stop_at_return=475, total_steps=MOST_STEPS,
            eval_episodes=0, **settings,
        ).summary  # fmt: skip
    reached = summary["exit_reason"] == "return_reached"
    return Found(summary["env_steps"] if reached else MOST_STEPS, summary["return_mean_100"])


def cell(found: list[Found], exact: float) -> str:
    """The median steps relative to float32, and in how many runs the return was reached."""
    steps = statistics.median(each.steps for each in found)
    reached = sum(each.steps < MOST_STEPS for each in found)
    if 2 * reached <= len(found):
        return f"{reached} of {len(found)} solved, return {statistics.median(each.final for each in found):.0f}"
    return f"{steps:,.0f} ({steps / exact:.2f})" + (f", {reached} of {len(found)}" if reached < len(found) else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    print(f"| `--gradients` | {' | '.join(ARCHITECTURES)} |\n|{'---|' * (1 + len(ARCHITECTURES))}")
    exact: dict[str, float] = {}
    with ProcessPoolExecutor(args.processes) as pool:
        for feedback in (True, False):
            for method in METHODS if feedback else ("sign", "topk, share 0.1", "topk"):
                cells = []
                for name in ARCHITECTURES:
                    found = list(pool.map(run, [Job(name, method, feedback, seed) for seed in range(args.seeds)]))
                    exact.setdefault(name, statistics.median(each.steps for each in found))
                    cells.append(cell(found, exact[name]))
                print(f"| {method}{'' if feedback else ', no feedback'} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
