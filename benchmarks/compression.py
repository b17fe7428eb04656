"""What compressed gradients save and cost: bytes of a push as the runtime counts them, and milliseconds.

python benchmarks/compression.py [--rounds 20]

Workers of A2C push gradients of the convolutional network of DQN to a parameter server, in processes of this machine.
The times are those of one gradient of this network on one core, the fastest of `--rounds`. Top-k is measured as it is
after its warm-up.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from learners import Images

from thespis import train
from thespis.core.context import Context, Identity
from thespis.core.learners_config import CompressionConfig
from thespis.core.types import Array
from thespis.exchange.codecs import cut_sections
from thespis.exchange.compression import Compressor, decompress

METHODS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {},
    "int8": {},
    "topk": {"gradients_warm_up": 0},
    "topk, share 0.1": {"gradients_share": 0.1, "gradients_warm_up": 0},
    "sign": {},
    "powersgd": {},
    "powersgd, rank 4": {"gradients_rank": 4},
}


class Timed(Context):
    """A context outside any run."""

    def now(self) -> float:
        return time.perf_counter()


def pushed(method: str, settings: dict[str, Any]) -> tuple[float, Array]:
    """Bytes of a push, and the sections of the network."""
    with tempfile.TemporaryDirectory() as directory:
        run = train(
            "a2c", env=Images, gradients=method, run_dir=Path(directory) / "run", quiet=True, eval_episodes=0,
            actors=1, envs_per_actor=2, unroll_length=5, total_steps=200, **settings,
        )  # fmt: skip
        edge = run.summary["edges"]["worker.server.push"]
        layout = [(name, list(value.shape)) for name, value in run.policy.network.state_dict().items()]
        return edge["sent"] / edge["calls"], cut_sections(layout, slice(0, sum(np.prod(shape) for _, shape in layout)))


def milliseconds(cfg: CompressionConfig, sections: Array, rounds: int) -> tuple[float, float]:
    """Time to encode one gradient, and to decode it."""
    rng, times = np.random.default_rng(0), []
    made = Compressor(Timed(Identity("worker", 0, run_seed=0)), cfg, sections)
    for _ in range(rounds):
        gradient = rng.normal(size=int(sections.prod(axis=1).sum())).astype(np.float32)
        start = time.perf_counter()
        message = made.encode(gradient)
        made.commit()
        sent = time.perf_counter()
        decompress(message)
        times.append((sent - start, time.perf_counter() - sent))
    return 1e3 * min(encode for encode, _ in times), 1e3 * min(decode for _, decode in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    print("| `--gradients` | bytes of a push | fewer | encode | decode |\n|---|---|---|---|---|")
    exact = 0.0
    for name, settings in METHODS.items():
        method = name.partition(",")[0]
        size, sections = pushed(method, settings)
        exact = exact or size
        times = ("", "")
        if method != "float32":
            found = milliseconds(CompressionConfig(gradients=method, **settings), sections, rounds)  # type: ignore[arg-type]
            times = (f"{found[0]:.1f} ms", f"{found[1]:.1f} ms")
        print(f"| {name} | {size:,.0f} | {exact / size:.1f}x | {times[0]} | {times[1]} |", flush=True)


if __name__ == "__main__":
    main()
