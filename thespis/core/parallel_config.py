"""The settings of model parallelism: how each learner's network is divided over processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thespis.core.errors import ThespisError
from thespis.core.number_parsing import parse_int

_MOST = 64


@dataclass(frozen=True)
class ParallelConfig:
    """Division of each learner's network over several processes."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("parallel",)

    parallel: str = "none"
    """Divide the network of each learner over several processes: tensor=N divides its matrices into N parts,
    pipeline=2 puts its last layers into a second process, none divides nothing. This is for large networks; small ones
    become slower."""

    def __post_init__(self) -> None:
        if self.processes > _MOST:
            raise ThespisError(f"--parallel {self.parallel} divides too often; give at most tensor={_MOST}")

    @property
    def divides(self) -> bool:
        """Whether a learner has more than one process."""
        return self.processes > 1

    @property
    def processes(self) -> int:
        """The number of processes of each learner."""
        if self.parallel == "none":
            return 1
        kind, _, number = self.parallel.partition("=")
        try:
            count = parse_int(number)
        except ValueError:
            count = 0
        if not (kind == "tensor" and count >= 2) and not (kind == "pipeline" and count == 2):
            raise ThespisError(f"--parallel is {self.parallel!r}; give none, tensor=2 (or more than 2), or pipeline=2")
        return count

    @property
    def pipeline(self) -> bool:
        """Whether the network is cut into stages, rather than every matrix into parts."""
        return self.parallel.startswith("pipeline")
