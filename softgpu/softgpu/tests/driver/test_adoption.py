"""Device memory that outlives its process, in a file that this one keeps."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from softgpu.tests.driver.adopter import MEMORY_BYTES, adopter
from softgpu.tests.driver.test_windows import WHOLE


@pytest.fixture
def file() -> Iterator[int]:
    made = os.memfd_create("kept")
    yield made
    os.close(made)


def unit(file: int, offset: int) -> list[int]:
    return sorted({*np.frombuffer(os.pread(file, WHOLE, offset), np.uint32).tolist()})


def test_a_killed_process_leaves_its_memory_to_the_next(file: int) -> None:
    first, second, third = adopter(file, [], 11, 12, 13)["offsets"]
    next_one = adopter(file, [third, first], 14)
    assert next_one["adopted"] == [[13], [11]]
    assert next_one["offsets"] == [second]  # it was given back, and is used again
    assert [unit(file, each) for each in (first, second, third)] == [[11], [14], [13]]


def test_what_is_not_adopted_takes_no_memory_and_is_zeros(file: int) -> None:
    offsets = adopter(file, [], *range(1, 6))["offsets"]
    assert os.fstat(file).st_blocks * 512 == 5 * WHOLE
    assert adopter(file, offsets[1:3])["adopted"] == [[2], [3]]
    assert os.fstat(file).st_blocks * 512 == 2 * WHOLE
    assert [unit(file, each) for each in offsets] == [[0], [2], [3], [0], [0]]


def test_adopted_memory_counts_as_memory_of_the_device(file: int) -> None:
    offsets = adopter(file, [], 1, 2, 3)["offsets"]
    assert adopter(file, offsets, 4)["free"] == MEMORY_BYTES - 4 * WHOLE


def test_units_that_are_not_there_are_refused(file: int) -> None:
    (offset,) = adopter(file, [], 1)["offsets"]
    for wrong in ([offset + 4096], [offset + WHOLE], [offset, offset], [1 << 50]):
        assert "no file with" in adopter(file, wrong)["error"]
    assert adopter(file, [offset])["adopted"] == [[1]]


def test_more_memory_than_the_device_has_is_refused(file: int) -> None:
    os.ftruncate(file, MEMORY_BYTES + WHOLE)
    assert "are in use" in adopter(file, range(0, MEMORY_BYTES + WHOLE, WHOLE))["error"]


def test_a_descriptor_of_no_file_is_refused() -> None:
    reader, writer = os.pipe()
    try:
        assert "no file" in adopter(reader, [])["error"]
    finally:
        os.close(reader)
        os.close(writer)
