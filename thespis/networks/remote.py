"""Layers in another process, as a part of the learner's autograd graph.

A forward pass sends the inputs, computes the learner's own part meanwhile, and then waits for the outputs. The backward
pass does the same in reverse: it sends the derivatives by the outputs, and waits for the derivatives by the inputs
where the graph needs them. The other process keeps the graph of its layers in between.

    forward:   Enter (send inputs) -> the learner's own part -> Exit (wait for outputs)
    backward:  Exit (send slopes)  -> the learner's own part -> Enter (wait for slopes of the inputs)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from thespis.core.types import Array


class BlockCall(Protocol):
    """One pass through a block of another process. Every method may be called once, in this order."""

    def send_inputs(self, inputs: list[Array], wanted: list[bool] | None) -> None:
        """Start the forward pass; does not wait.

        `wanted`: which inputs need derivatives; None without backward pass.
        """

    def outputs(self) -> list[Array]:
        """Wait for the outputs."""

    def send_slopes(self, slopes: list[Array]) -> None:
        """Start the backward pass, from the derivatives by the outputs; does not wait."""

    def input_slopes(self) -> list[Array]:
        """Wait for the derivatives by the wanted inputs."""


class RemoteBlocks(Protocol):
    """The blocks of all other processes."""

    def open(self, process: int, block: int) -> BlockCall:
        """Return a new pass through a block of a process."""


class RemotePass:
    """One pass through a remote block: create it before the learner's own part, and call `outputs` after it."""

    def __init__(self, call: BlockCall, anchor: Tensor, inputs: Sequence[Tensor]) -> None:
        """`anchor`: a parameter that the caller needs the gradient of.

        It puts the pass on the path of the backward pass even if no input needs a gradient, because the parameters in
        the other process do.
        """
        self._call = call
        self._token: Tensor | None = None
        if torch.is_grad_enabled():
            self._token = _Enter.apply(call, anchor, *inputs)  # type: ignore[no-untyped-call]
        else:
            call.send_inputs([tensor.contiguous().numpy() for tensor in inputs], None)

    def outputs(self) -> tuple[Tensor, ...]:
        """Wait for the outputs, `[...]` of float32 each."""
        if self._token is None:
            return tuple(torch.from_numpy(array) for array in self._call.outputs())
        outputs: tuple[Tensor, ...] = _Exit.apply(self._call, self._token)  # type: ignore[no-untyped-call]
        return outputs


class _Enter(torch.autograd.Function):
    """Sends the inputs; the result is a token that connects it with `_Exit`."""

    @staticmethod
    def forward(ctx: Any, call: BlockCall, anchor: Tensor, *inputs: Tensor) -> Tensor:
        wanted = [tensor.requires_grad for tensor in inputs]
        call.send_inputs([tensor.detach().contiguous().numpy() for tensor in inputs], wanted)
        ctx.call = call
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, token: Tensor) -> tuple[Tensor | None, ...]:
        found = iter(ctx.call.input_slopes())
        return None, None, *(torch.from_numpy(next(found)) if wanted else None for wanted in ctx.needs_input_grad[2:])


class _Exit(torch.autograd.Function):
    """Waits for the outputs, and sends the derivatives by them in the backward pass."""

    @staticmethod
    def forward(ctx: Any, call: BlockCall, token: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        return tuple(torch.from_numpy(array) for array in call.outputs())

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        ctx.call.send_slopes([slope.contiguous().numpy() for slope in slopes])
        return None, torch.zeros(())
