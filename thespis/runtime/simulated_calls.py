"""SimulatedCalls: carries the calls of one segment to their services, and repeats the calls that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from thespis.core.program import Program, RoleSpec
from thespis.runtime.endpoint import Answered
from thespis.runtime.simulated_network import SimulatedNetwork
from thespis.runtime.virtual_time import RoleIncarnation, VirtualLoop
from thespis.transport.calls import RemoteCall

_RETRY_SECONDS = 1.0
"""How long a caller waits for a lost reply before it repeats the call."""

Key = tuple[str, int]


class SimulatedCalls:
    """Calls wait until their service is up. An error in a service fails the service, not its caller."""

    def __init__(
        self,
        program: Program,
        loop: VirtualLoop,
        network: SimulatedNetwork,
        incarnations: Mapping[Key, RoleIncarnation],
        failed: Callable[[RoleSpec, Exception], None],
        lossy: bool,
    ) -> None:
        """`incarnations`: the current incarnations. `failed` gets a service's error. `lossy`: faults drop messages."""
        self._loop, self._network, self._incarnations, self._failed = loop, network, incarnations, failed
        self._timeout = _RETRY_SECONDS if lossy else None
        self._processes = {spec.key: spec.process for spec in program.roles}
        self._retained = program.retained
        self._up = {spec.key: asyncio.Event() for spec in program.roles}
        self._last_calls: dict[tuple[Key, Key, str], tuple[RemoteCall, str]] = {}

    def started(self, key: Key) -> None:
        """Deliver the calls that wait for this role."""
        self._up[key].set()

    def stopped(self, key: Key) -> None:
        """Hold back calls to this role."""
        self._up[key].clear()

    def repeat(self, process: str) -> None:
        """Send the last calls of retained methods again, to the roles of a process that was restarted."""
        for call, edge in list(self._last_calls.values()):
            if self._processes[call.service] == process:
                self.deliver(call, edge, lambda *_: None)

    def deliver(self, call: RemoteCall, edge: str, answered: Answered) -> asyncio.Future[Any]:
        """Deliver a call until it is answered: repeat it when the service died or the reply was lost."""
        return self._loop.create_task(self._call_until_answered(call, edge, answered))

    async def _call_until_answered(self, call: RemoteCall, edge: str, answered: Answered) -> Any:
        while True:
            await self._up[call.service].wait()
            caller = self._incarnations.get(call.caller[:2])
            if caller is None or caller.ctx.identity.incarnation != call.caller[2]:
                # The caller died; no role waits for the reply.
                raise asyncio.CancelledError
            attempts = self._incarnations[call.service].attempts
            attempt = self._loop.create_task(self._attempt(call, edge))
            attempts[attempt] = call.caller
            try:
                await asyncio.wait({attempt}, timeout=self._timeout)
            finally:
                attempts.pop(attempt, None)
                if not attempt.done():
                    attempt.cancel()
            if attempt.done() and not attempt.cancelled():
                reply, sizes = attempt.result()
                answered(*sizes)
                if (call.service, call.method) in self._retained:
                    self._last_calls[call.caller[:2], call.service, edge] = (call, edge)
                return reply

    async def _attempt(self, call: RemoteCall, edge: str) -> tuple[Any, tuple[int, int]]:
        caller, service = self._processes[call.caller[:2]], self._processes[call.service]
        request_bytes = await self._network.request(call, edge, caller, service)
        reply = await self._serve(call)
        reply_bytes = await self._network.reply(reply, edge, caller, service)
        return reply, (request_bytes, reply_bytes) if caller != service else (0, 0)

    async def _serve(self, call: RemoteCall) -> Any:
        incarnation = self._incarnations[call.service]
        try:
            return await incarnation.endpoint.answer(call)
        except Exception as error:
            self._failed(incarnation.spec, error)
            raise asyncio.CancelledError from None
