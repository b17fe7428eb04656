"""Measures what Ray costs: steps per second of the same training on local processes and on Ray, in turns.

python benchmarks/runtimes.py                  IMPALA, CartPole-v1, defaults
python benchmarks/runtimes.py --rounds 5 --seconds 20
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median

from thespis import train


def steps_per_second(on: str, architecture: str, env: str, steps: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        run = train(
            architecture,
            env=env,
            on=on,
            total_steps=steps,
            eval_episodes=0,
            run_dir=Path(directory) / "run",
            quiet=True,
        )
        return float(run.summary["steps_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", default="impala")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="about how long each run should take")
    args = parser.parse_args()

    speed = steps_per_second("local", args.architecture, args.env, 200_000)
    steps = int(speed * args.seconds)
    measured: dict[str, list[float]] = {"local": [], "ray": []}
    for _ in range(args.rounds):
        for on, speeds in measured.items():
            speeds.append(steps_per_second(on, args.architecture, args.env, steps))
            print(f"{on:6} {speeds[-1]:10,.0f} steps/s", flush=True)
    ratio = median(measured["ray"]) / median(measured["local"])
    print(f"ray / local {ratio:.2f}")
    print(json.dumps({"env": args.env, **measured, "ratio": ratio}))


if __name__ == "__main__":
    main()
