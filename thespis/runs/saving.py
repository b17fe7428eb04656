"""Makes a checkpoint of a staging directory that the roles of a run have written their states into."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from thespis.core.finite import check_finite
from thespis.core.program import Program
from thespis.runs.checkpoints import Checkpoints, carry_over, policy_weights, saved, weights_sha256


class Committed(NamedTuple):
    """A checkpoint on the disk."""

    path: Path
    weights_sha256: str | None
    note: str | None
    """What the user has to know about it: some process could not save."""


def write_checkpoint(
    checkpoints: Checkpoints, program: Program, staging: Path, meta: dict[str, Any], absent: Sequence[str] = ()
) -> Committed:
    """Commit `staging`; it is gone afterwards, also when this raises. Reads and digests all of its bytes.

    `absent`: processes that could not save; their last saved state stands in for them.
    Changes nothing but `checkpoints`, so a thread may run it beside an event loop.
    """
    try:
        carried, note = _carry_over(checkpoints, program, staging, absent) if absent else ({}, None)
        lost = [f"{role} {index}" for role, index in program.weight_holders if not saved(staging, role, index)]
        if absent and lost:
            raise RuntimeError(f"{', '.join(lost)} could not be asked, and has saved nothing before")
        weights = policy_weights(staging, program.weight_holders)
        check_finite(weights or {}, "checkpoint")
        digest = weights_sha256(weights) if weights else None
        path = checkpoints.commit(staging, {**meta, "carried_over": carried})
    except BaseException:
        checkpoints.discard(staging)
        raise
    return Committed(path, digest, note)


def _carry_over(
    checkpoints: Checkpoints, program: Program, staging: Path, absent: Sequence[str]
) -> tuple[dict[str, str], str]:
    """Take the last saved state of processes that could not save; from which checkpoint, by role, and in a line."""
    earlier = checkpoints.newest_valid().path
    carried = {
        f"{spec}": earlier.name
        for home in absent
        for spec in program.processes[home]
        if earlier is not None and carry_over(earlier, staging, *spec.key)
    }
    before = f"as of {earlier.name}" if earlier is not None and carried else "without a state"
    return carried, f"{', '.join(absent)} could not be asked for the checkpoint, which holds it {before}"
