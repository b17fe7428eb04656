"""Shard: holds a part of a learner's network, with the optimiser for this part."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from thespis.algorithms.updates.optimizers import Optimizer, build_optimizer
from thespis.core.config import OptimizerConfig
from thespis.core.context import Context
from thespis.core.finite_weights import check_finite_weights
from thespis.core.payloads import ForwardRequest, ShardTurn
from thespis.core.service import Method, RoleDescription
from thespis.core.types import Array
from thespis.networks.inputs import as_tensor


@dataclass(slots=True)
class _Turn:
    """The graphs and gradients of one computation of the learner."""

    number: int
    graphs: dict[int, tuple[ForwardRequest, list[Tensor], tuple[Tensor, ...]]] = field(default_factory=dict)
    """By ticket: the request, its inputs and outputs."""
    gradients: dict[int, Tensor] = field(default_factory=dict)
    """Sums so far, by the number of the parameter."""


class Shard:
    """Computes its blocks for one learner, and applies its part of each update.

    The learner sends the whole state of the shard when it starts, and the shard keeps it for that session only. Every
    method answers None to another one, so a learner whose shard was restarted notices it at its next call.
    """

    description: ClassVar = RoleDescription(
        methods={
            "load": Method("weights", takes="pieces"),
            "forward": Method("gradients", takes="activations", gives="activations"),
            "backward": Method("gradients", takes="slopes", gives="slopes"),
            "norm": Method("gradients", gives="norm"),
            "gradients": Method("gradients", gives="gradients"),
            "step": Method("gradients", takes="gradients"),
            "collect": Method("weights", gives="pieces"),
        },
    )

    def __init__(
        self,
        ctx: Context,
        blocks: list[nn.Module],
        parameters: dict[str, nn.Parameter],
        optimizer: OptimizerConfig,
    ) -> None:
        """`parameters`: of the blocks, by their names in the whole network."""
        self._ctx, self._blocks, self._cfg = ctx, blocks, optimizer
        self._names, self._parameters = list(parameters), list(parameters.values())
        numbers = {id(parameter): number for number, parameter in enumerate(self._parameters)}
        self._numbers = [[numbers[id(each)] for each in block.parameters()] for block in blocks]
        self._session: int | None = None
        self._turn = _Turn(-1)
        self._optimizer: Optimizer = build_optimizer(optimizer, self._parameters)

    async def load(self, session: int, pieces: dict[str, Array]) -> bool:
        """Begin a session with this state. Without the running averages of the optimiser they start anew."""
        self._optimizer = build_optimizer(self._cfg, self._parameters)
        self._turn = _Turn(-1)
        for name, parameter in zip(self._names, self._parameters, strict=True):
            parameter.data.copy_(as_tensor(pieces[f"weights/{name}"]))
        for slot, values in self._optimizer.slots.items():
            for name, value in zip(self._names, values, strict=True):
                saved = pieces.get(f"slots/{slot}/{name}")
                if saved is not None:
                    value.copy_(as_tensor(saved))
        self._session = session
        return True

    async def forward(self, turn: ShardTurn, request: ForwardRequest) -> list[Array] | None:
        """Compute a block. With `wanted` the shard keeps the graph until the turn ends."""
        if not self._enter(turn):
            return None
        inputs = [as_tensor(array) for array in request.inputs]
        async with self._ctx.work("shard", items=len(inputs[0])):
            if request.wanted is None:
                with torch.no_grad():
                    return [output.numpy() for output in self._blocks[request.block](*inputs)]
            for tensor, wanted in zip(inputs, request.wanted, strict=True):
                tensor.requires_grad_(wanted)
            outputs = self._blocks[request.block](*inputs)
            self._turn.graphs[request.ticket] = request, inputs, outputs
            return [output.detach().numpy() for output in outputs]

    async def backward(self, turn: ShardTurn, ticket: int, slopes: list[Array]) -> list[Array] | None:
        """Add up the gradients of a block's parameters; return the derivatives by the wanted inputs."""
        if not self._enter(turn):
            return None
        async with self._ctx.work("shard", items=len(slopes[0])):
            request, inputs, outputs = self._turn.graphs.pop(ticket)
            assert request.wanted is not None
            sources = [tensor for tensor, wanted in zip(inputs, request.wanted, strict=True) if wanted]
            numbers = self._numbers[request.block]
            # A product instead of `grad_outputs`, because torch imports sympy for those (one second).
            products = [(output * as_tensor(slope)).sum() for output, slope in zip(outputs, slopes, strict=True)]
            parameters = [self._parameters[number] for number in numbers]
            found = torch.autograd.grad(torch.stack(products).sum(), [*sources, *parameters], materialize_grads=True)
            for number, gradient in zip(numbers, found[len(sources) :], strict=True):
                self._add(number, gradient)
            return [slope.numpy() for slope in found[: len(sources)]]

    async def norm(self, turn: ShardTurn) -> float | None:
        """Return the norm of this part of the gradients."""
        if not self._enter(turn):
            return None
        return math.sqrt(sum(float(norm) ** 2 for norm in torch._foreach_norm(self._own_gradients())))

    async def gradients(self, turn: ShardTurn) -> dict[str, Array] | None:
        """Return this part of the gradients, by parameter."""
        if not self._enter(turn):
            return None
        return {name: value.numpy() for name, value in zip(self._names, self._own_gradients(), strict=True)}

    async def step(
        self, turn: ShardTurn, learning_rate: float, scale: float, given: dict[str, Array] | None
    ) -> bool | None:
        """Apply this part of the gradients times `scale`, or the `given` gradients."""
        if not self._enter(turn):
            return None
        gradients = self._own_gradients() if given is None else [as_tensor(given[name]) for name in self._names]
        if scale != 1.0:
            torch._foreach_mul_(gradients, scale)
        self._optimizer.step(gradients, learning_rate)
        self._turn.gradients = {}
        return True

    async def collect(self, session: int, slots: bool) -> dict[str, Array] | None:
        """Return copies of the weights, and with `slots` of the optimiser's running averages."""
        if session != self._session:
            return None
        pieces = {
            f"weights/{name}": value.detach().numpy().copy()
            for name, value in zip(self._names, self._parameters, strict=True)
        }
        check_finite_weights(pieces, f"{self._ctx.identity}")
        if slots:
            pieces |= {
                f"slots/{slot}/{name}": value.numpy().copy()
                for slot, values in self._optimizer.slots.items()
                for name, value in zip(self._names, values, strict=True)
            }
        return pieces

    def _enter(self, turn: ShardTurn) -> bool:
        """Whether the caller's session is the current one. A new turn drops what the previous one left."""
        if turn.session != self._session:
            return False
        if turn.number != self._turn.number:
            self._turn = _Turn(turn.number)
        return True

    def _add(self, number: int, gradient: Tensor) -> None:
        known = self._turn.gradients.get(number)
        self._turn.gradients[number] = gradient if known is None else known.add_(gradient)

    def _own_gradients(self) -> list[Tensor]:
        gradients = self._turn.gradients
        for number, parameter in enumerate(self._parameters):
            if number not in gradients:
                gradients[number] = torch.zeros_like(parameter)
        return [gradients[number] for number in range(len(self._parameters))]
