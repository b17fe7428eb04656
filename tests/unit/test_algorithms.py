"""Architectures with every algorithm they take: names of settings, presets, config files old and new, refusals."""

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
from thespis.algorithms.base import fitting
from thespis.algorithms.ppo import PPO
from thespis.algorithms.vtrace import VTrace
from thespis.cli.main import main
from thespis.core.config import Experiment, Unrolls
from thespis.core.config_io import dump_yaml, load_yaml, to_dict, updated
from thespis.core.errors import ThespisError
from thespis.core.settings import settings
from thespis.training import presets as preset_files
from thespis.training.launch import check
from thespis.training.registry import PAIRS, architecture, architectures, defaults, load_config, presets

TAKEN = [
    (name, algorithm)
    for name in architectures()
    if hasattr(architecture(name).Config(), "algorithm")
    for algorithm in fitting(architecture(name).Config)
]
FILES = sorted(Path(preset_files.__file__).parent.glob("*.yaml"))


def made(name: str, algorithm: str) -> Experiment:
    return updated(architecture(name).Config(), {"algorithm": algorithm})


@pytest.mark.parametrize(("name", "algorithm"), TAKEN)
def test_no_two_settings_share_a_name(name: str, algorithm: str) -> None:
    found = Counter(each.path for each in settings(made(name, algorithm)))
    assert not [path for path, times in found.items() if times > 1]
    firsts = {path for path in found if "." not in path}
    assert not firsts & {path.partition(".")[0] for path in found if "." in path}, "a setting and a table of one name"


@pytest.mark.parametrize(("name", "algorithm"), TAKEN)
def test_a_config_file_gives_back_what_was_written(name: str, algorithm: str, tmp_path: Path) -> None:
    for cfg in (made(name, algorithm), defaults(name, "ALE/Pong-v5", {"algorithm": algorithm})):
        assert updated(architecture(name).Config(), to_dict(cfg)) == cfg
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
            assert updated(plain, preset.settings) is not None
            assert defaults(name, preset.pattern, {} if algorithm == "any" else {"algorithm": algorithm})


def old_run(path: Path, name: str, **data: Any) -> Path:
    path.mkdir()
    (path / "config.yaml").write_text(yaml.safe_dump({"architecture": name, **data}))
    return path


def test_config_files_of_before_are_read(tmp_path: Path) -> None:
    """Flat tables, where only some architectures had a setting `algorithm`."""
    flat = {"unroll_length": 7, "discount": 0.5, "correction": False, "optimizer": {"kind": "sgd"}}
    for name, chosen in (("impala", {}), ("a3c", {}), ("seed", {"algorithm": "vtrace"})):
        cfg = load(old_run(tmp_path / name, name, **flat, **chosen)).config
        assert isinstance(cfg.algorithm, VTrace)
        assert (cfg.algorithm.items, cfg.algorithm.discount) == (Unrolls(7), 0.5)
        assert (cfg.algorithm.correction, cfg.algorithm.optimizer.kind) == (False, "sgd")
    replayed = load(old_run(tmp_path / "apex", "apex", n_step=2, epsilon=0.3, replay={"capacity": 50})).config
    assert (replayed.algorithm.items.n_step, replayed.algorithm.items.replay.capacity) == (2, 50)
    assert replayed.algorithm.exploration.epsilon == 0.3


def test_a_run_whose_settings_cannot_be_read_is_refused(tmp_path: Path, capsys: Any) -> None:
    path = old_run(tmp_path / "run", "parameter-server", algorithm="dqn", dqn={"n_step": 2})
    for command in ("resume", "eval"):
        assert main([command, str(path)]) == 2
        said = capsys.readouterr().err
        assert "has settings that this version of Thespis does not read" in said and said.count("\n") == 1
        assert "unknown setting 'dqn'" in said and f"--init-from {path}" in said
    with pytest.raises(ThespisError, match="does not read"):
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
        check("impala", config(algorithm=PPO()))
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
    assert after["apex-dpg"].startswith("--algorithm dpg, ")
    for name, (where, given) in PAIRS.items():
        assert after[name] == f"stands for {where} --algorithm {given}"


def test_a_graph_follows_the_algorithm(capsys: Any) -> None:
    assert main(["show", "seed", "--algorithm", "r2d2"]) == 0
    assert "replay.prioritise" in capsys.readouterr().out
    assert main(["show", "seed", "--algorithm", "ppo"]) == 0
    assert "queue.sample" in capsys.readouterr().out


@pytest.mark.parametrize("words", ["train seed --algorithm r2d2 --help", "list", "train pbt --help"])
def test_torch_is_not_loaded_for_help(words: str) -> None:
    call = f"main({words.split()!r})"
    code = f"import sys\nfrom thespis.cli.main import main\ntry: {call}\nfinally: print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == "False"
