"""Compares SEED with IMPALA, in turns: steps per second, bytes per step on each edge, and lag.

python benchmarks/serving.py                                  CartPole-v1 with the MLP
python benchmarks/serving.py --env ALE/Pong-v5 --torso nature --steps 6000
python benchmarks/serving.py --env ALE/Pong-v5 --actors 16 --envs-per-actor 1 --batch-unrolls 16 --steps 8000
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from thespis import train


def measure(architecture: str, args: argparse.Namespace, envs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        settings: dict[str, Any] = {"double_buffer": True} if architecture == "seed, two groups" else {}
        if args.batch_unrolls:
            settings |= {"batch_unrolls": args.batch_unrolls, "queue_capacity": args.batch_unrolls}
        if args.torso:
            settings["network"] = {"torso": args.torso}
        summary: dict[str, Any] = train(
            architecture.partition(",")[0], env=args.env, actors=args.actors, envs_per_actor=envs,
            total_steps=args.steps, eval_episodes=0, checkpoint_every=3600.0, stall_timeout=300.0,
            run_dir=Path(directory) / "run", quiet=True, **settings,
        ).summary  # fmt: skip
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--torso", default="", help="mlp, nature or resnet; by default chosen by the observation space")
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--envs-per-actor", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--batch-unrolls", type=int, help="unrolls per update; by default from the preset")
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    for envs in args.envs_per_actor:
        names = ["impala", "seed"] + ["seed, two groups"] * (envs % 2 == 0)
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for _ in range(args.rounds):
            for name in names:
                runs[name].append(measure(name, args, envs))
        for name, result in runs.items():
            speed, lag = (median(values) for values in ([run["steps_per_second"] for run in result],
                                                        [run["lag"]["mean"] for run in result]))  # fmt: skip
            last = result[-1]
            edges = {edge: sent["bytes"] / last["env_steps"] for edge, sent in last["edges"].items() if sent["bytes"]}
            bytes_ = "  ".join(f"{edge} {number:.0f}" for edge, number in edges.items())
            print(f"{envs:3} envs  {name:18} {speed:8,.0f} steps/s  lag {lag:5.1f}  bytes/step: {bytes_}", flush=True)


if __name__ == "__main__":
    main()
