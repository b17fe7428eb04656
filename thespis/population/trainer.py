"""Trainer: trains members of a population, one interval at a time, by resuming ordinary runs."""

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
from thespis.population.member_runs import MemberRuns, dropped, episodes_since, reached
from thespis.runtime.session import Session
from thespis.training.launch import launch
from thespis.training.trained_run import RunFailed


@dataclass(frozen=True)
class Segment:
    """A piece of training: continue a member's run from `since` until it has taken `until` steps."""

    member: int
    run: str
    hypers: Hypers
    since: Reached
    until: int


@dataclass(frozen=True)
class Outcome:
    """The result of a segment. `error`: the reason if the run ended early."""

    member: int
    run: str
    since: Reached
    reached: Reached
    episodes: list[Episode] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    error: str | None = None


class Trainer:
    """Takes a segment, trains it, and reports the outcome. A restarted trainer continues from the last checkpoint."""

    description: ClassVar = RoleDescription(lost="partial_segments")

    def __init__(
        self,
        ctx: Context,
        members: MemberRuns,
        take: Take[Segment],
        ready: Ready[Outcome],
    ) -> None:
        if not members.root.parent.is_dir():
            raise ThespisError(
                f"{ctx.identity} cannot access {members.root.parent}; give --run-dir a path that all nodes share"
            )
        self._ctx, self._members, self._take, self._ready = ctx, members, take, ready

    async def run(self) -> None:
        """Train segments until the controller stops giving them."""
        while True:
            segment = await self._take(self._ctx.identity.index)
            outcome = await self._ctx.run_job("train", Training(self._members, segment))
            if outcome is not None:
                await self._ready(outcome)


class Training:
    """A blocking job that runs one segment, from the run's start or newest checkpoint to the segment's end."""

    def __init__(self, members: MemberRuns, segment: Segment) -> None:
        self._members, self._segment = members, segment
        self._session: Session | None = None
        self._stopped = threading.Event()
        self.seconds = 0.0

    def stop(self) -> None:
        """Interrupt the run from another thread."""
        self._stopped.set()
        if self._session is not None:
            self._session.end("interrupted")

    def run(self) -> Outcome | None:
        """Run the segment. Returns None if it was stopped; a checkpoint then holds its progress."""
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
        lost = {name: count - dropped(start).get(name, 0) for name, count in dropped(end).items()}
        episodes = episodes_since(end, todo.since.episodes) if end is not None else []
        return Outcome(todo.member, todo.run, todo.since, now, [] if error else episodes, lost, error)

    def _train(self, resuming: bool) -> str | None:
        """Launch the run; returns its error, or None."""
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
            return str(refusal)  # weights became non-finite; other hyper-parameters may work
        return None

    def _began(self, session: Session) -> None:
        self._session = session
        if self._stopped.is_set():
            session.end("interrupted")
