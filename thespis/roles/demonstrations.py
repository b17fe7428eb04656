"""Demonstrations: a replay that is filled once, before the run starts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from thespis.core.errors import ThespisError
from thespis.core.program import Edge
from thespis.core.service import Method, RoleDescription
from thespis.core.types import Array, ReplaySample, Stream, Unroll
from thespis.experience.limiters import SamplesPerInsert
from thespis.roles.replay import Replay


class Demonstrations(Replay):
    """A replay without inserts: nothing is overwritten, and only priorities change.

    A checkpoint holds only the priorities. Each incarnation reads the episodes again from the same source.
    """

    description: ClassVar = RoleDescription(
        methods={
            "sample": Method("experience", gives="batch"),
            "prioritise": Method("experience", takes="priorities"),
        },
        metrics="demonstrations",
    )
    LIMITER: ClassVar = SamplesPerInsert(1.0, 1, math.inf)  # sampling never waits

    @staticmethod
    def validate(name: str, settings: Mapping[str, Any], incoming: Sequence[Edge]) -> None:
        """Accept all settings: sampling never waits."""

    def fill(self, episodes: Iterable[Iterable[Unroll]]) -> None:
        """Write whole episodes, each as consecutive unrolls."""
        me = self._ctx.identity
        for number, unrolls in enumerate(episodes):
            for unroll in unrolls:
                self._write(Stream((me.role, me.index), number), unroll)
        self._streams.clear()

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Priorities and counts; the episodes are not part of a checkpoint."""
        arrays = {f"sampler/{name}": column for name, column in self._sampler.state().items()}
        return arrays, {"written": self._steps.written, "sampled": self._sampled}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        """Load what `state` returned; the episodes must be the same as at the save."""
        if values["written"] != self._steps.written:
            raise ThespisError(
                f"the demonstrations changed since the run was saved ({self._steps.written} rows now, "
                f"{values['written']} then); restore the original ones"
            )
        self._sampler.remove(np.arange(self._steps.capacity))  # `restore` expects an empty sampler
        self._sampler.restore({name.partition("/")[2]: column for name, column in arrays.items()})
        self._sampled = values["sampled"]

    def _draw(self, items: int) -> ReplaySample:
        drawn = super()._draw(items)
        drawn.env_steps_at_sample = 0  # these steps are not steps of this run
        return drawn
