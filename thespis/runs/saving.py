"""Turns a staging directory with the roles' states into a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from thespis.core.finite_weights import check_finite_weights
from thespis.core.program import Program
from thespis.runs.checkpoints import Checkpoints, carry_over, policy_weights, saved, weights_sha256


class Committed(NamedTuple):
    """A checkpoint on disk."""

    path: Path
    weights_sha256: str | None
    note: str | None
    """A note for the user, if a process could not save."""


def write_checkpoint(
    checkpoints: Checkpoints, program: Program, staging: Path, meta: dict[str, Any], absent: Sequence[str] = ()
) -> Committed:
    """Commit `staging`; removes it also when this raises. Reads and digests all of its bytes.

    `absent`: processes that could not save; their last saved state is used instead.
    Changes nothing but `checkpoints`, so it may run in a thread outside the event loop.
    """
    try:
        carried, note = _carry_over(checkpoints, program, staging, absent) if absent else ({}, None)
        lost = [f"{role} {index}" for role, index in program.weight_holders if not saved(staging, role, index)]
        if absent and lost:
            raise RuntimeError(f"{', '.join(lost)} did not save, and no earlier checkpoint holds its state")
        weights = policy_weights(staging, program.weight_holders)
        check_finite_weights(weights or {}, "checkpoint")
        digest = weights_sha256(weights) if weights else None
        path = checkpoints.commit(staging, {**meta, "carried_over": carried})
    except BaseException:
        checkpoints.discard(staging)
        raise
    return Committed(path, digest, note)


def _carry_over(
    checkpoints: Checkpoints, program: Program, staging: Path, absent: Sequence[str]
) -> tuple[dict[str, str], str]:
    """Copy the last saved state of absent processes; returns the checkpoint's name by role, and a note."""
    earlier = checkpoints.newest_valid().path
    carried = {
        f"{spec}": earlier.name
        for process in absent
        for spec in program.processes[process]
        if earlier is not None and carry_over(earlier, staging, *spec.key)
    }
    before = f"as of {earlier.name}" if earlier is not None and carried else "not at all"
    return carried, f"{', '.join(absent)} did not save; the checkpoint holds its state {before}"
