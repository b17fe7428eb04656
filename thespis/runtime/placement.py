"""Bundles: groups of processes that are placed on one node of a cluster, and their resources."""

from __future__ import annotations

from dataclasses import dataclass

from thespis.core.config import Experiment
from thespis.core.errors import ThespisError
from thespis.core.program import Program


@dataclass(frozen=True, slots=True)
class Bundle:
    """Processes that are placed on one node, and the resources they need."""

    processes: tuple[str, ...]
    cpus: float
    gpus: float
    strategy: str

    @property
    def resources(self) -> dict[str, float]:
        """The resources in Ray's terms."""
        return {name: amount for name, amount in (("CPU", self.cpus), ("GPU", self.gpus)) if amount}

    @property
    def demand(self) -> str:
        """The resources as a sentence, for an error message."""
        resources = f"{self.cpus:g} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")
        return f"{', '.join(self.processes)} ask{'s' if len(self.processes) == 1 else ''} for {resources} on one node"


def bundles(program: Program, cfg: Experiment) -> list[Bundle]:
    """Group colocated roles; place each other role alone, and spread roles that count as actors.

    With `--actors-per-node`, that many actors and their colocated roles form a bundle on a separate node.
    """
    groups: dict[str, list[str]] = {}
    for process, specs in program.processes.items():
        colocate = next((spec.colocate for spec in specs if spec.colocate is not None), None)
        groups.setdefault(process if colocate is None else f"colocated {colocate}", []).append(process)
    bundled: dict[tuple[str, str], list[str]] = {}
    actors = 0
    for group, processes in groups.items():
        acting = any(spec.counts_as_actor for process in processes for spec in program.processes[process])
        if acting and cfg.actors_per_node is not None:
            key = "STRICT_SPREAD", f"actors {actors // cfg.actors_per_node}"
        else:
            key = "SPREAD" if acting or len(processes) == 1 else "PACK", group
        actors += acting
        bundled.setdefault(key, []).extend(processes)
    if cfg.actors_per_node is not None and not actors:
        raise ThespisError(f"{program.name} does not say which of its roles are actors; leave off --actors-per-node")
    needs = {
        process: (max(spec.cpus for spec in specs), max(spec.gpus for spec in specs))
        for process, specs in program.processes.items()
    }
    return [
        Bundle(
            tuple(processes),
            sum(needs[process][0] for process in processes),
            sum(needs[process][1] for process in processes),
            strategy,
        )
        for (strategy, _), processes in bundled.items()
    ]
