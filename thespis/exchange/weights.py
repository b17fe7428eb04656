"""Weights for acting, rounded to bfloat16: sent whole, or as the difference from a version that the receiver has.

    float32 -> nearest bfloat16 -> XOR with the receiver's version -> byte planes -> zlib

An update moves few weights by more than 1/256 of themselves, so most bits of the difference are 0. The receiver gets
exactly the rounded weights: a checksum of the result is in every message.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from thespis.core.context import Context
from thespis.core.opaque import from_opaque
from thespis.core.payloads import CompressedWeights, WeightLayout
from thespis.core.types import Array, Version, VersionedWeights, unflatten_parameters
from thespis.exchange.precision import decode, to_bfloat16

_LEVEL, _WINDOW, _MEMORY = 1, 15, 9
"""Of zlib. Higher levels take several times as long and save a few percent."""


class RoundedWeights(NamedTuple):
    """One version of the weights: all parameters as the bits of bfloat16, uint16 `[n]`, and the exact arrays."""

    version: Version
    bits: Array
    exact: list[Array]


class BrokenChain(Exception):
    """A message of weights cannot be decoded, or is not what its sender encoded. Only a whole version helps."""


# -- pure functions -------------------------------------------------------------------------------


def round_weights(weights: VersionedWeights, layout: WeightLayout) -> RoundedWeights:
    """Round the weights that acting reads."""
    arrays = from_opaque(weights.weights)
    parts = [arrays[name].reshape(-1) for name, _ in layout.rounded]
    flat = np.concatenate(parts) if parts else np.empty(0, np.float32)
    return RoundedWeights(weights.version, to_bfloat16(flat), [arrays[name].copy() for name in layout.exact])


def restore_arrays(weights: RoundedWeights, layout: WeightLayout) -> dict[str, Array]:
    """Return all weights by name; the rounded ones as float32."""
    arrays = unflatten_parameters(decode(weights.bits), layout.rounded)
    return arrays | dict(zip(layout.exact, weights.exact, strict=True))


def encode_weights(new: RoundedWeights, base: RoundedWeights | None) -> CompressedWeights:
    """Encode a version as the difference from `base`, or whole."""
    checksum = _checksum(new.bits, new.exact)
    if base is None:
        return CompressedWeights(new.version, None, new.bits, new.exact, checksum)
    changed = new.bits ^ base.bits
    planes = np.concatenate([(changed >> 8).astype(np.uint8), changed.astype(np.uint8)])
    # Runs of zeros are all that repeats: to look for nothing else is as fast and saves a third of the bytes.
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY, zlib.Z_RLE)
    data = np.frombuffer(stream.compress(planes.data) + stream.flush(), np.uint8)
    return CompressedWeights(new.version, base.version, data, new.exact, checksum)


def decode_weights(message: CompressedWeights, base: RoundedWeights | None) -> RoundedWeights:
    """Return the version that a message holds. Raise `BrokenChain` if it does not fit `base`."""
    bits = message.data
    if message.base is not None:
        if base is None or base.version != message.base:
            raise BrokenChain(f"{message.version} is the difference from {message.base}, which is not here")
        try:
            planes = np.frombuffer(zlib.decompress(message.data.data), np.uint8)
        except zlib.error as error:
            raise BrokenChain(f"{message.version}: {error}") from error
        if len(planes) != 2 * len(base.bits):
            raise BrokenChain(f"{message.version} has {len(planes) // 2} parameters, not {len(base.bits)}")
        high, low = planes.reshape(2, -1)
        bits = base.bits ^ (high.astype(np.uint16) << 8 | low)
    if _checksum(bits, message.exact) != message.checksum:
        raise BrokenChain(f"{message.version}: wrong checksum")
    return RoundedWeights(message.version, bits, message.exact)


def _checksum(bits: Array, exact: Sequence[Array]) -> int:
    found = zlib.crc32(bits.data)
    for array in exact:
        found = zlib.crc32(np.ascontiguousarray(array).data, found)
    return found


# -- the two ends of a pull -----------------------------------------------------------------------


class WeightEncoder:
    """Encodes versions for receivers of earlier ones, and counts the bytes.

    It keeps the last versions that it has encoded, because only those can be a receiver's. A receiver of any other
    version, or of an earlier epoch, gets a whole one, an *anchor*.
    """

    def __init__(self, ctx: Context, layout: WeightLayout, raw_bytes: int, history: int) -> None:
        """`raw_bytes`: size of the weights without compression. `history`: versions to keep; 0 sends all whole."""
        self._ctx, self._layout, self._raw_bytes, self._history = ctx, layout, raw_bytes, history
        self._known: dict[Version, RoundedWeights] = {}
        self._newest: RoundedWeights | None = None
        self._messages: dict[Version | None, CompressedWeights] = {}
        self._encoding = asyncio.Lock()

    async def encode(self, weights: VersionedWeights, held: Version | None) -> CompressedWeights:
        """Encode a version, no older than the last one, for a receiver of `held`."""
        message = self._find(weights.version, held)
        if message is None:
            async with self._encoding:  # receivers of the same version wait, and get the same message
                message = self._find(weights.version, held)
                if message is None:
                    message = await self._encode(weights, held)
        self._count(message, held)
        return message

    def _find(self, version: Version, held: Version | None) -> CompressedWeights | None:
        if self._newest is None or self._newest.version != version:
            return None
        return self._messages.get(self._base(held, version))

    def _base(self, held: Version | None, version: Version) -> Version | None:
        """The version from which the difference is sent, if there is one."""
        return held if held in self._known and held.epoch == version.epoch else None

    async def _encode(self, weights: VersionedWeights, held: Version | None) -> CompressedWeights:
        base = self._base(held, weights.version)
        known = None if base is None else self._known[base]
        new, message = await self._ctx.run_in_thread("compress", self._layout.size, self._make, weights, known)
        if self._newest is None or self._newest.version < new.version:
            self._newest, self._messages = new, {}
            if self._history:
                self._known[new.version] = new
                while len(self._known) > self._history:
                    del self._known[next(iter(self._known))]
        if self._newest.version == new.version:
            self._messages[base] = message
        return message

    def _make(self, weights: VersionedWeights, base: RoundedWeights | None) -> tuple[RoundedWeights, CompressedWeights]:
        newest = self._newest
        same = newest is not None and newest.version == weights.version
        new = newest if newest is not None and same else round_weights(weights, self._layout)
        return new, encode_weights(new, base)

    def _count(self, message: CompressedWeights, held: Version | None) -> None:
        ctx = self._ctx
        ctx.count("weights/raw_bytes", self._raw_bytes)
        ctx.count("weights/wire_bytes", message.nbytes)
        if not self._history:
            return
        ctx.count("weights/anchors" if message.base is None else "weights/deltas")
        if message.base is None and held is not None:
            ctx.count("weights/gaps")


class WeightDecoder:
    """Decodes what a `WeightEncoder` sends to one receiver, whose version never decreases."""

    def __init__(self, layout: WeightLayout) -> None:
        self._layout = layout
        self._held: RoundedWeights | None = None

    def decode(self, message: CompressedWeights) -> VersionedWeights:
        """Return the weights of a message and keep them as the base of the next. May raise `BrokenChain`."""
        self._held = decode_weights(message, self._held)
        return VersionedWeights(message.version, restore_arrays(self._held, self._layout))
