"""Compares the steps per second and the wait shares of several architectures, which take turns on one environment.

python benchmarks/architectures.py impala a3c a2c
python benchmarks/architectures.py impala a3c --env Pendulum-v1 --steps 200000
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from thespis import train


def measure(architecture: str, env: str, steps: int) -> tuple[float, dict[str, float], float]:
    """Return steps per second, the wait share of each role, and the mean lag."""
    with tempfile.TemporaryDirectory() as directory:
        run = train(
            architecture, env=env, total_steps=steps, eval_episodes=0, run_dir=Path(directory) / "run", quiet=True
        )
        rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    shares: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if "lag/mean" in row:
            for name, value in row.items():
                if name.endswith("/wait_share"):
                    shares[name.split("/")[1]].append(value)
    summary: dict[str, Any] = run.summary
    return (
        summary["steps_per_second"],
        {role: median(values) for role, values in shares.items()},
        summary["lag"]["mean"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("architectures", nargs="+")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=600_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    speeds: dict[str, list[float]] = {name: [] for name in args.architectures}
    for _ in range(args.rounds):
        for name in args.architectures:
            speed, waits, lag = measure(name, args.env, args.steps)
            speeds[name].append(speed)
            waiting = "  ".join(f"{role} {share:.0%}" for role, share in waits.items() if share >= 0.005)
            print(f"{name:18} {speed:10,.0f} steps/s   lag {lag:5.1f}   waits: {waiting}", flush=True)
    first = median(speeds[args.architectures[0]])
    for name, measured in speeds.items():
        print(f"{name:18} median {median(measured):10,.0f} steps/s, {median(measured) / first:.2f} of the first")


if __name__ == "__main__":
    main()
