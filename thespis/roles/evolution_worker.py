"""EvolutionWorker: plays the episodes of perturbed parameters in parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from thespis.algorithms.updates.evolution import Evolution, episode_seed
from thespis.core.context import Context
from thespis.core.edges import PlaceOrder
from thespis.core.service import RoleDescription
from thespis.core.types import Array, Episode, Tree
from thespis.envs.autoreset import Environments
from thespis.envs.infos import metric
from thespis.exchange.noise import find_noise
from thespis.networks.batched import BatchedPolicy
from thespis.networks.running_moments import Moments
from thespis.roles.coordinator import Snapshot, UnitOrder, UnitRequest, UnitResult, WorkPlan

if TYPE_CHECKING:
    from thespis.algorithms.es import ES


_LARGEST = float(np.finfo(np.float32).max)
"""Returns beyond it would be infinite as float32, which no checkpoint can hold."""


class EvolutionWorker:
    """Requests a unit, updates its parameters to the unit's generation, plays one episode per member, repeats.

    All members of a unit start together, each in its own environment; finished members wait for the longest. A native
    vector steps their environments meanwhile, so it takes more steps than the episodes count.
    """

    description: ClassVar = RoleDescription(lost="units")

    def __init__(
        self,
        ctx: Context,
        algorithm: ES,
        plan: WorkPlan,
        envs: Environments,
        members: BatchedPolicy,
        order: PlaceOrder[UnitRequest, UnitResult, UnitOrder],
    ) -> None:
        self._ctx, self._algorithm, self._plan = ctx, algorithm, plan
        self._envs, self._members, self._order = envs, members, order
        self._evolution: Evolution | None = None

    async def run(self) -> None:
        """Play units until the run ends."""
        me, result = self._ctx.identity, None
        while True:
            have = self._evolution.generation if self._evolution is not None else None
            order = await self._order(UnitRequest(me.index, me.incarnation, have), result)
            evolution = await self._catch_up(order)
            result = await self._play(evolution, order)

    async def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    async def _catch_up(self, order: UnitOrder) -> Evolution:
        """Load the parameters of a snapshot, or compute them from the returns of the missed generations."""
        news = order.news
        if isinstance(news, Snapshot):
            if self._evolution is None:
                seed = self._ctx.identity.run_seed
                noise = find_noise(news.noise, seed)
                self._evolution = Evolution(self._algorithm, seed, np.zeros_like(news.values), noise)
            self._evolution.adopt(news.generation, news.values, news.slots)
            return self._evolution
        assert self._evolution is not None
        for generation in news:
            async with self._ctx.work("apply", items=generation.returns.shape[0] * len(self._evolution.values)):
                self._evolution.apply(generation)
        return self._evolution

    async def _play(self, evolution: Evolution, order: UnitOrder) -> UnitResult:
        """Play one episode per member of the unit."""
        ctx, envs, size = self._ctx, self._envs, self._plan.pairs_per_unit
        async with ctx.work("perturb", items=envs.num_envs):
            evolution.perturb(range(order.unit * size, (order.unit + 1) * size), self._members.parameters)
            self._members.begin(order.moments)
        async with ctx.work("env_step", items=envs.num_envs):
            obs = envs.reset(episode_seed(ctx.identity.run_seed, evolution.generation, order.unit))
        alive, stepped, taken = np.ones(envs.num_envs, np.bool_), envs.num_envs, 0
        returns, lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs, np.int32)
        seen: list[Array] = []
        for _ in range(order.cap):
            if order.moments is not None:
                seen.append(_rows(obs, alive))
            async with ctx.work("inference", items=envs.num_envs):
                actions = self._members.act(obs)
            async with ctx.work("env_step", items=stepped):
                step = envs.step(actions)
                ctx.count_steps(step.env_steps)
            taken += step.env_steps
            returns += step.rewards * alive
            lengths += alive
            if not step.mid_episode:
                over = step.terminated | step.truncated
                self._record(step.episodes, over, alive)
                alive &= ~over
                if not alive.any():
                    break
                stepped = envs.park(~alive)
            obs = step.obs
        return UnitResult(
            evolution.generation,
            order.unit,
            _pairs(np.clip(returns, -_LARGEST, _LARGEST).astype(np.float32)),
            _pairs(lengths),
            taken,
            Moments.of(np.concatenate(seen)) if seen else None,
            evolution.digest() if evolution.generation % self._plan.check_every == 0 else None,
        )

    def _record(self, episodes: list[Episode], over: Array, alive: Array) -> None:
        """Report the info values of members whose episode ends with this step."""
        for env, episode in zip(over.nonzero()[0].tolist(), episodes, strict=True):
            for name, value in (episode.info or {}).items():
                if alive[env]:
                    self._ctx.record(metric(name, "rollout"), value)


def _pairs(members: Array) -> Array:
    """Reorder [all plus, all minus] to `[pairs, 2]`."""
    paired: Array = np.ascontiguousarray(members.reshape(2, -1).T)
    return paired


def _rows(obs: Tree, alive: Array) -> Array:
    assert not isinstance(obs, dict)
    rows: Array = obs[alive].reshape(int(alive.sum()), -1)
    return rows
