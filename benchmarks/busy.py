"""Measures how fast PPO trains beside processes that take all the CPU time they can get.

python benchmarks/busy.py [--busy 0 2] [--seconds 8] [--rounds 3]

Three settings of the learner's threads take turns: the default; one thread that sleeps while it waits; one spinning
thread per core. The ratios are ratios of medians, because absolute speeds depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from thespis.core.system.cores import available_cores

WAYS: dict[str, dict[str, str]] = {
    "default": {},
    "one passive thread": {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
    # libgomp spins 300,000 times by default. GOMP_SPINCOUNT overrides OMP_WAIT_POLICY.
    "spinning threads": {"OMP_NUM_THREADS": f"{os.cpu_count()}", "GOMP_SPINCOUNT": "300000"},
}


def speed(way: dict[str, str], seconds: float) -> float:
    """Return the environment steps per second of a run."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "MKL_"))}
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        flags = f"--env CartPole-v1 --total-seconds {seconds} --eval-episodes 0 --run-dir {run}".split()
        words = [sys.executable, "-m", "thespis.cli.main", "train", "ppo", *flags]
        subprocess.run(words, env={**ours, **way}, check=True, capture_output=True)
        return float(json.loads((run / "summary.json").read_text())["steps_per_second"] or 0.0)


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Run `number` processes that spin in an empty loop."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 2], help="number of busy processes beside the run")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3, help="number of runs per setting")
    args = parser.parse_args()
    print(f"{available_cores()} cores, load {os.getloadavg()[0]:.1f}")
    for number in args.busy:
        found: dict[str, list[float]] = {name: [] for name in WAYS}
        with busy(number):
            for _ in range(args.rounds):
                for name, way in WAYS.items():
                    found[name].append(speed(way, args.seconds))
        middle = {name: statistics.median(speeds) for name, speeds in found.items()}
        ours = middle["default"]
        print(f"\nbeside {number} busy processes")
        for name, each in middle.items():
            print(f"  {name:20} {each:10,.0f} steps/s   default / this: {ours / each if each else 0.0:.2f}")


if __name__ == "__main__":
    main()
