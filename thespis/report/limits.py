"""What kept an architecture from being faster, said from what its roles did with their time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thespis.core.system.cores import available_cores
from thespis.report.collect import Entry
from thespis.report.statistics import Estimate, quantile
from thespis.runs.figures import number

_BUSY = 0.7
"""From this share of its time at work on, a role is the one that the others wait for."""
_FULL = 0.85
"""From this share of all cores on, more processes would only take from each other."""


def limit(entry: Entry, threshold: float | None) -> Entry:
    """The entry with its paragraph."""
    if not entry.runs:
        return replace(entry, limit="No run came to its end, so there is nothing to say of its speed.")
    sentences = [_bottleneck(entry), _machine(entry), _reuse(entry), _lag(entry), _traffic(entry)]
    return replace(entry, limit=" ".join([*filter(None, sentences), _reached(entry, threshold)]))


def _bottleneck(entry: Entry) -> str:
    """Who worked while the others waited."""
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
        return f"The {busiest} was the limit: it worked {_busy(share):.0%} of the time ({_kinds(share)}){others}."
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
    # What else runs on the machine is not measured, so cores that were not used here need not have been free.
    verdict = "the machine was full" if full else "the rest was idle or taken by something else"
    return f"All processes together used {entry.cores:.1f} of {cores} cores, start-up included: {verdict}."


def _reuse(entry: Entry) -> str:
    ratio = entry.samples_per_insert.middle
    if ratio is None or ratio < 1.5:
        return ""
    return f"Each step was learned from {ratio:.1f} times, which buys learning per step with steps per second."


def _lag(entry: Entry) -> str:
    half, most = (quantile(entry.lag["counts"], share) for share in (0.5, 0.95))
    if half is None or most is None:
        return ""
    if not entry.lag["max"]:
        return "What it learned from was never older than the weights it changed."
    updates = "update" if half == 1 else "updates"
    return f"Half of what it learned from was at most {half:g} {updates} old, 95% at most {most:g}."


def _traffic(entry: Entry) -> str:
    total = sum(edge["bytes_per_step"] for edge in entry.edges.values())
    if not total:
        return ""
    edge = max(entry.edges, key=lambda name: float(entry.edges[name]["bytes_per_step"]))
    share = entry.edges[edge]["bytes_per_step"] / total
    return f"It moved {number(round(total))} bytes per step, {share:.0%} of them over {edge}."


def _reached(entry: Entry, threshold: float | None) -> str:
    if threshold is None:
        return f"It ended with a return of {number(entry.returns.middle)}."
    done, runs = len(entry.seconds_to_threshold.values), len(entry.runs)
    goal = number(threshold)
    if not done:
        return f"It did not reach {goal} within the budget; it ended with {number(entry.returns.middle)}."
    after = f"after {_range(entry.seconds_to_threshold)} seconds and {_range(entry.steps_to_threshold)} steps"
    return f"It reached {goal} in {done} of {runs} run{'s' if runs > 1 else ''}, {after}."


def _range(values: Estimate) -> str:
    low, high = (number(round(end(values.values), 1)) for end in (min, max))
    return low if low == high else f"{low} to {high}"
