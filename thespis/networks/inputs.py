"""Converts policy inputs from numpy to tensors, without copying."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thespis.core.types import Array, Inputs, Tree, map_tree

TensorTree = Tensor | dict[str, Tensor]


@dataclass(slots=True)
class TensorInputs:
    """`thespis.core.types.Inputs` as tensors; the leading axes are always `[T, B]`."""

    obs: TensorTree
    first: Tensor
    last_action: Tensor
    last_reward: Tensor


def as_tensor(array: Array) -> Tensor:
    """Return a tensor that shares the array's memory; a read-only array is copied, since tensors are writable."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def as_tensors(tree: Tree) -> TensorTree:
    """Apply `as_tensor` to every leaf of a tree."""
    tensors: TensorTree = map_tree(as_tensor, tree)
    return tensors


def tensor_inputs(inputs: Inputs) -> TensorInputs:
    """Return inputs with the leading axes `[T, B]` as tensors."""
    return TensorInputs(
        as_tensors(inputs.obs), as_tensor(inputs.first), as_tensor(inputs.last_action), as_tensor(inputs.last_reward)
    )
