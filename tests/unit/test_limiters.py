"""The limiter keeps its band, and accepted settings never deadlock."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thespis.core.config import ReplayConfig
from thespis.core.errors import ThespisError
from thespis.experience.limiters import QueueLimiter, SamplesPerInsert


@given(
    ratio=st.sampled_from([0.25, 0.5, 1.0, 1.3, 8.0, 32.0]),
    warm_up=st.integers(1, 60),
    insert=st.integers(1, 20),
    sample=st.integers(1, 40),
    spare=st.floats(0.0, 30.0),
    seed=st.integers(0, 2**32),
)
def test_never_outside_the_band_and_never_deadlocked(
    ratio: float, warm_up: int, insert: int, sample: int, spare: float, seed: int
) -> None:
    limiter = SamplesPerInsert(ratio, warm_up, max(ratio * insert, sample) + spare)
    limiter.validate("replay", insert, sample)
    order, inserted, sampled = random.Random(seed), 0, 0
    for _ in range(300):
        items, wanted = order.randint(0, insert), order.randint(1, sample)
        may_insert = limiter.may_insert(inserted, sampled, items)
        may_sample = limiter.may_sample(inserted, sampled, wanted)
        assert may_insert or may_sample, "both wait"
        if may_insert and (not may_sample or order.random() < 0.5):
            inserted += items
        else:
            sampled += wanted
        balance = ratio * (inserted - warm_up) - sampled
        assert not sampled or inserted >= warm_up
        assert balance <= limiter.error
        assert balance >= -limiter.error or not sampled


@pytest.mark.parametrize(
    ("limiter", "what"),
    [
        (SamplesPerInsert(8.0, 100, 40.0), "raise it to 80"),
        (SamplesPerInsert(1.0, 100, 40.0), "raise it to 64"),
        (SamplesPerInsert(0.0, 100, 400.0), "never samples anything"),
        (SamplesPerInsert(1.0, 0, 400.0), "warm-up of at least 1"),
    ],
)
def test_settings_that_would_wait_forever_are_refused(limiter: SamplesPerInsert, what: str) -> None:
    with pytest.raises(ThespisError, match=what):
        limiter.validate("replay", insert=10, sample=64)


def test_what_the_config_leaves_out_is_always_accepted() -> None:
    SamplesPerInsert.of(ReplayConfig(samples_per_insert=3.0), insert=50, sample=512).validate("replay", 50, 512)


def test_a_queue_counts_what_is_stored() -> None:
    queue = QueueLimiter(3)
    assert queue.may_insert(5, 3, 1) and not queue.may_insert(6, 3, 1)
    assert queue.may_sample(5, 3, 2) and not queue.may_sample(5, 3, 3)
