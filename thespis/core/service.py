"""What a role says of itself: which methods it serves, and what becomes of it in restarts and checkpoints.

A class of roles has one `description`. Runtimes, checkpoints, reports and pictures read it by `describe`, so that none
of them knows a role by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

EdgeKind = Literal["experience", "weights", "inference", "gradients"]


@dataclass(frozen=True, slots=True)
class Method:
    """A method that other roles call. The payload is named as in a figure; requests for it, and counts, are none."""

    kind: EdgeKind
    takes: str = ""
    """The payload that travels to the service."""
    gives: str = ""
    """The payload that travels back to the caller."""
    retained: bool = False
    """A caller's last call holds until its next one, so it is sent again to a service that was restarted. The service
    must take a repeated call for the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleDescription:
    """One class of roles. The defaults are those of a worker that serves nothing and loses nothing."""

    methods: Mapping[str, Method] = field(default_factory=dict)
    """The methods that are edges, by name."""
    forwards: bool = False
    """It passes payloads on without looking inside, so it can be given them sealed."""
    publishes: bool = False
    """It gives out versions of the weights, so each incarnation gets an epoch of its own. A checkpoint takes the policy
    from it, unless it calls another role that publishes."""
    evaluates: bool = False
    """It has `evaluate()`, which is called once more when the run ends. Its time is no part of training."""
    forgets: bool = False
    """A restarted role starts empty: what a checkpoint holds of it has been used since. A resumed one does not."""
    lost: str | None = None
    """What is lost with an incarnation; each restart is counted as dropped/<lost>."""
    intake: str | None = None
    """The counter of what it takes in. A restart counts as dropped what came in since the checkpoint."""
    spends: str | None = None
    """The counter that `--total-steps` limits, if it is not env_steps."""
    metrics: str = ""
    """The first part of the names of its metrics, where roles of several classes report the same ones."""


def describe(kind: type | None) -> RoleDescription:
    """The description of a class of roles; that of a plain worker if the class has none, or is not known."""
    found = getattr(kind, "description", None)
    return found if isinstance(found, RoleDescription) else RoleDescription()
