"""Code that a run may execute: the user's own, and code that the user trusts."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from thespis import load, train
from thespis.cli import main as cli
from thespis.runs import trust
from thespis.runs.trust import Untrusted, check_trusted, code_of, remember

ENV = """
import os
from pathlib import Path
Path(__file__).with_name("executed").touch()
import gymnasium
def make(**settings):
    return gymnasium.make("CartPole-v1", **settings)
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "state"


def stranger(path: Path, architecture: str = "impala", **settings: Any) -> Path:
    """A run directory from another machine or user."""
    path.mkdir(exist_ok=True)
    (path / "config.yaml").write_text(yaml.safe_dump({"architecture": architecture, **settings}))
    return path


def own_env(path: Path, source: str = ENV) -> Path:
    path.mkdir(exist_ok=True)
    (path / "my_env.py").write_text(source)
    return path / "my_env.py"


def test_everything_that_names_code_is_found() -> None:
    settings = {
        "env": "package:Env-v0",
        "network": {"factory": "file.py::make", "hidden": [64]},
        "wrapper": ["a.py::one", "b::two"],
        "member": "own.py",
        "settings": ["network.factory=c.py::three", "unroll_length=8"],
        "ray_address": "10.0.0.1:6379",
        "run_dir": "runs/x",
    }
    assert code_of("mine.py", settings) == {
        "architecture": "mine.py",
        "env": "package:Env-v0",
        "network.factory": "file.py::make",
        "wrapper[0]": "a.py::one",
        "wrapper[1]": "b::two",
        "member": "own.py",
        "settings[0]": "network.factory=c.py::three",
        "ray_address": "10.0.0.1:6379",
    }
    assert code_of("impala", {"env": "ALE/Pong-v5", "ray_address": "auto"}) == {}


@pytest.mark.parametrize(
    "spec", ["{file}::make", "my_env::make", "my_env:CartPole-v1", "posix::system", "__main__::x", "os::system"]
)
def test_code_is_trusted_once_it_was_trained_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    code = {"env": spec.format(file=own_env(tmp_path / "mine"))}
    monkeypatch.chdir(tmp_path / "mine")
    with pytest.raises(Untrusted, match=r"opening run runs code .* \(env: .*\); pass trust=True"):
        check_trusted(Path("run"), code)
    remember(code)
    check_trusted(Path("run"), code)
    assert not (tmp_path / "mine" / "executed").exists(), "no code is executed to identify it"


