"""An architecture that waits in its constructor until the file in THESPIS_TEST_GATE exists."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from thespis.architectures import impala
from thespis.core.program import Program

Config = impala.Config


class Gate:
    """Wait for the file."""

    def __init__(self, ctx: Any) -> None:
        while not Path(os.environ["THESPIS_TEST_GATE"]).exists():
            time.sleep(0.02)


def program(cfg: impala.Config) -> Program:
    p = impala.program(cfg)
    p.at().add("gate", Gate)
    return p
