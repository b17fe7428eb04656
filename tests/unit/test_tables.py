"""Tables in docs that are written from the code are current."""

from __future__ import annotations

from tables import PAGE, table, with_table

from thespis.algorithms import algorithms


def test_the_table_of_algorithms_is_the_code_s() -> None:
    markdown = PAGE.read_text()
    assert table() in markdown and with_table(markdown) == markdown, "run `python tests/tables.py` to update it"


def test_every_algorithm_has_an_architecture_that_carries_it() -> None:
    for name in algorithms():
        (row,) = [line for line in table().splitlines() if line.startswith(f"| `{name}` |")]
        assert ".md)" in row, f"no architecture carries what {name} learns from"
