"""Hyper-parameters by path: priors from the words of a command line, and one-sentence errors."""

from __future__ import annotations

import pytest

from thespis.architectures import apex, impala
from thespis.core.errors import ThespisError
from thespis.population.exploit import Choice, Range
from thespis.population.search_space import assign, pairs, paths, priors


def test_words_become_priors() -> None:
    words = "optimizer.learning_rate log-uniform 1e-5 1e-1 unroll_length uniform 5 20 optimizer.kind choice adam sgd"
    assert priors(words.split(), impala.Config(), "--tune") == {
        "optimizer.learning_rate": Range(1e-5, 1e-1, log=True),
        "unroll_length": Range(5.0, 20.0, whole=True),
        "optimizer.kind": Choice(("adam", "sgd")),
    }
    quoted = ["entropy_cost uniform 0 0.1", "correction choice true false", "batch_unrolls choice 1 2 4"]
    assert priors(quoted, impala.Config(), "--tune") == {
        "entropy_cost": Range(0.0, 0.1),
        "correction": Choice((True, False)),
        "batch_unrolls": Choice((1, 2, 4)),
    }


def test_what_cannot_differ_between_copies_is_not_offered() -> None:
    known = dict(paths(apex.Config()))
    assert {"optimizer.learning_rate", "replay.priority_exponent", "n_step"} <= set(known)
    assert not {"env", "seed", "total_steps", "network.hidden", "network"} & set(known)


@pytest.mark.parametrize(
    ("words", "result"),
    [
        ("optimizer.rate uniform 0 1", "there is no setting 'optimizer.rate' to tune; choose unroll_length"),
        ("network.hidden choice 1 2", "there is no setting 'network.hidden'"),
        ("entropy_cost", "give PATH uniform LOW HIGH"),
        ("", "--tune is empty; give PATH uniform"),
        ("entropy_cost uniform 1", "needs a lowest and a highest value, not 1"),
        ("entropy_cost uniform a b", "'a' is not a number"),
        ("entropy_cost uniform 2 1", "the lowest value 2 is not below the highest, 1"),
        ("entropy_cost log-uniform 0 1", "log-uniform needs values above 0"),
        ("correction uniform 0 1", "is not a number; use choice"),
        ("correction choice 1 2", "'1' is not true or false"),
        ("optimizer.kind choice adam lamb", "'lamb' is not one of adam, rmsprop"),
        ("entropy_cost choice 1", "a choice needs at least two values"),
        ("entropy_cost uniform 0 1 entropy_cost uniform 0 2", "entropy_cost is given twice"),
    ],
)
def test_mistakes_are_one_sentence(words: str, result: str) -> None:
    with pytest.raises(ThespisError) as caught:
        priors(words.split(), impala.Config(), "--tune")
    assert result in str(caught.value)


def test_values_are_put_in_at_their_paths() -> None:
    cfg = assign(impala.Config(), {"optimizer.learning_rate": 0.5, "unroll_length": 3})
    learned = cfg.algorithm
    assert (learned.optimizer.learning_rate, learned.items.unroll_length, learned.optimizer.clip) == (
        0.5,
        3,
        0.5,
    )
    assert pairs(["optimizer.anneal=false", "network.hidden=[8, 8]"], "--settings") == {
        "optimizer.anneal": False,
        "network.hidden": [8, 8],
    }
    with pytest.raises(ThespisError, match="give PATH=VALUE"):
        pairs(["anneal"], "--settings")
