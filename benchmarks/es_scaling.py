"""Simulates how a generation of evolution strategies scales with the number of workers, for both protocols.

python benchmarks/es_scaling.py [--workers 1 10 100 1000] [--plot docs/images/es_scaling.png]

The results are virtual time and bytes per generation. Each worker plays one pair at a time, and a generation has 1,000
pairs. Environments and updates are real. The cost model assumes 20 ms per environment step, and a network with 1 ms of
latency and 10 Gb/s.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from thespis import train

COSTS = """
work:
  env_step:  {base: 2e-2}
  inference: {base: 1e-4}
  perturb:   {base: 1e-4}
  apply:     {base: 0.0, per_item: 5e-10}
edges:
  default: {latency: 1e-3, bandwidth: 1.25e9}
"""


class Measured(NamedTuple):
    """Measurements per generation."""

    seconds: float
    bytes: float
    repeated: float


def measure(workers: int, protocol: str, generations: int, pairs: int) -> Measured:
    with tempfile.TemporaryDirectory() as directory:
        costs = Path(directory) / "costs.yaml"
        costs.write_text(COSTS)
        settings: dict[str, Any] = {
            "env": "CartPole-v1",
            "on": "simulation",
            "cost_model": costs,
            "actors": workers,
            "envs_per_actor": 2,
            "pairs": pairs,
            "protocol": protocol,
            "network": {"hidden": [64, 64]},
            "longest_episode": 60,
            "stall_timeout": 1e6,
            "checkpoint_every": 1e6,
            "eval_episodes": 0,
            "total_steps": (generations - 1) * pairs * 2 * 25 + 1,  # early episodes have nearly 25 steps
        }
        result = train("es", run_dir=Path(directory) / "run", quiet=True, **settings).summary
    updates = result["updates"]
    edge = result["edges"]["worker.coordinator.order"]
    return Measured(
        result["env_steps"] / updates / result["steps_per_second"],
        edge["bytes"] / updates,
        sum(result["dropped"].values()) / updates,
    )


def plot(results: dict[str, dict[int, Measured]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10})
    figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3.2))
    for (protocol, measured), marker in zip(results.items(), "os", strict=True):
        workers = list(measured)
        left.loglog(workers, [each.seconds for each in measured.values()], f"{marker}-", label=protocol)
        right.loglog(workers, [each.bytes / 1e6 for each in measured.values()], f"{marker}-", label=protocol)
    workers = list(next(iter(results.values())))
    first = next(iter(results.values()))[workers[0]].seconds
    left.loglog(workers, [first * workers[0] / each for each in workers], ":", color="grey", label="linear")
    left.set(xlabel="workers", ylabel="virtual seconds per generation")
    right.set(xlabel="workers", ylabel="MB per generation, all workers")
    left.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--generations", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()

    results: dict[str, dict[int, Measured]] = {"broadcast": {}, "seeds": {}}
    for protocol, measured in results.items():
        for workers in args.workers:
            measured[workers] = found = measure(workers, protocol, args.generations, args.pairs)
            speedup = measured[args.workers[0]].seconds / found.seconds
            print(
                f"{protocol:10} {workers:5} workers: {found.seconds:9.2f} s and {found.bytes / 1e6:7.2f} MB per "
                f"generation, {speedup:6.1f} times as fast, {found.repeated:.1f} results dropped",
                flush=True,
            )
    if args.plot:
        plot(results, args.plot)


if __name__ == "__main__":
    main()
