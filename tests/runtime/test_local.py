"""The local runtime under kills and signals: which processes continue, which end, and that nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Stage, until
from safetensors.numpy import load_file

from thespis.core.system.commit import verify
from thespis.runs.directory import RunDirectory

pytestmark = pytest.mark.timeout(120)
KEYS = [
    "architecture", "env", "seed", "on", "algorithm", "exit_reason", "env_steps", "updates", "episodes", "wall_seconds",
    "startup_seconds", "first_step_seconds", "steps_per_second", "updates_per_second", "learning_seconds",
    "return_mean_100", "return_mean", "return_episodes", "eval_return_mean", "eval_episodes", "eval_env_steps",
    "stop_at_return", "seconds_to_threshold", "steps_to_threshold", "lag", "lag_counts", "samples_per_insert", "roles",
    "edges", "restarts", "dropped", "learner_events", "gradients", "weights", "nodes", "weights_sha256", "processes",
    "checkpoint", "exploration", "real_seconds", "resumed_at_steps",
]  # fmt: skip
FOREVER = 10**9


def begin(stage: Stage, *flags: object) -> subprocess.Popen[str]:
    """Start a run of one actor, and wait until it has learned."""
    process = stage.start("train", "impala", *stage.small(), "--report-every", 0.1, *flags)
    until(lambda: process.poll() is not None or '"lag/mean"' in read(stage.run / "metrics.jsonl"))
    assert process.poll() is None, process.communicate()
    return process


def learns_again(stage: Stage) -> None:
    """Wait until the run has learned from steps that were taken after this call."""
    before = len(read(stage.run / "metrics.jsonl").splitlines()) + 3
    until(lambda: '"lag/mean"' in "".join(read(stage.run / "metrics.jsonl").splitlines()[before:]))


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def pid_of(stage: Stage, process: str) -> int:
    return int(json.loads((stage.run / "topology.json").read_text())["pids"][process])


def summary(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((stage.run / "summary.json").read_text())
    assert list(found) == KEYS
    return found


def newest(stage: Stage) -> Path:
    """Verify and return the newest checkpoint."""
    path = max((stage.run / "checkpoints").glob("update-*"), key=lambda path: path.stat().st_mtime)
    verify(path)
    weights = load_file(path / "learner-0.safetensors")
    assert all(np.isfinite(array).all() for array in weights.values())
    return path


def test_a_killed_actor_is_replaced(stage: Stage) -> None:
    """A killed actor is replaced, and the processes of its environments are killed, too."""
    process = begin(stage, "--total-steps", 6_000, "--env", "factories::parent")
    os.kill(pid_of(stage, "actor-0"), signal.SIGKILL)
    _, err = process.communicate(timeout=40)
    assert process.returncode == 0, err
    assert "actor 0 was killed by SIGKILL; restarting in 0.5 s (1 of 3)" in err
    ended = summary(stage)
    assert (ended["exit_reason"], ended["restarts"]) == ("total_steps", 1)
    assert ended["env_steps"] >= 6_000
    newest(stage)


def test_a_killed_learner_resumes_from_its_checkpoint(stage: Stage) -> None:
    """The queue and the weight store restart empty with the learner; the actors continue."""
    process = begin(stage, "--total-steps", FOREVER, "--checkpoint-every", 0.3, "--keep", 50)
    until(lambda: list((stage.run / "checkpoints").glob("update-*")))
    os.kill(pid_of(stage, "learner"), signal.SIGKILL)
    line = until(lambda: [line for line in read(stage.run / "log.txt").splitlines() if "resumes from" in line])[0]
    taken = json.loads((stage.run / "checkpoints" / line.split()[-1] / "learner-0.json").read_text())["updates"]
    saved = len(list((stage.run / "checkpoints").glob("update-*")))
    until(lambda: len(list((stage.run / "checkpoints").glob("update-*"))) > saved)
    learns_again(stage)
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "learner (queue 0, weights 0, learner 0) was killed by SIGKILL; restarting in 0.5 s (1 of 3)" in err
    ended = summary(stage)
    assert (ended["restarts"], ended["dropped"]["queues"]) == (3, 1)
    assert json.loads((newest(stage) / "learner-0.json").read_text())["updates"] > taken, "the learner started over"
    for path in (stage.run / "checkpoints").glob("update-*"):
        assert (path / "learner-0.safetensors").exists(), "a checkpoint without its learner"
    assert json.loads((stage.run / "checkpoints" / "epoch-learner.json").read_text()) == {"epoch": 1}


def test_a_learner_killed_while_its_neighbours_start(stage: Stage) -> None:
    """Actors receive connections to the old and the new learner, and must use the new one."""
    process = stage.start("train", "impala", *stage.small(), "--total-steps", 3_000)
    until(lambda: (stage.run / "topology.json").exists())
    os.kill(pid_of(stage, "learner"), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "learner (queue 0, weights 0, learner 0) was killed by SIGKILL" in err
    assert saved_steps(stage) == summary(stage)["env_steps"]


def saved_steps(stage: Stage) -> int:
    return int(json.loads((newest(stage) / "meta.json").read_text())["env_steps"])


def test_a_process_that_is_down_at_the_end_contributes_its_last_state(stage: Stage) -> None:
    flags = ["--eval-episodes", 1, "--eval-every", 0.2, "--checkpoint-every", 0.3, "--total-steps", FOREVER]
    process = begin(stage, *flags)
    until(lambda: list((stage.run / "checkpoints").glob("update-*/evaluator-0.json")))
    os.kill(pid_of(stage, "evaluator-0"), signal.SIGKILL)
    until(lambda: "evaluator 0 was killed by SIGKILL" in read(stage.run / "log.txt"))
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert "evaluator-0 did not save; the checkpoint holds its state as of update-" in err
    ended = summary(stage)
    assert saved_steps(stage) == ended["env_steps"] and newest(stage).name == ended["checkpoint"]
    assert (newest(stage) / "evaluator-0.json").exists()
    assert json.loads((newest(stage) / "meta.json").read_text())["carried_over"]["evaluator 0"].startswith("update-")


def test_an_evaluation_that_was_made_is_not_called_missing(stage: Stage) -> None:
    """The actor takes longer to close its environments than the learner takes to exit."""
    flags = ["--envs-per-actor", 1, "--eval-episodes", 1, "--total-steps", 500, "--env", "factories::closing"]
    ended = stage.train(*flags)
    assert ended.returncode == 0, ended.stderr
    assert summary(stage)["eval_episodes"] == 1
    assert "no final evaluation" not in ended.stderr


def test_a_stopped_process_is_named_and_does_not_hold_up_the_end(stage: Stage) -> None:
    process = begin(stage, "--total-steps", FOREVER)
    pid = pid_of(stage, "learner")
    os.kill(pid, signal.SIGSTOP)
    until(lambda: f"learner (pid {pid}) was stopped by a signal; unless it continues" in read(stage.run / "log.txt"))
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert saved_steps(stage) == summary(stage)["env_steps"]


def test_a_process_that_stays_stopped_is_replaced(stage: Stage) -> None:
    process = begin(stage, "--total-steps", FOREVER)
    os.kill(pid_of(stage, "actor-0"), signal.SIGSTOP)
    until(lambda: "actor-0 was stopped by a signal for 10 s; restarting" in read(stage.run / "log.txt"))
    learns_again(stage)
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 130


def test_a_reader_that_leaves_does_not_end_the_run(stage: Stage) -> None:
    """The output is closed, as in `thespis train ... | head` or with a closed terminal."""
    process = begin(stage, "--total-steps", 30_000)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    assert process.wait(60) == 0
    assert saved_steps(stage) == summary(stage)["env_steps"] >= 30_000


def test_a_run_directory_that_is_deleted_is_made_again(stage: Stage) -> None:
    process = begin(stage, "--total-steps", FOREVER, "--checkpoint-every", 0.5)
    config = read(stage.run / "config.yaml")
    stage.run.rename(stage.path / "deleted")  # at once: the run could add a file while the directory is removed
    shutil.rmtree(stage.path / "deleted")
    until(lambda: "created it again" in read(stage.run / "log.txt"))
    until(lambda: list((stage.run / "checkpoints").glob("update-*")))
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert f"{stage.run} is gone" in err
    assert read(stage.run / "config.yaml") == config and saved_steps(stage) == summary(stage)["env_steps"]


def test_a_killed_parent_leaves_nothing(stage: Stage) -> None:
    """Nothing is left, including processes that environments started in separate sessions."""
    process = begin(stage, "--total-steps", FOREVER, "--env", "factories::parent")
    # Driver and reaper, learner and actor, and two processes of each of the two environments.
    assert len(stage.processes()) == 8
    process.kill()
    process.wait()
    until(lambda: not stage.processes(), 20.0)


def test_no_process_listens_on_the_network(stage: Stage) -> None:
    begin(stage, "--total-steps", FOREVER)
    listening = set()
    for table in ("tcp", "tcp6"):
        rows = [row.split() for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
        listening |= {row[9] for row in rows if row[3] == "0A"}
    named = {row.split()[6] for row in Path("/proc/net/unix").read_text().splitlines()[1:] if len(row.split()) > 7}
    held = set()
    for pid in stage.processes():
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(entry)
            assert not target.startswith("/dev/shm"), "named shared memory"
            if target.startswith("socket:["):
                held.add(target[8:-1])
    assert held, "the processes have sockets"
    assert not held & (listening | named), "a named socket"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_leaves(number: int, stage: Stage) -> None:
    process = begin(stage, "--total-steps", FOREVER, "--env", "factories::parent")
    process.send_signal(number)
    process.communicate(timeout=10)
    assert process.returncode == 130
    ended = summary(stage)
    assert ended["exit_reason"] == "interrupted"
    saved = json.loads((newest(stage) / "meta.json").read_text())
    assert saved["update"] == ended["updates"], "the checkpoint is not from the end"


def test_a_signal_during_a_step_that_takes_long(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCE", str(stage.path / "slow"))
    process = begin(stage, "--total-steps", FOREVER, "--env", "factories::slow")
    until((stage.path / "slow").exists)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130
    assert json.loads((newest(stage) / "meta.json").read_text())["update"] == summary(stage)["updates"]


def test_a_second_interrupt_leaves_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCE", str(stage.path / "slow"))
    process = begin(stage, "--total-steps", FOREVER, "--env", "factories::slow")
    until((stage.path / "slow").exists)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None, "nothing was left to interrupt"
    process.send_signal(signal.SIGINT)
    assert process.wait(1.5) == 130
    RunDirectory(stage.run).sweep()  # a second interrupt skips the cleanup, which `resume` does


def test_a_run_that_is_over_before_all_are_up(stage: Stage) -> None:
    """The evaluator may still import modules at the last step. The run waits for it and keeps its saved state."""
    ended = stage.thespis("train", "impala", "--run-dir", stage.run, "--total-steps", 64, "--eval-episodes", 1)
    assert ended.returncode == 0, ended.stderr
    assert "checkpoint" not in ended.stderr
    assert (newest(stage) / "evaluator-0.json").exists()
    assert summary(stage)["eval_episodes"] == 1


def test_a_full_disk_does_not_stop_training(stage: Stage) -> None:
    stage.run.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", stage.run], capture_output=True)
    if mount.returncode:
        pytest.skip("cannot mount a small disk here")
    try:
        process = begin(stage, "--total-steps", FOREVER, "--checkpoint-every", 0.4)
        first = until(lambda: list((stage.run / "checkpoints").glob("update-*")))[0]
        with (stage.run / "ballast").open("wb") as ballast:
            free = os.statvfs(stage.run).f_bavail * os.statvfs(stage.run).f_frsize
            ballast.write(bytes(max(0, free - 40_000)))
        until(lambda: "checkpoint not saved" in read(stage.run / "log.txt"))
        steps = len(read(stage.run / "metrics.jsonl").splitlines())
        until(lambda: len(read(stage.run / "metrics.jsonl").splitlines()) > steps + 5)
        for name in ("actor-0", "learner"):  # a killed process restarts although the disk is full
            os.kill(pid_of(stage, name), signal.SIGKILL)
            time.sleep(2.0)
        (stage.run / "ballast").unlink()
        learns_again(stage)
        process.terminate()
        _, err = process.communicate(timeout=15)
        assert process.returncode == 130, err
        assert "No space left on device" in err
        assert ") is intact and training continues" in err
        assert summary(stage)["exit_reason"] == "interrupted"
        assert newest(stage).name >= first.name
        assert not list(stage.run.rglob(".tmp-*"))
    finally:
        stage.close()
        subprocess.run(["umount", stage.run], check=True)


def test_a_disk_that_is_full_at_the_start_is_said(stage: Stage) -> None:
    disk = stage.path / "disk"
    disk.mkdir()
    options = "size=4k,nr_inodes=8"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("cannot mount a small disk here")
    try:
        (disk / "ballast").write_bytes(bytes(4096))
        ended = stage.thespis("train", "impala", "--run-dir", disk / "run", "--total-steps", 100)
        assert (ended.returncode, "Traceback" in ended.stderr) == (2, False), ended.stderr
        assert "No space left on device" in ended.stderr and not (disk / "run").exists()
    finally:
        stage.close()
        subprocess.run(["umount", disk], check=True)


def test_a_run_that_cannot_save_its_end_fails(stage: Stage) -> None:
    """The directory of the checkpoints is missing, so the last one cannot be written."""
    process = begin(stage, "--total-steps", 15_000)
    (stage.run / "checkpoints" / "epoch-learner.json").unlink()
    (stage.run / "checkpoints").rmdir()
    (stage.run / "checkpoints").write_text("in the way")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert "the run ended (total_steps), but its last checkpoint was not saved; there is none" in err
    assert summary(stage)["checkpoint"] is None
