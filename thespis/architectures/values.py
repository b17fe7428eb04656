"""What architectures that learn action values from a replay share: settings, and builders of all roles but actors.

actor xN --unroll--> replay --transitions--> learner --weights--> store --pull--> actor xN
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from thespis import roles
from thespis.architectures.evaluating import Evaluated, add_evaluator
from thespis.config import Experiment, OptimizerConfig, QNetworkConfig, ReplayConfig, RewardConfig
from thespis.errors import ThespisError
from thespis.experience.limiters import SamplesPerInsert
from thespis.program import Handle, Program

if TYPE_CHECKING:
    from collections.abc import Callable

    from thespis.envs.spaces import Spaces
    from thespis.experience.tables import HasReplay
    from thespis.runtime.context import Context
    from thespis.types import Array

SERVICES: dict[str, Any] = {"process": "services", "near": "learner", "restarts": 3}
"""Where replays and weights live: in one process, on the learner's node."""


@dataclass(frozen=True)
class QLearning:
    """Q-learning from a replay."""

    RECURRENT: ClassVar = False  # whether the learner is given more than single transitions

    batch: int = 128
    """Transitions per gradient."""
    batches_per_draw: int = 4
    """Batches that one call to the replay brings."""
    n_step: int = 3
    """Rewards summed before bootstrapping."""
    double: bool = True
    """The network chooses the next action and the target values it; else the target does both."""
    huber: float = 1.0
    """TD errors beyond this pull no harder."""
    target_period: int = 100
    """Updates between copies of the network to its target."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    network: QNetworkConfig = field(default_factory=QNetworkConfig)

    def __post_init__(self) -> None:
        at_least_one(self, "batch", "batches_per_draw", "n_step", "target_period")
        if self.network.lstm and not self.RECURRENT:
            raise ThespisError("single transitions are learned from here, so --network.lstm must stay 0")


@dataclass(frozen=True)
class Exploring:
    """A share of random actions that falls."""

    epsilon_start: float = 1.0
    """Share of random actions at first (paper)."""
    epsilon_end: float = 0.04
    """Share of random actions from --epsilon-steps on (paper: 0.1)."""
    epsilon_steps: int = 8_000
    """Environment steps of all actors over which the share falls (paper: 1,000,000)."""

    def epsilon(self, steps: int) -> float:
        """Share of random actions after all actors took `steps` steps."""
        done = min(1.0, steps / max(1, self.epsilon_steps))
        return self.epsilon_start + (self.epsilon_end - self.epsilon_start) * done


@dataclass(frozen=True)
class ValueExperiment(QLearning, Experiment):
    """Action values from a replay."""

    actors: int = 1
    """How many actors step environments."""
    envs_per_actor: int = 8
    """Environments each actor steps side by side."""
    unroll_length: int = 4
    """Steps per unroll: an actor sends them, and takes newer weights, this often."""
    discount: float = 0.99
    """Discount factor."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    def __post_init__(self) -> None:
        Experiment.__post_init__(self)
        QLearning.__post_init__(self)
        at_least_one(self, "unroll_length")
        if self.reward.normalize:
            raise ThespisError(
                "rewards stay in the replay as they were stored, so --reward.normalize cannot be; scale them"
            )

    @property
    def insert_items(self) -> int:
        """The most transitions that one unroll completes: its own, and those that were waiting for it."""
        waiting = self.n_step + (1 if self.replay.actor_priorities else 0)
        return self.envs_per_actor * (self.unroll_length + waiting)

    @property
    def sample_items(self) -> int:
        return self.batch * self.batches_per_draw


