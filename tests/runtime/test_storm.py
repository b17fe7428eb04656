"""A few runs of the storm; `python tests/runtime/storm.py` runs it for every architecture."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from storm import perform


@pytest.mark.timeout(300)
@pytest.mark.parametrize("architecture", ["impala", "apex", "es", "gorila", "seed+learners"])
def test_a_run_survives_a_storm(architecture: str, tmp_path: Path) -> None:
    result = perform(architecture, tmp_path / "run", random.Random(architecture), 8, 8.0, tmp_path)
    assert result.struck and not result.faults, result
