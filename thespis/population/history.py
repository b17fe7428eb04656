"""lineage.jsonl: what became of every member of a population, one line per event, on disk before it takes effect.

    start    a member is drawn from the priors
    ready    it has trained for its interval: the steps it took and what it reached
    copy     it goes on from a copy of another member, with other hyper-parameters
    redraw   it starts over: it failed, and there was nobody to copy

The population is what these lines add up to. It has no other memory, so whatever is killed, nothing can disagree.
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
from thespis.runs.writers import Appender

FILE = "lineage.jsonl"


@dataclass(frozen=True)
class Reached:
    """How far a run has come, by its own counts, which a copy inherits. `seconds` is its clock."""

    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Row:
    """One event. `steps` are the member's own, copied ones not among them; `run` is where it goes on from here."""

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
    reached: Reached = Reached()
    error: str | None = None


@dataclass(frozen=True)
class Member:
    """A member as it stands. `failures`: how often in a row its run ended with an error."""

    run: str
    hypers: Hypers
    steps: int = 0
    updates: int = 0
    score: float | None = None
    reached: Reached = Reached()
    failures: int = 0
    branches: int = 1

    def after(self, row: Row) -> Member:
        if row.event == "ready":
            return replace(
                self,
                steps=row.steps,
                updates=self.updates + row.reached.updates - self.reached.updates,
                score=row.score,
                reached=row.reached,
                failures=self.failures + 1 if row.error else 0,
            )
        # What it scored before says nothing of what it is now.
        return replace(self, run=row.run, hypers=row.after, score=None, reached=row.reached, branches=self.branches + 1)


class Lineage:
    """The lines, and the members that they add up to."""

    def __init__(self, directory: Path) -> None:
        self.rows = read(directory)
        self.members: dict[int, Member] = {}
        for row in self.rows:
            self._fold(row)
        self._path = directory / FILE

    def add(self, rows: Iterable[Row]) -> None:
        """Write all rows in one piece; they count once they are on the disk."""
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

    def _fold(self, row: Row) -> None:
        known = self.members.get(row.member)
        self.members[row.member] = Member(row.run, row.after) if known is None else known.after(row)


def read(directory: Path) -> list[Row]:
    """All whole lines of the file; none if there is no file yet."""
    try:
        text = read_text(directory / FILE)
    except FileNotFoundError:
        return []
    return [_row(json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _data(row: Row) -> dict[str, Any]:
    data = asdict(row)
    data["return"], data["from"] = data.pop("score"), data.pop("parent")
    return data


def _row(data: dict[str, Any]) -> Row:
    reached = Reached(**data.pop("reached"))
    return Row(score=data.pop("return"), parent=data.pop("from"), reached=reached, **data)
