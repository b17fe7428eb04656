"""Compares population-based training with random search: the same members, draws and steps, but no copies.

python benchmarks/pbt.py --member a2c --population 8 --steps 20000 --interval 5000

Random search is a population whose only comparison is at the end. In both cases all members play 20 greedy episodes at
the end, and the best member counts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

from thespis import train
from thespis.population.history import History
from thespis.training.evaluation import play
from thespis.training.trained_run import TrainedRun


def score(args: argparse.Namespace, seed: int, interval: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        started = time.perf_counter()
        run = train(
            "pbt",
            env=args.env,
            member=args.member,
            on=args.on,
            seed=seed,
            population=args.population,
            envs_per_actor=8,  # few enough that several episodes of each end within an interval
            total_steps=args.population * args.steps,
            interval=interval,
            settings=tuple(args.settings),
            eval_episodes=0,
            run_dir=Path(directory) / "run",
            quiet=True,
        )
        seconds = time.perf_counter() - started
        history = History(run.path)
        members = [TrainedRun(run.path / "members" / member.run) for member in history.members.values()]
        returns = [fmean(episode.reward for episode in play(member, 20).episodes) for member in members]
        return {
            "best": max(returns),
            "median": median(returns),
            "steps": run.summary["env_steps"],
            "copies": sum(row.event == "copy" for row in history.rows),
            "seconds": seconds,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--member", default="a2c")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--on", default="simulation")
    parser.add_argument("--population", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20_000, help="steps per member")
    parser.add_argument("--interval", type=int, default=5_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--settings", nargs="*", default=["optimizer.anneal=false"])
    args = parser.parse_args()
    found: dict[str, list[float]] = {}
    for seed in args.seeds:
        for name, interval in (("pbt", args.interval), ("random", args.steps)):
            result = score(args, seed, interval)
            found.setdefault(name, []).append(result["best"])
            print(
                f"{name:7} seed {seed}  " + "  ".join(f"{key} {value:.6g}" for key, value in result.items()), flush=True
            )
    for name, returns in found.items():
        print(f"{name:7} median {median(returns):.1f}  best {max(returns):.1f}  worst {min(returns):.1f}")


if __name__ == "__main__":
    main()
