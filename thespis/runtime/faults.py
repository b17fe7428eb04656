"""Faults for a simulation, each written as one line of text.

kill actor 3 at 2.5            kill role actor, index 3, at virtual second 2.5
slow actor 0 by 10             all work of actor 0 takes ten times as long
delay learner.queue.sample by 0.5 at 2     the first reply on that edge after second 2 is delayed by 0.5 s
lose actor.queue.insert at 2   the first reply on that edge after second 2 is lost
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from thespis.core.errors import ThespisError
from thespis.core.program import Program

_NUMBER = r"\d+(?:\.\d*)?|\.\d+"
_KILL = re.compile(rf"kill (?P<role>[\w-]+) (?P<index>\d+) at (?P<at>{_NUMBER})")
_SLOW = re.compile(rf"slow (?P<role>[\w-]+) (?P<index>\d+) by (?P<by>{_NUMBER})")
_DELAY = re.compile(rf"delay (?P<edge>[\w.-]+) by (?P<by>{_NUMBER}) at (?P<at>{_NUMBER})")
_LOSE = re.compile(rf"lose (?P<edge>[\w.-]+) at (?P<at>{_NUMBER})")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `lose` and `delay` affect the first reply on `edge` after `at`; `kill` happens at `at`."""

    kind: str
    role: str = ""
    index: int = 0
    edge: str = ""
    at: float = 0.0
    by: float = 1.0


def parse_faults(texts: tuple[str, ...], program: Program) -> list[Fault]:
    """Parse faults and check that their roles and edges exist."""
    return [_parse(text, program) for text in texts]


def _parse(text: str, program: Program) -> Fault:
    for kind, pattern in (("kill", _KILL), ("slow", _SLOW), ("delay", _DELAY), ("lose", _LOSE)):
        match = pattern.fullmatch(text.strip())
        if match:
            fields = match.groupdict()
            fault = Fault(
                kind,
                role=fields.get("role", ""),
                index=int(fields.get("index", 0)),
                edge=fields.get("edge", ""),
                at=float(fields.get("at", 0.0)),
                by=float(fields.get("by", 1.0)),
            )
            _check(fault, program)
            return fault
    raise ThespisError(
        f"fault {text!r} is not understood; write 'kill actor 3 at 2.5', 'slow actor 0 by 10', "
        "'delay learner.queue.sample by 0.5 at 2' or 'lose actor.queue.insert at 2'"
    )


def _check(fault: Fault, program: Program) -> None:
    if fault.edge:
        edges = {edge.name(spec.role) for spec in program.roles for edge in spec.edges}
        if fault.edge not in edges:
            raise ThespisError(f"fault: there is no edge {fault.edge!r}; there are {', '.join(sorted(edges))}")
    elif program.find(fault.role, fault.index) is None:
        raise ThespisError(f"fault: there is no {fault.role} {fault.index} in {program.name}")
