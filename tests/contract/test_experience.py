"""The experience edge, under every runtime: callers wait, and each item arrives once and in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from contract_roles import Consumer, Forgetful, Producer, read

from thespis.core.program import Program
from thespis.roles import Queue

CAPACITY, BATCH, ITEMS = 3, 2, 31
CRASHES = [("simulation", "raise"), ("local", "raise"), ("local", "kill"), ("ray", "raise"), ("ray", "kill")]
pytestmark = pytest.mark.timeout(120)


def build(path: Path, producers: int = 2, delay: float = 0.0, crash_at: Any = None, queue: Any = None) -> Program:
    program = Program("experience")
    queue = queue(program) if queue else program.at().add("queue", Queue, capacity=CAPACITY)
    acked, sample = path / "acked-0", queue.edge("sample", items=BATCH)
    program.at().add("consumer", Consumer, sample, path / "taken", BATCH, acked, delay, CAPACITY)
    for index in range(producers):
        journal = path / f"acked-{index}"
        program.at(restarts=2).add("producer", Producer, queue.edge("insert"), journal, ITEMS, crash_at)
    return program


def by_incarnation(journal: list[Any]) -> dict[tuple[int, int], list[int]]:
    """Return the numbers of the sampled items, in order, by producer and incarnation."""
    found: dict[tuple[int, int], list[int]] = {}
    for producer, incarnation, number, _ in journal:
        found.setdefault((producer, incarnation), []).append(number)
    return found


def whole(numbers: list[int]) -> bool:
    """Whether every item up to the marked one arrived once and in order; a few later ones may follow."""
    return len(numbers) >= ITEMS and numbers == [*range(len(numbers))]


@pytest.mark.parametrize("on", ["simulation", "local", "ray"])
def test_every_item_arrives_once_and_in_order(on: str, perform: Any, tmp_path: Path) -> None:
    outcome = perform(build(tmp_path, producers=2), on, total_steps=2)
    assert outcome.summary["exit_reason"] == "total_steps", outcome.error
    taken = by_incarnation(read(tmp_path / "taken"))
    assert sorted(who for who, _ in taken) == [0, 1]
    assert all(whole(numbers) for numbers in taken.values())


@pytest.mark.parametrize("on", ["simulation", "local", "ray"])
def test_a_full_queue_makes_producers_wait(on: str, perform: Any, tmp_path: Path) -> None:
    perform(build(tmp_path, producers=1, delay=0.5), on, total_steps=1)
    assert read(tmp_path / "taken.before") == [CAPACITY]
    ((_, numbers),) = by_incarnation(read(tmp_path / "taken")).items()
    assert whole(numbers)


@pytest.mark.parametrize(("on", "how"), CRASHES)
def test_a_producer_that_dies_and_comes_back(on: str, how: str, perform: Any, tmp_path: Path) -> None:
    outcome = perform(build(tmp_path, producers=1, crash_at=(8, how)), on, total_steps=1, stall_timeout=10.0)
    assert outcome.summary["exit_reason"] == "total_steps", outcome.error
    assert outcome.summary["restarts"] == 1
    journal = read(tmp_path / "taken")
    (first, second) = by_incarnation(journal).values()
    assert first in ([*range(8)], [*range(9)]), "an unacknowledged item may appear once or not at all"
    assert whole(second)
    # The run ends with the marked item: items acknowledged after it may still be in the queue.
    acked = [tag for tag in read(tmp_path / "acked-0") if tag[2] < ITEMS]
    assert all(tag in journal for tag in acked), "an acknowledged item is lost"


@pytest.mark.parametrize(("on", "how"), CRASHES)
def test_nothing_is_stored_for_a_producer_that_died_waiting(on: str, how: str, perform: Any, tmp_path: Path) -> None:
    """The queue is full when the producer dies and when it is back: its old call must be cancelled by then."""
    program = build(tmp_path, producers=1, delay=4.0, crash_at=(CAPACITY, how))
    outcome = perform(program, on, total_steps=1, stall_timeout=10.0)
    assert outcome.summary["exit_reason"] == "total_steps", outcome.error
    first, second = by_incarnation(read(tmp_path / "taken")).values()
    assert first == [*range(CAPACITY)]
    assert whole(second)


@pytest.mark.parametrize(("on", "how"), CRASHES)
def test_a_queue_that_dies_is_called_again(on: str, how: str, perform: Any, tmp_path: Path) -> None:
    def fragile(program: Program) -> Any:
        once = tmp_path / "queue.crashed"
        return program.at(process="storage", restarts=1).add(
            "queue", Forgetful.fragile, capacity=CAPACITY, crash_at=(20, how), once=once
        )

    outcome = perform(build(tmp_path, producers=1, queue=fragile), on, total_steps=1, stall_timeout=10.0)
    assert outcome.summary["exit_reason"] == "total_steps", outcome.error
    ((_, numbers),) = by_incarnation(read(tmp_path / "taken")).items()
    lost = set(range(numbers[-1])) - set(numbers)
    assert numbers == sorted(set(numbers)), "an item came twice or out of order"
    assert len(lost) <= CAPACITY + BATCH, "only what the queue held in memory may be lost"
    assert 20 in numbers, "the call that killed the queue was not repeated"


@pytest.mark.parametrize(
    "faults",
    [
        ("lose producer.queue.insert at 0.001", "lose producer.queue.insert at 0.003"),
        ("lose consumer.queue.sample at 0.001",),
        ("delay producer.queue.insert by 0.7 at 0.001", "delay consumer.queue.sample by 1.5 at 0.002"),
    ],
)
def test_lost_and_late_replies_change_nothing(faults: tuple[str, ...], perform: Any, tmp_path: Path) -> None:
    outcome = perform(build(tmp_path, producers=2), "simulation", faults, total_steps=2)
    taken = by_incarnation(read(tmp_path / "taken"))
    assert sorted(who for who, _ in taken) == [0, 1]
    assert all(whole(numbers) for numbers in taken.values())
    assert outcome.summary["wall_seconds"] > 0.7, "the faults did not happen"
