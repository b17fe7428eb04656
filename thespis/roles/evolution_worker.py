"""EvolutionWorker: plays the episodes of perturbed parameters, side by side."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import ClassVar, Protocol

import numpy as np

from thespis.algorithms.evolution import Evolution, EvolutionSettings, episode_seed
from thespis.envs.autoreset import Environments
from thespis.exchange.noise import find_noise
from thespis.networks.members import Members
from thespis.networks.moments import Moments
from thespis.roles.coordinator import Ask, Order, Result, Snapshot
from thespis.runtime.context import Context
from thespis.types import Array, Tree


class PlaceOrder(Protocol):
    """The edge to the coordinator."""

    def __call__(self, ask: Ask, result: Result | None, /) -> Awaitable[Order]: ...


class WorkerSettings(EvolutionSettings, Protocol):
    @property
    def pairs_per_unit(self) -> int: ...
    @property
    def check_every(self) -> int: ...


class EvolutionWorker:
    """Asks for a unit, gets to the parameters it is about, plays one episode of each member, asks again.

    All members of a unit start together, each in an environment of its own; those that are over wait for the longest.
    """

    LOST: ClassVar = "units"  # what goes with a life of it, counted when it is restarted

    def __init__(
        self, ctx: Context, cfg: WorkerSettings, envs: Environments, members: Members, order: PlaceOrder
    ) -> None:
        self._ctx, self._cfg, self._envs, self._members, self._order = ctx, cfg, envs, members, order
        self._evolution: Evolution | None = None

    async def run(self) -> None:
        me, result = self._ctx.identity, None
        while True:
            have = self._evolution.generation if self._evolution is not None else None
            order = await self._order(Ask(me.index, me.incarnation, have), result)
            evolution = await self._catch_up(order)
            result = await self._play(evolution, order)

    async def close(self) -> None:
        self._envs.close()

    async def _catch_up(self, order: Order) -> Evolution:
        """Take the parameters as they were sent, or compute them from the returns of the generations since."""
        news = order.news
        if isinstance(news, Snapshot):
            if self._evolution is None:
                noise = find_noise(news.noise, self._cfg.seed)
                self._evolution = Evolution(self._cfg, np.zeros_like(news.values), noise)
            self._evolution.adopt(news.generation, news.values, news.slots)
            return self._evolution
        assert self._evolution is not None
        for told in news:
            async with self._ctx.work("apply", items=told.returns.shape[0] * len(self._evolution.values)):
                self._evolution.apply(told)
        return self._evolution

    async def _play(self, evolution: Evolution, order: Order) -> Result:
        """One episode per member of the unit."""
        ctx, envs, size = self._ctx, self._envs, self._cfg.pairs_per_unit
        async with ctx.work("perturb", items=envs.num_envs):
            evolution.perturb(range(order.unit * size, (order.unit + 1) * size), self._members.parameters)
            self._members.begin(order.moments)
        async with ctx.work("env_step", items=envs.num_envs):
            obs = envs.reset(episode_seed(self._cfg.seed, evolution.generation, order.unit))
        alive = np.ones(envs.num_envs, np.bool_)
        returns, lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs, np.int32)
        seen: list[Array] = []
        for _ in range(order.cap):
            if order.moments is not None:
                seen.append(_rows(obs, alive))
            async with ctx.work("inference", items=envs.num_envs):
                actions = self._members.act(obs)
            async with ctx.work("env_step", items=envs.num_envs):
                step = envs.step(actions)
            returns += step.rewards * alive
            lengths += alive
            alive &= ~(step.terminated | step.truncated)
            if not alive.any():
                break
            obs = step.obs
        return self._result(evolution, order.unit, returns, lengths, seen)

    def _result(self, evolution: Evolution, unit: int, returns: Array, lengths: Array, seen: list[Array]) -> Result:
        checked = evolution.generation % self._cfg.check_every == 0
        return Result(
            evolution.generation,
            unit,
            _pairs(returns.astype(np.float32)),
            _pairs(lengths),
            Moments.of(np.concatenate(seen)) if seen else None,
            evolution.digest() if checked else None,
        )


def _pairs(members: Array) -> Array:
    """All plus, then all minus, as `[pairs, 2]`."""
    paired: Array = np.ascontiguousarray(members.reshape(2, -1).T)
    return paired


def _rows(obs: Tree, alive: Array) -> Array:
    assert not isinstance(obs, dict)
    rows: Array = obs[alive].reshape(int(alive.sum()), -1)
    return rows
