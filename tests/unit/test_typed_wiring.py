"""Typed wiring: `make type` checks this file too, and reports every ignored error that does not occur."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from thespis import roles
from thespis.core.context import Context
from thespis.core.edges import Insert, Publish, Pull, PullSlice, Sample
from thespis.core.errors import ThespisError
from thespis.core.program import Edge, Handle, Placement, Program

if TYPE_CHECKING:
    from pathlib import Path


class Learner:
    def __init__(self, ctx: Context, *, sample: Sample, publish: Publish) -> None: ...

    async def run(self) -> None: ...


def build_learner(ctx: Context, batch: int, sample: Sample, publish: Publish) -> Learner:
    return Learner(ctx, sample=sample, publish=publish)


def build_actor(ctx: Context, insert: Insert, pulls: tuple[Pull, ...]) -> None: ...


def build_path(ctx: Context) -> Path:
    raise NotImplementedError


def services(place: Placement) -> tuple[Handle[roles.Queue], Handle[roles.WeightStore]]:
    return place.add("queue", roles.Queue, capacity=8), place.add("weights", roles.WeightStore, hold_back=0)


def test_edges_by_keyword_arrive_as_arrows_of_the_program() -> None:
    program = Program("test")
    with_learner = program.at(process="learner", colocate="learner", restarts=3)
    queue, weights = services(with_learner)
    sample, publish = queue.edge(roles.Queue.sample, items=4), weights.edge(roles.WeightStore.publish)
    replace(with_learner, thread=True).add("learner", build_learner, 4, sample=sample, publish=publish)
    insert, pull = queue.edge(roles.Queue.insert), weights.edge(roles.WeightStore.pull)
    program.at(counts_as_actor=True).add("actor", build_actor, insert, pulls=(pull, pull))
    program.check()
    learner, actor = program.roles[2:]
    assert learner.edges == [Edge("queue", 0, "sample", {"items": 4}), Edge("weights", 0, "publish")]
    assert [edge.method for edge in actor.edges] == ["insert", "pull", "pull"]
    assert (learner.process, learner.colocate, learner.restarts, learner.thread) == ("learner", "learner", 3, True)
    assert (actor.process, actor.colocate, actor.counts_as_actor, actor.thread) == ("actor-0", None, True, False)
    assert (learner.cpus, program.roles[0].cpus) == (1.0, 0.0)


def test_a_name_does_for_a_method() -> None:
    queue, _ = services(Program("test").at())
    assert queue.edge("sample", items=4) == queue.edge(roles.Queue.sample, items=4)


def test_wrong_wiring_is_a_type_error() -> None:
    """A type checker reports each ignored error; at run time the wiring raises none of them."""
    program = Program("test")
    place = program.at()
    queue, weights = services(place)
    sample, publish = queue.edge(roles.Queue.sample), weights.edge(roles.WeightStore.publish)
    place.add("learner", build_learner, 4, sample=publish, publish=sample)  # type: ignore[arg-type]
    place.add("learner", Learner, sample=publish, publish=sample)  # type: ignore[arg-type]
    place.add("learner", build_learner, 4, sample=sample)  # type: ignore[call-arg]
    place.add("learner", build_learner, 4, sample=sample, publish=publish, every=1)  # type: ignore[call-arg]
    pull: PullSlice = weights.edge(roles.WeightStore.pull)  # type: ignore[arg-type]
    place.add("actor", build_actor, queue.edge(roles.Queue.insert), pulls=(pull,))  # type: ignore[arg-type]
    queue.edge(roles.WeightStore.pull)  # type: ignore[arg-type]
    assert len(program.roles) == 7


def test_a_return_annotation_that_only_type_checkers_can_see() -> None:
    with pytest.raises(
        ThespisError, match="path 0: the return annotation 'Path' of .*build_path.*not under TYPE_CHECKING"
    ):
        Program("test").at().add("path", build_path)
