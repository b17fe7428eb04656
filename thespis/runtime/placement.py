"""Which processes of a program go to one node of a cluster together, and what they need there."""

from __future__ import annotations

from dataclasses import dataclass

from thespis.core.config import Experiment
from thespis.core.errors import ThespisError
from thespis.core.program import Program


@dataclass(frozen=True, slots=True)
class Bundle:
    """Processes that are put on one node together, and what they need there."""

    homes: tuple[str, ...]
    cpus: float
    gpus: float
    strategy: str

    @property
    def resources(self) -> dict[str, float]:
        return {name: amount for name, amount in (("CPU", self.cpus), ("GPU", self.gpus)) if amount}

    @property
    def demand(self) -> str:
        what = f"{self.cpus:g} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")
        return f"{', '.join(self.homes)} ask{'s' if len(self.homes) == 1 else ''} for {what} on one node"


def bundles(program: Program, cfg: Experiment) -> list[Bundle]:
    """Colocated roles go together, each other role goes alone, and roles that count as actors are spread.

    With `--actors-per-node` so many actors go together, with the roles colocated with each, on a node of their own.
    """
    cells: dict[str, list[str]] = {}
    for home, specs in program.processes.items():
        colocate = next((spec.colocate for spec in specs if spec.colocate is not None), None)
        cells.setdefault(home if colocate is None else f"together {colocate}", []).append(home)
    together: dict[tuple[str, str], list[str]] = {}
    actors = 0
    for cell, homes in cells.items():
        acting = any(spec.counts_as_actor for home in homes for spec in program.processes[home])
        if acting and cfg.actors_per_node is not None:
            key = "STRICT_SPREAD", f"actors {actors // cfg.actors_per_node}"
        else:
            key = "SPREAD" if acting or len(homes) == 1 else "PACK", cell
        actors += acting
        together.setdefault(key, []).extend(homes)
    if cfg.actors_per_node is not None and not actors:
        raise ThespisError(f"{program.name} does not say which of its roles are actors; leave off --actors-per-node")
    needs = {
        home: (max(spec.cpus for spec in specs), max(spec.gpus for spec in specs))
        for home, specs in program.processes.items()
    }
    return [
        Bundle(tuple(homes), sum(needs[home][0] for home in homes), sum(needs[home][1] for home in homes), strategy)
        for (strategy, _), homes in together.items()
    ]
