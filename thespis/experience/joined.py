"""What several replays handed out, as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from thespis.core.types import Array, Drawn, Inputs, Sequences, Transitions, map_tree


def joined(parts: Sequence[Drawn]) -> Drawn:
    """Items of one kind side by side, in the order of `parts`; `taken` is that of all."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Transitions):
        return _transitions(cast("Sequence[Transitions]", parts))
    return _sequences(cast("Sequence[Sequences]", parts))


def _transitions(parts: Sequence[Transitions]) -> Transitions:
    def beside(name: str) -> Any:
        return map_tree(lambda *leaves: np.concatenate(leaves), *(getattr(part, name) for part in parts))

    return Transitions(
        obs=beside("obs"),
        actions=beside("actions"),
        rewards=beside("rewards"),
        discounts=beside("discounts"),
        next_obs=beside("next_obs"),
        versions=beside("versions"),
        weights=beside("weights"),
        keys=beside("keys"),
        taken=sum(part.taken for part in parts),
    )


def _sequences(parts: Sequence[Sequences]) -> Sequences:
    def beside(*leaves: Array) -> Array:
        return np.concatenate(leaves, axis=1)

    def column(name: str, records: Sequence[Any] = parts) -> Any:
        return map_tree(beside, *(getattr(record, name) for record in records))

    inputs = [part.inputs for part in parts]
    return Sequences(
        inputs=Inputs(*(column(name, inputs) for name in ("obs", "first", "last_action", "last_reward"))),
        actions=column("actions"),
        returns=column("returns"),
        discounts=column("discounts"),
        ahead=column("ahead"),
        valid=column("valid"),
        versions=column("versions"),
        state=tuple(np.concatenate(same) for same in zip(*(part.state for part in parts), strict=True)),
        weights=np.concatenate([part.weights for part in parts]),
        keys=np.concatenate([part.keys for part in parts]),
        taken=sum(part.taken for part in parts),
    )
