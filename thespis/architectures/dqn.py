"""DQN (Mnih et al., 2015, doi:10.1038/nature14236): Q-learning from a replay, towards a target that stands still.

actor xN --unroll--> replay --transitions--> learner --weights--> store --pull--> actor xN
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thespis import roles
from thespis.config import Experiment, OptimizerConfig, QNetworkConfig, ReplayConfig, RewardConfig
from thespis.errors import ThespisError
from thespis.experience.limiters import SamplesPerInsert
from thespis.program import Program

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces
    from thespis.runtime.context import Context


@dataclass(frozen=True)
class Config(Experiment):
    """DQN. The defaults solve small control tasks in seconds; Atari ids take the paper's settings instead."""

    actors: int = 1
    """How many actors step environments (paper: 1)."""
    envs_per_actor: int = 8
    """Environments each actor steps side by side (paper: 1)."""
    unroll_length: int = 4
    """Steps per unroll: an actor sends them, and takes newer weights, this often (paper: 4)."""
    batch: int = 64
    """Transitions per update (paper: 32)."""
    batches_per_draw: int = 4
    """Batches that one call to the replay brings."""
    publish_every: int = 4
    """Updates between weights that actors can see."""
    discount: float = 0.99
    """Discount factor (paper)."""
    n_step: int = 1
    """Rewards summed before bootstrapping (paper: 1)."""
    double: bool = True
    """The network chooses the next action and the target values it (paper: the target does both)."""
    huber: float = 1.0
    """TD errors beyond this pull no harder (paper: 1)."""
    target_period: int = 100
    """Updates between copies of the network to its target (paper: 10,000 steps, which are 2,500 updates)."""
    epsilon_start: float = 1.0
    """Share of random actions at first (paper)."""
    epsilon_end: float = 0.05
    """Share of random actions from --epsilon-steps on (paper: 0.1)."""
    epsilon_steps: int = 10_000
    """Environment steps of all actors over which the share falls (paper: 1,000,000)."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    network: QNetworkConfig = field(default_factory=QNetworkConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("unroll_length", "batch", "batches_per_draw", "publish_every", "n_step", "target_period"):
            if getattr(self, name) < 1:
                raise ThespisError(f"--{name.replace('_', '-')} is {getattr(self, name)}; give at least 1")
        if self.network.lstm:
            raise ThespisError("dqn learns from single transitions, so --network.lstm must stay 0")
        if self.reward.normalize:
            raise ThespisError(
                "dqn keeps rewards in its replay as they were, so it cannot --reward.normalize; scale them"
            )

    @property
    def insert_items(self) -> int:
        """The most transitions that one unroll completes: its own, and those that were waiting for it."""
        return self.envs_per_actor * (self.unroll_length + self.n_step)

    @property
    def sample_items(self) -> int:
        return self.batch * self.batches_per_draw

    def epsilon(self, steps: int) -> float:
        """Share of random actions after an actor took `steps` steps, the others as many."""
        done = min(1.0, steps * self.actors / max(1, self.epsilon_steps))
        return self.epsilon_start + (self.epsilon_end - self.epsilon_start) * done


PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"total_steps": 50_000},
    "ALE/*": {  # extended data table 1; 4 steps of one environment per update
        "total_steps": 50_000_000,
        "envs_per_actor": 1,
        "unroll_length": 4,
        "batch": 32,
        "batches_per_draw": 1,
        "publish_every": 1,
        "double": False,
        "target_period": 2_500,
        "epsilon_end": 0.1,
        "epsilon_steps": 1_000_000,
        "replay": {"capacity": 1_000_000, "warm_up": 50_000, "samples_per_insert": 8.0},
        "reward": {"kind": "abs_one"},
        # The paper sums the loss over the batch; with a mean, epsilon shrinks by the square of its size.
        "optimizer": {"kind": "rmsprop", "learning_rate": 2.5e-4, "decay": 0.95, "epsilon": 1e-5, "clip": 0.0},
        "checkpoint_every": 1800.0,
        "eval_every": 600.0,
        "stall_timeout": 600.0,
    },
}


def refuse(cfg: Config, spaces: Spaces) -> None:
    """Say no to what cannot be learned or stored, before anything starts."""
    from thespis.experience.tables import affordable, row_layout
    from thespis.networks.heads import count_actions

    count_actions(spaces.action_space)
    affordable(cfg.replay, row_layout(spaces, cfg.replay), cfg.replay.capacity)


def build_replay(ctx: Context, cfg: Config, capacity: int, limiter: SamplesPerInsert) -> roles.ReplayTable:
    from thespis.experience.tables import replay_table

    return replay_table(ctx, cfg, capacity, limiter)


def build_actor(ctx: Context, cfg: Config, insert: Any, pull: Any) -> roles.Actor:
    from thespis.architectures.parts import environments, stepper
    from thespis.experience.sources import Streamed

    acts = stepper(ctx, cfg)
    policy = roles.LocalPolicy(ctx, acts, pull)
    envs = environments(ctx, cfg, cfg.envs_per_actor)
    return roles.Actor(
        ctx,
        envs,
        policy,
        Streamed(ctx, insert),
        cfg.unroll_length,
        schedule=lambda steps: acts.explore(cfg.epsilon(steps)),
    )


def build_learner(ctx: Context, cfg: Config, sample: Any, prioritise: Any, publish: Any) -> roles.Learner:
    from thespis.algorithms.dqn import DQNUpdate
    from thespis.architectures.parts import learner_network
    from thespis.exchange.local import LocalExchange
    from thespis.experience.sources import Draws

    update = DQNUpdate(learner_network(ctx, cfg), cfg)
    exchange = LocalExchange(ctx, cfg.optimizer, update.parameters)
    source = Draws(ctx, sample, cfg.batch, cfg.batches_per_draw, prioritise)
    return roles.Learner(ctx, source, update, exchange, publish, cfg.total_steps, cfg.publish_every)


def build_evaluator(ctx: Context, cfg: Config, pull: Any) -> roles.Evaluator:
    from thespis.architectures.parts import environments, local_policy

    return roles.Evaluator(
        ctx,
        make_envs=lambda number: environments(ctx, cfg, number),
        make_policy=lambda: local_policy(ctx, cfg, pull),
        episodes=cfg.eval_episodes,
        every=cfg.eval_every,
    )


def program(cfg: Config) -> Program:
    p = Program("dqn")
    band = SamplesPerInsert.of(cfg.replay, cfg.insert_items, cfg.sample_items)
    replay = p.add("replay", build_replay, cfg, capacity=cfg.replay.capacity, limiter=band, process="services")
    weights = p.add("weights", roles.WeightStore, process="services")
    p.add(
        "learner",
        build_learner,
        cfg,
        replay.edge("sample", items=cfg.sample_items),
        replay.edge("prioritise") if cfg.replay.priority_exponent else None,
        weights.edge("publish"),
        restarts=3,
    )
    for _ in range(cfg.actors):
        p.add(
            "actor", build_actor, cfg, replay.edge("insert", items=cfg.insert_items), weights.edge("pull"), restarts=3
        )
    if cfg.eval_episodes:
        p.add("evaluator", build_evaluator, cfg, weights.edge("pull"), restarts=3)
    return p
