"""Population-based training (Jaderberg et al., 2017, arXiv:1711.09846): members of any architecture; bad copy good.

trainer xS --returns--> controller (exploit, explore) --members--> trainer xS      member = a run, resumed and copied
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
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
    from thespis.population.members import Members
    from thespis.population.trainer import Outcome, Segment


@dataclass(frozen=True)
class Config(Experiment):
    """Population-based training. Steps are those of all members together; returns are those of the one that leads."""

    member: str = "impala"
    """The architecture of the members."""
    population: RoleCount = 8
    """Members (paper: 20 to 80)."""
    tune: tuple[str, ...] = ("optimizer.learning_rate", "log-uniform", "1e-5", "1e-1")
    """What differs between them: PATH uniform LOW HIGH, PATH log-uniform LOW HIGH, or PATH choice A B ..., repeated."""
    settings: tuple[str, ...] = ()
    """Settings of all members, as PATH=VALUE ..., e.g. unroll_length=8 optimizer.anneal=false."""
    actors: int = 1
    """Actors (or workers) of each member."""
    slots: RoleCount | None = None
    """Members that train at the same time; by default one per core, in simulation and on ray all of them."""
    member_on: Literal["simulation", "local", "ray"] = "simulation"
    """What performs a member: simulation (within its trainer's process: nothing to start), local (processes of its
    own), or ray (its roles spread over the cluster)."""
    interval: Count = 10_000
    """Steps a member takes between two judgements."""
    synchronous: bool = False
    """Judge all members together when the last is ready, instead of each when it is."""
    exploit: Literal["truncation", "tournament"] = "truncation"
    """truncation: the bottom of the ranking copies from its top. tournament: copy a random other if it is better."""
    share: Annotated[float, Bounds(above=0, most=0.5)] = 0.25
    """truncation: how much of the ranking is top, and how much bottom (paper: 0.2)."""
    factor: Annotated[float, Bounds(above=1)] = 1.2
    """explore: how far a copied hyper-parameter is moved: times or divided by it."""
    resample: Fraction = 0.25
    """explore: probability that it is drawn anew instead; 1 always, 0 never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.total_steps is None:
            raise ThespisError("the members of a population share its steps; give --total-steps beside --total-seconds")
        if self.member_on != "simulation" and self.member_on != self.on:
            raise ThespisError(f"--member-on {self.member_on} needs --on {self.member_on}; or leave it off")

    @property
    def trainers(self) -> int:
        """How many members train at the same time."""
        default = self.population if self.on != "local" else available_cores()
        return min(self.population, self.slots or default)

    @property
    def member_steps(self) -> int:
        """Steps of each member."""
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
        """The algorithm of all members, one of which is the policy that is trained."""
        return self.each.learned

    @property
    def priors(self) -> dict[str, Prior]:
        from thespis.population.search_space import priors

        return priors(self.tune, self.each, "--tune")


def members(cfg: Config) -> Members:
    from thespis.population.members import Members

    # Where the program is only looked at, there is no directory yet.
    return Members((cfg.run_dir or Path()) / "members", cfg.member, cfg.each)


def build_controller(ctx: Context, cfg: Config) -> population.Controller:
    from thespis.population.controller import Rules
    from thespis.population.exploit import tournament, truncation

    rules = Rules(
        population=cfg.population,
        slots=cfg.trainers,
        budget=cfg.member_steps,
        interval=cfg.interval,
        synchronous=cfg.synchronous,
        priors=cfg.priors,
        exploit=partial(truncation, share=cfg.share) if cfg.exploit == "truncation" else tournament,
        factor=cfg.factor,
        resample=cfg.resample,
    )
    return population.Controller(ctx, rules, members(cfg))


def build_trainer(ctx: Context, cfg: Config, take: Take[Segment], ready: Ready[Outcome]) -> population.Trainer:
    return population.Trainer(ctx, members(cfg), take, ready)


def validate(cfg: Config, spaces: Spaces) -> None:
    from thespis.population.settings import validate_members

    at_once = 1 if cfg.on == "simulation" else cfg.trainers
    validate_members(cfg.member, cfg.each, spaces, None if cfg.on == "ray" else at_once)


def on_finish(cfg: Config, path: Path) -> list[str]:
    from thespis.population.plot import draw_ancestry, tell

    return [*tell(path), draw_ancestry(path)]


def program(cfg: Config) -> Program:
    p = Program("pbt")
    p.notes.append(
        f"{cfg.population} members of {cfg.member}, {cfg.trainers} at a time, each for {cfg.member_steps:,} steps, "
        f"judged every {cfg.interval:,}; tuned: {', '.join(cfg.priors)}"
    )
    controller = p.at(colocate="controller", restarts=3).add("controller", build_controller, cfg)
    # Where the members' roles ask the cluster for CPUs themselves, their trainer needs none.
    slots = p.at(restarts=10, counts_as_actor=True, cpus=0 if cfg.member_on == "ray" else 1)
    take, ready = controller.edge(population.Controller.take), controller.edge(population.Controller.ready)
    for _ in range(cfg.trainers):
        slots.add("trainer", build_trainer, cfg, take=take, ready=ready)
    add_evaluator(p, cfg, controller.edge(population.Controller.pull))
    return p
