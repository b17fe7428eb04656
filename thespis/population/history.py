"""lineage.jsonl: the history of a population, one line per event, on disk before the event takes effect.

    start    a member's hyper-parameters are sampled from the priors
    ready    the member has trained for its interval: steps and progress
    copy     the member continues from a copy of another member, with other hyper-parameters
    redraw   the member failed and no member could be copied, so it starts over

The population's state is the fold of these lines. There is no other state, so a crash cannot make them disagree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from thespis.core.system.commit import to_json
from thespis.core.system.files import read_text
from thespis.population.exploit import Hypers
from thespis.runs.metrics_writer import Appender

HISTORY_FILE = "lineage.jsonl"


@dataclass(frozen=True)
class Reached:
    """The progress of a run, by its own counters, which a copy inherits. `seconds` is the run's clock."""

    env_steps: int
    updates: int
    episodes: int
    seconds: float


_UNTRAINED = Reached(0, 0, 0, 0.0)


@dataclass(frozen=True)
class HistoryRow:
    """One event. `steps`: steps that the member took itself, without copied ones. `run`: its run from now on."""

    event: str
    time: float
    member: int
    run: str
    steps: int = 0
    score: float | None = None
    parent: int | None = None
    checkpoint: str | None = None
    before: Hypers | None = None
    after: Hypers = field(default_factory=dict)
    reached: Reached = _UNTRAINED
    error: str | None = None


@dataclass(frozen=True)
class MemberState:
    """The current state of a member. `failures`: consecutive segments that ended with an error."""

    run: str
    hypers: Hypers
    steps: int = 0
    updates: int = 0
    score: float | None = None
    reached: Reached = _UNTRAINED
    failures: int = 0
    branches: int = 1

    def after(self, row: HistoryRow) -> MemberState:
        """The state after an event."""
        if row.event == "ready":
            return replace(
                self,
                steps=row.steps,
                updates=self.updates + row.reached.updates - self.reached.updates,
                score=row.score,
                reached=row.reached,
                failures=self.failures + 1 if row.error else 0,
            )
        # The old score does not describe the new weights and hyper-parameters.
        return replace(self, run=row.run, hypers=row.after, score=None, reached=row.reached, branches=self.branches + 1)


class History:
    """All events, and the members' states that result from them."""

    def __init__(self, directory: Path) -> None:
        self.rows = read_history(directory)
        self.members: dict[int, MemberState] = {}
        for row in self.rows:
            self._fold(row)
        self._path = directory / HISTORY_FILE

    def add(self, rows: Iterable[HistoryRow]) -> None:
        """Write all rows in one piece; they take effect once they are on disk."""
        new = list(rows)
        file = Appender(self._path)
        try:
            file.cut_torn_line()
            file.write(b"".join(to_json(_data(row), indent=None) for row in new))
            file.sync()
        finally:
            file.close()
        for row in new:
            self.rows.append(row)
            self._fold(row)

    def _fold(self, row: HistoryRow) -> None:
        known = self.members.get(row.member)
        self.members[row.member] = MemberState(row.run, row.after) if known is None else known.after(row)


def read_history(directory: Path) -> list[HistoryRow]:
    """All complete lines of the file; none if the file does not exist."""
    try:
        text = read_text(directory / HISTORY_FILE)
    except FileNotFoundError:
        return []
    return [_row(json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _data(row: HistoryRow) -> dict[str, Any]:
    data = asdict(row)
    data["return"], data["from"] = data.pop("score"), data.pop("parent")
    return data


def _row(data: dict[str, Any]) -> HistoryRow:
    reached = Reached(**data.pop("reached"))
    return HistoryRow(score=data.pop("return"), parent=data.pop("from"), reached=reached, **data)
