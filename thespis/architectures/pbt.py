"""Population-based training (Jaderberg et al., 2017, arXiv:1711.09846): weak members copy strong ones.

trainer xS --returns--> controller (exploit, explore) --members--> trainer xS      member: a run of any architecture
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from thespis import population
from thespis.architectures.builders import add_evaluator
from thespis.core.bounds import Bounds, Count, Fraction, RoleCount
from thespis.core.config import Experiment
from thespis.core.errors import ThespisError
from thespis.core.program import Program
from thespis.core.system.cores import available_cores

if TYPE_CHECKING:
    from thespis.core.context import Context
    from thespis.core.edges import Ready, Take
    from thespis.envs.spaces import Spaces
    from thespis.population.exploit import Prior
    from thespis.population.member_runs import MemberRuns
    from thespis.population.trainer import Outcome, Segment


@dataclass(frozen=True)
class Config(Experiment):
    """Population-based training. Steps count all members together; returns are those of the best member."""

    member: str = "impala"
    """Architecture of the members."""
    population: RoleCount = 8
    """Number of members (paper: 20 to 80)."""
    tune: tuple[str, ...] = ("optimizer.learning_rate", "log-uniform", "1e-5", "1e-1")
    """Hyper-parameters to tune: PATH uniform LOW HIGH, PATH log-uniform LOW HIGH, or PATH choice A B ...; list several
    one after another."""
    settings: tuple[str, ...] = ()
    """Settings of all members, as PATH=VALUE ..., e.g. unroll_length=8 optimizer.anneal=false."""
    actors: int = 1
    """Number of actors (or workers) per member."""
    slots: RoleCount | None = None
    """Number of members that train at the same time; by default one per core, and all in simulation and on Ray."""
    member_on: Literal["simulation", "local", "ray"] = "simulation"
    """Runtime of a member: simulation (in its trainer's process), local (own processes), or ray (on the cluster)."""
    interval: Count = 10_000
    """Evaluate, exploit and explore every N steps of a member."""
    synchronous: bool = False
    """Compare all members together once the last has finished its interval, instead of each on its own."""
    exploit: Literal["truncation", "tournament"] = "truncation"
    """Exploit: truncation (the bottom of the ranking copies the top), or tournament (copy a random better member)."""
    share: Annotated[float, Bounds(above=0, most=0.5)] = 0.25
    """Fraction of the ranking that counts as top, and as bottom, for truncation (paper: 0.2)."""
    factor: Annotated[float, Bounds(above=1)] = 1.2
    """Explore: multiply or divide a copied hyper-parameter by this factor."""
    resample: Fraction = 0.25
    """Explore: probability of resampling a hyper-parameter from its prior instead."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.total_steps is None:
            raise ThespisError("the members of a population share its steps; give --total-steps with --total-seconds")
        if self.member_on != "simulation" and self.member_on != self.on:
            raise ThespisError(f"--member-on {self.member_on} needs --on {self.member_on}; or leave it off")

    @property
    def trainers(self) -> int:
        """Number of members that train at the same time."""
        default = self.population if self.on != "local" else available_cores()
        return min(self.population, self.slots or default)

    @property
    def member_steps(self) -> int:
        """Step budget of each member."""
        assert self.total_steps is not None
        return -(-self.total_steps // self.population)

    @property
    def each(self) -> Experiment:
        """The settings that all members share."""
        from thespis.population.settings import member_settings

        if self.member == "pbt":
            raise ThespisError("--member pbt: a member cannot be a population; name another architecture")
        return member_settings(self.member, self.settings, self, on=self.member_on, total_steps=self.member_steps)

    @property
    def learned(self) -> Any:
        """The algorithm of all members."""
        return self.each.learned

    @property
    def priors(self) -> dict[str, Prior]:
        """Prior distributions of the tuned hyper-parameters, by path."""
        from thespis.population.search_space import priors

        return priors(self.tune, self.each, "--tune")


def build_member_runs(cfg: Config) -> MemberRuns:
    """The run directories of the members. `thespis show` builds the program without a run directory."""
    from thespis.population.member_runs import MemberRuns

    return MemberRuns((cfg.run_dir or Path()) / "members", cfg.member, cfg.each)


def build_controller(ctx: Context, cfg: Config) -> population.Controller:
    """The controller, which assigns members to trainers and decides what they copy."""
    from thespis.population.controller import Rules
    from thespis.population.exploit import exploit_rule

    rules = Rules(
        population=cfg.population,
        slots=cfg.trainers,
        budget=cfg.member_steps,
        interval=cfg.interval,
        synchronous=cfg.synchronous,
        priors=cfg.priors,
        exploit=exploit_rule(cfg.exploit, cfg.share),
        factor=cfg.factor,
        resample=cfg.resample,
    )
    return population.Controller(ctx, rules, build_member_runs(cfg))


def build_trainer(ctx: Context, cfg: Config, take: Take[Segment], ready: Ready[Outcome]) -> population.Trainer:
    """A trainer, which trains one member at a time."""
    return population.Trainer(ctx, build_member_runs(cfg), take, ready)


def validate(cfg: Config, spaces: Spaces) -> None:
    """Refuse members that cannot train, or that do not fit into memory together."""
    from thespis.population.settings import validate_members

    at_once = 1 if cfg.on == "simulation" else cfg.trainers
    validate_members(cfg.member, cfg.each, spaces, None if cfg.on == "ray" else at_once)


def on_finish(cfg: Config, path: Path) -> list[str]:
    """Describe and plot the population's history; return the lines to print."""
    from thespis.population.plot import describe_ancestry, draw_ancestry

    return [*describe_ancestry(path), draw_ancestry(path)]


def program(cfg: Config) -> Program:
    """Wire the figure above."""
    p = Program("pbt")
    pace = f"{cfg.trainers} at a time, {cfg.member_steps:,} steps each, compared every {cfg.interval:,}"
    p.notes.append(f"{cfg.population} members of {cfg.member}, {pace}; tuned: {', '.join(cfg.priors)}")
    controller = p.at(colocate="controller", restarts=3).add("controller", build_controller, cfg)
    # On Ray the members' roles reserve their own CPUs, so the trainer needs none.
    slots = p.at(restarts=10, counts_as_actor=True, cpus=0 if cfg.member_on == "ray" else 1)
    take, ready = controller.edge(population.Controller.take), controller.edge(population.Controller.ready)
    for _ in range(cfg.trainers):
        slots.add("trainer", build_trainer, cfg, take=take, ready=ready)
    add_evaluator(p, cfg, controller.edge(population.Controller.pull))
    return p
