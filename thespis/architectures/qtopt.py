"""QT-Opt (Kalashnikov et al., 2018, arXiv:1806.10293): Q-learning without an actor, by workers that only label.

actor xN --unroll--> replay, demonstrations --transitions--> updater xU --labels--> buffer --examples--> trainer xT
trainer xT --gradients--> server xS --averages--> actor xN, updater xU
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from thespis import roles
from thespis.architectures.parameter_server import add_evaluator
from thespis.architectures.values import SERVICES, Exploring, add_replay, at_least_one, build_replay
from thespis.config import Experiment, OptimizerConfig, ReplayConfig, RewardConfig, ScoredNetworkConfig, Spec
from thespis.errors import ThespisError
from thespis.program import Program

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces
    from thespis.networks.scored import ScoredNetwork
    from thespis.roles.learner import Source
    from thespis.runtime.context import Context


@dataclass(frozen=True)
class Config(Exploring, Experiment):
    """QT-Opt. The defaults are for small control tasks; the paper's own are told with each setting."""

    env: Spec = "Pendulum-v1"
    """Gymnasium id, verbatim (Pendulum-v1, module:EnvId-v0), or file.py::function that makes one."""
    actors: int = 1
    """How many actors step environments: the paper's robots (7 there)."""
    envs_per_actor: int = 4
    """Environments each actor steps side by side; one search serves all of them."""
    updaters: int = 1
    """Bellman updaters, which label transitions with targets (paper: about 1,000)."""
    trainers: int = 1
    """Trainers, which make gradients of labelled examples (paper: 10)."""
    shards: int = 1
    """Servers the parameters are divided among, each with its own optimiser state, averages and version."""
    unroll_length: int = 4
    """Steps per unroll: an actor sends them, and takes newer weights, this often."""
    noise: float = 0.1
    """Deviation of the noise on continuous actions, which reach from -1 to 1."""
    epsilon_end: float = 0.05
    """Share of random actions from --epsilon-steps on (paper: 0.2, of a kind)."""
    epsilon_steps: int = 2_000
    """Environment steps of all actors over which the share falls."""
    batch: int = 64
    """Examples per gradient (paper: 32)."""
    batches_per_draw: int = 4
    """Batches that one call to a replay brings."""
    n_step: int = 1
    """Rewards summed before bootstrapping (paper: 1)."""
    discount: float = 0.98
    """Discount factor (paper: 0.9)."""
    loss: Literal["squared", "cross-entropy"] = "squared"
    """squared; or cross-entropy, for returns from 0 to 1: Q is a probability of success then (paper)."""
    decay: float = 0.995
    """Decay of the average of the parameters, with which actors act and labels are made (paper: 0.9999)."""
    lag: int = 200
    """Updates between copies of that average to the second lagged network (paper: about 6,000)."""
    pull_every: int = 8
    """Batches that an updater labels between two pulls of the lagged networks."""
    buffer: int = 8
    """Labelled batches that may wait for trainers: labels get no older than these, updaters wait rather."""
    demos: Spec = ""
    """Offline data: a directory of `thespis record`, minari:NAME, or a scripted policy (file.py::function)."""
    demo_episodes: int = 1_000
    """Most episodes to take of it; a scripted policy plays that many."""
    offline_updates: int = 0
    """Updates from offline data alone before any actor steps: the paper's first phase."""
    online_share: float = 0.5
    """Chance of each example after that to come from the actors, if there is offline data (paper: up to 0.5)."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    replay: ReplayConfig = field(default_factory=lambda: ReplayConfig(samples_per_insert=64.0))
    network: ScoredNetworkConfig = field(default_factory=ScoredNetworkConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = ("updaters", "trainers", "shards", "unroll_length", "batch", "batches_per_draw", "n_step", "lag")
        at_least_one(self, *counts, "pull_every", "buffer", "demo_episodes")
        if not 0.0 <= self.decay < 1.0 or self.noise < 0.0:
            raise ThespisError("--decay is from 0 to less than 1, and --noise at least 0")
        if not 0.0 < self.online_share <= 1.0:
            raise ThespisError(f"--online-share is {self.online_share}; give more than 0, and at most 1")
        if self.offline_updates < 0 or (self.offline_updates and not self.demos):
            raise ThespisError("--offline-updates are made of offline data: give --demos, and no negative number")
        if self.reward.normalize or self.replay.priority_exponent:
            raise ThespisError(
                "rewards stay as they were stored and examples are drawn evenly here; "
                "leave --reward.normalize off and --replay.priority-exponent 0"
            )
        if self.network.lstm or self.network.normalize_observations or len(self.network.hidden) < 2:
            raise ThespisError(
                "Q reads single observations and its first layer does not see the action; leave --network.lstm 0 and "
                "--network.normalize-observations off, and give --network.hidden two layers or more"
            )

    @property
    def insert_items(self) -> int:
        """The most transitions that one unroll completes: its own, and those that were waiting for it."""
        return self.envs_per_actor * (self.unroll_length + self.n_step)

    @property
    def sample_items(self) -> int:
        return self.batch * self.batches_per_draw


MIXED_ACTIONS = True
"""An action may have several parts, numbers and choices: a search does not mind."""
PRESETS: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {  # an update per step; values stay above -10; annealed, because good policies come and go at first
        "total_steps": 15_000,
        "discount": 0.95,
        "network": {"hidden": [128, 128]},
        "reward": {"kind": "scale", "scale": 0.1},
        "optimizer": {"anneal": True},
    },
}


def refuse(cfg: Config, spaces: Spaces) -> None:
    """Say no to what cannot be searched, stored or read, before anything starts."""
    from thespis.architectures.parts import network
    from thespis.experience.recording import gather
    from thespis.experience.tables import affordable, row_layout
    from thespis.networks.scored import ScoredNetwork, parts_of

    parts_of(spaces.action_space)
    if cfg.network.factory and not isinstance(network(cfg.network, spaces, seed=0), ScoredNetwork):
        raise ThespisError(f"{cfg.network.factory!r} makes no network of Q(x, a); extend networks.scored.ScoredNetwork")
    affordable(cfg.replay, row_layout(spaces, cfg.replay), cfg.replay.capacity)
    if cfg.demos:
        gather(cfg.demos, cfg.env, cfg.demo_episodes, cfg.seed)


def scored(ctx: Context, cfg: Config) -> ScoredNetwork:
    from thespis.architectures.parts import worker_network
    from thespis.networks.scored import ScoredNetwork

    made = worker_network(ctx, cfg)
    assert isinstance(made, ScoredNetwork)
    return made


def build_demonstrations(ctx: Context, cfg: Config) -> roles.Demonstrations:
    from thespis.experience.tables import transition_demonstrations

    return transition_demonstrations(ctx, cfg)


def build_actor(ctx: Context, cfg: Config, insert: Any, after: Any, *pulls: Any) -> roles.Actor:
    """`after`: waits for a number of updates. `pulls`: of each server."""
    from thespis.architectures.parts import environments
    from thespis.exchange.push_pull import PullAfter, PullAll
    from thespis.experience.sources import Streamed
    from thespis.networks.acting import Stepper

    made, inserts = scored(ctx, cfg), Streamed(ctx, insert)
    made.distribution.noise = cfg.noise
    pull = PullAfter(PullAll(ctx, made, pulls), after, cfg.offline_updates)
    policy = roles.LocalPolicy(ctx, Stepper(made, ctx.rng("policy")), pull)

    def explore() -> None:
        made.distribution.epsilon = cfg.epsilon(inserts.inserted * cfg.replay.shards)

    envs = environments(ctx, cfg, cfg.envs_per_actor)
    return roles.Actor(ctx, envs, policy, inserts, cfg.unroll_length, before_unroll=explore)


def build_updater(
    ctx: Context, cfg: Config, samples: Any, sample_demos: Any, insert: Any, pulls: Any, lagged: Any
) -> roles.BellmanUpdater:
    """`pulls`, `lagged`: of each server, the first and the second lagged network."""
    from thespis.algorithms.qtopt import Labeller
    from thespis.exchange.push_pull import PullAll
    from thespis.experience.mixing import Mixed, Origin
    from thespis.experience.sources import Draws

    first, second = scored(ctx, cfg), scored(ctx, cfg)
    both = (PullAll(ctx, first, pulls), PullAll(ctx, second, lagged))

    def chances() -> list[float]:
        offline = updater.version.update < cfg.offline_updates * cfg.shards
        lived = 0.0 if offline else cfg.online_share
        return [*(lived / len(samples) for _ in samples), 1.0 - lived]

    source: Source = Draws(ctx, samples, cfg.batch, cfg.batches_per_draw)
    if sample_demos is not None:
        origins = [Origin(0.0, sample, None) for sample in (*samples, sample_demos)]
        source = Mixed(ctx, origins, cfg.batch, cfg.batches_per_draw, chances=chances)
    labeller = Labeller(first, second, cfg.loss, ctx.rng("search"))
    updater = roles.BellmanUpdater(ctx, source, labeller, both, insert, cfg.pull_every)
    return updater


def build_trainer(ctx: Context, cfg: Config, sample: Any, *edges: Any) -> roles.Learner:
    """`edges`: join and push of each server in turn."""
    from thespis.algorithms.qtopt import QTOptUpdate
    from thespis.exchange.push_pull import PushPull
    from thespis.experience.labels import Labels

    made = scored(ctx, cfg)
    exchange = PushPull(ctx, made, edges[::2], edges[1::2], clip=cfg.optimizer.clip, by_steps=False)
    source = Labels(ctx, sample, lambda: exchange.version, cfg.shards, cfg.trainers)
    return roles.Learner(ctx, source, QTOptUpdate(made, cfg.loss), exchange, None, cfg.budget)


def program(cfg: Config) -> Program:
    p = Program("qtopt")
    rule: dict[str, Any] = {"optimizer": cfg.optimizer, "budget": cfg.budget}
    rule |= {"decay": cfg.decay, "lag": cfg.lag, "restarts": 3}
    servers = [p.add("server", roles.AveragingServer, **rule) for _ in range(cfg.shards)]
    replays = add_replay(p, cfg, build_replay)
    shown = p.add("demonstrations", build_demonstrations, cfg, **SERVICES).edge("sample") if cfg.demos else None
    buffer = p.add("buffer", roles.TrainBuffer.queue, capacity=cfg.buffer, **SERVICES)
    # With demonstrations the share of a replay is drawn, and may be all.
    asked = cfg.sample_items // (1 if cfg.demos else len(replays))
    samples = tuple(replay.edge("sample", items=asked) for replay in replays)
    averages, lagged = (tuple(server.edge(method) for server in servers) for method in ("pull", "lagged"))
    for _ in range(cfg.updaters):
        p.add("updater", build_updater, cfg, samples, shown, buffer.edge("insert"), averages, lagged, restarts=3)
    gradients = [server.edge(method) for server in servers for method in ("join", "push")]
    for _ in range(cfg.trainers):
        p.add("trainer", build_trainer, cfg, buffer.edge("sample"), *gradients, restarts=3)
    for index in range(cfg.actors):
        insert = replays[index % len(replays)].edge("insert", items=cfg.insert_items)
        p.add("actor", build_actor, cfg, insert, servers[0].edge("after"), *averages, actor=True, restarts=3)
    add_evaluator(p, cfg, servers)
    return p
