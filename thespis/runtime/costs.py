"""How long things take in the simulation: work by kind, messages by edge.

work:
  env_step: {base: 5e-5, per_item: 1e-6}     # seconds per call, and per environment, row or step in it
  label: {base: 1e-4, wait: 1e-2}            # wait: seconds in which it needs no core
edges:
  default: {latency: 1e-4, bandwidth: 1e9}   # seconds one way, bytes per second
  actor.queue.insert: {latency: [1e-3, 5e-3]}  # a range is drawn from, evenly
  actor.inference.act: {cpu: 3e-5}           # seconds of a core, at each end of a message
cores: 2                                     # for all roles together; without it each has one of its own
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thespis.errors import ThespisError


@dataclass(frozen=True, slots=True)
class WorkCost:
    base: float
    per_item: float = 0.0
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class EdgeCost:
    latency: tuple[float, float]
    bandwidth: float
    cpu: float = 0.0


_EDGE = EdgeCost((1e-4, 1e-4), 1e9)
_WORK = {
    # Of the order of what CartPole and an MLP in torch take on one core of a small server; their proportion matters.
    "env_step": WorkCost(5e-5, 8e-7),
    "inference": WorkCost(8e-5, 8e-7),
    "learn": WorkCost(1.2e-3, 1.2e-6),
    "label": WorkCost(3e-4, 1.5e-5),  # a search over 128 actions for each row
}


@dataclass(frozen=True)
class CostModel:
    """Virtual durations. `cores`: what all roles share; without a number each role has one of its own."""

    work: dict[str, WorkCost] = field(default_factory=lambda: dict(_WORK))
    edges: dict[str, EdgeCost] = field(default_factory=lambda: {"default": _EDGE})
    cores: int | None = None

    def work_seconds(self, kind: str, items: int) -> float:
        """How long a core works at it."""
        cost = self.work.get(kind)
        return cost.base + cost.per_item * items if cost else 0.0

    def wait_seconds(self, kind: str) -> float:
        """How long it then takes that no core works at."""
        cost = self.work.get(kind)
        return cost.wait if cost else 0.0

    def edge_seconds(self, edge: str, nbytes: int, rng: np.random.Generator) -> float:
        """One way over the edge, for a message of `nbytes`."""
        cost = self._edge(edge)
        low, high = cost.latency
        latency = low if low == high else float(rng.uniform(low, high))
        return latency + nbytes / cost.bandwidth

    def end_seconds(self, edge: str) -> float:
        """How long a core works at a message, at either end."""
        return self._edge(edge).cpu

    def _edge(self, edge: str) -> EdgeCost:
        return self.edges.get(edge) or self.edges["default"]

    @classmethod
    def load(cls, path: Path) -> CostModel:
        """Read a file; what it does not name keeps its built-in value."""
        import yaml

        try:
            data = yaml.safe_load(path.read_text()) or {}
        except (OSError, yaml.YAMLError) as error:
            raise ThespisError(f"cost model {path} cannot be read: {error}") from error
        try:
            work, edges, cores = data.pop("work", {}), data.pop("edges", {}), data.pop("cores", None)
            if data:
                raise ValueError(f"unknown section {', '.join(data)}")
            if cores is not None and (type(cores) is not int or cores < 1):
                raise ValueError(f"cores is {cores}, not a number of them")
            return cls(
                work=_WORK | {kind: WorkCost(**_numbers(values)) for kind, values in work.items()},
                edges=_edges(edges),
                cores=cores,
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise ThespisError(f"cost model {path}: {error}; see docs/simulation.md for its form") from error


def message_bytes(message: Any) -> int:
    """About how many bytes a message would take on a wire: its arrays, and a little for everything else."""
    if isinstance(message, np.ndarray):
        return message.nbytes + 32
    if isinstance(message, dict):
        return sum(map(message_bytes, message.values())) + 16 * len(message)
    if isinstance(message, (list, tuple)):
        return sum(map(message_bytes, message)) + 8
    if is_dataclass(message):
        return sum(message_bytes(getattr(message, part.name)) for part in fields(message))
    return 16


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    # YAML reads 1e-4 as text (it wants 1.0e-4); people write it, so take it.
    return {name: float(value) for name, value in values.items()}


def _edges(data: dict[str, dict[str, Any]]) -> dict[str, EdgeCost]:
    edges: dict[str, EdgeCost] = {}
    default = _edge(data.get("default", {}), _EDGE)
    for name, values in data.items():
        edges[name] = _edge(values, default)
    edges["default"] = default
    return edges


def _edge(values: dict[str, Any], default: EdgeCost) -> EdgeCost:
    unknown = set(values) - {"latency", "bandwidth", "cpu"}
    if unknown:
        raise ValueError(f"unknown field {', '.join(sorted(unknown))}")
    latency = values.get("latency", default.latency)
    low, high = latency if isinstance(latency, (list, tuple)) else (latency, latency)
    bandwidth, cpu = values.get("bandwidth", default.bandwidth), values.get("cpu", default.cpu)
    return EdgeCost((float(low), float(high)), float(bandwidth), float(cpu))
