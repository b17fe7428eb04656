"""Who lives where in a program: its processes, their neighbours, and what each is given when it starts."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import cloudpickle

from thespis.core.context import Identity
from thespis.core.program import Program, RoleSpec
from thespis.core.service import describe
from thespis.runtime.host import Start
from thespis.runtime.session import Session

_REPORT_SECONDS = 0.05
"""How stale the numbers of a process may be: from them it is decided when to stop."""
_MOST_REPORTS = 100
"""Reports a second from all processes together: with more, a hundred actors would do little else on a few cores."""


class Layout:
    """The processes of a program, by name."""

    def __init__(self, program: Program, session: Session) -> None:
        self._program, self._session = program, session
        self._homes = {spec.key: spec.process for spec in program.roles}
        self._pairs = {
            (spec.process, self._homes[edge.service, edge.index]) for spec in program.roles for edge in spec.edges
        }
        self.stateful = [
            home
            for home, specs in program.processes.items()
            if any(spec.kind is None or hasattr(spec.kind, "state") for spec in specs)
        ]
        """Processes that take part in checkpoints."""
        self.weight_holders = {self._homes[key] for key in program.weight_holders}
        """Processes without which a checkpoint has no weights."""

    def neighbours(self, home: str) -> list[str]:
        """The processes that call this one or that it calls."""
        return [
            other
            for other in self._program.processes
            if other != home and ((home, other) in self._pairs or (other, home) in self._pairs)
        ]

    def start(self, home: str, restarts: int, restore: Path | None) -> Start:
        """What a process that is about to start has to know."""
        specs = self._program.processes[home]
        return Start(
            path=[path or str(Path.cwd()) for path in sys.path],
            roles=cloudpickle.dumps(specs),
            identities=[self._identity(spec, restarts) for spec in specs],
            homes=self._homes,
            forwarders=frozenset(spec.key for spec in self._program.roles if self._forwards(spec)),
            retained=self._program.retained,
            restore=restore,
            report_seconds=max(_REPORT_SECONDS, len(self._homes) / _MOST_REPORTS),
        )

    def _forwards(self, spec: RoleSpec) -> bool:
        """Whether it only passes things on; one of its own process takes them from it as they are."""
        callers = (caller.process for caller, _ in self._program.incoming(*spec.key))
        return describe(spec.kind).forwards and spec.process not in callers

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
