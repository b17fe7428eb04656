"""The number of cores that a run may use, and the threads of its learner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from thespis.architectures.es import Config as Evolution
from thespis.architectures.parts.learners import build_learner_network
from thespis.architectures.ppo import Config as PPO
from thespis.core.config import Experiment
from thespis.core.system import cgroups, cores
from thespis.runtime.process import ENVIRONMENT


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 16 cores without limits; return the directory of its control groups."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "_SELF", tmp_path / "self")
    return tmp_path


def limit(root: Path, path: str, **files: str) -> None:
    (root / path).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / path / name.replace("__", ".")).write_text(text + "\n")


def test_affinity(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores.available_cores() == 16
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert cores.available_cores() == 2
    assert (Experiment().actors, Evolution().actors) == (1, 2)


def test_cgroups_of_version_2(groups: Path) -> None:
    (groups / "self").write_text("0::/user/job\n")
    limit(groups, "user/job", cpu__max="max 100000")
    assert cores.available_cores() == 16
    limit(groups, "user/job", cpu__max="350000 100000")
    assert cores.available_cores() == 3
    limit(groups, "user", cpu__max="50000 100000")
    assert cores.available_cores() == 1, "half a core is one"


def test_cgroups_of_version_1(groups: Path) -> None:
    (groups / "self").write_text("4:memory:/job\n3:cpu,cpuacct:/elsewhere\n0::/\n")
    limit(groups, "cpu,cpuacct", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert cores.available_cores() == 16
    # In a container the path is the host's, and the limit is at the root.
    limit(groups, "cpu,cpuacct", cpu__cfs_quota_us="400000", cpu__cfs_period_us="100000")
    assert cores.available_cores() == 4


def test_threads_of_a_learner(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores.learner_threads(9_000, 0) == 1, "a small network"
    assert cores.learner_threads(cores.ONE_THREAD_BELOW, 0) == 16
    assert cores.learner_threads(1_700_000, 4) == 12
    assert cores.learner_threads(1_700_000, 100) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    assert cores.learner_threads(9_000, 0) == 3 and cores.learner_threads(1_700_000, 4) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert cores.learner_threads(9_000, 0) == 1


def test_a_learner_is_built_for_as_many(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx: Any = SimpleNamespace(identity=SimpleNamespace(run_seed=0))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        build_learner_network(ctx, PPO(actors=3), in_turns=True)
        assert torch.get_num_threads() == 1
        monkeypatch.setattr(cores, "ONE_THREAD_BELOW", 0)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)))
        build_learner_network(ctx, PPO(actors=3), in_turns=True)
        assert torch.get_num_threads() == 5
        build_learner_network(ctx, PPO(actors=3))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_threads_that_wait_do_not_spin() -> None:
    """libgomp prints its settings when it starts."""
    child = {**os.environ, **ENVIRONMENT, "OMP_DISPLAY_ENV": "VERBOSE"}
    child.pop("GOMP_SPINCOUNT", None)
    library = next((Path(torch.__file__).parent / "lib").glob("libgomp*"))  # importing torch would take seconds
    load = f"import ctypes; ctypes.CDLL({str(library)!r})"
    result = subprocess.run([sys.executable, "-c", load], env=child, capture_output=True, text=True, check=True)
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in result.stderr and "GOMP_SPINCOUNT = '0'" in result.stderr


def test_the_number_of_cores_is_asked_for_in_one_place() -> None:
    package = Path(cores.__file__).parent
    askers = [path.name for path in package.rglob("*.py") if "cpu_count" in path.read_text()]
    assert askers == []
