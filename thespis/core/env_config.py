"""An environment with everything that is put around it: what `thespis.envs.make` needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thespis.core.user_code import Spec, locate


@dataclass(frozen=True)
class EnvConfig:
    """An environment with everything that is put around it: what `thespis.envs.make` needs to know."""

    env: Spec
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Spec, ...] = ()
    frame_stack: int | None = None
    time_limit: int | None = None

    @property
    def name(self) -> str:
        """The environment's own name, as messages and summaries call it."""
        return self.env if isinstance(self.env, str) else locate(self.env)
