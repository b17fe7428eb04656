"""Explains in words what limits the speed of an architecture, from how its roles spend their time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thespis.core.system.cores import available_cores
from thespis.report.results import Entry
from thespis.report.statistics import Estimate, quantile
from thespis.runs.terminal.formatting import format_number

_BUSY = 0.7
"""A role that works at least this share of the time is the bottleneck."""
_FULL = 0.85
"""The machine is full if a run uses at least this share of all cores."""


def explain_bottleneck(entry: Entry, threshold: float | None) -> Entry:
    """Return the entry with its `limit` paragraph."""
    if not entry.runs:
        return replace(entry, limit="No run finished, so its speed is unknown.")
    sentences = [_bottleneck(entry), _machine(entry), _reuse(entry), _lag(entry), _traffic(entry)]
    return replace(entry, limit=" ".join([*filter(None, sentences), _reached(entry, threshold)]))


def _bottleneck(entry: Entry) -> str:
    """Name the busiest role, and the roles that waited."""
    workers = {
        role: share for role, share in entry.training_roles.items() if _busy(share) > 0.01 or share["wait_share"] > 0.01
    }
    if not workers:
        return ""
    busiest = max(workers, key=lambda role: _busy(workers[role]))
    share = workers[busiest]
    waits = [
        _waiting(role, workers[role]) for role in workers if role != busiest and workers[role]["wait_share"] >= 0.1
    ]
    others = f" while {' and '.join(waits)}" if waits else ""
    if _busy(share) >= _BUSY:
        return f"The {busiest} was the bottleneck: it worked {_busy(share):.0%} of the time ({_kinds(share)}){others}."
    if share["wait_share"] >= 0.3:
        return (
            f"Its roles waited for each other: even the busiest, the {busiest}, worked only {_busy(share):.0%} of the "
            f"time ({_kinds(share)}) and waited {share['wait_share']:.0%}{_mostly(share)}{',' * bool(others)}{others}."
        )
    rest = max(0.0, 1.0 - _busy(share) - share["wait_share"])
    return (
        f"The {busiest} was the busiest: it worked {_busy(share):.0%} of the time ({_kinds(share)}), and another "
        f"{rest:.0%} went into messages and into waiting for a core{',' * bool(others)}{others}."
    )


def _busy(share: dict[str, Any]) -> float:
    return float(min(1.0, sum(share["busy"].values())))


def _kinds(share: dict[str, Any]) -> str:
    kinds = sorted(share["busy"].items(), key=lambda each: -each[1])[:3]
    return ", ".join(f"{kind.replace('_', ' ')} {part:.0%}" for kind, part in kinds)


def _waiting(role: str, share: dict[str, Any]) -> str:
    many = share["count"] > 1
    whose = f"{role}s" if many else role
    return f"the {whose} waited {share['wait_share']:.0%} of {'their' if many else 'its'} time{_mostly(share)}"


def _mostly(share: dict[str, Any]) -> str:
    waits = share["waits"]
    if not waits:
        return ""
    edge = max(waits, key=lambda name: waits[name])
    return f", mostly for {edge.partition('.')[2]}"


def _machine(entry: Entry) -> str:
    cores = available_cores()
    if entry.cores is None:
        return ""
    full = entry.cores >= _FULL * cores
    # The load of other programs is not measured, so unused cores were not necessarily free.
    verdict = "the machine was full" if full else "the other cores were idle or used by other programs"
    return f"All processes together used {entry.cores:.1f} of {cores} cores, start-up included: {verdict}."


def _reuse(entry: Entry) -> str:
    ratio = entry.samples_per_insert.middle
    if ratio is None or ratio < 1.5:
        return ""
    return f"The learner used each step {ratio:.1f} times, which improves learning per step and costs steps per second."


def _lag(entry: Entry) -> str:
    half, most = (quantile(entry.lag["counts"], share) for share in (0.5, 0.95))
    if half is None or most is None:
        return ""
    if not entry.lag["max"]:
        return "The experience was always from the current weights (lag 0)."
    updates = "update" if half == 1 else "updates"
    return f"Half of the experience was at most {half:g} {updates} old, 95% at most {most:g}."


def _traffic(entry: Entry) -> str:
    total = sum(edge["bytes_per_step"] for edge in entry.edges.values())
    if not total:
        return ""
    edge = max(entry.edges, key=lambda name: float(entry.edges[name]["bytes_per_step"]))
    share = entry.edges[edge]["bytes_per_step"] / total
    return f"It moved {format_number(round(total))} bytes per step, {share:.0%} of them over {edge}."


def _reached(entry: Entry, threshold: float | None) -> str:
    if threshold is None:
        return f"It ended with a return of {format_number(entry.returns.middle)}."
    done, runs = len(entry.seconds_to_threshold.values), len(entry.runs)
    goal = format_number(threshold)
    if not done:
        return f"It did not reach {goal} within the budget; it ended with {format_number(entry.returns.middle)}."
    after = f"after {_range(entry.seconds_to_threshold)} seconds and {_range(entry.steps_to_threshold)} steps"
    return f"It reached {goal} in {done} of {runs} run{'s' if runs > 1 else ''}, {after}."


def _range(values: Estimate) -> str:
    low, high = (format_number(round(end(values.values), 1)) for end in (min, max))
    return low if low == high else f"{low} to {high}"
