"""Environments: any Gymnasium id behind one canonical step. Importing this package registers the `thespis/` toys."""

from __future__ import annotations

import gymnasium

for _name in ("Memory", "Recall", "Lock", "Chain", "Faulty", "Sleep"):
    gymnasium.register(id=f"thespis/{_name}-v0", entry_point=f"thespis.envs.toys:{_name}")
gymnasium.register(id="thespis/Reversal-v0", entry_point="thespis.envs.toys:Recall", kwargs={"turn": 20})
