"""Architectures with every algorithm they take: names of settings, presets, old and new config files, errors."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from thespis import load, resume, train
from thespis.algorithms import fitting_algorithms
from thespis.algorithms.ppo import PPO
from thespis.algorithms.vtrace import VTrace
from thespis.cli.main import main
from thespis.cli.train import parse_settings as cli_settings
from thespis.core.config import Experiment, Unrolls
from thespis.core.config_io import dump_yaml, load_yaml, to_dict, with_settings
from thespis.core.errors import ThespisError
from thespis.core.settings import walk_settings
from thespis.report.curves import grouped
from thespis.training import presets as preset_files
from thespis.training.launch import check_settings
from thespis.training.registry import PAIRS, architecture, architectures, defaults, load_config, presets

TAKEN = [
    (name, algorithm)
    for name in architectures()
    if hasattr(architecture(name).Config(), "algorithm")
    for algorithm in fitting_algorithms(architecture(name).Config)
]
FILES = sorted(preset_files._DIRECTORY.glob("*.yaml"))


def made(name: str, algorithm: str) -> Experiment:
    return with_settings(architecture(name).Config(), {"algorithm": algorithm})


@pytest.mark.parametrize(("name", "algorithm"), TAKEN)
def test_no_two_settings_share_a_name(name: str, algorithm: str) -> None:
    found = Counter(each.path for each in walk_settings(made(name, algorithm)))
    assert not [path for path, times in found.items() if times > 1]
    firsts = {path for path in found if "." not in path}
    assert not firsts & {path.partition(".")[0] for path in found if "." in path}, (
        "a setting and a table have the same name"
    )


@pytest.mark.parametrize(("name", "algorithm"), TAKEN)
def test_a_config_file_gives_back_what_was_written(name: str, algorithm: str, tmp_path: Path) -> None:
    for cfg in (made(name, algorithm), defaults(name, "ALE/Pong-v5", {"algorithm": algorithm})):
        assert with_settings(architecture(name).Config(), to_dict(cfg)) == cfg
        file = tmp_path / "config.yaml"
        file.write_bytes(dump_yaml({"architecture": name, **to_dict(cfg)}))
        assert defaults(name, None, load_config(file)[1]) == cfg


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_preset_has_a_source_and_fits(file: Path) -> None:
    name = file.stem.replace("_", "-")
    for algorithm in load_yaml(file):
        plain = architecture(name).Config() if algorithm == "any" else made(name, algorithm)
        found = presets(name, plain)
        assert found
        for preset in found:
            assert preset.source.strip()
            assert with_settings(plain, preset.settings) is not None
            assert defaults(name, preset.pattern, {} if algorithm == "any" else {"algorithm": algorithm})


def old_run(path: Path, name: str, **data: Any) -> Path:
    path.mkdir()
    (path / "config.yaml").write_text(yaml.safe_dump({"architecture": name, **data}))
    return path


def test_config_files_of_before_are_read(tmp_path: Path) -> None:
    """Config files of the first version: flat tables, with a setting `algorithm` in some architectures only."""
    flat = {"unroll_length": 7, "discount": 0.5, "correction": False, "optimizer": {"kind": "sgd"}}
    for name, chosen in (("impala", {}), ("a3c", {}), ("seed", {"algorithm": "vtrace"})):
        cfg = load(old_run(tmp_path / name, name, **flat, **chosen)).config
        assert isinstance(cfg.algorithm, VTrace)
        assert (cfg.algorithm.items, cfg.algorithm.discount) == (Unrolls(7), 0.5)
        assert (cfg.algorithm.correction, cfg.algorithm.optimizer.kind) == (False, "sgd")
    replayed = load(old_run(tmp_path / "apex", "apex", n_step=2, epsilon=0.3, replay={"capacity": 50})).config
    assert (replayed.algorithm.items.n_step, replayed.algorithm.items.replay.capacity) == (2, 50)
    assert replayed.algorithm.exploration.epsilon == 0.3


@pytest.mark.parametrize(("name", "where", "algorithm"), [(name, *both) for name, both in PAIRS.items()])
def test_a_pair_is_its_architecture_with_its_algorithm(name: str, where: str, algorithm: str) -> None:
    for env in (None, "CartPole-v1", "Pendulum-v1", "ALE/Pong-v5", "thespis/Recall-v0"):
        cfg = defaults(name, env, {"actors": 3})
        assert cfg == defaults(where, env, {"algorithm": algorithm, "actors": 3})
        assert (type(cfg), cfg.algorithm.name, cfg.actors) == (architecture(where).Config, algorithm, 3)
    assert architecture(name) is architecture(name.replace("-", "_")) is architecture(where)


def test_what_differs_with_dpg_does_so_with_it_only() -> None:
    plain, given = defaults("apex-dpg", None, {}), defaults("apex-dpg", "Pendulum-v1", {})
    assert plain == given and (plain.env, plain.actors, plain.envs_per_actor) == ("Pendulum-v1", 1, 4)
    other = defaults("apex-dpg", None, {"env": "MountainCarContinuous-v0", "actors": 5})
    assert (other.env, other.actors, other.total_steps) == ("MountainCarContinuous-v0", 5, 1_000_000)
    for name in ("dqn", "r2d2"):
        cfg = defaults("apex", None, {"algorithm": name})
        assert (cfg.env, cfg.actors, cfg.envs_per_actor) == ("CartPole-v1", 2, 4)


def test_runs_of_what_were_architectures_are_read(tmp_path: Path) -> None:
    """Config files with the architectures `apex-dpg` and `r2d2`, which are short names now."""
    replayed = load(old_run(tmp_path / "r2d2", "r2d2", burn_in=3, actors=1, replay={"capacity": 5000})).config
    assert isinstance(replayed, architecture("apex").Config)
    assert (replayed.algorithm.name, replayed.algorithm.items.burn_in, replayed.actors) == ("r2d2", 3, 1)
    for name in ("apex-dpg", "apex_dpg"):
        cfg = load(old_run(tmp_path / name, name, env="Pendulum-v1", noise=0.3)).config
        assert (cfg.algorithm.name, cfg.algorithm.exploration.noise) == ("dpg", 0.3)
    cfg = load(old_run(tmp_path / "sac", "apex-dpg", env="Pendulum-v1", algorithm="sac", tau=0.5)).config
    assert (cfg.algorithm.name, cfg.algorithm.tau) == ("sac", 0.5)


def test_a_config_file_of_another_algorithm_is_refused(tmp_path: Path, capsys: Any) -> None:
    old, new = (old_run(tmp_path / name, name, seed=7) / "config.yaml" for name in ("r2d2", "apex"))
    new.write_text(f"{new.read_text()}algorithm: dqn\n")
    for name, file in (("r2d2", old), ("apex", old), ("apex", new)):
        assert cli_settings(name, ["--config", str(file)]).seed == 7
    assert cli_settings("apex", ["--config", str(old)]).algorithm.name == "r2d2"
    for name, file, said in (("r2d2", new, "apex with dqn"), ("apex-dpg", old, "apex with r2d2"), ("dqn", old, "apex")):
        assert main(["train", name, "--config", str(file)]) == 2
        assert f"is a config of {said}, not of {name}; run `thespis train apex " in capsys.readouterr().err


def test_a_run_is_called_what_it_was_trained_as(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    some: dict[str, Any] = {"on": "simulation", "total_steps": 40, "eval_episodes": 0, "quiet": True}
    runs = [
        train("r2d2", **some),
        train("apex", algorithm="r2d2", seed=1, **some),
        train("r2d2", algorithm="dqn", **some),
    ]
    names = ["r2d2-CartPole-v1-s0-1", "apex-CartPole-v1-s1-1", "apex-CartPole-v1-s0-1"]
    assert [run.path.name for run in runs] == names
    assert [(run.summary["architecture"], run.summary["algorithm"]) for run in runs] == [
        ("apex", "r2d2"), ("apex", "r2d2"), ("apex", "dqn"),
    ]  # fmt: skip
    file = runs[0].path / "config.yaml"
    file.write_text(file.read_text().replace("architecture: apex", "architecture: r2d2"))  # as it was
    curves = grouped([run.path for run in runs], apart=False)
    assert {name: len(each) for name, each in curves.items()} == {"r2d2": 2, "apex": 1}


def test_a_run_whose_settings_cannot_be_read_is_refused(tmp_path: Path, capsys: Any) -> None:
    path = old_run(tmp_path / "run", "parameter-server", algorithm="dqn", dqn={"n_step": 2})
    for command in ("resume", "eval"):
        assert main([command, str(path)]) == 2
        said = capsys.readouterr().err
        assert "has settings that this version of Thespis does not know" in said and said.count("\n") == 1
        assert "unknown setting 'dqn'" in said and f"--init-from {path}" in said
    with pytest.raises(ThespisError, match="does not know"):
        resume(path)


def test_algorithms_that_do_not_fit_are_refused(tmp_path: Path, capsys: Any) -> None:
    said = "--algorithm ppo learns from rounds of one version, and this architecture carries unrolls; choose vtrace"
    for words in (["train", "impala"], ["show", "impala"]):
        assert main([*words, "--algorithm", "ppo"]) == 2
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1
    for given in ("ppo", PPO, PPO()):
        with pytest.raises(ThespisError, match="learns from rounds of one version"):
            train("impala", algorithm=given, run_dir=tmp_path / "run")
    config = architecture("impala").Config
    with pytest.raises(ThespisError, match="learns from rounds of one version"):
        check_settings("impala", config(algorithm=PPO()))
    with pytest.raises(ThespisError, match="--algorithm is 'pp'; choose ppo"):
        defaults("ppo", None, {"algorithm": "pp"})
    with pytest.raises(ThespisError, match="--algorithm dqn .*; choose qtopt$"):
        defaults("qtopt", None, {"algorithm": "dqn"})
    with pytest.raises(ThespisError, match="unknown setting 'algorithm'"):
        defaults("pbt", None, {"algorithm": "dqn"})
    assert not (tmp_path / "run").exists()


def test_an_algorithm_is_given_by_value_and_by_class() -> None:
    cfg = defaults("seed", None, {"algorithm": PPO(epochs=3), "minibatches": 2})
    assert cfg.algorithm == PPO(epochs=3, minibatches=2)
    assert defaults("seed", None, {"algorithm": PPO}) == defaults("seed", None, {"algorithm": "ppo"})


def test_the_list_shows_what_each_architecture_takes(capsys: Any) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    after = {line.split()[0]: below.strip() for line, below in itertools.pairwise(lines) if line.strip()}
    assert set(architectures()) <= set(after)
    assert after["seed"].startswith("--algorithm vtrace, a2c") and "ppo" in after["seed"]
    assert after["apex"] == "--algorithm dqn, dpg, r2d2, sac"
    for name, (where, given) in PAIRS.items():
        assert after[name] == f"means {where} --algorithm {given}"


def test_a_graph_follows_the_algorithm(capsys: Any) -> None:
    assert main(["show", "seed", "--algorithm", "r2d2"]) == 0
    assert "replay.prioritise" in capsys.readouterr().out
    assert main(["show", "seed", "--algorithm", "ppo"]) == 0
    assert "queue.sample" in capsys.readouterr().out


@pytest.mark.parametrize("words", ["train seed --algorithm r2d2 --help", "list", "train pbt --help"])
def test_torch_is_not_loaded_for_help(words: str) -> None:
    call = f"main({words.split()!r})"
    code = f"import sys\nfrom thespis.cli.main import main\ntry: {call}\nfinally: print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert result.splitlines()[-1] == "False"
