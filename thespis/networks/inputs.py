"""Inputs as tensors: the same fields as `thespis.core.types.Inputs`, without copying."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thespis.core.types import Array, Inputs, Tree, map_tree

TensorTree = Tensor | dict[str, Tensor]


@dataclass(slots=True)
class TensorInputs:
    """`thespis.core.types.Inputs` for a network; leading axes always `[T, B]`."""

    obs: TensorTree
    first: Tensor
    last_action: Tensor
    last_reward: Tensor


def as_tensor(array: Array) -> Tensor:
    """A tensor on the array's own memory; read-only memory is copied, since tensors cannot promise not to write."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def as_tensors(tree: Tree) -> TensorTree:
    """`as_tensor` on every leaf."""
    tensors: TensorTree = map_tree(as_tensor, tree)
    return tensors


def tensor_inputs(inputs: Inputs) -> TensorInputs:
    """Inputs that already have both axes `[T, B]`, as tensors."""
    return TensorInputs(
        as_tensors(inputs.obs), as_tensor(inputs.first), as_tensor(inputs.last_action), as_tensor(inputs.last_reward)
    )
