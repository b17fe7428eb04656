"""From settings to a finished run: resolve, check everything that can be checked, then start."""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib.util
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from thespis.config import Experiment, load_file, resolve
from thespis.errors import ThespisError
from thespis.plain import dump_yaml, from_dict, load_yaml, to_dict

if TYPE_CHECKING:
    from thespis.runtime.session import Session
    from thespis.trained import Trained


def architectures() -> list[str]:
    """The names that can be trained."""
    from thespis import architectures as package

    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted(name.replace("_", "-") for name in names if name not in package.SHARED)


def architecture(name: str) -> ModuleType:
    """The module of an architecture, by its name or its file: a `Config`, a `program`, and perhaps `PRESETS`.

    It may also `refuse(cfg, spaces)` what it cannot learn, before anything starts, and `conclude(cfg, path)` with
    what is to be made of a run that has ended, and said of it. One that several algorithms can learn in has
    `ALGORITHMS`, the `Config` and `PRESETS` of each by the name `--algorithm` takes. One that takes
    actions of several parts says `MIXED_ACTIONS = True`.
    """
    if name.endswith(".py"):
        return _own(name)
    if name.replace("_", "-") not in architectures():
        raise ThespisError(f"unknown architecture {name!r}; there is {', '.join(architectures())}")
    return importlib.import_module(f"thespis.architectures.{name.replace('-', '_')}")


def _own(file: str) -> ModuleType:
    try:
        module = load_file(Path(file))
        if not hasattr(module, "Config") or not hasattr(module, "program"):
            raise AttributeError("an architecture needs a Config and a program(cfg)")
    except Exception as error:
        raise ThespisError(f"architecture {file!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def defaults(name: str, env: str | None, data: Mapping[str, Any]) -> Experiment:
    """The defaults of an architecture for an environment, overridden by `data`: class < preset < data.

    A run that is given seconds but no steps has no limit of steps, whatever its preset says.
    """
    config, presets = _algorithm(architecture(name), data.get("algorithm"))
    env = env or data.get("env")
    cfg = config()
    for pattern, preset in presets.items():
        if isinstance(env, str) and fnmatch.fnmatch(env, pattern):
            cfg = from_dict(config, preset, cfg)
    if data.get("total_seconds") is not None:
        data = {"total_steps": None, **data}
    return from_dict(config, {**data, **({"env": env} if env else {})}, cfg)


def _algorithm(module: ModuleType, name: str | None) -> tuple[type[Experiment], Mapping[str, Any]]:
    """The config and the presets of an architecture, with the algorithm of that name if it has several."""
    known = getattr(module, "ALGORITHMS", {})
    if name is None or not known:
        return module.Config, getattr(module, "PRESETS", {})
    if name not in known:
        raise ThespisError(f"--algorithm is {name!r}; choose {', '.join(known)}")
    config, presets = known[name]
    return config, presets


def load_config(path: Path) -> tuple[str, dict[str, Any]]:
    """The architecture and settings in a config file, such as the one in a run directory."""
    data = load_yaml(path)
    name = data.pop("architecture", None)
    if not isinstance(name, str):
        raise ThespisError(f"config {path} does not say its architecture; add a line such as `architecture: impala`")
    return name, data


def check(name: str, cfg: Experiment) -> tuple[Any, Any, Any]:
    """The program, the cost model and the faults, after all that can be refused before a run starts was not."""
    from thespis.envs.make import describe
    from thespis.envs.spaces import one_part
    from thespis.runtime.faults import parse_faults

    module = architecture(name)
    program = module.program(cfg)
    program.check()
    faults = parse_faults(cfg.faults, program)
    if cfg.on == "ray" and importlib.util.find_spec("ray") is None:
        raise ThespisError("Ray is not installed; install it with: pip install 'thespis[ray]'")
    spaces = describe(resolve(cfg.env))
    if not getattr(module, "MIXED_ACTIONS", False):
        one_part(spaces.action_space)
    if hasattr(module, "refuse"):
        module.refuse(cfg, spaces)
    return program, _costs(cfg), faults


def launch(
    name: str,
    cfg: Experiment,
    *,
    resume: Path | None = None,
    quiet: bool = False,
    until: int | None = None,
    began: Callable[[Session], None] | None = None,
) -> Trained:
    """Perform the run and return it as a `Trained`. User errors are raised before anything is left behind.

    `until`: environment steps to stop at, for a run that will be resumed. `began` is given what watches the run.
    """
    from thespis.runs.directory import RunDirectory
    from thespis.runs.screen import Screen
    from thespis.runtime.session import Session

    program, costs, faults = check(name, cfg)
    if resume is None:
        run = RunDirectory.create(program.name, _label(cfg), cfg.seed, cfg.run_dir)
        write_config(run.config, name, cfg)
    else:
        run = RunDirectory.open(resume)
    # Built again, now that it is known where the run lives: a role may keep files of its own there.
    module = architecture(name)
    program = module.program(dataclasses.replace(cfg, run_dir=run.path.resolve()))
    session = Session(cfg, program, run, Screen(quiet), until)
    if began is not None:
        began(session)
    trained = _perform(session, costs, faults, resume is not None)
    for line in getattr(module, "conclude", _nothing)(cfg, run.path):
        session.screen.say(line)
    return trained


def _perform(session: Session, costs: Any, faults: Any, resuming: bool) -> Trained:
    from thespis.runs.progress import final_lines
    from thespis.trained import RunFailed, Trained

    cfg, program, run, screen = session.cfg, session.program, session.run, session.screen
    try:
        for note in program.notes:
            session.log(note)
        restore = session.resume() if resuming else None
        if cfg.on == "simulation":
            from thespis.runtime.simulation import Simulation

            summary = Simulation(program, session, costs, faults).run(restore)
        elif cfg.on == "ray":
            from thespis.runtime.ray import RaySupervisor

            summary = RaySupervisor(program, session).run(restore)
        else:
            from thespis.runtime.local import LocalSupervisor

            summary = LocalSupervisor(program, session).run(restore)
    finally:
        screen.close()
        session.close()
    if session.error is not None:
        if session.blame_user and not resuming and not session.monitor.env_steps:
            run.discard()
        raise ThespisError(session.error) if session.blame_user else RunFailed(session.error, run.path)
    for line in final_lines(summary, run.path):
        screen.say(line)
    trained = Trained(run.path)
    trained.summary = summary  # as it is, even if the disk was too full to write it down
    return trained


def _nothing(cfg: Experiment, path: Path) -> list[str]:
    return []


def _costs(cfg: Experiment) -> Any:
    from thespis.runtime.costs import CostModel

    return CostModel() if cfg.cost_model is None else CostModel.load(cfg.cost_model)


def _label(cfg: Experiment) -> str:
    """The environment as it stands in the name of a run directory."""
    return cfg.env_name.rpartition("::")[2]


def write_config(path: Path, name: str, cfg: Experiment) -> None:
    """All settings of a run, for `load_config`."""
    from thespis.runs.commit import commit_file

    where = str(Path(name).resolve()) if name.endswith(".py") else name
    commit_file(path, dump_yaml({"architecture": where, **to_dict(cfg)}))
