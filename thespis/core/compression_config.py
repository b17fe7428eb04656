"""The settings of compression: of gradients, which learners send, and of weights, which actors pull."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from thespis.core.bounds import Bounds, Count
from thespis.core.errors import ThespisError

_SHARE, _RANK = 0.01, 2


@dataclass(frozen=True)
class CompressionConfig:
    """Compression of the gradients that learners send."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("gradients", "gradients_share", "gradients_rank", "gradients_feedback")

    gradients: Literal["float32", "float16", "bfloat16", "int8", "topk", "sign", "powersgd"] = "float32"
    """Encoding of gradients in messages: float32 (exact), float16 or bfloat16 (half the bytes), int8 (a quarter), topk
    (only the largest --gradients-share), sign (one bit per number), or powersgd (low-rank factors of each matrix)."""
    gradients_share: Annotated[float, Bounds(above=0, most=0.5)] = _SHARE
    """Share of the numbers of a gradient that topk sends: those of the largest magnitude."""
    gradients_rank: Count = _RANK
    """Rank of the factors of powersgd (Vogels et al., 2019)."""
    gradients_feedback: bool = True
    """Error feedback: add the part of a gradient that compression loses to the next gradient."""

    def __post_init__(self) -> None:
        if self.gradients != "topk" and self.gradients_share != _SHARE:
            raise ThespisError("--gradients-share is the share that topk sends; give --gradients topk, or leave it off")
        if self.gradients != "powersgd" and self.gradients_rank != _RANK:
            raise ThespisError("--gradients-rank is the rank of powersgd; give --gradients powersgd, or leave it off")
        if not self.compresses and not self.gradients_feedback:
            raise ThespisError(
                "--gradients float32 loses nothing, so there is no error to feed back; leave off --gradients-feedback"
            )

    @property
    def compresses(self) -> bool:
        """Whether gradients have another encoding than float32."""
        return self.gradients != "float32"

    def describe(self) -> str:
        """One phrase for the log of a run."""
        detail = {"topk": f" of {self.gradients_share:g}", "powersgd": f" of rank {self.gradients_rank}"}
        feedback = "with" if self.gradients_feedback else "without"
        return f"gradients: {self.gradients}{detail.get(self.gradients, '')}, {feedback} error feedback"


UNCOMPRESSED = CompressionConfig()
"""Gradients in float32."""


@dataclass(frozen=True)
class WeightsConfig:
    """Compression of the weights that actors pull."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("weights",)

    weights: Literal["float32", "bfloat16", "delta"] = "float32"
    """Form of the weights that actors pull: float32 (exact), bfloat16 (rounded, half the bytes), or delta (the same
    weights as bfloat16, sent as the difference from those that the actor has)."""

    @property
    def compresses(self) -> bool:
        """Whether actors pull weights in another form than float32."""
        return self.weights != "float32"

    def describe(self) -> str:
        """One phrase for the log of a run."""
        return f"weights: actors pull {self.weights}, evaluators float32"
