"""The recurrent core: an LSTM that forgets at every episode start."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LSTMCore(nn.Module):
    """An LSTM over `[T, B, F]` whose state is zeroed, per environment, before it consumes a first observation."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.cell = nn.LSTMCell(inputs, size)
        for weight in (self.cell.weight_ih, self.cell.weight_hh):
            nn.init.orthogonal_(weight)
        nn.init.zeros_(self.cell.bias_ih)
        nn.init.zeros_(self.cell.bias_hh)
        with torch.no_grad():  # Start by remembering: the forget gate is open (gates are ordered i, f, g, o).
            self.cell.bias_ih[size : 2 * size] = 1.0

    def forward(self, x: Tensor, first: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Hidden and cell state after each step, both `[T, B, size]`; the hidden state is the output too.

        `first`: bool `[T, B]`. `state`: hidden and cell before step 0, each `[B, size]`.
        """
        hidden, cell = state
        hiddens, cells = [], []
        keep = (~first).to(x.dtype).unsqueeze(-1)
        for step, kept in zip(x.unbind(0), keep.unbind(0), strict=True):
            hidden, cell = self.cell(step, (hidden * kept, cell * kept))
            hiddens.append(hidden)
            cells.append(cell)
        return torch.stack(hiddens), torch.stack(cells)

    def initial_state(self, batch: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(batch, self.size), torch.zeros(batch, self.size)
