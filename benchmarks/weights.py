"""What compressed weights save and cost: bytes of a pull as the runtime counts them, milliseconds, and age.

python benchmarks/weights.py [--updates 100] [--actors 64] [--far-updates 320]

IMPALA trains the convolutional network of DQN on Pong in the simulation, and one actor pulls every version. Then
`--actors` actors pull over a simulated network of 10 Mbit/s each. Times are medians of CPU time on one core.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thespis import train
from thespis.exchange import weights as codec
from thespis.roles import WeightStore

ADAM = {"kind": "adam", "epsilon": 1e-8, "anneal": False}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "Adam, 3e-4": {**ADAM, "learning_rate": 3e-4},
    "Adam, 6.25e-5": {**ADAM, "learning_rate": 6.25e-5},
    "RMSProp, 6e-4, epsilon 0.01": {"kind": "rmsprop", "learning_rate": 6e-4, "epsilon": 0.01, "anneal": False},
}
NEAR = """
work:
  learn: {base: 1.0e-5}
edges:
  default: {latency: 1.0e-5, bandwidth: 1.0e+12}
"""
"""The learner has the next version before the actor pulls."""
FAR = """
work:
  env_step: {base: 2.0e-3}
  inference: {base: 2.0e-3}
  learn: {base: 2.0e-2}
  compress: {base: 3.0e-2}
  decompress: {base: 1.5e-2}
edges:
  default: {latency: 1.0e-2, bandwidth: 1.25e+6}
  learner.queue.sample: {latency: 0.0, bandwidth: 1.0e+12}
  learner.weights.publish: {latency: 0.0, bandwidth: 1.0e+12}
"""
"""10 Mbit/s and 10 ms between each actor and the learner, which has its queue and store beside it."""
FORMS = [("float32", "Adam, 3e-4"), ("delta", "Adam, 3e-4"), ("bfloat16", "Adam, 3e-4"), ("delta", "Adam, 6.25e-5")]
PONG: dict[str, Any] = {"env": "ALE/Pong-v5", "on": "simulation", "quiet": True, "eval_episodes": 0}
IMPALA: dict[str, Any] = {**PONG, "batch_unrolls": 1, "queue_capacity": 1, "unroll_length": 20}

taken: dict[str, list[float]] = {"encode": [], "decode": []}
answered = {"pulls": 0}


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        start = time.process_time()
        result = function(*args)
        taken[name].append(time.process_time() - start)
        return result

    return call


def counted(pull: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(pull)
    async def call(*args: Any) -> Any:
        found = await pull(*args)
        answered["pulls"] += found is not None
        return found

    return call


def trained(costs: str, **settings: Any) -> dict[str, Any]:
    """The summary of a run."""
    for times in taken.values():
        times.clear()
    answered["pulls"] = 0
    with tempfile.TemporaryDirectory() as directory:
        run, file = Path(directory) / "run", Path(directory) / "costs.yaml"
        file.write_text(costs)
        summary: dict[str, Any] = train("impala", run_dir=run, cost_model=file, **IMPALA, **settings).summary
        return summary


def pulled(summary: dict[str, Any]) -> float:
    """Bytes of a version that an actor pulled."""
    edge = summary["edges"]["actor.weights.pull"]
    return float(edge["bytes"] - edge["sent"]) / float(answered["pulls"])


def milliseconds(name: str) -> float:
    return 1e3 * statistics.median(taken[name])


def every_version(updates: int) -> None:
    """Print bytes and times if an actor pulls every version."""
    one = {"actors": 1, "envs_per_actor": 4}
    exact = pulled(trained(NEAR, **one, total_steps=800))
    print("| `--weights` | optimiser | bytes of a pull | fewer | encode | decode |\n|---|---|---|---|---|---|")
    print(f"| float32 | any | {exact:,.0f} | 1.0x | | |", flush=True)
    for form, optimizers in (("bfloat16", {"any": {}}), ("delta", OPTIMIZERS)):
        for name, optimizer in optimizers.items():
            steps = 80 * (updates if form == "delta" else 20)
            size = pulled(trained(NEAR, **one, weights=form, total_steps=steps, optimizer=optimizer))
            times = f"{milliseconds('encode'):.1f} ms | {milliseconds('decode'):.1f} ms"
            print(f"| {form} | {name} | {size:,.0f} | {exact / size:.1f}x | {times} |", flush=True)


def far_away(actors: int, updates: int) -> None:
    """Print how old weights are if many actors pull over a slow network."""
    print("| `--weights` | optimiser | bytes of a pull | updates/s | lag | age of weights |\n|---|---|---|---|---|---|")
    for form, name in FORMS:
        settings = {"actors": actors, "envs_per_actor": 1, "total_steps": 20 * updates}
        summary = trained(FAR, **settings, weights=form, optimizer=OPTIMIZERS[name])
        rate, lag = summary["updates_per_second"], summary["lag"]["mean"]
        print(f"| {form} | {name} | {pulled(summary):,.0f} | {rate:.1f} | {lag:.0f} | {lag / rate:.1f} s |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=100, help="of each run with one actor; 0 for none")
    parser.add_argument("--actors", type=int, default=64, help="on the slow network; 0 for none")
    parser.add_argument("--far-updates", type=int, default=320, help="of each run on the slow network")
    args = parser.parse_args()
    codec.WeightEncoder._make = timed("encode", codec.WeightEncoder._make)  # type: ignore[method-assign]
    codec.WeightDecoder.decode = timed("decode", codec.WeightDecoder.decode)  # type: ignore[method-assign]
    WeightStore.pull = counted(WeightStore.pull)  # type: ignore[method-assign]
    if args.updates:
        every_version(args.updates)
    if args.actors:
        far_away(args.actors, args.far_updates)


if __name__ == "__main__":
    main()
