"""Weights that actors pull in bfloat16 and as differences: the store, and the policy of an actor."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from fakes import FakeEdge, YieldingContext, play, settle
from gymnasium import spaces
from published_weights import LAYOUT, actor_critic, assert_equal_bits, context, moved, weights

from thespis.algorithms.dpg import DPG
from thespis.core.config import NetworkConfig, QNetworkConfig, ReplayConfig, Transitions
from thespis.core.opaque import to_opaque
from thespis.core.payloads import CompressedWeights
from thespis.core.types import Inputs, Version
from thespis.exchange.precision import decode, to_bfloat16
from thespis.exchange.weights import (
    WeightDecoder,
    WeightEncoder,
    encode_weights,
    round_weights,
)
from thespis.networks.configs import DPGNetworkConfig
from thespis.networks.policies import ActorCritic
from thespis.networks.policy_runner import PolicyRunner, export_weights
from thespis.networks.q import QNetwork
from thespis.networks.separate import SeparateActorCritic
from thespis.roles import CompressedWeightStore, LocalPolicy, WeightStore

# -- the store ----------------------------------------------------------------------------------------


def test_a_store_has_exact_weights_for_others() -> None:
    async def scene() -> None:
        rng, ctx = np.random.default_rng(0), context()
        store = CompressedWeightStore(ctx, WeightEncoder(ctx, LAYOUT, 100, history=4))
        waiting = asyncio.ensure_future(store.next(None))
        await settle()
        published = weights(1, rng)
        await store.publish(to_opaque(published))
        assert (await waiting).version == Version(0, 1)
        exact = await store.pull_exact(None)
        assert exact is not None and exact.weights is not None
        assert await store.pull(Version(0, 1)) is None and await store.pull_exact(Version(0, 1)) is None
        following = asyncio.ensure_future(store.next(Version(0, 1)))
        await settle()
        assert not following.done()
        await store.publish(weights(0, rng))
        await settle()
        assert not following.done() and ctx.counters()["dropped/old_weights"] == 1
        await store.publish(weights(2, rng))
        assert (await following).base == Version(0, 1)

    play(scene())


# -- the policy of an actor ---------------------------------------------------------------------------


class Unreliable:
    """A pull edge that replaces one of its replies by another."""

    name = "actor.weights.pull"

    def __init__(self, store: CompressedWeightStore) -> None:
        self.store, self.calls = store, 0
        self.replace: Any = None

    async def __call__(self, newer_than: Version | None) -> CompressedWeights | None:
        self.calls += 1
        reply = await self.store.pull(newer_than)
        if self.replace is not None and reply is not None:
            reply, self.replace = self.replace(reply), None
        return reply


def test_a_broken_chain_is_repaired_in_one_round_trip() -> None:
    async def scene() -> None:
        network, ctx = actor_critic(), context()
        runner = PolicyRunner(network, np.random.default_rng(0))
        store = CompressedWeightStore(ctx, WeightEncoder(ctx, runner.layout, 100, history=4))
        pull = Unreliable(store)
        policy = LocalPolicy(ctx, runner, pull)
        reference = export_weights(network)
        damage = {3: lambda reply: reply._replace(checksum=0), 5: lambda reply: reply._replace(base=Version(0, 1))}
        for update in range(1, 8):
            published = moved(actor_critic(), update)
            await store.publish(published)
            pull.replace, before = damage.get(update), pull.calls
            await policy.refresh()
            assert policy.version == published.version
            assert pull.calls - before == (2 if update in damage else 1)
            for name, value in export_weights(network).items():
                wanted = torch.from_numpy(published.weights[name]).to(torch.bfloat16).float().numpy()
                wanted = reference[name] if name.startswith("value") else wanted
                assert value.tobytes() == wanted.tobytes(), name
        assert ctx.counters()["weights/broken_chains"] == 2

    play(scene())


def test_an_older_version_is_never_loaded() -> None:
    """Neither from a late reply, nor from a store that was restarted with older weights."""

    async def scene() -> None:
        network, ctx = actor_critic(), context()
        runner = PolicyRunner(network, np.random.default_rng(0))
        layout = runner.layout

        def fresh() -> CompressedWeightStore:
            return CompressedWeightStore(ctx, WeightEncoder(ctx, layout, 100, history=4))

        edge = Unreliable(fresh())
        policy = LocalPolicy(ctx, runner, edge)
        await edge.store.publish(moved(network, 1))
        await policy.refresh()
        await edge.store.publish(moved(network, 2))
        late = await edge.store.pull(None)
        await edge.store.publish(moved(network, 3))
        await policy.refresh()
        acting = export_weights(network)
        edge.store = fresh()
        await edge.store.publish(moved(network, 2))
        await policy.refresh()
        await edge.store.publish(moved(network, 4))
        edge.replace = lambda _: late
        await policy.refresh()
        assert policy.version == Version(0, 3)
        assert_equal_bits(export_weights(network), acting)
        await policy.refresh()
        assert policy.version == Version(0, 4)

    play(scene())


def test_a_prefetched_difference_that_is_skipped() -> None:
    async def scene() -> None:
        network, ctx = actor_critic(), context(YieldingContext)
        runner = PolicyRunner(network, np.random.default_rng(0))
        store = CompressedWeightStore(ctx, WeightEncoder(ctx, runner.layout, 100, history=8))
        policy = LocalPolicy(ctx, runner, FakeEdge(store.pull), ahead=True)
        for update in range(1, 20):
            await store.publish(moved(actor_critic(), update))
            await policy.refresh(skip_prefetch=update % 3 == 0)
            await settle()
        await policy.refresh()
        await policy.refresh()
        assert policy.version == Version(0, 19)
        assert "weights/broken_chains" not in ctx.counters() and "weights/gaps" not in ctx.counters()

    play(scene())


# -- which weights acting reads -----------------------------------------------------------------------


def names(network: Any) -> set[str]:
    return set(PolicyRunner(network, np.random.default_rng(0)).layout.names)


def without(network: Any, *prefixes: str) -> set[str]:
    return {name for name in network.state_dict() if not name.startswith(prefixes)}


def test_value_functions_are_left_out() -> None:
    from thespis.algorithms.updates.sac import SACNetwork

    box = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))
    critic = ActorCritic(*box, NetworkConfig(hidden=(8,), normalize_observations=True))
    assert names(critic) == without(critic, "value.")
    layout = PolicyRunner(critic, np.random.default_rng(0)).layout
    assert "log_std" in dict(layout.rounded) and len(layout.exact) == 3, "statistics stay exact"
    separate = SeparateActorCritic(*box, NetworkConfig(hidden=(8,)))
    assert names(separate) == without(separate, "value.", "critic.")
    recurrent = SeparateActorCritic(*box, NetworkConfig(hidden=(8,), lstm=4))
    assert names(recurrent) == without(recurrent), "actors store the state of the critic"
    sac = SACNetwork(*box, DPGNetworkConfig())
    assert names(sac) == without(sac, "critics.", "log_temperature")
    q = QNetwork(box[0], spaces.Discrete(3), QNetworkConfig(hidden=(8,), dueling=True))
    assert names(q) == without(q)


def test_a_subclass_has_to_say_what_it_does_not_read() -> None:
    class Own(ActorCritic):
        """Acts by its values."""

    own = Own(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), NetworkConfig(hidden=(8,)))
    assert names(own) == without(own)


@pytest.mark.parametrize("priorities", [False, True])
def test_actors_of_dpg_have_the_critic_if_they_compute_priorities(priorities: bool) -> None:
    from thespis.networks.dpg import DPGNetwork

    replay = ReplayConfig(priority_exponent=0.6, importance_exponent=0.4, actor_priorities=priorities)
    network = DPGNetwork(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,)), DPGNetworkConfig())
    runner = DPG(items=Transitions(replay=replay)).build_policy_runner(network, np.random.default_rng(0))
    assert set(runner.layout.names) == (without(network) if priorities else without(network, "critic."))


def inputs(batch: int) -> Inputs:
    rng = np.random.default_rng(7)
    zeros = np.zeros(batch, np.float32)
    return Inputs(
        rng.normal(size=(batch, 3)).astype(np.float32), np.ones(batch, np.bool_), np.zeros(batch, np.int64), zeros
    )


@pytest.mark.parametrize("lstm", [0, 4])
def test_the_behaviour_policy_is_that_of_the_rounded_weights(lstm: int) -> None:
    """Actions and log-probabilities are those of a network with all weights rounded, bit by bit."""
    published = moved(actor_critic(lstm), 1)
    rounded = {
        name: decode(to_bfloat16(value.reshape(-1))).reshape(value.shape) for name, value in published.weights.items()
    }
    outputs = []
    for whole in (False, True):
        runner = PolicyRunner(actor_critic(lstm), np.random.default_rng(0))
        message = encode_weights(round_weights(published, runner.layout), None)
        found = rounded if whole else WeightDecoder(runner.layout).decode(message).weights
        runner.load(found)
        outputs.append(runner.act(inputs(5), runner.initial_state(5)))
    for one, other in zip(outputs[0][:2], outputs[1][:2], strict=True):
        assert one.tobytes() == other.tobytes()


def test_both_stores_serve_the_same_methods_to_learners() -> None:
    exact, compressed = WeightStore.description.methods, CompressedWeightStore.description.methods
    assert exact.keys() <= compressed.keys() and exact["publish"] == compressed["publish"]
