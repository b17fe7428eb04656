"""Builders of weight stores for actors, which pull weights exactly or compressed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from thespis import roles
from thespis.architectures.builders import Weights, add_weights
from thespis.core.program import Handle, Placement

if TYPE_CHECKING:
    from thespis.core.context import Context
    from thespis.core.edges import Publish, Pull, PullForActing
    from thespis.core.learners_config import WeightsConfig
    from thespis.networks.policies import PolicyNetwork
    from thespis.networks.policy_runner import PolicyRunner

_LEAST, _MOST = 16, 128
"""Bounds of the number of versions that a store of compressed weights keeps, for the differences to them."""


@dataclass(frozen=True)
class CompressedPulls:
    """The edges to a weight store that compresses what actors pull."""

    store: Handle[roles.CompressedWeightStore]

    @property
    def publish(self) -> Publish:
        """The edge that stores the next version."""
        return self.store.edge(roles.CompressedWeightStore.publish)

    @property
    def pull(self) -> PullForActing:
        """The edge that returns the newest version, compressed."""
        return self.store.edge(roles.CompressedWeightStore.pull)

    @property
    def pull_exact(self) -> Pull:
        """The edge that returns the newest version in float32."""
        return self.store.edge(roles.CompressedWeightStore.pull_exact)

    @property
    def following(self) -> PullForActing:
        """The edge that waits for the next version, compressed."""
        return self.store.edge(roles.CompressedWeightStore.next)


ActorWeights = Weights | CompressedPulls
"""The edges to a weight store that actors pull from."""


def add_actor_weights(place: Placement, cfg: Any, hold_back: int = 0) -> ActorWeights:
    """Add a weight store for actors, which compresses what they pull if `cfg.pulled` says so."""
    pulled: WeightsConfig = cfg.pulled
    if not pulled.compresses:
        return add_weights(place, hold_back)
    note = pulled.describe()
    place.program.notes += [note] if note not in place.program.notes else []
    threaded = replace(place, thread=True)
    return CompressedPulls(threaded.add("weights", build_compressed_weights, cfg, hold_back))


def build_compressed_weights(ctx: Context, cfg: Any, hold_back: int) -> roles.CompressedWeightStore:
    """A weight store that rounds the weights that acting reads. It keeps two versions for each actor, within bounds."""
    from thespis.exchange.weights import WeightEncoder
    from thespis.runs.spaces import spaces_of

    network: PolicyNetwork = cfg.learned.build_network(spaces_of(cfg), seed=0)
    runner: PolicyRunner = cfg.learned.build_policy_runner(network, ctx.rng("policy"))
    history = min(max(2 * cfg.actors, _LEAST), _MOST) if cfg.pulled.weights == "delta" else 0
    encoder = WeightEncoder(ctx, runner.layout, runner.nbytes, history)
    return roles.CompressedWeightStore(ctx, encoder, hold_back=hold_back)
