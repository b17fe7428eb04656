"""Trainer: trains the members of a population, each for an interval at a time, as ordinary runs that are resumed."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import ClassVar

from thespis.core.context import Context
from thespis.core.edges import Ready, Take
from thespis.core.errors import ThespisError
from thespis.core.service import RoleDescription
from thespis.core.types import Episode
from thespis.population.exploit import Hypers
from thespis.population.history import Reached
from thespis.population.members import Members, dropped, episodes_since, reached
from thespis.runtime.session import Session
from thespis.training.launch import launch
from thespis.training.run import RunFailed


@dataclass(frozen=True)
class Segment:
    """What a member is to do: go on from `since`, until its run has taken `until` steps."""

    member: int
    run: str
    hypers: Hypers
    since: Reached
    until: int


@dataclass(frozen=True)
class Outcome:
    """What became of a segment. `error`: why the run ended before it was done."""

    member: int
    run: str
    since: Reached
    reached: Reached
    episodes: list[Episode] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    error: str | None = None


class Trainer:
    """Takes a segment, trains it, says what came of it. Killed half way, its next life goes on from the checkpoint."""

    description: ClassVar = RoleDescription(lost="partial_segments")

    def __init__(
        self,
        ctx: Context,
        members: Members,
        take: Take[Segment],
        ready: Ready[Outcome],
    ) -> None:
        if not members.root.parent.is_dir():
            raise ThespisError(
                f"{ctx.identity} does not see {members.root.parent}; give --run-dir a path that all nodes share"
            )
        self._ctx, self._members, self._take, self._ready = ctx, members, take, ready

    async def run(self) -> None:
        while True:
            segment = await self._take(self._ctx.identity.index)
            outcome = await self._ctx.perform("train", Training(self._members, segment))
            if outcome is not None:
                await self._ready(outcome)


class Training:
    """A segment as a job: a whole run, from its start or checkpoint to the segment's end, which blocks meanwhile."""

    def __init__(self, members: Members, segment: Segment) -> None:
        self._members, self._segment = members, segment
        self._session: Session | None = None
        self._stopped = threading.Event()
        self.seconds = 0.0

    def stop(self) -> None:
        self._stopped.set()
        if self._session is not None:
            self._session.end("interrupted")

    def run(self) -> Outcome | None:
        """None if it was stopped; what it had learned by then is in a checkpoint."""
        todo = self._segment
        if self._stopped.is_set():
            return None
        resuming = self._members.begun(todo.run)
        start = self._members.checkpoint(todo.run) if resuming else None
        error = None
        if start is None or reached(start).env_steps < todo.until:
            error = self._train(resuming)
        if self._stopped.is_set():
            return None
        end = self._members.checkpoint(todo.run)
        if end is None and error is None:
            raise ThespisError(f"a member took {todo.until:,} steps without an update; raise --interval")
        now = reached(end) if end is not None else todo.since
        self.seconds = now.seconds - todo.since.seconds
        gone = {name: count - dropped(start).get(name, 0) for name, count in dropped(end).items()}
        episodes = episodes_since(end, todo.since.episodes) if end is not None else []
        return Outcome(todo.member, todo.run, todo.since, now, [] if error else episodes, gone, error)

    def _train(self, resuming: bool) -> str | None:
        """Perform the run; what it died of, if it did."""
        members, todo = self._members, self._segment
        try:
            launch(
                members.name,
                members.config(todo.run, todo.hypers),
                resume=members.path(todo.run) if resuming else None,
                quiet=True,
                until=todo.until,
                began=self._began,
            )
        except RunFailed as failure:
            return str(failure).splitlines()[0]
        except ThespisError as refusal:
            if self._session is None or not self._session.monitor.updates:
                raise
            return str(refusal)  # it learned until its weights were no longer finite: others may do better
        return None

    def _began(self, session: Session) -> None:
        self._session = session
        if self._stopped.is_set():
            session.end("interrupted")
