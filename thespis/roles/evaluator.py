"""Evaluator: greedy episodes on the newest weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from thespis.core.context import Context
from thespis.core.service import RoleDescription
from thespis.core.types import Array, Episode
from thespis.envs.autoreset import Environments
from thespis.envs.infos import means, metric
from thespis.envs.inputs import first_inputs, next_inputs
from thespis.roles.actor_policies import LocalPolicy

_SIDE_BY_SIDE = 16


class Evaluator:
    """Plays greedy evaluation episodes at an interval and on request. Reports `eval/*`.

    The first evaluation builds the environments and the policy: importing torch in one more process would delay the
    start of the run.
    """

    description: ClassVar = RoleDescription(evaluates=True)

    def __init__(
        self,
        ctx: Context,
        make_envs: Callable[[int], Environments],
        make_policy: Callable[[], LocalPolicy],
        episodes: int,
        every: float,
        longest: int,
    ) -> None:
        """`longest`: steps after which an episode is cut, because some episodes never end."""
        self._ctx, self._make_envs, self._make_policy = ctx, make_envs, make_policy
        self._episodes, self._every, self._longest = episodes, every, longest
        self._made: tuple[Environments, LocalPolicy] | None = None
        self._rounds = 0
        self._due = ctx.now() + every

    async def run(self) -> None:
        """Evaluate every `every` seconds; 0 leaves evaluation to requests."""
        while self._every:
            await self._ctx.sleep(max(0.0, self._due - self._ctx.now()))
            self._due = self._ctx.now() + self._every
            await self.evaluate()

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The number of rounds, and the time until the next evaluation."""
        return {}, {"rounds": self._rounds, "due_in": self._due - self._ctx.now()}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        """Load what `state` returned."""
        self._rounds, self._due = values["rounds"], self._ctx.now() + values["due_in"]

    async def evaluate(self) -> None:
        """Play the episodes and report their mean.

        Every environment plays equally many: taking the first to finish would favour short episodes.
        """
        if self._made is None:
            self._made = self._make_envs(min(self._episodes, _SIDE_BY_SIDE)), self._make_policy()
        envs, policy = self._made
        await policy.refresh()
        played: list[Episode] = []
        cut: list[bool] = []
        while len(played) < self._episodes:
            episodes, unended = await self._play(envs, policy)
            played += episodes
            cut += unended
        played = played[: self._episodes]
        self._ctx.record("eval/mean_reward", float(np.mean([episode.reward for episode in played])))
        self._ctx.record("eval/mean_ep_length", float(np.mean([episode.length for episode in played])))
        for name, mean in means(played).items():
            self._ctx.record(metric(name, "eval"), mean)
        self._ctx.count("eval/episodes", self._episodes)
        if any(cut[: self._episodes]):
            self._ctx.count("eval/cut_episodes", sum(cut[: self._episodes]))

    async def close(self) -> None:
        """Close the environments, if any."""
        if self._made is not None:
            self._made[0].close()

    async def _play(self, envs: Environments, policy: LocalPolicy) -> tuple[list[Episode], list[bool]]:
        """Play one episode in every environment; also returns which of them were cut."""
        ctx = self._ctx
        self._rounds += 1
        async with ctx.work("env_step", items=envs.num_envs):
            inputs = first_inputs(envs.reset(ctx.seed(f"round {self._rounds}")), envs)
        state = policy.initial_state(envs.num_envs)
        alive = np.ones(envs.num_envs, np.bool_)
        returns, lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs, np.int64)
        infos: list[dict[str, float] | None] = [None] * envs.num_envs
        for _ in range(self._longest):
            acted = await policy.act(inputs, state, greedy=True)
            async with ctx.work("env_step", items=envs.num_envs):
                step = envs.step(acted.actions)
            returns += step.rewards * alive
            lengths += alive
            if not step.mid_episode:
                over = step.terminated | step.truncated
                for env, episode in zip(over.nonzero()[0].tolist(), step.episodes, strict=True):
                    infos[env] = episode.info if alive[env] else infos[env]
                alive &= ~over
                if not alive.any():
                    break
                envs.park(~alive)
            inputs, state = next_inputs(step, acted.actions), acted.state
        return list(map(Episode, returns.tolist(), lengths.tolist(), infos)), alive.tolist()
