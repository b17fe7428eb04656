"""Links, devices and FIFOs in a run directory: no command waits for them, follows them or writes to them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from thespis.architectures.sharding import ServersConfig
from thespis.cli import main as cli
from thespis.core.config_io import load_yaml
from thespis.core.errors import ThespisError
from thespis.core.program import Program
from thespis.core.system import commit
from thespis.core.system.commit import CorruptCheckpoint
from thespis.core.system.files import read_bytes
from thespis.roles import Queue
from thespis.runs.checkpoints import Checkpoints, load_role, policy_weights, read_meta, save_role
from thespis.runs.directory import RunDirectory
from thespis.runtime.cost_model import CostModel
from thespis.training.trained_run import TrainedRun

pytestmark = pytest.mark.timeout(20)

STRANGE: dict[str, Callable[[Path], None]] = {
    "fifo": lambda path: os.mkfifo(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "directory": lambda path: path.mkdir(),
}


def saved(directory: Path, update: int = 1, roles: tuple[str, ...] = ("learner", "replay")) -> Path:
    checkpoints = Checkpoints(directory, keep=9)
    staging = checkpoints.stage()
    for role in roles:
        save_role(staging, role, 0, {"weights/w": np.full(3, update, np.float32)}, {"updates": update})
    return checkpoints.commit(staging, {"update": update})


@pytest.mark.parametrize("kind", STRANGE)
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    STRANGE[kind](path)
    with pytest.raises(OSError, match="not a regular file|directory"):
        read_bytes(path)
    with pytest.raises(ThespisError, match="cannot be read"):
        load_yaml(path)
    with pytest.raises(ThespisError, match="cannot be read"):
        CostModel.load(path)


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("name", ["manifest.json", "meta.json", "learner-0.safetensors", "learner-0.json"])
def test_a_checkpoint_with_a_file_that_is_none_is_passed_over(tmp_path: Path, name: str, kind: str) -> None:
    older, newer = saved(tmp_path, 1), saved(tmp_path, 2)
    (newer / name).unlink()
    STRANGE[kind](newer / name)
    found = Checkpoints(tmp_path, keep=9).newest_valid()
    assert found.path == older and name in found.skipped[0]


def test_what_the_manifest_does_not_name_is_not_waited_for_either(tmp_path: Path) -> None:
    path = saved(tmp_path, 1, roles=("replay",))
    os.mkfifo(path / "learner-0.safetensors")
    assert load_role(path, "learner", 0) is None
    with pytest.raises(CorruptCheckpoint, match="not a regular file"):
        policy_weights(path)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", "a/b", "/dev/zero", "x\0y"])
def test_a_manifest_names_no_file_outside(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path)
    (tmp_path / "secret").write_text("secret")
    manifest = json.loads((path / commit.MANIFEST).read_text())
    manifest["files"][name] = {"sha256": "0" * 64, "size": 6}
    (path / commit.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CorruptCheckpoint, match="which is no file of its directory"):
        commit.verify(path)


def test_a_link_that_leaves_the_directory_is_not_followed(tmp_path: Path) -> None:
    path = saved(tmp_path / "run")
    outside = tmp_path / "outside"
    (path / "learner-0.safetensors").rename(outside)  # the same bytes in another place
    (path / "learner-0.safetensors").symlink_to(outside)
    with pytest.raises(CorruptCheckpoint, match=r"learner-0.safetensors cannot be read"):
        commit.verify(path)


@pytest.mark.parametrize("name", ["log.txt", "metrics.jsonl", "summary.json", "config.yaml", "checkpoints"])
@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_a_run_whose_files_are_elsewhere_is_not_opened(tmp_path: Path, name: str, kind: str) -> None:
    """A resume would write there, because log.txt may be a link to any file."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("architecture: impala\n")
    (tmp_path / "elsewhere").write_text("architecture: impala\n")
    (run / name).unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ThespisError, match="not a link or device|holds no run"):
        RunDirectory.open(run)
    assert cli.main(["resume", str(run)]) == 2
    assert (tmp_path / "elsewhere").read_text() == "architecture: impala\n"


def test_a_summary_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "summary.json")
    with pytest.raises(ThespisError, match="cannot be read"):
        _ = TrainedRun(tmp_path).summary


# -- missing states ------------------------------------------------------------------------------


def test_a_checkpoint_from_which_a_role_was_taken_is_passed_over(tmp_path: Path) -> None:
    """Remove files and rewrite the manifest, so that every digest matches."""
    older, newer = saved(tmp_path, 1), saved(tmp_path, 2)
    manifest = json.loads((newer / commit.MANIFEST).read_text())
    for name in ("learner-0.safetensors", "learner-0.json"):
        (newer / name).unlink()
        del manifest["files"][name]
    (newer / commit.MANIFEST).write_text(json.dumps(manifest))
    checkpoints = Checkpoints(tmp_path, keep=9)
    found = checkpoints.newest_valid()
    assert found.path == older and "learner-0.safetensors is missing" in found.skipped[0]
    assert read_meta(older) == {"update": 1}


def test_a_checkpoint_without_the_weights_is_passed_over(tmp_path: Path) -> None:
    older, _ = saved(tmp_path, 1), saved(tmp_path, 2, roles=("replay",))
    assert Checkpoints(tmp_path, keep=9).newest_valid().path != older
    found = Checkpoints(tmp_path, keep=9, required=[("learner", 0)]).newest_valid()
    assert found.path == older and "learner-0.safetensors is missing" in found.skipped[0]


def test_who_holds_the_weights() -> None:
    """A checkpoint may lack a learner that pushes to servers, but no server."""
    from thespis.architectures import gorila, impala

    assert impala.program(impala.Config(actors=3)).weight_holders == [("learner", 0)]
    cfg = gorila.Config(actors=3, servers=ServersConfig(shards=2))
    assert gorila.program(cfg).weight_holders == [("server", 0), ("server", 1)]
    queue = Program("queue")
    queue.at().add("queue", Queue, capacity=1)
    assert queue.weight_holders == []
