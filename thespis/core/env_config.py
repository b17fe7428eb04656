"""The settings of an environment and its wrappers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thespis.core.user_code import Spec, locate


@dataclass(frozen=True)
class EnvConfig:
    """The settings from which `thespis.envs.make.make_envs` builds environments: id, arguments and wrappers."""

    env: Spec
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Spec, ...] = ()
    frame_stack: int | None = None
    time_limit: int | None = None

    @property
    def name(self) -> str:
        """The environment's name in messages and summaries."""
        return self.env if isinstance(self.env, str) else locate(self.env)
