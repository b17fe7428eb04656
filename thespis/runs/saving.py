"""Turns a staging directory with the roles' states into a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from thespis.core.finite_weights import check_finite_weights
from thespis.core.program import Program
from thespis.runs.checkpoints import Checkpoints, carry_over, load_values, policy_weights, saved, weights_sha256
from thespis.runs.monitor import count_lost


class ReportedItems(NamedTuple):
    """How many items a role has reported under the name of its insert counter."""

    counter: str
    items: int


class Committed(NamedTuple):
    """A checkpoint on disk."""

    path: Path
    weights_sha256: str | None
    note: str | None
    """A note for the user, if a process could not save."""


def write_checkpoint(
    checkpoints: Checkpoints,
    program: Program,
    staging: Path,
    meta: dict[str, Any],
    received: Mapping[tuple[str, int], ReportedItems],
    absent: Sequence[str] = (),
) -> Committed:
    """Commit `staging`; removes it also when this raises. Reads and digests all of its bytes.

    `received`: the reported items of each role with an insert counter, when `meta` was taken.
    `absent`: processes that could not save; their last saved state is used instead.
    Changes nothing but `checkpoints` and `meta`, so it may run in a thread outside the event loop.
    """
    try:
        carried, note = _carry_over(checkpoints, program, staging, absent) if absent else ({}, None)
        not_saved = {spec.key for process in absent for spec in program.processes[process]}
        _match_counters(meta["monitor"]["counters"], staging, received, not_saved)
        holders = program.weight_holders
        lost = [f"{role} {index}" for role, index in holders if not saved(staging, role, index)]
        if absent and lost and (not program.replicated or len(lost) == len(holders)):
            raise RuntimeError(f"{', '.join(lost)} did not save, and no earlier checkpoint holds its state")
        weights = policy_weights(staging, holders)
        check_finite_weights(weights or {}, " and ".join(f"{role} {index}" for role, index in holders))
        digest = weights_sha256(weights) if weights else None
        names = {f"{role} {index}": name for (role, index), name in carried.items()}
        path = checkpoints.commit(staging, {**meta, "carried_over": names})
    except BaseException:
        checkpoints.discard(staging)
        raise
    return Committed(path, digest, note)


def _match_counters(
    counters: dict[str, int],
    staging: Path,
    received: Mapping[tuple[str, int], ReportedItems],
    absent: Set[tuple[str, int]],
) -> None:
    """Set the insert counters to the items that the saved roles hold.

    A role continues to insert and to report after its state is copied. A resumed run does not have these items, so
    they do not count. Items that an absent role held after its last saved state are lost. Items of a role that saved,
    died and was restarted from an older state while others saved are not lost, because this checkpoint has them.
    """
    for key, (counter, items) in received.items():
        beyond = items - inserted_items(load_values(staging, *key), counter)
        if beyond > 0 and key not in absent:
            counters[counter] -= beyond
        else:
            count_lost(counters, counter, beyond)


def inserted_items(values: Mapping[str, Any], counter: str) -> int:
    """The value of an insert counter in the saved `values` of its role."""
    return int(values.get(counter.rpartition("/")[2], 0))


def _carry_over(
    checkpoints: Checkpoints, program: Program, staging: Path, absent: Sequence[str]
) -> tuple[dict[tuple[str, int], str], str]:
    """Copy the last saved state of absent processes; returns the checkpoint's name by role, and a note."""
    earlier = checkpoints.newest_valid().path
    carried = {
        spec.key: earlier.name
        for process in absent
        for spec in program.processes[process]
        if earlier is not None and carry_over(earlier, staging, *spec.key)
    }
    who = ", ".join(absent)
    if earlier is None or not carried:
        return carried, f"{who} did not save; the checkpoint holds no state of it"
    return carried, f"{who} did not save; the checkpoint holds its state as of {earlier.name}"
