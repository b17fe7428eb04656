"""The network of a simulation: what a message costs at both ends and on its way, and the faults of replies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import numpy as np

from thespis.runtime.cost_model import CostModel, message_bytes
from thespis.runtime.faults import Fault
from thespis.runtime.virtual_time import Cores, VirtualLoop
from thespis.transport.calls import RemoteCall


class SimulatedNetwork:
    """Delays messages by the cost model, on virtual time. It does not carry them: all roles share one process."""

    def __init__(
        self, loop: VirtualLoop, costs: CostModel, cores: Cores, rng: np.random.Generator, faults: Iterable[Fault]
    ) -> None:
        self._loop, self._costs, self._cores, self._rng = loop, costs, cores, rng
        self._faults = [fault for fault in faults if fault.kind in ("lose", "delay")]
        self._arrivals: dict[tuple[str, int, str], float] = {}

    async def request(self, call: RemoteCall, edge: str, caller: str, service: str) -> int:
        """Wait until the service's process has received the call; return the size of the message in bytes."""
        nbytes = message_bytes(call.args)
        await self._spend_cpu(caller, edge)
        # Messages of one caller on one edge keep their order, as on a socket.
        now, route = self._loop.time(), (*call.caller[:2], edge)
        arrival = max(now + self._costs.edge_seconds(edge, nbytes, self._rng), self._arrivals.get(route, 0.0))
        self._arrivals[route] = arrival
        await asyncio.sleep(arrival - now)
        await self._spend_cpu(service, edge)
        return nbytes

    async def reply(self, reply: Any, edge: str, caller: str, service: str) -> int:
        """Wait until the caller's process has received the reply; return the size of the message in bytes."""
        await self._apply_fault(edge)
        nbytes = message_bytes(reply)
        await self._spend_cpu(service, edge)
        await asyncio.sleep(self._costs.edge_seconds(edge, nbytes, self._rng))
        await self._spend_cpu(caller, edge)
        return nbytes

    async def _spend_cpu(self, process: str, edge: str) -> None:
        """Spend the CPU time of a message at one end, also within a process: it needs a core to handle a message."""
        seconds = self._costs.end_seconds(edge)
        if seconds:
            await self._cores.work(process, seconds)

    async def _apply_fault(self, edge: str) -> None:
        """Delay or lose the reply if a fault of its edge is due. The wait for a lost reply never ends."""
        for fault in self._faults:
            if fault.edge == edge and self._loop.time() >= fault.at:
                self._faults.remove(fault)
                if fault.kind == "delay":
                    await asyncio.sleep(fault.by)
                else:
                    await self._loop.create_future()
                return
