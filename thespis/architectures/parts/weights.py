"""How a weight store that compresses is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thespis import roles
from thespis.architectures.parts.policies import new_policy_runner

if TYPE_CHECKING:
    from thespis.core.config import Experiment
    from thespis.core.context import Context
    from thespis.core.learners_config import WeightsConfig

_LEAST, _MOST = 16, 128
"""Bounds of the number of versions that a store of compressed weights keeps, for the differences to them."""


def build_compressed_weights(
    ctx: Context, cfg: Experiment, pulled: WeightsConfig, hold_back: int
) -> roles.CompressedWeightStore:
    """A weight store that rounds the weights that acting reads. It keeps two versions for each actor, within bounds."""
    from thespis.exchange.weights import WeightEncoder

    runner = new_policy_runner(ctx, cfg)
    history = min(max(2 * cfg.actors, _LEAST), _MOST) if pulled.weights == "delta" else 0
    encoder = WeightEncoder(ctx, runner.layout, runner.nbytes, history)
    return roles.CompressedWeightStore(ctx, encoder, hold_back=hold_back)
