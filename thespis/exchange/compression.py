"""Compression of gradients with error feedback (Seide et al., 2014; Karimireddy et al., 2019).

    corrected = gradient + memory;  send encode(corrected);  memory = corrected - decode(sent)

Every number that the encoding loses is sent later. The memory belongs to the sender: it is part of its checkpoint, and
a restarted sender has an empty one, because a part of the saved memory has been sent since the checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from thespis.core.context import Context
from thespis.core.errors import ThespisError
from thespis.core.learners_config import CompressionConfig
from thespis.core.payloads import CompressedGradient, GatheredGradients, GradientMessage
from thespis.core.types import Array
from thespis.exchange.codecs import Codec, PowerSGD, TopK, build_codec, size_of

_MOST_GATHERED = 3
"""Contributions up to which replies hold them one by one: a reply then has at most twice the bytes of one."""


class Compressor:
    """One sender's encoder and its error memory.

    `encode` changes nothing until `commit`: a gradient that is not applied has no effect on the next encoding.
    """

    def __init__(self, ctx: Context, cfg: CompressionConfig, sections: Array) -> None:
        self._ctx, self._cfg, self._sections = ctx, cfg, sections
        self._number = 0  # of gradients encoded, which sets the share of top-k
        self._memory: Array | None = None
        self._previous: Array | None = None
        self._pending: tuple[Array | None, Array] | None = None
        if ctx.identity.restarts and cfg.gradients_feedback:
            ctx.count("gradients/lost_memories")

    def encode(self, gradient: Array) -> CompressedGradient:
        """Encode a finite gradient and what was lost before, and count the bytes."""
        corrected = gradient if self._memory is None else gradient + self._memory
        codec = self._codec()
        arrays = codec.encode(corrected, self._sections, self._previous)
        rest = corrected - codec.decode(arrays, self._sections) if self._cfg.gradients_feedback else None
        self._pending = rest, arrays[0]
        sent = CompressedGradient(self._cfg.gradients, self._cfg.gradients_rank, self._sections, arrays)
        self._ctx.count("gradients/raw_bytes", gradient.nbytes)
        self._ctx.count("gradients/wire_bytes", sent.nbytes)
        return sent

    def commit(self) -> None:
        """Store the loss of the last encoding in the memory, because the gradient counts as delivered."""
        assert self._pending is not None
        self._memory, self._previous = self._pending
        self._pending = None
        self._number += 1

    def state(self) -> dict[str, Array]:
        """Return the error memory, the progress of top-k's warm-up, and the factors from which PowerSGD continues."""
        saved = {} if self._memory is None else {"memory": self._memory}
        codec = self._codec()
        if isinstance(codec, TopK) and self._number:
            saved["number"] = np.array(self._number)
        if isinstance(codec, PowerSGD) and self._previous is not None:
            saved["factors"] = self._previous
        return saved

    def restore(self, arrays: dict[str, Array]) -> None:
        """Load what `state` returned, as far as it fits the settings; no memory after a restart."""
        self._number = int(arrays.get("number", 0))
        if self._ctx.identity.restarts:
            return
        memory, factors, codec = arrays.get("memory"), arrays.get("factors"), self._codec()
        if memory is not None and len(memory) == size_of(self._sections) and self._cfg.gradients_feedback:
            self._memory = memory
        if isinstance(codec, PowerSGD) and factors is not None:
            self._previous = factors if len(factors) == codec.length(self._sections) else None

    def forget(self) -> None:
        """Empty the error memory, because the parameters are now those of another learner."""
        counted_before = self._memory is None and self._ctx.identity.restarts
        if self._cfg.gradients_feedback and not counted_before:
            self._ctx.count("gradients/lost_memories")
        self._memory = self._previous = self._pending = None

    def _codec(self) -> Codec:
        cfg, share = self._cfg, self._cfg.share_after(self._number)
        return build_codec(cfg.gradients, share=share, rank=cfg.gradients_rank, seed=self._ctx.identity.run_seed)


class GroupCompressor:
    """The encoder of a group of learners, for its replies to them.

    The replies to few senders hold the contributions of the others, so nothing else is lost. With more senders these
    would grow, so the mean is encoded again, with an error memory of its own; all receive the same encoding. The group
    learns the sections of the vector from the first gradient.
    """

    def __init__(self, ctx: Context, cfg: CompressionConfig) -> None:
        self._ctx, self._cfg = ctx, cfg
        self._compressor: Compressor | None = None
        self._sections: Array = np.empty((0, 2), np.int32)

    def gather(self, parts: Sequence[GradientMessage | None], weights: list[float]) -> GatheredGradients | None:
        """The reply that holds all contributions, for few of them; None for many."""
        given = [part for part in parts if isinstance(part, CompressedGradient)]
        if len(given) < len(parts) or len(given) > _MOST_GATHERED:
            return None
        gathered = GatheredGradients([*given], weights)
        self._ctx.count("gradients/raw_bytes", 4 * given[0].size)
        self._ctx.count("gradients/wire_bytes", sum(part.nbytes for part in given[1:]))  # a reply lacks one of them
        return gathered

    def encode(self, mean: Array, like: GradientMessage | None) -> CompressedGradient:
        """Encode a mean of gradients. `like`: one of them."""
        if self._compressor is None:
            assert isinstance(like, CompressedGradient)
            self._open(like.sections)
        assert self._compressor is not None
        sent = self._compressor.encode(mean)
        self._compressor.commit()
        return sent

    def state(self) -> dict[str, Array]:
        """Return the error memory of the mean."""
        return {} if self._compressor is None else {"sections": self._sections, **self._compressor.state()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Load what `state` returned."""
        if "sections" in arrays:
            self._open(arrays["sections"]).restore(arrays)

    def _open(self, sections: Array) -> Compressor:
        self._sections, self._compressor = sections, Compressor(self._ctx, self._cfg, sections)
        return self._compressor


def decompress(message: GradientMessage) -> Array:
    """Return the float32 vector of a message from any sender. The message names its method."""
    if not isinstance(message, CompressedGradient):
        return message
    codec = build_codec(message.method, share=1.0, rank=message.rank, seed=0)
    return codec.decode(message.arrays, message.sections)


def refuse_rank(cfg: CompressionConfig, sections: Sequence[Array]) -> None:
    """Refuse a rank of PowerSGD at which no matrix of the network is compressed."""
    if cfg.gradients != "powersgd":
        return
    codec = PowerSGD(cfg.gradients_rank, seed=0)
    if not any(codec.length(part) for part in sections):
        raise ThespisError(
            f"--gradients powersgd of rank {cfg.gradients_rank} compresses no layer of this network: factors must have "
            "at most half of a layer's numbers; lower --gradients-rank, or use another method"
        )
