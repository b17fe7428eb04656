"""Launching a run: check every setting, then start the runtime and return the finished run."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thespis.algorithms import check_carried
from thespis.core.bounds import check_numbers
from thespis.core.config import Experiment
from thespis.core.config_io import to_dict
from thespis.core.errors import ThespisError
from thespis.core.import_guard import refuse_training
from thespis.core.system.commit import commit_file, to_json
from thespis.runs.directory import RunDirectory
from thespis.runs.terminal.summary_text import final_lines
from thespis.training.callbacks import find_callback
from thespis.training.importable import import_notes, validate_importable
from thespis.training.registry import architecture, pair, pair_name, write_config

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces
    from thespis.runs.initial_weights import Initial
    from thespis.runtime.session import Session
    from thespis.training.trained_run import TrainedRun


def check_settings(name: str, cfg: Experiment, *, first: bool = True) -> tuple[Any, Any, Any, Spaces]:
    """Check the settings; return the program, the cost model, the faults and the environment's spaces.

    `first`: no earlier part of the run has used the environment, so it is tried in a separate process. A simulated run
    skips that, because it uses the environment in this process anyway.
    """
    from thespis.envs.spaces import refuse_composite_actions
    from thespis.runtime.capacity import check_capacity
    from thespis.runtime.faults import parse_faults

    check_numbers(cfg)  # again, because a custom config may override __post_init__
    module = architecture(name)
    if hasattr(cfg, "algorithm"):
        check_carried(type(cfg), cfg.algorithm)
    program = module.program(cfg)
    check_capacity(program, cfg)
    program.check()
    faults = parse_faults(cfg.faults, program)
    if cfg.on == "ray" and importlib.util.find_spec("ray") is None:
        raise ThespisError("Ray is not installed; install it with: pip install 'thespis[ray]'")
    validate_importable(cfg)
    if first and cfg.on != "simulation":
        from thespis.runtime.env_probe import probe

        spaces, env_notes = probe(cfg.env_config, cfg.env_timeout)
        program.notes += env_notes
    else:
        spaces = _spaces(cfg)
    if cfg.learned is None:
        refuse_composite_actions(spaces.action_space)
    else:
        cfg.learned.validate(spaces)
    if hasattr(module, "validate"):
        module.validate(cfg, spaces)
    return program, _costs(cfg), faults, spaces


def _spaces(cfg: Experiment) -> Spaces:
    """Make the environment in this process, and return its spaces."""
    from thespis.envs.make import describe_env
    from thespis.runtime.env_watchdog import EnvHang, EnvWatchdog

    try:
        with EnvWatchdog(cfg.env_timeout):
            return describe_env(cfg.env_config)
    except EnvHang as hang:
        raise ThespisError(f"environment {cfg.env_name!r}: {hang}; raise --env-timeout if that is too short") from None


def launch(
    name: str,
    cfg: Experiment,
    *,
    resume: Path | None = None,
    quiet: bool = False,
    until: int | None = None,
    began: Callable[[Session], None] | None = None,
    callbacks: Sequence[Any] = (),
    resumed: Callable[[Session], None] | None = None,
) -> TrainedRun:
    """Run the program and return the run. User errors raise `ThespisError` before the run leaves any file.

    `until`: environment steps after which to stop a run that will be resumed. `began` receives the session before the
    run starts; `resumed` receives it when a resumed run has found its checkpoint. `callbacks`: objects in addition to
    `cfg.callback`.
    """
    from thespis.envs.space_json import dump_spaces
    from thespis.runs.terminal.screen import Screen
    from thespis.runtime.session import Session
    from thespis.runtime.signals import interrupt_unless
    from thespis.training.trained_run import RunFailed

    refuse_training()
    session: Session | None = None

    def over() -> bool:
        # While callbacks end, an interrupt must still stop them.
        return session is not None and session.stop_reason is not None and not session.callbacks.ending

    with interrupt_unless(over):
        checked, costs, faults, spaces = check_settings(name, cfg, first=until is None)
        found = [find_callback(each) for each in (*cfg.callback, *callbacks)]
        cfg, initial = _initial(cfg, spaces) if resume is None else (cfg, None)
        module = architecture(name)
        label = _label(name, checked.name, cfg), _env_label(cfg)
        run = RunDirectory.open(resume) if resume else RunDirectory.create(*label, cfg.seed, cfg.run_dir)
        try:
            # Build again with the run directory, because a role may store files there.
            program = module.program(dataclasses.replace(cfg, run_dir=run.path.resolve()))
            program.notes[:] = [*checked.notes, *notes(cfg, spaces), *([] if initial is None else [initial.note])]
            if resume is None:
                _begin(run, name, cfg, initial)
            if not run.spaces.exists():
                commit_file(run.spaces, to_json(dump_spaces(spaces)))
            session = Session(cfg, program, run, Screen(quiet), until)
            if found:
                _start_callbacks(session, found)
            if began is not None:
                began(session)
            trained = _run(session, costs, faults, resume is not None, resumed)
        except BaseException as error:
            # A failed run keeps its log; a failed start leaves no files.
            begun = isinstance(error, RunFailed) or (session is not None and session.monitor.env_steps)
            if resume is None and not begun:
                run.discard()
            if session is None and isinstance(error, OSError):
                remedy = "give another --run-dir" if resume is None else "make room for it"
                raise ThespisError(
                    f"cannot write to {error.filename or run.path} ({error.strerror}); {remedy}"
                ) from None
            raise
        for line in getattr(module, "on_finish", _nothing)(cfg, run.path):
            session.screen.say(line)
        return trained


def _start_callbacks(session: Session, callbacks: list[tuple[str, Any]]) -> None:
    """Attach the callbacks to the session and call their `on_start`."""
    from thespis.runs.callbacks import Callbacks
    from thespis.training.trained_run import TrainedRun

    run = TrainedRun(session.run.path, trust=True)
    run.config = session.cfg
    session.callbacks = Callbacks(callbacks, session.log, synchronous=session.cfg.on == "simulation")
    try:
        session.callbacks.start(run)
    except BaseException:
        session.screen.close()
        session.close()
        raise


def _run(
    session: Session, costs: Any, faults: Any, resuming: bool, resumed: Callable[[Session], None] | None = None
) -> TrainedRun:
    """Run the program on its runtime until it ends; raise if it failed."""
    from thespis.runtime.driver_thread import Runtime, run_program
    from thespis.training.trained_run import RunFailed, TrainedRun

    runtime: Runtime
    cfg, program, run, screen = session.cfg, session.program, session.run, session.screen
    try:
        for note in program.notes:
            session.log(note)
        restore = session.resume() if resuming else None
        if resumed is not None:
            resumed(session)
        if cfg.on == "simulation":
            from thespis.runtime.simulation import Simulation

            runtime = Simulation(program, session, costs, faults)
        elif cfg.on == "ray":
            from thespis.runtime.ray import RaySupervisor

            runtime = RaySupervisor(program, session)
        else:
            from thespis.runtime.local import LocalSupervisor

            runtime = LocalSupervisor(program, session)
        summary = run_program(runtime, restore)
        session.callbacks.end(summary)
    finally:
        screen.close()
        session.close()
    dropped = session.monitor.dropped.get("non_finite_batches", 0)
    if session.error is None and dropped and not session.monitor.updates:
        session.error = (
            f"nothing was learned: the loss of all {dropped} batches was not finite; lower the learning rate"
        )
    if session.error is not None:
        raise ThespisError(session.error) if session.blame_user else RunFailed(session.error, run.path)
    for line in final_lines(summary, run.path):
        screen.say(line)
    trained = TrainedRun(run.path, trust=True)
    trained.summary = summary  # available even if the disk was too full to write it
    trained.config = cfg  # it may hold an environment that cannot be imported, e.g. from a notebook
    return trained


def _begin(run: RunDirectory, name: str, cfg: Experiment, initial: Initial | None) -> None:
    """Write the config, the trusted code and the initial weights of a new run."""
    from thespis.runs.trust import code_of, remember

    write_config(run.config, name, cfg)
    remember(code_of(name, to_dict(cfg)))
    if initial is not None:
        initial.write(run.path)


def _initial(cfg: Experiment, spaces: Spaces) -> tuple[Experiment, Initial | None]:
    """Return the settings with the absolute path of the initial weights, and the weights if there are any.

    Raises `ThespisError` with the names of the weights that do not fit.
    """
    if cfg.init_from is None:
        return cfg, None
    from thespis.networks.policy_runner import weight_views
    from thespis.runs.initial_weights import match

    cfg = dataclasses.replace(cfg, init_from=cfg.init_from.resolve())
    if cfg.learned is None:
        raise ThespisError("this architecture has no `algorithm` with a network to initialise; remove --init-from")
    return cfg, match(cfg, weight_views(cfg.learned.build_network(spaces, seed=0)))


def notes(cfg: Experiment, spaces: Spaces) -> list[str]:
    """Return notes on settings that are valid but may be unintended."""
    from thespis.networks.images import image_notes

    network = None if cfg.learned is None else cfg.learned.network
    return import_notes(cfg) + (image_notes(spaces.observation_space, network) if network is not None else [])


def _nothing(cfg: Experiment, path: Path) -> list[str]:
    return []


def _costs(cfg: Experiment) -> Any:
    from thespis.runtime.cost_model import CostModel

    return CostModel() if cfg.cost_model is None else CostModel.load(cfg.cost_model)


def _label(name: str, architecture: str, cfg: Experiment) -> str:
    """The architecture in the name of a run directory; the short name if the user gave one."""
    _, paired = pair(name)
    return architecture if paired is None else pair_name(architecture, cfg.learned.name)


def _env_label(cfg: Experiment) -> str:
    """The environment in the name of a run directory."""
    return cfg.env_name.rpartition("::")[2]
