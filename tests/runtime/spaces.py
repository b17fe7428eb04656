"""An environment with an unsupported action space."""

from __future__ import annotations

from gymnasium.spaces import Text

from thespis.envs.toys import Chain


def odd_actions() -> Chain:
    env = Chain()
    env.action_space = Text(8)  # type: ignore[assignment]
    return env
