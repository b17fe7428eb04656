"""The checkpoints of a run with several processes.

    event loop:  stage -> send "save" to the processes -> meta -> ............................. -> record, call back
    thread:                                                      carry over, digest, fsync, prune

For a large replay the thread works for seconds. The driver keeps watching its processes meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from thespis.runs.checkpoints import Found
from thespis.runs.saving import write_checkpoint
from thespis.runtime.managed_process import ProcessExited
from thespis.runtime.process_layout import ProcessLayout
from thespis.runtime.session import Session

_T = TypeVar("_T")
SAVE_SECONDS = 120.0
"""Time limit for saving the state of a process; a large replay has gigabytes."""


class Checkpointer:
    """Writes the checkpoints of a run, one at a time, and finds the checkpoint for a restarted process.

    One thread reads and changes checkpoints, in order, so no checkpoint is pruned while it is verified.
    """

    def __init__(
        self,
        session: Session,
        layout: ProcessLayout,
        send_command: Callable[..., Coroutine[Any, Any, Any]],
        up: Callable[[], list[str]],
        now: Callable[[], float],
    ) -> None:
        """`send_command(process, kind, *args)`: send a command. `up()`: the processes that accept commands."""
        self._session, self._layout = session, layout
        self._send_command, self._up, self._now = send_command, up, now
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._saving: asyncio.Task[bool] | None = None

    def absent(self) -> list[str]:
        """Return the processes with state that accept no commands now."""
        up = self._up()
        return [process for process in self._layout.stateful if process not in up]

    def save_if_due(self, now: float) -> None:
        """Start a checkpoint if one is due, none is being written, and all processes with weights are up."""
        if self._saving is not None and not self._saving.done():
            return
        absent = self.absent()
        if self._layout.has_weights(absent) and self._session.save_due(now, incomplete=bool(absent)):
            self._saving = asyncio.get_running_loop().create_task(self.save())

    async def settle(self, *, hasty: bool) -> None:
        """Wait for the current checkpoint. `hasty`: cancel it, unless all processes have saved already."""
        if self._saving is not None:
            if hasty:
                self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)

    async def save(self, seconds: float = SAVE_SECONDS) -> bool:
        """Save the state of all roles to a staging directory and commit it as a checkpoint.

        A process that is down, exits meanwhile or does not reply in time contributes its last saved state.
        """
        staging: Path | None = None
        try:
            staging = self._session.checkpoints.stage()
            absent = await self._save_all(staging, seconds)
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
            await asyncio.wait({committing})  # a thread cannot be cancelled, and checkpoints are written in order
            raise

    async def reserve_newest(self, process: str) -> Found:
        """Find the newest valid checkpoint and keep it until the process is up."""
        return await self._in_thread(self._session.checkpoints.reserve_newest, process)

    async def close(self) -> None:
        """Wait until the thread ends."""
        await asyncio.to_thread(self._thread.shutdown)

    async def _save_all(self, staging: Path, seconds: float) -> list[str]:
        """Save all processes with state; return the processes that could not."""
        absent = self.absent()
        running = [process for process in self._layout.stateful if process not in absent]
        saves = [asyncio.create_task(self._save_one(process, staging, seconds)) for process in running]
        for process, saved in zip(running, await asyncio.gather(*saves, return_exceptions=True), strict=True):
            if isinstance(saved, BaseException):
                raise saved
            if not saved:
                absent.append(process)
        return absent

    async def _save_one(self, process: str, staging: Path, seconds: float) -> bool:
        """Save one process; return False if it exits or is late. Its files are used only after its reply."""
        part = staging / f".{process}"
        part.mkdir()
        try:
            await asyncio.wait_for(self._send_command(process, "save", str(part)), seconds)
        except (ProcessExited, TimeoutError):
            return False
        for file in part.iterdir():
            file.rename(staging / file.name)
        part.rmdir()
        return True

    async def _commit(self, staging: Path, absent: list[str]) -> bool:
        session = self._session
        meta, received = session.meta(self._now()), session.received()
        try:
            committed = await self._in_thread(
                write_checkpoint, session.checkpoints, session.program, staging, meta, received, absent
            )
        except Exception as error:
            session.save_failed(error)
            return False
        session.committed(committed)
        return True

    async def _discard(self, staging: Path | None) -> None:
        if staging is not None:
            await self._in_thread(self._session.checkpoints.discard, staging)

    async def _in_thread(self, function: Callable[..., _T], *args: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)
