"""Population-based training: roles, member runs, history and search space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thespis.core.lazy import lazy_names

if TYPE_CHECKING:
    from thespis.population.controller import Controller
    from thespis.population.trainer import Trainer

__all__ = ["Controller", "Trainer"]

__getattr__ = lazy_names(__name__, {"controller": "Controller", "trainer": "Trainer"})
