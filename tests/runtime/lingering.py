"""An architecture that waits in the driver at its start or its end, as LINGER says.

It creates GATE/waits and continues once GATE/go exists. Meanwhile the driver has no running event loop.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from thespis.architectures import impala
from thespis.core.program import Program

Config = impala.Config


def _wait(at: str) -> None:
    if os.environ["LINGER"] == at:
        gate = Path(os.environ["GATE"])
        (gate / "waits").touch()
        while not (gate / "go").exists():
            time.sleep(0.02)


def program(cfg: impala.Config) -> Program:
    if cfg.run_dir is not None and cfg.run_dir.exists():
        _wait("start")
    return impala.program(cfg)


def on_finish(cfg: impala.Config, path: Path) -> list[str]:
    _wait("end")
    return ["concluded"]
