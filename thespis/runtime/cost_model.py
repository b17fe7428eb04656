"""The cost model of the simulation: durations of work by kind, and of messages by edge.

work:
  env_step: {base: 5e-5, per_item: 1e-6}     # seconds per call, and per environment, row or step in it
  label: {base: 1e-4, wait: [1e-2, 2e-2]}    # wait: seconds without a core; values of a range are drawn uniformly
edges:
  default: {latency: 1e-4, bandwidth: 1e9}   # seconds in one direction, bytes per second
  actor.queue.insert: {latency: [1e-3, 5e-3]}
  actor.inference.act: {cpu: 3e-5}           # seconds of a core at each end of a message
cores: 2                                     # shared by all processes; default: one core per role
start: [0, 5]                                # seconds until a process is up; default: 0
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thespis.core.errors import ThespisError
from thespis.core.yaml_file import read_yaml

Seconds = float | tuple[float, float]
"""A fixed duration, or a range."""


@dataclass(frozen=True, slots=True)
class WorkCost:
    """Duration of one call: `base + per_item * items` on a core, then `wait` without one."""

    base: Seconds
    per_item: Seconds = 0.0
    wait: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class EdgeCost:
    """Duration of one message: `latency + bytes / bandwidth`, and `cpu` of a core at each end."""

    latency: Seconds
    bandwidth: float
    cpu: float = 0.0


_EDGE = EdgeCost(1e-4, 1e9)
_WORK = {
    # The order of magnitude of CartPole and an MLP in torch on one core of a small server; the proportions matter.
    "env_step": WorkCost(5e-5, 8e-7),
    "inference": WorkCost(8e-5, 8e-7),
    "learn": WorkCost(1.2e-3, 1.2e-6),
    "label": WorkCost(3e-4, 1.5e-5),  # a search over 128 actions for each row
}


@dataclass(frozen=True)
class CostModel:
    """Virtual durations. `cores`: shared by all processes; None gives each role its own core.

    `start`: the time until a process is up. A range also prevents all actors from stepping at the same moments.
    """

    work: dict[str, WorkCost] = field(default_factory=lambda: dict(_WORK))
    edges: dict[str, EdgeCost] = field(default_factory=lambda: {"default": _EDGE})
    cores: int | None = None
    start: Seconds = 0.0

    def start_seconds(self, rng: np.random.Generator) -> float:
        """Draw the time until a process is up."""
        return _draw(self.start, rng)

    def work_seconds(self, kind: str, items: int, rng: np.random.Generator) -> float:
        """Draw the core time of one call."""
        cost = self.work.get(kind)
        return _draw(cost.base, rng) + _draw(cost.per_item, rng) * items if cost else 0.0

    def wait_seconds(self, kind: str, rng: np.random.Generator) -> float:
        """Draw the waiting time after one call."""
        cost = self.work.get(kind)
        return _draw(cost.wait, rng) if cost else 0.0

    def edge_seconds(self, edge: str, nbytes: int, rng: np.random.Generator) -> float:
        """Draw the transfer time of a message of `nbytes` in one direction."""
        cost = self._edge(edge)
        return _draw(cost.latency, rng) + nbytes / cost.bandwidth

    def end_seconds(self, edge: str) -> float:
        """Return the core time of a message at each end."""
        return self._edge(edge).cpu

    def _edge(self, edge: str) -> EdgeCost:
        return self.edges.get(edge) or self.edges["default"]

    @classmethod
    def load(cls, path: Path) -> CostModel:
        """Read a YAML file; missing entries keep their built-in values."""
        data = read_yaml(path, "cost model") or {}
        try:
            work, edges, cores = data.pop("work", {}), data.pop("edges", {}), data.pop("cores", None)
            start = _seconds(data.pop("start", 0.0))
            if data:
                raise ValueError(f"unknown section {', '.join(data)}")
            if cores is not None and (type(cores) is not int or cores < 1):
                raise ValueError(f"cores is {cores}, not a positive integer")
            return cls(
                work=_WORK | {kind: _work(values) for kind, values in work.items()},
                edges=_edges(edges),
                cores=cores,
                start=start,
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise ThespisError(f"cost model {path}: {error}; see docs/simulation.md for its form") from error


def message_bytes(message: Any) -> int:
    """Estimate the size of a message in bytes: its arrays, and a constant for every other value."""
    if isinstance(message, np.ndarray):
        return message.nbytes + 32
    if isinstance(message, dict):
        return sum(map(message_bytes, message.values())) + 16 * len(message)
    if isinstance(message, (list, tuple)):
        return sum(map(message_bytes, message)) + 8
    if is_dataclass(message):
        return sum(message_bytes(getattr(message, part.name)) for part in fields(message))
    return 16


def mean_seconds(seconds: Seconds) -> float:
    """Return the mean of a duration."""
    return sum(seconds) / 2 if isinstance(seconds, tuple) else seconds


def _draw(seconds: Seconds, rng: np.random.Generator) -> float:
    return float(rng.uniform(*seconds)) if isinstance(seconds, tuple) else seconds


def _seconds(value: Any) -> Seconds:
    # YAML reads 1e-4 as text (it requires 1.0e-4), so accept text.
    low, high = map(float, value if isinstance(value, (list, tuple)) else (value, value))
    if not 0.0 <= low <= high < math.inf:
        raise ValueError(f"{value} is neither a time nor a range from a shorter to a longer one")
    return low if low == high else (low, high)


def _work(values: dict[str, Any]) -> WorkCost:
    return WorkCost(**{name: _seconds(value) for name, value in values.items()})


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
    bandwidth, cpu = float(values.get("bandwidth", default.bandwidth)), float(values.get("cpu", default.cpu))
    if not bandwidth > 0.0 or not 0.0 <= cpu < math.inf:
        raise ValueError(
            f"invalid bandwidth {bandwidth:g} or cpu {cpu:g}; give a bandwidth above 0 and a finite time of at least 0"
        )
    return EdgeCost(_seconds(values.get("latency", default.latency)), bandwidth, cpu)