def test_the_same_name_elsewhere_is_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's file has the same name as the user's own file."""
    for spec in ("my_env.py::make", "my_env:CartPole-v1"):
        for directory in ("mine", "theirs"):
            own_env(tmp_path / directory)
        monkeypatch.chdir(tmp_path / "mine")
        remember({"env": spec})
        monkeypatch.chdir(tmp_path / "theirs")
        with pytest.raises(Untrusted):
            check_trusted(Path(), {"env": spec})
    with pytest.raises(Untrusted):
        check_trusted(Path(), {"env": f"{tmp_path}/mine/my_env.py::another"})


def test_a_file_that_another_user_put_in_its_place_is_other_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = own_env(tmp_path / "mine")
    code = {"env": f"{file}::make"}
    remember(code)
    real = os.stat

    def owned_by_another(path: Any, **options: Any) -> os.stat_result:
        about = list(real(path, **options))
        if str(path) == str(file):
            about[stat.ST_UID] += 1
        return os.stat_result(about)

    monkeypatch.setattr(os, "stat", owned_by_another)
    with pytest.raises(Untrusted):
        check_trusted(Path(), code)


def test_what_is_not_there_needs_no_trust(tmp_path: Path) -> None:
    """The policy of a run can be loaded although its environment is gone."""
    check_trusted(Path(), {"env": f"{tmp_path}/gone.py::make", "wrapper": "no_such_package::wrap"})


@pytest.mark.parametrize("home", ["read-only", "none", "not private"])
def test_without_a_home_directory_trust_is_stored_in_a_private_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.setattr(trust.tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME")
    if home == "none":
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError()))
    elif home == "read-only":
        (tmp_path / "home").write_text("a file, so that nothing can be made below it")
    else:
        place = tmp_path / "home" / ".local" / "state" / "thespis" / "trusted"
        place.mkdir(parents=True)
        place.chmod(0o777)
    code = {"env": f"{own_env(tmp_path / 'mine')}::make"}
    remember(code)
    check_trusted(Path(), code)
    (place,) = tmp_path.glob("thespis-trusted-*")
    assert place.stat().st_mode & 0o077 == 0
    place.chmod(0o777)
    with pytest.raises(Untrusted):
        check_trusted(Path(), code)


def test_names_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    file = own_env(tmp_path / "x\x1b[2J")
    with pytest.raises(Untrusted) as refusal:
        check_trusted(Path("run"), {"env": f"{file}::make"})
    assert "\x1b" not in str(refusal.value)


@pytest.mark.parametrize("command", [["eval"], ["record", "--out", "demos"], ["resume"]])
@pytest.mark.parametrize("which", ["env", "architecture", "factory"])
def test_commands_run_no_code_of_an_untrusted_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str], which: str
) -> None:
    file = own_env(tmp_path / "theirs")
    named = {
        "env": {"env": f"{file}::make"},
        "architecture": {"architecture": str(file)},
        "factory": {"network": {"factory": f"{file}::make"}},
    }[which]
    run = stranger(tmp_path / "theirs", **named)
    monkeypatch.chdir(tmp_path)
    assert cli.main([command[0], str(run), *command[1:]]) == 2
    complaint = capsys.readouterr().err
    assert str(file) in complaint and "--trust" in complaint and len(complaint.splitlines()) == 1
    assert not (tmp_path / "theirs" / "executed").exists()
    with pytest.raises(Untrusted):
        _ = load(str(run)).policy


@pytest.mark.parametrize("answer", ["y\n", "\n"])
def test_a_user_at_a_terminal_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str
) -> None:
    from thespis.cli import trust_flags

    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return answer

    monkeypatch.setattr(trust_flags.sys, "path", list(trust_flags.sys.path))
    monkeypatch.setattr(trust_flags.sys, "stdin", Terminal())
    monkeypatch.setattr(trust_flags.sys.stderr, "isatty", lambda: True, raising=False)
    run = stranger(tmp_path / "theirs", env=f"{own_env(tmp_path / 'theirs')}::make")
    if answer == "y\n":
        trust_flags.allow(run, trust=False)
    else:
        with pytest.raises(Untrusted):
            trust_flags.allow(run, trust=False)
    assert "Run it? [y/N]" in capsys.readouterr().err


def test_commands_in_an_untrusted_run_directory_import_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules in the current directory are found only after the code is trusted."""
    monkeypatch.setattr(cli.sys, "path", [entry for entry in cli.sys.path if entry])
    monkeypatch.chdir(stranger(tmp_path / "theirs", env="CartPole-v1"))
    for words in (["eval", "."], ["plot", "."], ["record", ".", "--out", "demos"]):
        assert cli.main(words) == 2  # the run has no checkpoint and no metrics
        assert "" not in cli.sys.path


def test_ones_own_run_opens_without_a_question(tmp_path: Path) -> None:
    file = own_env(tmp_path / "mine")
    settings: dict[str, Any] = {"actors": 1, "envs_per_actor": 2, "eval_episodes": 0, "total_steps": 100}
    run = train("impala", env=f"{file}::make", on="simulation", run_dir=tmp_path / "run", quiet=True, **settings)
    assert run.policy.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert load(str(tmp_path / "run")).policy.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    for entry in (tmp_path / "state" / "thespis" / "trusted").iterdir():
        entry.unlink()
    with pytest.raises(Untrusted):
        _ = load(str(tmp_path / "run")).policy
    assert load(str(tmp_path / "run"), trust=True).policy.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
