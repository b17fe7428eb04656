"""Demonstrations: a replay that is full before anybody samples from it, and stays as it is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from thespis.core.errors import ThespisError
from thespis.core.program import Edge
from thespis.core.service import Method, RoleDescription
from thespis.core.types import Array, Drawn, Stream, Unroll
from thespis.experience.limiters import SamplesPerInsert
from thespis.roles.table import ReplayTable


class Demonstrations(ReplayTable):
    """Nobody inserts and nothing is overwritten; only priorities change.

    A checkpoint holds the priorities alone: each life of it reads the episodes again, from where the first did.
    """

    description: ClassVar = RoleDescription(
        methods={
            "sample": Method("experience", gives="batch"),
            "prioritise": Method("experience", takes="priorities"),
        },
        metrics="demonstrations",
    )
    LIMITER: ClassVar = SamplesPerInsert(1.0, 1, math.inf)  # whoever samples never waits

    @staticmethod
    def refuse(name: str, settings: Mapping[str, Any], incoming: Sequence[Edge]) -> None:
        """Nobody can wait for ever here."""

    def fill(self, episodes: Iterable[Iterable[Unroll]]) -> None:
        """Put in whole episodes, each in unrolls that follow each other."""
        me = self._ctx.identity
        for number, unrolls in enumerate(episodes):
            for unroll in unrolls:
                self._write(Stream((me.role, me.index), number), unroll)
        self._streams.clear()

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays = {f"sampler/{name}": column for name, column in self._sampler.state().items()}
        return arrays, {"written": self._steps.written, "sampled": self._sampled}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        if values["written"] != self._steps.written:
            raise ThespisError(
                f"the demonstrations are others than when the run was saved ({self._steps.written} rows, not "
                f"{values['written']}); put back those that it began with"
            )
        self._sampler.remove(np.arange(self._steps.capacity))  # it is empty where a sampler is restored
        self._sampler.restore({name.partition("/")[2]: column for name, column in arrays.items()})
        self._sampled = values["sampled"]

    def _draw(self, items: int) -> Drawn:
        drawn = super()._draw(items)
        drawn.taken = 0  # nobody took these steps in this run
        return drawn
