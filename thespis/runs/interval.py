"""Interval: the sums of all roles' reports between two rows of metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from thespis.core.context import Report, Stat


@dataclass
class _Load:
    """Seconds covered by one role's reports, its work by kind, and its waits by edge."""

    seconds: float = 0.0
    busy: dict[str, float] = field(default_factory=dict)
    waited: dict[str, float] = field(default_factory=dict)


@dataclass
class RoleTotal:
    """Sums of all reports of a role's indices, over the whole run."""

    count: int = 0
    seconds: float = 0.0
    busy: dict[str, float] = field(default_factory=dict)
    waited: dict[str, float] = field(default_factory=dict)

    def add(self, report: Report) -> None:
        """Add one report."""
        self.count = max(self.count, report.index + 1)
        self.seconds += report.seconds
        add_up(self.busy, report.busy)
        add_up(self.waited, {edge: traffic.waited for edge, traffic in report.edges.items()})

    def shares(self) -> dict[str, Any]:
        """Shares of the role's time: work by kind, and waits by edge."""
        seconds = self.seconds or 1.0
        return {
            "count": self.count,
            "busy": {kind: spent / seconds for kind, spent in self.busy.items()},
            # A role that prefetches waits on several edges at once, so the sum can exceed its time.
            "wait_share": min(1.0, sum(self.waited.values()) / seconds),
            "waits": {edge: spent / seconds for edge, spent in self.waited.items() if spent > 0.0},
        }


@dataclass(frozen=True)
class RoleShare:
    """A role's use of time, averaged over its `count` indices; `busy` by kind, `waits_on` the costliest edge."""

    count: int
    busy: dict[str, float]
    wait: float
    waits_on: str | None


class Interval:
    """Sums of reports since `start`; a role's shares are of the seconds its own reports cover."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.env_steps = 0
        self.stats: dict[str, Stat] = {}
        self.bytes: dict[str, int] = {}
        self._loads: dict[str, dict[int, _Load]] = {}

    def add(self, report: Report) -> None:
        """Add one report."""
        self.env_steps += report.counters.get("env_steps", 0)
        for name, stat in report.stats.items():
            self.stats.setdefault(name, Stat()).merge(stat)
        load = self._loads.setdefault(report.role, {}).setdefault(report.index, _Load())
        load.seconds += report.seconds
        add_up(load.busy, report.busy)
        for name, traffic in report.edges.items():
            self.bytes[name] = self.bytes.get(name, 0) + traffic.bytes
            load.waited[name] = load.waited.get(name, 0.0) + traffic.waited

    def roles(self) -> dict[str, RoleShare]:
        """Shares by role, in the order of their first reports."""
        return {role: _share(list(loads.values())) for role, loads in self._loads.items()}


def _share(loads: list[_Load]) -> RoleShare:
    busy: dict[str, float] = {}
    edges: dict[str, float] = {}
    wait = 0.0
    for load in loads:
        if load.seconds <= 0.0:
            continue
        add_up(busy, {kind: seconds / load.seconds for kind, seconds in load.busy.items()})
        add_up(edges, load.waited)
        # A role that prefetches waits on several edges at once, so the sum can exceed its time.
        wait += min(1.0, sum(load.waited.values()) / load.seconds)
    count = len(loads)
    costliest = max(edges, key=lambda edge: edges[edge], default=None)
    return RoleShare(
        count=count,
        busy={kind: share / count for kind, share in busy.items()},
        wait=wait / count,
        waits_on=costliest if costliest is not None and edges[costliest] > 0.0 else None,
    )


def add_up(into: dict[str, float], more: dict[str, float]) -> None:
    """Add `more` to `into`, key by key."""
    for key, value in more.items():
        into[key] = into.get(key, 0.0) + value
