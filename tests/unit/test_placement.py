"""The bundles of roles that share a node of a cluster."""

from __future__ import annotations

import pytest

from thespis.architectures import a3c, gorila, impala
from thespis.core.config import Experiment
from thespis.core.errors import ThespisError
from thespis.core.program import Program
from thespis.runtime.placement import bundles


def placed(program: Program, per_node: int | None) -> list[tuple[tuple[str, ...], float, str]]:
    cfg = Experiment(on="ray", actors_per_node=per_node)
    return [(bundle.processes, bundle.cpus, bundle.strategy) for bundle in bundles(program, cfg)]


def test_the_learner_is_near_its_services_and_actors_are_spread() -> None:
    program = impala.program(impala.Config(actors=2))
    core = (("learner", "evaluator-0"), 1.0, "PACK")
    assert placed(program, None) == [core, (("actor-0",), 1.0, "SPREAD"), (("actor-1",), 1.0, "SPREAD")]


def test_so_many_actors_on_each_node() -> None:
    program = impala.program(impala.Config(actors=5))
    per_node = [bundle for bundle in placed(program, 2) if bundle[2] == "STRICT_SPREAD"]
    assert per_node == [
        (("actor-0", "actor-1"), 2.0, "STRICT_SPREAD"),
        (("actor-2", "actor-3"), 2.0, "STRICT_SPREAD"),
        (("actor-4",), 1.0, "STRICT_SPREAD"),
    ]


def test_workers_and_bundles_are_counted_as_actors() -> None:
    workers = placed(a3c.program(a3c.Config(actors=4)), 2)
    assert (("worker-0", "worker-1"), 2.0, "STRICT_SPREAD") in workers
    together = placed(gorila.program(gorila.Config(actors=2)), 1)
    assert [processes for processes, _, strategy in together if strategy == "STRICT_SPREAD"] == [
        ("bundle-0",),
        ("bundle-1",),
    ]


def test_a_program_without_actors_cannot_have_so_many_per_node() -> None:
    with pytest.raises(ThespisError, match="leave off --actors-per-node"):
        placed(Program("empty"), 2)
