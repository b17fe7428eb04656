"""Weights in bfloat16 and as differences: rounding, messages, and the encoder of a store."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import numpy as np
import pytest
import torch
from fakes import YieldingContext, play
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from published_weights import LAYOUT, assert_equal_bits, context, expected, weights

from thespis.core.payloads import CompressedWeights, WeightLayout
from thespis.core.types import Array, Version, VersionedWeights
from thespis.exchange.precision import decode, to_bfloat16
from thespis.exchange.weights import (
    BrokenChain,
    RoundedWeights,
    WeightDecoder,
    WeightEncoder,
    decode_weights,
    encode_weights,
    restore_arrays,
    round_weights,
)

WORDS = st.one_of(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1).map(lambda upper: upper << 16 | 0x8000),  # ties
    st.sampled_from([0, 1, 0x80000000, 0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000,
                     0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF]),
)  # fmt: skip


# -- rounding -----------------------------------------------------------------------------------------


def nearest(word: int) -> int:
    """The upper half of the nearest bfloat16, by comparing distances; ties to even, NaN to the one of torch."""
    sign, magnitude = word & 0x80000000, word & 0x7FFFFFFF
    if magnitude > 0x7F800000:
        return 0x7FC0
    if magnitude == 0x7F800000:
        return word >> 16
    low = magnitude >> 16
    # The next upper half of the largest finite number is that of infinity, which stands for 2**128 here.
    below, above = (upper << 16 for upper in (low, low + 1))
    value, small, large = (float_of(bits) for bits in (magnitude, below, above))
    gap = (value - small) - (large - value)
    up = gap > 0 or (gap == 0 and low % 2)
    return sign >> 16 | (low + 1 if up else low)


def float_of(magnitude: int) -> float:
    if magnitude == 0x7F800000:
        return 2.0**128
    found: float = struct.unpack("<f", struct.pack("<I", magnitude))[0]
    return found


@settings(deadline=None)
@given(arrays(np.uint32, st.integers(1, 40), elements=WORDS))
def test_rounding_is_to_the_nearest_bfloat16(words: Array) -> None:
    rounded = to_bfloat16(words.view(np.float32))
    assert rounded.tolist() == [nearest(word) for word in words.tolist()]


def test_every_bfloat16_stays_what_it_is() -> None:
    every = np.arange(2**16, dtype=np.uint16)
    values = decode(every)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(to_bfloat16(values)[numbers], every[numbers])
    assert (to_bfloat16(values)[~numbers] == 0x7FC0).all()


def test_rounding_equals_that_of_torch() -> None:
    rng = np.random.default_rng(0)
    normal = rng.normal(size=100_000).astype(np.float32)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, 3.4e38, -3.4e38, 1.0, 1.00390625], np.float32)
    values = np.concatenate([normal, normal * np.float32(1e30), edges])
    wanted = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(to_bfloat16(values), wanted)


# -- messages -----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 30).flatmap(
        lambda n: st.tuples(*[arrays(np.uint32, n, elements=WORDS)] * 2, st.sampled_from([None, Version(1, 2)]))
    )
)
def test_any_weights_arrive_as_published(drawn: tuple[Array, Array, Version | None]) -> None:
    new, old, held = drawn
    layout = WeightLayout([("w", [len(new)])], ["seen"])
    seen = np.array([len(new), 0.1])
    first, last = (
        round_weights(VersionedWeights(version, {"w": words.view(np.float32), "seen": seen}), layout)
        for version, words in ((Version(1, 2), old), (Version(1, 9), new))
    )
    message = encode_weights(last, None if held is None else first)
    assert message.base == held
    found = restore_arrays(decode_weights(message, first), layout)
    assert found["w"].tobytes() == decode(to_bfloat16(new.view(np.float32))).tobytes()
    assert found["seen"].tobytes() == seen.tobytes()


def pair() -> tuple[RoundedWeights, CompressedWeights]:
    rng = np.random.default_rng(0)
    old, new = (round_weights(weights(update, rng), LAYOUT) for update in (1, 2))
    return old, encode_weights(new, old)


def flipped(array: Array, at: int) -> Array:
    copied = np.frombuffer(array.tobytes(), np.uint8).copy()
    copied[at] ^= 1
    return copied.view(array.dtype).reshape(array.shape)


def test_a_damaged_message_is_never_taken_for_weights() -> None:
    old, message = pair()
    for at in range(message.data.nbytes):
        try:  # a few bits of a zlib stream have no effect
            found = decode_weights(message._replace(data=flipped(message.data, at)), old)
        except BrokenChain:
            continue
        assert found.bits.tobytes() == decode_weights(message, old).bits.tobytes()
    damaged = [message._replace(exact=[flipped(message.exact[0], 3)]), message._replace(data=message.data[:-5])]
    short = encode_weights(
        RoundedWeights(Version(0, 2), old.bits[:-1], []), RoundedWeights(old.version, old.bits[:-1], [])
    )
    damaged += [short, encode_weights(old, None)._replace(data=flipped(old.bits, 0))]
    for bad in damaged:
        with pytest.raises(BrokenChain):
            decode_weights(bad, old)


def test_a_difference_needs_its_base() -> None:
    old, message = pair()
    for base in (None, old._replace(version=Version(0, 0)), old._replace(bits=flipped(old.bits, 0))):
        with pytest.raises(BrokenChain):
            decode_weights(message, base)


# -- the encoder of a store ---------------------------------------------------------------------------


def run_encoder(scene: Any, history: int = 4) -> dict[str, int]:
    ctx = context(YieldingContext)
    play(scene(WeightEncoder(ctx, LAYOUT, raw_bytes=100, history=history)))
    return ctx.counters()


def test_who_has_a_known_version_gets_a_difference() -> None:
    async def scene(encoder: WeightEncoder) -> None:
        rng, decoder = np.random.default_rng(0), WeightDecoder(LAYOUT)
        held = None
        for update in range(3):
            published = weights(update, rng)
            message = await encoder.encode(published, held)
            assert message.base == held
            assert_equal_bits(decoder.decode(message).weights, expected(published))
            held = message.version

    counted = run_encoder(scene)
    assert counted["weights/raw_bytes"] == 300 and 0 < counted["weights/wire_bytes"] < 300
    assert counted["weights/anchors"] == 1 and counted["weights/deltas"] == 2 and "weights/gaps" not in counted


@pytest.mark.parametrize("held", [Version(0, 1), Version(0, 3), Version(1, 99), Version(1, 0)])
def test_a_gap_is_answered_by_a_whole_version(held: Version) -> None:
    """After another epoch, a restart of the store, or more versions than the store keeps."""

    async def scene(encoder: WeightEncoder) -> None:
        rng = np.random.default_rng(0)
        await encoder.encode(weights(3, rng), None)
        for update in range(6):
            await encoder.encode(weights(update, rng, epoch=1), None)
        assert (await encoder.encode(weights(6, rng, epoch=1), held)).base is None

    assert run_encoder(scene)["weights/gaps"] == 1


def test_receivers_of_one_version_share_a_message() -> None:
    async def scene(encoder: WeightEncoder) -> None:
        rng = np.random.default_rng(0)
        first, second = weights(0, rng), weights(1, rng)
        await encoder.encode(first, None)
        messages = await asyncio.gather(*(encoder.encode(second, Version(0, 0)) for _ in range(5)))
        assert len({id(message) for message in messages}) == 1
        assert (await encoder.encode(second, None)).base is None

    assert run_encoder(scene)["weights/deltas"] == 5


def test_without_history_all_are_whole() -> None:
    async def scene(encoder: WeightEncoder) -> None:
        rng = np.random.default_rng(0)
        for update in range(3):
            message = await encoder.encode(weights(update, rng), None if update == 0 else Version(0, update - 1))
            assert message.base is None and message.data.nbytes == 32

    assert run_encoder(scene, history=0) == {"weights/raw_bytes": 300, "weights/wire_bytes": 3 * 40}


# -- a bad network ------------------------------------------------------------------------------------


@pytest.mark.timeout(400)
@pytest.mark.parametrize("versions", [3_000, 100_000])
def test_actors_behind_a_bad_network_have_the_published_bits(versions: int) -> None:
    """1% of the replies are lost, 1% arrive with the next one, in any order; store and learner restart."""
    rng = np.random.default_rng(versions)
    names, actors = ["w", "b"], 3
    flat = rng.normal(size=16).astype(np.float32)
    published: dict[Version, bytes] = {}
    ctx = context()

    async def scene() -> None:
        encoder = WeightEncoder(ctx, LAYOUT, 64, history=2 * actors)
        decoders = [WeightDecoder(LAYOUT) for _ in range(actors)]
        held: list[Version | None] = [None] * actors
        late: list[CompressedWeights | None] = [None] * actors
        applied, epoch = [0] * actors, 0
        broken = 0

        async def receive(actor: int, message: CompressedWeights, newest: VersionedWeights) -> None:
            """What `LocalPolicy.refresh` does with a message."""
            nonlocal broken
            have = held[actor]
            if have is not None and message.version <= have:
                return
            try:
                found = decoders[actor].decode(message)
            except BrokenChain:
                broken += 1
                found = decoders[actor].decode(await encoder.encode(newest, None))
            bits = np.concatenate([found.weights[name].reshape(-1) for name in names])
            assert bits.tobytes() == published[found.version]
            held[actor] = found.version
            applied[actor] += 1

        for update in range(versions):
            if update == versions // 2:  # the store forgets what it knows
                encoder = WeightEncoder(ctx, LAYOUT, 64, history=2 * actors)
            if update == versions * 3 // 4:
                epoch += 1
            flat[rng.integers(16)] += np.float32(rng.normal(scale=0.05))
            version = Version(epoch, update)
            published[version] = torch.from_numpy(flat).to(torch.bfloat16).float().numpy().tobytes()
            arrays = {"w": flat[:12].reshape(3, 4).copy(), "b": flat[12:].copy(), "seen": np.array(update)}
            newest = VersionedWeights(version, arrays)
            for actor in range(actors):
                if rng.random() < 0.3:
                    continue  # not every actor sees every version
                message, chance = await encoder.encode(newest, held[actor]), rng.random()
                if chance < 0.01:
                    continue
                former, late[actor] = late[actor], None
                if former is None and chance < 0.02:
                    late[actor] = message
                    continue
                both = [message] if former is None else [message, former] if chance < 0.5 else [former, message]
                for each in both:
                    await receive(actor, each, newest)
        assert min(applied) > 0.6 * versions
        assert broken > 0

    play(scene(), 390.0)
    counted = ctx.counters()
    assert 0 < counted["weights/gaps"] < 0.01 * versions
    assert counted["weights/anchors"] < 0.02 * versions * actors
