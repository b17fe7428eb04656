"""The checkpoints of a run that several processes perform.

    event loop:  stage -> ask the processes to save -> meta -> ............................. -> record, call back
    thread:                                                   carry over, digest, fsync, prune

For a large replay the work of the thread takes seconds, in which the driver goes on watching its processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from thespis.runs.checkpoints import Found
from thespis.runs.saving import write_checkpoint
from thespis.runtime.layout import Layout
from thespis.runtime.member import Gone
from thespis.runtime.session import Session

T = TypeVar("T")
SAVE_SECONDS = 120.0
"""A replay of gigabytes takes its time."""


class Checkpointer:
    """Makes the checkpoints of a run, one at a time, and finds the one that a process starts again from.

    All that reads or changes checkpoints runs in one thread, in order: no checkpoint is pruned while it is verified.
    """

    def __init__(
        self,
        session: Session,
        layout: Layout,
        ask: Callable[..., Coroutine[Any, Any, Any]],
        up: Callable[[], list[str]],
        now: Callable[[], float],
    ) -> None:
        """`ask(home, kind, *args)`: have a process do something. `up()`: the processes that can be asked."""
        self._session, self._layout = session, layout
        self._ask, self._up, self._now = ask, up, now
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._saving: asyncio.Task[bool] | None = None

    def absent(self) -> list[str]:
        """Processes with a state that cannot be asked for it now."""
        up = self._up()
        return [home for home in self._layout.stateful if home not in up]

    def save_if_due(self, now: float) -> None:
        """Begin a checkpoint if one is due: not beside another one, and not without those that hold the weights."""
        if self._saving is not None and not self._saving.done():
            return
        absent = self.absent()
        if self._layout.weight_holders.isdisjoint(absent) and self._session.save_due(now, incomplete=bool(absent)):
            self._saving = asyncio.get_running_loop().create_task(self.save())

    async def settle(self, *, hasty: bool) -> None:
        """Wait for the checkpoint under way. `hasty`: give it up, unless all processes have saved already."""
        if self._saving is not None:
            if hasty:
                self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)

    async def save(self, seconds: float = SAVE_SECONDS) -> bool:
        """Every role with a state writes it into one staging directory, which then becomes a checkpoint.

        A process that is not running, ends meanwhile or does not answer in time contributes its last saved state.
        """
        staging: Path | None = None
        try:
            staging = self._session.checkpoints.stage()
            absent = await self._ask_to_save(staging, seconds)
        except asyncio.CancelledError:
            await self._discard(staging)
            raise
        except Exception as error:
            await self._discard(staging)
            self._session.save_failed(error)
            return False
        committing = asyncio.create_task(self._commit(staging, absent))
        try:
            return await asyncio.shield(committing)
        except asyncio.CancelledError:
            await asyncio.wait({committing})  # nothing stops a thread, and the next checkpoint must come after this one
            raise

    async def reserve_newest(self, home: str) -> Found:
        """The newest valid checkpoint, kept until the process that reads it is up."""
        return await self._in_thread(self._session.checkpoints.reserve_newest, home)

    async def close(self) -> None:
        """Wait until the thread has ended."""
        await asyncio.to_thread(self._thread.shutdown)

    async def _ask_to_save(self, staging: Path, seconds: float) -> list[str]:
        """Have all processes with a state save it; those that could not."""
        absent = self.absent()
        asked = [home for home in self._layout.stateful if home not in absent]
        saves = [asyncio.create_task(self._save_one(home, staging, seconds)) for home in asked]
        for home, saved in zip(asked, await asyncio.gather(*saves, return_exceptions=True), strict=True):
            if isinstance(saved, BaseException):
                raise saved
            if not saved:
                absent.append(home)
        return absent

    async def _save_one(self, home: str, staging: Path, seconds: float) -> bool:
        """Have a process write its files; False if it is gone or late. They count only once it has answered."""
        part = staging / f".{home}"
        part.mkdir()
        try:
            await asyncio.wait_for(self._ask(home, "save", str(part)), seconds)
        except (Gone, TimeoutError):
            return False
        for file in part.iterdir():
            file.rename(staging / file.name)
        part.rmdir()
        return True

    async def _commit(self, staging: Path, absent: list[str]) -> bool:
        session, meta = self._session, self._session.meta(self._now())
        try:
            committed = await self._in_thread(
                write_checkpoint, session.checkpoints, session.program, staging, meta, absent
            )
        except Exception as error:
            session.save_failed(error)
            return False
        session.committed(committed)
        return True

    async def _discard(self, staging: Path | None) -> None:
        if staging is not None:
            await self._in_thread(self._session.checkpoints.discard, staging)

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)
