"""Odd files, paths and sizes: each gives one line and exit code 2 before any work, and leaves nothing behind."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from thespis import TrainedRun, train
from thespis.architectures import impala
from thespis.cli.main import main
from thespis.core.errors import ThespisError
from thespis.core.system import cgroups
from thespis.runtime import capacity
from thespis.runtime.capacity import check_capacity
from thespis.training.launch import launch

SMALL = "--on simulation --actors 1 --envs-per-actor 2 --eval-episodes 0 --total-steps 400"
ALIASES = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
FILES: dict[str, tuple[bytes, str]] = {
    "binary": (bytes(range(256)) * 8, "it is not a text file"),
    "null": (b"\0" * 100, "unacceptable character"),
    "deep": (b"[" * 5000 + b"]" * 5000, "nested too deeply"),
    "deeper": (b"".join(b" " * i + b"a:\n" for i in range(400)), "nested too deeply"),
    "aliases": (ALIASES.encode(), "it has more than 20000 values"),
    "itself": (b"a: &a [*a]\n", "nested too deeply"),
    "large": (b"x: 1\n" * 60_000, "it is larger than 256 kB"),
    "date": (b"seed: 2024-99-99\n", "month must be in 1..12"),
    "digits": (b"seed: " + b"9" * 6000 + b"\n", "4300 digits"),
}
WORDS: dict[str, str] = {
    f"train impala {SMALL} --seed {'9' * 26}": "--seed is 99999999999999999999999999; give at least 0",
    f"train impala {SMALL} --seed -1": "--seed is -1; give at least 0",
    f"train impala {SMALL} --network.hidden -3": "--network.hidden is -3; give at least 1 and at most 65536",
    f"train impala {SMALL} --network.hidden 1e9": "--network.hidden is 1000000000; give at least 1",
    f"train impala {SMALL} --network.hidden 60k 60k 60k 60k 60k 60k 60k 60k": "--network.hidden or .lstm is too large",
    f"train impala {SMALL} --network.lstm -1": "--network.lstm is -1; give at least 0",
    f"train impala {SMALL} --network.factory there": "--network.factory is 'there'; give file.py::function",
    f"train impala {SMALL} --total-seconds inf": "--total-seconds is inf; give a finite number of more than 0",
    f"train impala {SMALL} --forced-lag -1": "--forced-lag is -1; give at least 0",
    f"train impala {SMALL} --unroll-length 1e15": "--unroll-length is too large: it takes ",
    "train impala --on simulation --envs-per-actor 1e15": "give fewer --actors or --envs-per-actor",
    "train dqn --on simulation --batch 1e15": "--batch is too large",
    "train es --on simulation --noise-table 1e15": "--noise-table is too large",
    "train pbt --on simulation --population 1e9": "--population is 1000000000; give at least 1 and at most 100000",
    "train pbt --on simulation --settings a=[": "--settings a=[: '[' is not valid YAML",
    "train impala --actors 10000": "processes are too many",
    f"train impala {SMALL} --run-dir /proc/there": "give another --run-dir",
    "eval RUN --seed -1": "--seed: -1 is invalid; give at least 0",
    "eval RUN --max-steps 0": "--max-steps: 0 is invalid; give at least 1",
    "eval RUN --video /proc/x.gif": "/proc/x.gif cannot be written (No such file or directory); give another --video",
    "eval RUN --video nowhere/x.gif": "nowhere/x.gif cannot be written (No such file or directory)",
    "eval RUN --video folder.gif": "folder.gif cannot be written (Is a directory)",
    "record RUN --out demos --seed -1": "--seed: -1 is invalid; give at least 0",
    "record RUN --out demos --max-steps -1": "--max-steps: -1 is invalid; give at least 1",
    "record RUN --out /proc/x": "/proc/x cannot be written",
    "record RUN --out file/x": "file/x cannot be written (File exists)",
    "plot RUN --out /proc/x.png": "/proc/x.png cannot be written",
    "plot RUN --smooth 1e40": "--smooth: ",
    "compare impala --seconds nan": "--seconds: nan is invalid; give a finite number",
    "compare impala --seconds 1 --seeds 1e9": "--seeds is 1000000000; give at least 1 and at most 10000",
    "compare impala --total-steps 1 --out /proc/x": "/proc/x cannot be written",
    "list everything": "thespis list takes no arguments ('everything' was given)",
    "show impala --actors 1e9": "--actors is 1000000000; give at least 1 and at most 100000",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return train(
        "impala", on="simulation", actors=1, envs_per_actor=2, eval_episodes=0, total_steps=400,
        run_dir=tmp_path_factory.mktemp("odd") / "run", quiet=True,
    )  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "folder.gif").mkdir()
    (tmp_path / "file").write_text("in the way")
    return tmp_path


def one_line(words: list[str], here: Path, capfd: Any) -> str:
    """Run a command with an error; return its message."""
    before = sorted(here.rglob("*"))
    assert main(words) == 2
    out, err = capfd.readouterr()
    assert err.startswith("thespis: ") and err.count("\n") == 1 and "Traceback" not in out, err
    assert sorted(here.rglob("*")) == before, "files were left behind"
    return str(err)


@pytest.mark.parametrize("words", WORDS)
def test_odd_arguments(words: str, run: TrainedRun, here: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for played in ("thespis.training.evaluation.make_envs", "thespis.envs.make.make_envs") if "RUN" in words else ():
        monkeypatch.setattr(played, lambda *args, **settings: pytest.fail("no episode may be played"))
    assert WORDS[words] in one_line([str(run.path) if word == "RUN" else word for word in words.split()], here, capfd)


@pytest.mark.parametrize("name", FILES)
def test_odd_files(name: str, here: Path, capfd: Any) -> None:
    content, result = FILES[name]
    (here / "odd").write_bytes(content)
    said = one_line(["train", "impala", "--config", "odd"], here, capfd)
    assert "config odd cannot be read: " in said and result in said
    said = one_line(["train", "impala", *SMALL.split(), "--cost-model", "odd"], here, capfd)
    assert "cost model odd cannot be read: " in said and result in said


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("network: {hidden: 64}", "config: network.hidden is 64, which is not tuple"),
        ("algorithm: [1]", "--algorithm is [1]; choose vtrace, a2c, appo, ppo, r2d2, trpo"),
        ("edges: {default: {bandwidth: 0}}", "unknown setting 'edges'"),
    ],
)
def test_odd_values_in_a_config(text: str, result: str, here: Path, capfd: Any) -> None:
    (here / "odd").write_text(f"architecture: seed\n{text}\n")
    assert result in one_line(["train", "seed", "--config", "odd"], here, capfd)


@pytest.mark.parametrize("text", ["{bandwidth: 0}", "{bandwidth: .nan}", "{cpu: -1}", "{cpu: .inf}", "{latency: .nan}"])
def test_odd_costs(text: str, here: Path, capfd: Any) -> None:
    (here / "odd").write_text(f"edges: {{default: {text}}}\n")
    assert "cost model odd: " in one_line(["train", "impala", *SMALL.split(), "--cost-model", "odd"], here, capfd)


def test_resuming_where_nothing_can_be_written(run: TrainedRun, here: Path, capfd: Any) -> None:
    shutil.copytree(run.path, here / "run")
    (here / "run" / "log.txt").unlink()
    (here / "run" / "log.txt").mkdir()
    said = one_line(["resume", "run", "--total-steps", "4000"], here, capfd)
    assert "run/log.txt must be a file, not a link or device" in said


# -- limits of the machine ------------------------------------------------------------------------


def checked(monkeypatch: pytest.MonkeyPatch, memory: int = 1 << 40, **settings: Any) -> None:
    monkeypatch.setattr(capacity, "memory_left", lambda: memory)
    cfg = impala.Config(**settings)
    check_capacity(impala.program(cfg), cfg)


def test_as_many_processes_as_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    checked(monkeypatch, memory=1 << 30, actors=8)
    with pytest.raises(
        ThespisError, match="14 processes .* 1.0 GB of memory are free; give at most --actors 8, or --on"
    ):
        checked(monkeypatch, memory=1 << 30, actors=12)
    checked(monkeypatch, memory=1 << 30, actors=12, on="simulation")


def test_as_many_processes_as_the_control_group_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {("pids", "max"): ["40"], ("pids", "current"): ["10"]}
    monkeypatch.setattr(cgroups, "contents", lambda name, unified, legacy: there.get((name, unified), []))
    with pytest.raises(ThespisError, match="the control group allows 40"):
        checked(monkeypatch, actors=100)


@pytest.mark.parametrize("version", [1, 2])
def test_limits_of_a_control_group(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of this process in both cgroup hierarchies; `max` means no limit."""
    listing = {1: "3:cpu:/\n4:memory:/job\n8:pids:/\n", 2: "0::/job\n"}[version]
    place = {1: tmp_path / "memory" / "job", 2: tmp_path / "job"}[version]
    place.mkdir(parents=True)
    (place / {1: "memory.limit_in_bytes", 2: "memory.max"}[version]).write_text("5000\n")
    if version == 2:
        (place / "pids.max").write_text("max\n")
    (tmp_path / "self").write_text(listing)
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "_SELF", tmp_path / "self")
    assert cgroups.cgroup_limit("memory", unified="max", legacy="limit_in_bytes") == 5000
    assert cgroups.cgroup_limit("pids", unified="max", legacy="max") is None


def test_too_few_open_files_are_reported_before_the_start(here: Path) -> None:
    ended = subprocess.run(
        ["bash", "-c", f"ulimit -n 60; exec {sys.executable} -m thespis train impala"], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1
    assert "open files and may have 60; raise the limit with `ulimit -n " in ended.stderr
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("number", "result"),
    [
        (errno.EMFILE, "raise the limit with `ulimit -n 79`"),
        (errno.EAGAIN, "the run has 3 processes: give fewer --actors"),
    ],
)
def test_a_process_that_cannot_be_started(
    number: int, result: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("thespis.runtime.local.spawn", refuse)
    cfg = impala.Config(actors=1, run_dir=here / "run")
    with pytest.raises(ThespisError) as error:
        launch("impala", cfg, quiet=True)
    assert result in str(error.value) and "\n" not in str(error.value)
