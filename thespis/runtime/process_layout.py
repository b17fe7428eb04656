"""The processes of a program, their neighbours, and their start commands."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Collection
from pathlib import Path

import cloudpickle

from thespis.core.context import Identity
from thespis.core.program import Program, RoleSpec
from thespis.core.service import description_of
from thespis.runtime.role_process import StartCommand
from thespis.runtime.session import Session

_REPORT_SECONDS = 0.05
"""Minimum interval between two reports of a process. The supervisor stops a run on the basis of reports."""
_MAX_REPORTS = 100
"""Maximum reports per second of all processes. More would take most of the time of a hundred actors on a few cores."""


class ProcessLayout:
    """The processes of a program, by name."""

    def __init__(self, program: Program, session: Session) -> None:
        self._program, self._session = program, session
        self._processes = {spec.key: spec.process for spec in program.roles}
        self._pairs = {
            (spec.process, self._processes[edge.service, edge.index]) for spec in program.roles for edge in spec.edges
        }
        self.stateful = [
            process
            for process, specs in program.processes.items()
            if any(spec.kind is None or hasattr(spec.kind, "state") for spec in specs)
        ]
        """Processes that take part in checkpoints."""
        self.weight_holders = {self._processes[key] for key in program.weight_holders}
        """Processes that hold weights."""
        self.replicated = program.replicated
        """Whether each of them holds all weights."""

    def neighbours(self, process: str) -> list[str]:
        """Return the processes that this one calls or is called by."""
        return [
            other
            for other in self._program.processes
            if other != process and ((process, other) in self._pairs or (other, process) in self._pairs)
        ]

    def has_weights(self, absent: Collection[str]) -> bool:
        """Return whether the weights are complete without the processes `absent`."""
        missing = self.weight_holders.intersection(absent)
        return not missing or (self.replicated and missing != self.weight_holders)

    def start(self, process: str, restarts: int, restore: Path | None) -> StartCommand:
        """Build the start command of a process."""
        specs = self._program.processes[process]
        return StartCommand(
            path=[path or str(Path.cwd()) for path in sys.path],
            roles=cloudpickle.dumps(specs),
            identities=[self._identity(spec, restarts) for spec in specs],
            processes=self._processes,
            forwarders=frozenset(spec.key for spec in self._program.roles if self._forwards(spec)),
            retained=self._program.retained,
            restore=restore,
            report_seconds=max(_REPORT_SECONDS, len(self._processes) / _MAX_REPORTS),
        )

    def _forwards(self, spec: RoleSpec) -> bool:
        """Return whether a service forwards opaque payloads. Callers in its own process pass plain objects."""
        callers = (caller.process for caller, _ in self._program.incoming(*spec.key))
        return description_of(spec.kind).forwards and spec.process not in callers

    def _identity(self, spec: RoleSpec, restarts: int) -> Identity:
        return Identity(
            role=spec.role,
            index=spec.index,
            run_seed=self._session.cfg.seed,
            generation=self._session.generation,
            restarts=restarts,
            epoch=self._session.epoch(spec),
            incarnation=secrets.randbits(62),
        )
