"""The codecs of compressed gradients, against naive references; and the sections that they work on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from thespis.core.types import Array
from thespis.exchange.codecs import PowerSGD, build_codec, cut_sections, largest, size_of

METHODS = ("float16", "bfloat16", "int8", "topk", "sign", "powersgd")
SECTIONS = np.array([[1, 5], [12, 10], [1, 1], [3, 2]], np.int32)
SIZE = size_of(SECTIONS)
numbers = st.floats(-1e4, 1e4, width=32)
vectors = arrays.arrays(np.float32, SIZE, elements=numbers)


def coded(method: str, vector: Array, **settings: Any) -> tuple[list[Array], Array]:
    codec = build_codec(method, **{"share": 0.1, "rank": 2, "seed": 0, **settings})
    sent = codec.encode(vector, SECTIONS, None)
    found = codec.decode(sent, SECTIONS)
    assert found.dtype == np.float32 and found.shape == vector.shape
    return sent, found


def parts(vector: Array) -> list[Array]:
    return np.split(vector, np.cumsum(SECTIONS.prod(axis=1))[:-1])


def random_vector(seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)


@given(vectors)
def test_int8_rounds_to_one_of_255_values_per_section(vector: Array) -> None:
    sent, found = coded("int8", vector)
    assert sent[0].dtype == np.int8 and sent[0].nbytes == SIZE
    for part, back in zip(parts(vector), parts(found), strict=True):
        scale = max(abs(float(number)) for number in part) / 127
        for number, each in zip(part, back, strict=True):
            assert abs(number - each) <= 0.5001 * scale + 1e-35


@given(vectors)
def test_sign_keeps_one_bit_and_the_mean_magnitude(vector: Array) -> None:
    """Sections with few rows and columns have one scale, rounded to 8 bits."""
    sent, found = coded("sign", vector)
    assert sent[0].nbytes == math.ceil(SIZE / 8) and sent[1].nbytes == 2 * len(SECTIONS)
    for part, back in zip(parts(vector), parts(found), strict=True):
        scale = np.float32(np.mean([abs(number) for number in part], dtype=np.float64))
        np.testing.assert_allclose(back, np.where(part >= 0, scale, -scale), rtol=2**-8, atol=1e-37)


@pytest.mark.parametrize(("rows", "columns", "scales"), [(40, 50, 90), (40, 3, 4), (3, 50, 3), (31, 31, 1), (1, 90, 1)])
def test_sign_scales_rows_and_columns_that_are_long(rows: int, columns: int, scales: int) -> None:
    """Magnitudes of rank one lose nothing but the rounding of the scales."""
    rng, sections = np.random.default_rng(0), np.array([[rows, columns]], np.int32)
    by_row = rng.uniform(0.1, 10, rows if columns >= 32 else 1)[:, None]
    by_column = rng.uniform(0.1, 10, columns if rows >= 32 else 1)
    vector = (np.broadcast_to(by_row * by_column, (rows, columns)) * rng.choice([-1, 1], (rows, columns))).reshape(-1)
    codec = build_codec("sign", share=0.1, rank=2, seed=0)
    sent = codec.encode(vector.astype(np.float32), sections, None)
    assert [array.nbytes for array in sent] == [math.ceil(rows * columns / 8), 2 * scales]
    np.testing.assert_allclose(codec.decode(sent, sections), vector, rtol=2**-7)


MATRICES = np.r_[5:125, 126:SIZE]
"""The numbers that belong to sections with several rows."""


@given(vectors, st.sampled_from([0.001, 0.1, 0.5]))
def test_topk_keeps_vectors_and_the_largest_of_matrices_exactly(vector: Array, share: float) -> None:
    sent, found = coded("topk", vector, share=share)
    number = math.ceil(share * len(MATRICES))
    assert sent[0].dtype == np.int32 and [len(array) for array in sent] == [number, number, SIZE - len(MATRICES)]
    expected = vector.copy()
    for place in sorted(MATRICES, key=lambda place: (-abs(vector[place]), place))[number:]:
        expected[place] = 0
    np.testing.assert_array_equal(found, expected)


def test_topk_sends_a_network_of_vectors_whole() -> None:
    sections, vector = np.array([[1, 5], [1, 3]], np.int32), np.arange(8, dtype=np.float32)
    codec = build_codec("topk", share=0.1, rank=2, seed=0)
    np.testing.assert_array_equal(codec.decode(codec.encode(vector, sections, None), sections), vector)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from([1, 100, 1_000, 40_000, 50_000]), st.booleans())
def test_the_largest_of_many_numbers(seed: int, number: int, few_values: bool) -> None:
    """The threshold comes from a sample here, and often has equal numbers on both sides."""
    rng = np.random.default_rng(seed)
    values = rng.standard_t(2, size=50_000).astype(np.float32)
    if few_values:
        values = np.rint(values)
    found = largest(values, number)
    order = np.lexsort((np.arange(len(values)), -np.abs(values)))
    np.testing.assert_array_equal(found, np.sort(order[:number]))


def test_a_sample_that_misleads_does_not_change_the_largest() -> None:
    """Every number of the sample is large and no other, so that its threshold leaves too few candidates."""
    values = np.zeros(10 * 16_384, np.float32)
    values[::10] = 1 + np.arange(16_384)
    np.testing.assert_array_equal(largest(values, 10_000), np.sort(np.argsort(values)[-10_000:]))


def test_powersgd_projects_each_matrix_on_the_span_of_its_image() -> None:
    vector = random_vector(0)
    sent, found = coded("powersgd", vector)
    (matrix, back), others = (each[5:125].reshape(12, 10) for each in (vector, found)), np.r_[0:5, 125:SIZE]
    np.testing.assert_array_equal(found[others], vector[others], err_msg="small sections are sent as they are")
    left = sent[1].reshape(12, 2)
    np.testing.assert_allclose(left.T @ left, np.eye(2), atol=1e-6)
    np.testing.assert_allclose(back, left @ (left.T @ matrix), atol=1e-5)
    assert sum(array.size for array in sent) == 2 * (12 + 10) + SIZE - 120


def test_powersgd_finds_a_matrix_of_its_rank_and_improves_on_others() -> None:
    rng, codec = np.random.default_rng(1), PowerSGD(2, seed=0)
    vector = random_vector(2)
    vector[5:125] = (rng.normal(size=(12, 2)) @ rng.normal(size=(2, 10))).reshape(-1)
    np.testing.assert_allclose(codec.decode(codec.encode(vector, SECTIONS, None), SECTIONS), vector, atol=1e-5)
    vector, previous, errors = random_vector(3), None, []
    for _ in range(30):
        sent = codec.encode(vector, SECTIONS, previous)
        errors.append(np.linalg.norm(codec.decode(sent, SECTIONS) - vector))
        previous = sent[0]
    singular = np.linalg.svd(vector[5:125].reshape(12, 10), compute_uv=False)
    assert errors[-1] == pytest.approx(np.linalg.norm(singular[2:]), rel=1e-2), "the best of its rank"
    assert errors[0] > 1.05 * errors[-1]


def test_powersgd_recovers_from_a_zero_gradient_and_bears_any_scale() -> None:
    codec, zeros = PowerSGD(2, seed=0), np.zeros(SIZE, np.float32)
    sent = codec.encode(zeros, SECTIONS, None)
    np.testing.assert_array_equal(codec.decode(sent, SECTIONS), zeros)
    for scale in (1.0, 1e-30, 1e15):
        vector = np.float32(scale) * random_vector(4)
        after = codec.decode(codec.encode(vector, SECTIONS, sent[0]), SECTIONS)
        assert np.isfinite(after).all()
        error = np.linalg.norm((after - vector).astype(np.float64)) / np.linalg.norm(vector.astype(np.float64))
        assert error < 0.95, "zero factors would remain zero forever"


def test_workers_with_one_seed_begin_with_the_same_factors() -> None:
    one, same, other = (PowerSGD(2, seed).encode(random_vector(5), SECTIONS, None) for seed in (7, 7, 8))
    np.testing.assert_array_equal(one[0], same[0])
    assert (one[0] != other[0]).any()


@pytest.mark.parametrize("method", METHODS)
def test_zeros_stay_zeros(method: str) -> None:
    zeros = np.zeros(SIZE, np.float32)
    np.testing.assert_array_equal(coded(method, zeros)[1], zeros)


@pytest.mark.parametrize("method", METHODS)
def test_encoding_leaves_the_gradient_alone(method: str) -> None:
    vector = random_vector(6)
    coded(method, vector)
    np.testing.assert_array_equal(vector, random_vector(6))


SHAPES = st.lists(st.lists(st.integers(1, 5), max_size=4), min_size=1, max_size=5)


@given(SHAPES, st.data())
def test_sections_cover_a_slice_and_keep_whole_rows(shapes: list[list[int]], data: st.DataObject) -> None:
    layout = [(str(index), shape) for index, shape in enumerate(shapes)]
    size = sum(math.prod(shape) for shape in shapes)
    low = data.draw(st.integers(0, size))
    high = data.draw(st.integers(low, size))
    # Each number of the vector as (tensor, row), with a row of its own tensor for every vector.
    place = [
        (index, number // math.prod(shape[1:]) if len(shape) > 1 else -1)
        for index, shape in enumerate(shapes)
        for number in range(math.prod(shape))
    ]
    whole = {where: place.count(where) for where in place}
    sections = cut_sections(layout, slice(low, high))
    assert size_of(sections) == high - low
    at = low
    for rows, columns in sections.tolist():
        covered = place[at : at + rows * columns]
        assert len({tensor for tensor, _ in covered}) == 1, "a section is part of one tensor"
        if rows > 1:
            assert all(covered.count(where) == whole[where] == columns for where in set(covered))
        at += rows * columns
    cut = sum(place[edge - 1] == place[edge] and place[edge][1] >= 0 for edge in (low, high) if 0 < edge < size)
    matrices = {tensor for tensor, row in place[low:high] if row >= 0}
    vectors = {tensor for tensor, row in place[low:high] if row < 0}
    assert len(sections) <= len(matrices) + len(vectors) + cut, "only what a slice cuts is more than one section"
