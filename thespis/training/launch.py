"""From settings to a finished run: resolve, check everything that can be checked, then start."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thespis.algorithms.base import check_carried
from thespis.core.bounds import check_numbers
from thespis.core.config import Experiment
from thespis.core.config_io import to_dict
from thespis.core.errors import ThespisError
from thespis.core.importing import refuse_training
from thespis.training.lost import lost_notes, refuse_lost
from thespis.training.registry import architecture, pair, pair_name, write_config

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces
    from thespis.runs.directory import RunDirectory
    from thespis.runs.initial import Initial
    from thespis.runtime.session import Session
    from thespis.training.run import Trained


def check(name: str, cfg: Experiment, *, first: bool = True) -> tuple[Any, Any, Any, Spaces]:
    """The program, the cost model, the faults and the environment's spaces, once nothing of the settings is refused.

    `first`: the environment is not known from an earlier part of the run, so it is tried in a process of its own,
    unless the run itself is in this process.
    """
    from thespis.envs.make import describe
    from thespis.envs.spaces import one_part
    from thespis.runtime.capacity import check_capacity
    from thespis.runtime.faults import parse_faults

    check_numbers(cfg)  # again, since a config of one's own may have a __post_init__ of its own
    module = architecture(name)
    if hasattr(cfg, "algorithm"):
        check_carried(type(cfg), cfg.algorithm)
    program = module.program(cfg)
    check_capacity(program, cfg)
    program.check()
    faults = parse_faults(cfg.faults, program)
    if cfg.on == "ray" and importlib.util.find_spec("ray") is None:
        raise ThespisError("Ray is not installed; install it with: pip install 'thespis[ray]'")
    refuse_lost(cfg)
    if first and cfg.on != "simulation":
        from thespis.runtime.probe import probe

        spaces, said = probe(cfg.env_config, cfg.env_timeout)
        program.notes += said
    else:
        spaces = describe(cfg.env_config)
    if cfg.learned is None:
        one_part(spaces.action_space)
    else:
        cfg.learned.validate(spaces)
    if hasattr(module, "validate"):
        module.validate(cfg, spaces)
    return program, _costs(cfg), faults, spaces


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
) -> Trained:
    """Perform the run and return it as a `Trained`. User errors are raised before anything is left behind.

    `until`: environment steps to stop at, for a run that will be resumed. `began` is given what watches the run,
    `resumed` too, once it is known that a resumed run goes on. `callbacks`: objects beside those that `cfg.callback`
    names.
    """
    from thespis.core.system.commit import commit_file, to_json
    from thespis.envs.space_json import dump_spaces
    from thespis.runs.directory import RunDirectory
    from thespis.runs.screen import Screen
    from thespis.runtime.session import Session
    from thespis.runtime.signals import interrupt_unless
    from thespis.training.callbacks import find
    from thespis.training.run import RunFailed

    refuse_training()
    session: Session | None = None

    def over() -> bool:
        # An interrupt while callbacks end leaves them behind, so that one is not dropped.
        return session is not None and session.stop_reason is not None and not session.callbacks.ending

    with interrupt_unless(over):
        checked, costs, faults, spaces = check(name, cfg, first=until is None)
        found = [find(each) for each in (*cfg.callback, *callbacks)]
        cfg, initial = _initial(cfg, spaces) if resume is None else (cfg, None)
        module = architecture(name)
        label = _label(name, checked.name, cfg), _env_label(cfg)
        run = RunDirectory.open(resume) if resume else RunDirectory.create(*label, cfg.seed, cfg.run_dir)
        try:
            # Built again, now that it is known where the run lives: a role may keep files of its own there.
            program = module.program(dataclasses.replace(cfg, run_dir=run.path.resolve()))
            program.notes[:] = [*checked.notes, *notes(cfg, spaces), *([] if initial is None else [initial.note])]
            if resume is None:
                _begin(run, name, cfg, initial)
            if not run.spaces.exists():
                commit_file(run.spaces, to_json(dump_spaces(spaces)))
            session = Session(cfg, program, run, Screen(quiet), until)
            if found:
                _call_back(session, found)
            if began is not None:
                began(session)
            trained = _perform(session, costs, faults, resume is not None, resumed)
        except BaseException as error:
            # A run that failed keeps its log; a start that failed leaves nothing.
            begun = isinstance(error, RunFailed) or (session is not None and session.monitor.env_steps)
            if resume is None and not begun:
                run.discard()
            if session is None and isinstance(error, OSError):
                mend = "give another --run-dir" if resume is None else "make room for it"
                raise ThespisError(f"cannot write to {error.filename or run.path} ({error.strerror}); {mend}") from None
            raise
        for line in getattr(module, "on_finish", _nothing)(cfg, run.path):
            session.screen.say(line)
        return trained


def _call_back(session: Session, callbacks: list[tuple[str, Any]]) -> None:
    """Tell the callbacks of the start."""
    from thespis.runs.callbacks import Callbacks
    from thespis.training.run import Trained

    run = Trained(session.run.path, trust=True)
    run.config = session.cfg
    session.callbacks = Callbacks(callbacks, session.log, synchronous=session.cfg.on == "simulation")
    try:
        session.callbacks.start(run)
    except BaseException:
        session.screen.close()
        session.close()
        raise


def _perform(
    session: Session, costs: Any, faults: Any, resuming: bool, resumed: Callable[[Session], None] | None = None
) -> Trained:
    from thespis.runs.ending import final_lines
    from thespis.runtime.driver_thread import Runtime, perform
    from thespis.training.run import RunFailed, Trained

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
        summary = perform(runtime, restore)
        session.callbacks.end(summary)
    finally:
        screen.close()
        session.close()
    spoiled = session.monitor.dropped.get("non_finite_batches", 0)
    if session.error is None and spoiled and not session.monitor.updates:
        session.error = (
            f"nothing was learned: the loss of all {spoiled} batches was not finite; lower the learning rate"
        )
    if session.error is not None:
        raise ThespisError(session.error) if session.blame_user else RunFailed(session.error, run.path)
    for line in final_lines(summary, run.path):
        screen.say(line)
    trained = Trained(run.path, trust=True)
    trained.summary = summary  # as it is, even if the disk was too full to write it down
    trained.config = cfg  # with an environment that may be found nowhere else, such as one of a notebook
    return trained


def _begin(run: RunDirectory, name: str, cfg: Experiment, initial: Initial | None) -> None:
    """Write down what a new run starts from."""
    from thespis.runs.trust import code_of, remember

    write_config(run.config, name, cfg)
    remember(code_of(name, to_dict(cfg)))
    if initial is not None:
        initial.write(run.path)


def _initial(cfg: Experiment, spaces: Spaces) -> tuple[Experiment, Initial | None]:
    """The weights to start from, if any; a refusal says which of them do not fit. The settings name their place."""
    if cfg.init_from is None:
        return cfg, None
    from thespis.networks.acting import weight_views
    from thespis.runs.initial import match

    cfg = dataclasses.replace(cfg, init_from=cfg.init_from.resolve())
    if cfg.learned is None:
        raise ThespisError(
            "this architecture has no `algorithm` whose network could start from weights; leave off --init-from"
        )
    return cfg, match(cfg, weight_views(cfg.learned.build_network(spaces, seed=0)))


def notes(cfg: Experiment, spaces: Spaces) -> list[str]:
    """What a user may not have meant, though nothing of it is wrong."""
    from thespis.networks.images import image_notes

    network = None if cfg.learned is None else cfg.learned.network
    return lost_notes(cfg) + (image_notes(spaces.observation_space, network) if network is not None else [])


def _nothing(cfg: Experiment, path: Path) -> list[str]:
    return []


def _costs(cfg: Experiment) -> Any:
    from thespis.runtime.costs import CostModel

    return CostModel() if cfg.cost_model is None else CostModel.load(cfg.cost_model)


def _label(name: str, architecture: str, cfg: Experiment) -> str:
    """What is trained, as it stands in the name of a run directory: a pair if the user named one."""
    _, paired = pair(name)
    return architecture if paired is None else pair_name(architecture, cfg.learned.name)


def _env_label(cfg: Experiment) -> str:
    """The environment as it stands in the name of a run directory."""
    return cfg.env_name.rpartition("::")[2]
