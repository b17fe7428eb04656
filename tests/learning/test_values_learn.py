"""DQN and Ape-X learn what they should. Simulated, so that every run is the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thespis import train


def learn(architecture: str, place: Path, **settings: Any) -> dict[str, Any]:
    return train(
        architecture, on="simulation", env="CartPole-v1", run_dir=place / "run", quiet=True, eval_episodes=20, eval_every=0.0,
        **settings,
    ).summary  # fmt: skip
