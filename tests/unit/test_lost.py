"""Custom environments and networks: a policy can be loaded although the code is gone or has no name."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from thespis import VTrace, load, train
from thespis.cli import main
from thespis.core.errors import ThespisError
from thespis.core.system.commit import to_json
from thespis.core.user_code import locate, resolve, why_unresolvable
from thespis.envs.space_json import dump_spaces, load_spaces
from thespis.envs.spaces import AnySpace, Spaces
from thespis.envs.toys import Chain
from thespis.runtime.process import Status, status_page
from thespis.runtime.role_process import RoleProcess, StartCommand

SMALL: dict[str, Any] = {
    "actors": 1, "envs_per_actor": 2, "eval_episodes": 0, "total_steps": 200, "quiet": True, "on": "simulation"
}  # fmt: skip
SCRIPT = """
from thespis import train
from thespis.envs.toys import Chain

def make():
    return Chain()

run = train("impala", env=make, run_dir=RUN, actors=1, envs_per_actor=2, eval_episodes=0, total_steps=200, on=ON)
print("acted", run.policy.act([0.0, 0.0]))
"""


@pytest.mark.parametrize(
    "space",
    [
        Box(-1.0, 2.5, (2, 3), np.float32),
        Box(np.array([-np.inf, 0.1]), np.array([np.inf, 0.7]), dtype=np.float64),
        Box(0, 255, (4, 84, 84), np.uint8),
        Box(-(2**62) - 1, 2**62 + 1, (2,), np.int64),
        Discrete(5, start=-2),
        MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, 3]]),
        MultiBinary([2, 3]),
        Dict({"b": Discrete(2), "a": Dict({"c": MultiBinary(3)})}),
        Tuple([Discrete(3), Box(-1.0, 1.0, (2,), np.float32)]),
    ],
    ids=str,
)
def test_spaces_survive_json(space: AnySpace) -> None:
    spaces = Spaces(space, Discrete(2))
    assert load_spaces(to_json(dump_spaces(spaces)).decode(), "file") == spaces


def test_a_damaged_file_of_spaces_is_named() -> None:
    for text in ("{", "[]", '{"observation": {"kind": "Text"}}'):
        with pytest.raises(ThespisError, match=r"x/spaces.json does not describe spaces"):
            load_spaces(text, "x/spaces.json")


class Callable:
    def __call__(self) -> Chain:
        return Chain()


@pytest.mark.parametrize("kind", ["lambda", "local", "partial", "object"])
def test_what_has_no_name_trains_and_its_policy_is_loaded_without_it(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def inside() -> Chain:
        return Chain()

    part = functools.partial(Chain, 4)
    env: Any = {"lambda": lambda: Chain(), "local": inside, "partial": part, "object": Callable()}
    run = train("impala", env=env[kind], run_dir=tmp_path / "run", **SMALL)
    assert "another process cannot import the environment" in (tmp_path / "run" / "log.txt").read_text()
    assert run.env_config().env is env[kind], "this process still has the function"
    loaded = load(str(tmp_path / "run"))
    assert loaded.policy.act(np.zeros(2, np.float32)) in (0, 1)
    with pytest.raises(ThespisError, match=r"the environment of this run, .*, cannot be imported: it is a lambda"):
        loaded.env_config()
    assert loaded.env_config(env=Chain).env is Chain
    assert main.main(["eval", str(loaded.path), "--episodes", "1"]) == 2
    assert main.main(["resume", str(loaded.path), "--total-steps", "400"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all(line.endswith("as --env file.py::function on the command line or env=... in Python") for line in said)
    assert main.main(["eval", str(loaded.path), "--episodes", "1", "--env", "thespis/Chain-v0"]) == 0
    assert main.main(["resume", str(loaded.path), "--total-steps", "400", "--env", "thespis/Chain-v0"]) == 0
    assert load(str(loaded.path)).config.env == "thespis/Chain-v0"


def test_a_network_without_a_name_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ThespisError, match="--network.factory cannot be imported to load the policy: it is a lambda"):
        train("impala", run_dir=tmp_path / "run", network={"factory": lambda obs, act: None}, **SMALL)
    assert not (tmp_path / "run").exists()


def test_an_algorithm_without_a_name_is_refused_before_training(tmp_path: Path) -> None:
    class Inside(VTrace):
        pass

    with pytest.raises(ThespisError, match="--algorithm cannot be imported .* it is .* a function inside"):
        train("impala", run_dir=tmp_path / "run", algorithm=Inside(), **SMALL)
    assert not (tmp_path / "run").exists()


def test_an_algorithm_of_a_notebook_is_found_where_its_cell_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cell(VTrace):
        pass

    Cell.__module__, Cell.__qualname__ = "__main__", "Cell"
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "Cell", Cell, raising=False)
    run = train("impala", env=Chain, run_dir=tmp_path / "run", algorithm=Cell(discount=0.5), **SMALL)
    assert "the policy can be loaded only where --algorithm is defined again" in (run.path / "log.txt").read_text()
    loaded = load(run.path)
    assert loaded.policy.act(np.zeros(2, np.float32)) in (0, 1)
    assert loaded.config.learned == Cell(discount=0.5)
    monkeypatch.delattr(sys.modules["__main__"], "Cell")
    with pytest.raises(ThespisError, match="'__main__::Cell' cannot be found again: it is defined at a prompt"):
        _ = load(run.path).policy


def test_names_of_a_prompt_are_found_where_they_are_defined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "typed_in", Chain, raising=False)
    assert why_unresolvable("__main__::typed_in") is None and why_unresolvable("__main__::typed_in", elsewhere=True)
    assert resolve("__main__::typed_in") is Chain
    with pytest.raises(ThespisError, match="'__main__::nobody' cannot be found again: it is defined at a prompt"):
        resolve("__main__::nobody")


def test_paths_are_written_so_that_they_are_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "my_env.py").write_text(
        "import gymnasium as gym\nfrom thespis.envs.toys import Chain\ndef make():\n    return Chain()\n"
        "class Same(gym.Wrapper):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path / "there")
    run = train("impala", env="my_env.py::make", wrapper=["my_env.py::Same"], run_dir="run", **SMALL)
    written = yaml.safe_load((tmp_path / "there" / "run" / "config.yaml").read_text())
    assert written["env"] == f"{tmp_path}/there/my_env.py::make"
    assert written["wrapper"] == [f"{tmp_path}/there/my_env.py::Same"]
    assert locate(resolve(written["env"])) == written["env"], "the file's location finds the function"
    monkeypatch.chdir(tmp_path)
    assert main.main(["eval", f"there/{run.path}", "--episodes", "1"]) == 0
    (tmp_path / "there" / "my_env.py").unlink()
    assert load(f"there/{run.path}").policy.act(np.zeros(2, np.float32)) in (0, 1)


def test_a_file_finds_its_neighbours_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "my_parts.py").write_text("from thespis.envs.toys import Chain as Part\n")
    (tmp_path / "there" / "my_whole.py").write_text("from my_parts import Part\ndef make():\n    return Part()\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    assert isinstance(resolve("there/my_whole.py::make")(), Chain)


def test_a_script_without_a_guard_trains_once_and_cannot_be_imported_into_a_second_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, run = tmp_path / "script.py", tmp_path / "run"
    script.write_text(SCRIPT.replace("RUN", repr(str(run))).replace("ON", "'simulation'"))
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert ended.returncode == 0 and ended.stdout.count("acted") == 1, ended.stderr
    assert load(str(run)).policy.act(np.zeros(2, np.float32)) in (0, 1)
    assert main.main(["eval", str(run)]) == 2
    said = capsys.readouterr().err
    assert f"{script} starts a training run whenever it is imported" in said and 'if __name__ == "__main__":' in said
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run"]


def test_a_script_that_ends_when_it_is_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("raise SystemExit(3)")
    with pytest.raises(ThespisError, match=r"ends.py::make' cannot be loaded: SystemExit: 3"):
        resolve(f"{tmp_path}/ends.py::make")


async def _started(roles: bytes) -> list[Any]:
    result: list[Any] = []
    page = status_page("test")
    host = RoleProcess(result.append, Status(page))
    os.close(page)
    host.start(StartCommand([], roles, [], {}, frozenset(), frozenset(), None, 1.0))
    return result


def test_a_process_does_not_train_what_its_roles_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function is sent by its module's name. Importing that module in every process must not start runs."""
    import asyncio

    (tmp_path / "recursive.py").write_text(SCRIPT.replace("RUN", "'runs'").replace("ON", "'simulation'"))
    monkeypatch.syspath_prepend(tmp_path)
    result = asyncio.run(_started(b"crecursive\nmake\n."))
    kind, what, _, blame_user = result[-1]
    assert (kind, blame_user) == ("error", True) and "recursive.py starts a training run whenever" in what


def test_a_script_from_standard_input_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> Chain:
        return Chain()

    made.__module__, made.__qualname__ = "__main__", "made"
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "<stdin>", raising=False)
    assert locate(made) == "__main__::made"
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__)
    assert locate(made) == f"{__file__}::made"
