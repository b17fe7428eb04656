"""The recurrent core: an LSTM whose state is zeroed at every episode start."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LSTMCore(nn.Module):
    """An LSTM over `[T, B, F]`. It zeroes an environment's state before it reads the first step of an episode."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.cell = nn.LSTMCell(inputs, size)
        for weight in (self.cell.weight_ih, self.cell.weight_hh):
            nn.init.orthogonal_(weight)
        nn.init.zeros_(self.cell.bias_ih)
        nn.init.zeros_(self.cell.bias_hh)
        with torch.no_grad():  # Open the forget gate, so that the cell remembers at first (gate order: i, f, g, o).
            self.cell.bias_ih[size : 2 * size] = 1.0

    def forward(self, x: Tensor, first: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return hidden and cell state after each step, both `[T, B, size]`. The hidden state is also the output.

        `first`: bool `[T, B]`. `state`: hidden and cell state before step 0, each `[B, size]`.
        """
        hidden, cell = state
        hiddens, cells = [], []
        keep = (~first).to(x.dtype).unsqueeze(-1)
        for step, kept in zip(x.unbind(0), keep.unbind(0), strict=True):
            hidden, cell = self.step(step, hidden * kept, cell * kept)
            hiddens.append(hidden)
            cells.append(cell)
        return torch.stack(hiddens), torch.stack(cells)

    def step(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next hidden and cell state, each `[B, size]`, for inputs `[B, F]`."""
        states: tuple[Tensor, Tensor] = self.cell(x, (hidden, cell))
        return states

    def initial_state(self, batch: int) -> tuple[Tensor, Tensor]:
        """Return zero hidden and cell states, each `[batch, size]`."""
        return torch.zeros(batch, self.size), torch.zeros(batch, self.size)
