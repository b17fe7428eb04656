"""Descriptions of roles: the methods that a role serves, and how restarts and checkpoints treat it.

A role class has one `description`. Runtimes, checkpoints, reports and drawings read it with `description_of`, so none
of them depends on the name of a role.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

EdgeKind = Literal["experience", "weights", "inference", "gradients"]


@dataclass(frozen=True, slots=True)
class Method:
    """A method that other roles call. Its payloads are named as in a figure; requests and counts are not payloads."""

    kind: EdgeKind
    takes: str = ""
    """The payload from the caller to the service."""
    gives: str = ""
    """The payload from the service to the caller."""
    retained: bool = False
    """Whether a caller's last call is sent again after the service restarts. The service must treat a repeated call as
    the same call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleDescription:
    """Describes a role class. The defaults describe a worker that serves no methods and loses nothing in a restart."""

    methods: Mapping[str, Method] = field(default_factory=dict)
    """The methods that are edges, by name."""
    forwards: bool = False
    """The role forwards payloads without reading them, so callers may send opaque payloads."""
    publishes: bool = False
    """The role publishes versions of the weights, so each incarnation gets a new epoch. A checkpoint takes the policy
    from this role, unless the role calls another one that publishes."""
    evaluates: bool = False
    """The role has `evaluate()`, which the runtime calls once more when the run ends. Its time does not count as
    training time."""
    forgets: bool = False
    """The role restarts empty, because the data in its checkpoint has been used since. A resume restores it."""
    lost: str | None = None
    """The name of the data that is lost with an incarnation; each restart adds to the counter dropped/<lost>."""
    intake: str | None = None
    """The counter of data that the role receives. A restart counts data received since the checkpoint as dropped."""
    spends: str | None = None
    """The counter that `--total-steps` limits, if that is not `env_steps`."""
    metrics: str = ""
    """The prefix of the role's metric names, for metrics that several role classes share."""


def description_of(kind: type | None) -> RoleDescription:
    """Return the description of a role class; the default if the class has none or is None."""
    found = getattr(kind, "description", None)
    return found if isinstance(found, RoleDescription) else RoleDescription()
