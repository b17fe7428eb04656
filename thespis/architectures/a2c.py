"""A2C: the synchronous form of A3C (Mnih et al., 2016). Workers in lock-step, one update of all their gradients.

worker xN --gradients--> server (waits for all N, averages) --parameters--> worker xN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thespis.architectures.parameter_server import Workers, add_servers, wire
from thespis.program import Program


@dataclass(frozen=True)
class Config(Workers):
    """A2C. Equal to one worker with N times the environments, but spread over processes."""

    backups: int = 0
    """Workers that an update does not wait for; the last ones to come are dropped (Chen et al., 2016)."""


PRESETS: dict[str, dict[str, Any]] = {"CartPole-v1": {"total_steps": 500_000}}  # the learning rate anneals over it


def program(cfg: Config) -> Program:
    p = Program("a2c")
    return wire(p, cfg, add_servers(p, cfg, mode="sync", quorum=cfg.actors - cfg.backups))