@dataclass(frozen=True)
class OneLearner(ValueExperiment):
    """One learner that publishes its weights."""

    publish_every: int = 4
    """Updates between weights that actors can see."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "publish_every")


def at_least_one(cfg: Any, *names: str) -> None:
    for name in names:
        if getattr(cfg, name) < 1:
            raise ThespisError(f"--{name.replace('_', '-')} is {getattr(cfg, name)}; give at least 1")


def refuse(cfg: ValueExperiment, spaces: Spaces) -> None:
    """Say no to what cannot be learned or stored, before anything starts."""
    from thespis.experience.tables import affordable, row_layout
    from thespis.networks.heads import count_actions

    count_actions(spaces.action_space)
    affordable(cfg.replay, row_layout(spaces, cfg.replay), cfg.replay.capacity)


def build_replay(ctx: Context, cfg: HasReplay, capacity: int, limiter: SamplesPerInsert) -> roles.ReplayTable:
    from thespis.experience.tables import replay_table

    return replay_table(ctx, cfg, capacity, limiter)


def exploring_actor(
    ctx: Context,
    cfg: ValueExperiment,
    epsilon: Callable[[int], float | Array],
    insert: Any,
    policy: roles.LocalPolicy,
) -> roles.Actor:
    """An actor whose share of random actions is `epsilon` of the transitions that the replay has from all actors."""
    from thespis.architectures.parts import environments
    from thespis.experience.sources import Streamed

    inserts = Streamed(ctx, insert)
    return roles.Actor(
        ctx,
        environments(ctx, cfg, cfg.envs_per_actor),
        policy,
        inserts,
        cfg.unroll_length,
        # Shards are drawn from alike, so the others have as much.
        before_unroll=lambda: policy.explore(epsilon(inserts.inserted * cfg.replay.shards)),
    )


def build_learner(ctx: Context, cfg: OneLearner, samples: Any, prioritise: Any, publish: Any) -> roles.Learner:
    from thespis.algorithms.dqn import DQNUpdate
    from thespis.architectures.parts import learner_network
    from thespis.exchange.local import LocalExchange
    from thespis.experience.sources import Draws

    update = DQNUpdate(learner_network(ctx, cfg), cfg)
    exchange = LocalExchange(ctx, cfg.optimizer, update.parameters)
    source = Draws(ctx, samples, cfg.batch, cfg.batches_per_draw, prioritise)
    return roles.Learner(ctx, source, update, exchange, publish, cfg.budget, cfg.publish_every)


class Replaying(Evaluated, Protocol):
    """What `value_program` reads. `insert_items`: the most items that one unroll makes; `sample_items`: per call."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def actors(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def replay(self) -> ReplayConfig: ...
    @property
    def insert_items(self) -> int: ...
    @property
    def sample_items(self) -> int: ...


def add_replay(p: Program, cfg: Replaying, build: Callable[..., roles.ReplayTable]) -> list[Handle]:
    """The replay beside the weight store, or its shards, each in a process of its own."""
    shards = cfg.replay.shards
    if shards > cfg.actors:
        raise ThespisError(f"{shards} replay shards for {cfg.actors} actors: some would stay empty; use fewer shards")
    if cfg.batch % shards:
        raise ThespisError(
            f"every shard gives an equal part of a batch, but {cfg.batch} is not divisible by {shards}; "
            "change --batch or --replay.shards"
        )
    # As if it were the replay of an experiment with its share of the actors.
    one = replace(cfg, actors=-(-cfg.actors // shards), replay=cfg.replay.shard)
    band = SamplesPerInsert.of(one.replay, cfg.insert_items, cfg.sample_items // shards)
    settings: dict[str, Any] = {"capacity": one.replay.capacity, "limiter": band, "near": "learner", "restarts": 3}
    home = "services" if shards == 1 else None
    return [p.add("replay", build, one, process=home, **settings) for _ in range(shards)]


def value_program(
    name: str,
    cfg: Replaying,
    build_actor: Callable[..., roles.Actor],
    build_replay: Callable[..., roles.ReplayTable] = build_replay,
    build_learner: Callable[..., roles.Learner] = build_learner,
    extend: Callable[[Program], dict[str, Any]] = lambda p: {},
) -> Program:
    """The figure above, with actors of one's own: `build_actor(ctx, cfg, insert, pull)`; perhaps more that is.

    `extend`: adds roles that the figure does not have, and returns the learner's edges to them, by name.
    """
    p = Program(name)
    shards = add_replay(p, cfg, build_replay)
    weights = p.add("weights", roles.WeightStore, **SERVICES)
    p.add(
        "learner",
        build_learner,
        cfg,
        tuple(shard.edge("sample", items=cfg.sample_items // len(shards)) for shard in shards),
        tuple(shard.edge("prioritise") for shard in shards) if cfg.replay.priority_exponent else (),
        weights.edge("publish"),
        near="learner",
        restarts=3,
        **extend(p),
    )
    for index in range(cfg.actors):
        insert, pull = shards[index % len(shards)].edge("insert", items=cfg.insert_items), weights.edge("pull")
        p.add("actor", build_actor, cfg, insert, pull, actor=True, restarts=3)
    add_evaluator(p, cfg, weights)
    return p
