"""Environments tested before a run: broken ones are reported at once, and known ones cost no time."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from thespis import train
from thespis.core.config import EnvConfig
from thespis.core.errors import ThespisError
from thespis.core.watchdog import set_env_status, watch_env
from thespis.envs.make import describe_env, make_envs
from thespis.envs.toys import Chain
from thespis.runtime.env_probe import probe
from thespis.runtime.process import Status, status_page


class Fails(Chain):
    """An environment that fails as `how` says, in the method `where`."""

    def __init__(self, where: str = "", how: str = "") -> None:
        super().__init__()
        self._where, self._how = where, how
        self._fail("__init__")

    def _fail(self, where: str) -> None:
        if self._where != where:
            return
        if self._how == "hang":
            time.sleep(3600.0)
        if self._how == "leave":
            print("my last words", flush=True)
            os._exit(3)
        raise RuntimeError("boom")

    def reset(self, **kwargs: Any) -> Any:
        self._fail("reset")
        return super().reset(**kwargs)

    def close(self) -> None:
        self._fail("close")


def tried(where: str, how: str, seconds: float = 60.0) -> Any:
    return probe(EnvConfig(Fails, {"where": where, "how": how}), seconds)


def test_one_that_works_says_its_spaces() -> None:
    assert tried("", "") == (describe_env(Chain), [])


def test_one_that_raises_is_shown_with_its_own_lines_only() -> None:
    with pytest.raises(
        ThespisError, match=r"test_probe::Fails' fails in reset, so nothing .*RuntimeError: boom"
    ) as result:
        tried("reset", "raise")
    (trace,) = result.value.__notes__
    assert trace.splitlines()[-1].strip() == 'raise RuntimeError("boom")' and "autoreset.py" not in trace


def test_one_that_hangs_is_noticed_and_ended() -> None:
    with pytest.raises(ThespisError, match=r"did not return from __init__ within 2 s; raise --env-timeout"):
        tried("__init__", "hang", 2.0)


class Parent(Chain):
    """Starts a process in a separate session and never ends it."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self._process = subprocess.Popen(["sleep", "3600"], start_new_session=True, stdout=subprocess.DEVNULL)
        Path(file).write_text(str(self._process.pid))


def test_what_an_environment_starts_ends_with_the_trial(tmp_path: Path) -> None:
    probe(EnvConfig(Parent, {"file": str(tmp_path / "pid")}), 60.0)
    status = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_crash_is_reported_with_the_output_of_the_process() -> None:
    with pytest.raises(ThespisError, match=r"took its process down in reset: it ended with exit code 3") as result:
        tried("reset", "leave")
    assert result.value.__notes__ == ["my last words"]


def test_trouble_at_the_end_is_noted_and_no_more() -> None:
    spaces, notes = tried("close", "raise")
    assert spaces == describe_env(Chain) and notes[0].endswith("close raised RuntimeError: boom; training continues")
    spaces, notes = tried("close", "hang", 2.0)
    assert spaces == describe_env(Chain) and "did not return from close within 2 s" in notes[0]


def test_an_id_that_only_this_process_knows_is_reported() -> None:
    gym.register("OnlyHere-v0", entry_point=Chain)
    try:
        with pytest.raises(ThespisError, match=r"'OnlyHere-v0' is registered only in this process; give module:OnlyHe"):
            probe(EnvConfig("OnlyHere-v0"), 60.0)
    finally:
        del gym.registry["OnlyHere-v0"]


def test_what_comes_with_gymnasium_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: Any, **settings: Any) -> Any:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    for env in ("CartPole-v1", "FrozenLake-v1", "thespis/Memory-v0"):
        assert probe(EnvConfig(env, time_limit=5), 60.0) == (describe_env(env), [])


def test_a_page_says_which_environment_is_being_made_or_closed() -> None:
    descriptor = status_page("test")
    status = Status(descriptor)
    os.close(descriptor)
    set_env_status(status)
    seen: list[Any] = []

    class Looks(Chain):
        def __init__(self) -> None:
            super().__init__()
            seen.append((status.stuck(0.0), status.closing))

        def close(self) -> None:
            seen.append((status.stuck(0.0), status.closing))

    make_envs(Looks, 2).close()
    said = [f"env {env}: {doing} did not return within 0 s" for doing in ("__init__", "close") for env in (0, 1)]
    assert seen == [(said[0], False), (said[1], False), (said[2], True), (said[3], True)]
    assert status.stuck(0.0) is None
    with watch_env("make"):
        assert status.location == "one of its environments: __init__"


def test_all_are_closed_although_one_fails() -> None:
    closed: list[int] = []

    class Sour(Chain):
        def close(self) -> None:
            closed.append(1)
            raise RuntimeError("stuck lid")

    with pytest.raises(RuntimeError, match="stuck lid"):
        make_envs(Sour, 3).close()
    assert len(closed) == 3


def test_an_evaluation_without_end_is_cut_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from thespis.cli import main

    run = train(
        "impala", env="thespis/Chain-v0", env_kwargs={"length": 10**9}, run_dir=tmp_path / "run", on="simulation",
        actors=1, envs_per_actor=2, total_steps=200, eval_episodes=2, eval_max_steps=7, quiet=True,
    )  # fmt: skip
    assert run.summary["eval_return_mean"] == sum(range(1, 8))
    log = (tmp_path / "run" / "log.txt").read_text()
    assert (
        "2 episodes of an evaluation did not end within --eval-max-steps 7; they count with their return so far" in log
    )
    assert main.main(["eval", str(run.path), "--episodes", "2", "--max-steps", "4"]) == 0
    assert capsys.readouterr().out.count("return 10, length 4, truncated by --max-steps") == 2
    assert main.main(["record", str(run.path), "--episodes", "2", "--out", str(tmp_path / "demos")]) == 0
    said = capsys.readouterr().out
    assert "2 episodes did not end within 7 steps and were truncated (--max-steps)" in said and "14 steps" in said


def test_only_episodes_that_did_not_end_are_cut(tmp_path: Path) -> None:
    from thespis.training.evaluation import play

    run = train(
        "impala", env="thespis/Chain-v0", run_dir=tmp_path / "run", on="simulation", actors=1, envs_per_actor=2,
        total_steps=200, eval_episodes=0, quiet=True,
    )  # fmt: skip
    for limit, cut in ((5, set()), (4, {0, 1, 2})):
        results = play(run, 3, max_steps=limit)
        assert results.cut == cut and [episode.length for episode in results.episodes] == [limit] * 3
    assert np.isclose(results.episodes[0].reward, 10.0)
