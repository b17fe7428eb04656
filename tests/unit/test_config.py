"""Settings: dataclasses to YAML and back, errors, presets, and functions found by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from thespis.algorithms.vtrace import VTrace
from thespis.architectures import qtopt, r2d3
from thespis.architectures.impala import Config
from thespis.core.config import Experiment, NetworkConfig
from thespis.core.config_io import dump_yaml, load_yaml, to_dict, with_settings
from thespis.core.errors import ThespisError
from thespis.core.user_code import locate, resolve
from thespis.envs.toys import Chain
from thespis.training.presets import matching
from thespis.training.registry import architecture, architectures, defaults, load_config, presets

ODD = Config(
    env="ALE/Pong-v5",
    on="simulation",
    seed=3,
    stop_at_return=17.5,
    run_dir=Path("/some/where"),
    cost_model=Path("/costs.yaml"),
    faults=("kill actor 0 at 1", "slow actor 1 by 2"),
    algorithm=VTrace(network=NetworkConfig(torso="resnet", hidden=(7, 8, 9), lstm=16)),
)


@pytest.mark.parametrize("cfg", [Config(), ODD], ids=["defaults", "odd"])
def test_round_trips(cfg: Config, tmp_path: Path) -> None:
    assert with_settings(Config(), to_dict(cfg)) == cfg
    path = tmp_path / "config.yaml"
    path.write_bytes(dump_yaml({"architecture": "impala", **to_dict(cfg)}))
    name, data = load_config(path)
    assert name == "impala"
    assert defaults("impala", None, data) == cfg


def test_what_is_left_out_keeps_its_default() -> None:
    base = Config(seed=9, algorithm=VTrace(network=NetworkConfig(lstm=4)))
    cfg = with_settings(base, {"network": {"hidden": [1]}})
    assert cfg == dataclasses.replace(base, algorithm=VTrace(network=NetworkConfig(lstm=4, hidden=(1,))))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"sed": 1}, "config: unknown setting 'sed'; the settings are env, on, seed"),
        ({"network": {"lstn": 1}}, "config: unknown setting network.'lstn'"),
        ({"network": 3}, "config: network. should be a table of settings, not 3"),
        ({"seed": "one"}, "config: seed is 'one', which is not int"),
        ({"seed": 1.5}, "config: seed is 1.5, which is not int"),
        ({"seed": True}, "config: seed is True, which is not int"),
        ({"discount": "much"}, "config: discount is 'much', which is not float"),
        ({"discount": True}, "config: discount is True, which is not float"),
        ({"correction": "yes"}, "config: correction is 'yes', which is not bool"),
        ({"on": "mars"}, "config: on is 'mars'; choose local, simulation"),
        ({"network": {"hidden": [1, "x"]}}, "config: network.hidden is 'x', which is not int"),
        ({"env": Chain()}, "config: env is a single environment, but every actor makes its own; give an id, file.py::"),
        ({"actors": 0}, "--actors is 0; give at least 1"),
        ({"env_timeout": 0}, "--env-timeout is 0.0; give more than 0"),
        ({"eval_every": -1}, "--eval-every is -1.0; give at least 0"),
        ({"faults": ["kill actor 0 at 1"]}, "need the simulation"),
    ],
)
def test_mistakes_are_named(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ThespisError) as error:
        with_settings(Config(), data)
    assert words in str(error.value)


def test_numbers_as_people_write_them(tmp_path: Path) -> None:
    """YAML reads 1e-3 as text and a bare `on` as true; a config file reads them as a number and a name."""
    path = tmp_path / "config.yaml"
    path.write_text("architecture: impala\non: simulation\ndiscount: 1\noptimizer: {learning_rate: 1e-3}\n")
    name, data = load_config(path)
    cfg = defaults(name, None, data)
    assert isinstance(cfg, Config)
    assert (cfg.on, cfg.algorithm.discount, cfg.algorithm.optimizer.learning_rate) == ("simulation", 1.0, 1e-3)


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [", ""])
def test_files_that_are_no_config(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ThespisError, match="config .*config.yaml"):
        load_yaml(path)


def test_a_config_without_its_architecture(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("seed: 1\n")
    with pytest.raises(ThespisError, match="has no architecture"):
        load_config(path)


def test_presets_stand_between_the_defaults_and_what_is_given() -> None:
    plain, atari = defaults("impala", "Acrobot-v1", {}), defaults("impala", "ALE/Pong-v5", {})
    (preset,) = matching(presets("impala", Config()), "ALE/Pong-v5")
    assert plain == Config(env="Acrobot-v1")
    assert isinstance(atari, Config)
    assert {name: to_dict(atari)[name] for name in ("total_steps", "reduction")} == {
        name: preset.settings[name] for name in ("total_steps", "reduction")
    }
    assert atari.algorithm.optimizer.kind == "rmsprop"
    given = defaults("impala", "ALE/Pong-v5", {"total_steps": 5, "optimizer": {"epsilon": 0.5}})
    assert isinstance(given, Config)
    assert (given.total_steps, given.algorithm.optimizer.epsilon, given.algorithm.optimizer.kind) == (5, 0.5, "rmsprop")
    assert defaults("impala", None, {"env": "ALE/Pong-v5"}) == atari


def test_every_architecture_can_be_loaded() -> None:
    assert "impala" in architectures() and "builders" not in architectures()
    for name in architectures():
        assert issubclass(architecture(name).Config, Experiment)
    with pytest.raises(ThespisError, match="unknown architecture 'builders'"):
        architecture("builders")


def test_functions_are_found_by_file_and_by_module(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("class Deep:\n    @staticmethod\n    def make():\n        return 42\n")
    assert resolve(f"{file}::Deep.make")() == 42
    assert resolve("thespis.core.user_code::resolve") is resolve
    assert resolve("CartPole-v1") == "CartPole-v1"
    assert resolve(resolve) is resolve
    assert locate(resolve) == "thespis.core.user_code::resolve"


@pytest.mark.parametrize("spec", ["nowhere::f", "thespis.core.config::nothing", "/nowhere.py::f"])
def test_functions_that_are_not_there(spec: str) -> None:
    with pytest.raises(ThespisError, match="cannot be loaded"):
        resolve(spec)


def test_two_files_of_one_name_are_two(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "same_name.py").write_text(f"def value():\n    return {number}\n")
    assert [resolve(f"{tmp_path}/{number}/same_name.py::value")() for number in (1, 2)] == [1, 2]


def test_a_function_given_from_python_is_written_as_where_it_is() -> None:
    cfg = Config(env=test_round_trips)
    assert yaml.safe_load(dump_yaml(to_dict(cfg)))["env"] == f"{__name__}::test_round_trips"
    assert cfg.env_name == f"{__name__}::test_round_trips"


@pytest.mark.parametrize("config", [qtopt.Config, r2d3.Config])
def test_a_directory_of_demonstrations_is_found_from_anywhere(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demos").mkdir()
    monkeypatch.chdir(tmp_path)
    assert to_dict(config(demos="demos"))["demos"] == str(tmp_path / "demos")
    for named in ("minari:my/dataset-v0", "module::function", ""):
        assert to_dict(config(demos=named))["demos"] == named
