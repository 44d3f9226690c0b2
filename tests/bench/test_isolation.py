"""The parts of `benchmarks.isolation`: kernels compute what it says, memory counts once, each figure has a row."""

from __future__ import annotations

import mmap
import os
import subprocess
from contextlib import closing

import numpy as np
import pytest

from benchmarks.isolation.changing import CHANGING
from benchmarks.isolation.fencing import LEVELS, figures, in_turns, request_s
from benchmarks.isolation.memory import memory_mb
from benchmarks.isolation.patterns import PATTERNS
from benchmarks.isolation.pools import USUAL, Client, clients_of, pool, pool_memory_mb, step_of
from benchmarks.isolation.tables import FENCES, tables
from benchmarks.isolation.workloads import WORKLOADS
from kaas.executor.device.device import open_device
from kaas.executor.executor import Executor

SMALL = {"transpose": 64, "stencil": 64, "naive_matmul": 64, "sparse_product": 512, "local_sort": 1 << 14, "tiny": 3}
MB, HOLDER_MB = 64, 20
"""Of values, and at least of the process that holds constants."""


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize("name", PATTERNS)
def test_a_kernel_computes_what_its_name_says(name: str) -> None:
    pattern = PATTERNS[name](SMALL.get(name, 1 << 12))
    with closing(Executor(open_device("software", 0))) as executor:
        np.testing.assert_array_equal(executor.run(pattern.request()).outputs["out"], pattern.expected)


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize("name", CHANGING)
def test_requests_whose_memory_changes_have_the_same_results_with_fences(name: str) -> None:
    taken = in_turns("software", CHANGING[name](10), 4, request_s)
    assert {level: len(each) for level, each in taken.items()} == dict.fromkeys(LEVELS, 6)


def test_a_ratio_is_the_median_of_the_ratios_of_pairs() -> None:
    found = dict(figures("copy", {"none": [1.0, 2.0, 10.0], "fence": [1.5, 2.0, 40.0]}))
    assert found == {"copy_none_ms": 2000.0, "copy_fence_ms": 2000.0, "copy_fence_over_none": 1.5}


@pytest.mark.processes
def test_memory_counts_once_whether_it_is_mapped_or_only_held_by_a_file() -> None:
    file = os.memfd_create("held")
    try:
        before_mb = memory_mb([os.getpid()])
        os.write(file, bytes(MB << 20))
        assert memory_mb([os.getpid()]) - before_mb == pytest.approx(MB, abs=MB / 4)
        with mmap.mmap(file, MB << 20) as mapped:
            mapped[:] = bytes(MB << 20)
            assert memory_mb([os.getpid()]) - before_mb == pytest.approx(MB, abs=MB / 4)
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[file]) as other:
            both_mb = memory_mb([os.getpid(), other.pid])
        assert both_mb - before_mb == pytest.approx(MB, abs=MB / 4)
    finally:
        os.close(file)


def test_a_process_that_has_ended_has_no_memory() -> None:
    with subprocess.Popen(["true"]) as other:
        other.wait()
    assert memory_mb([other.pid]) == 0


@pytest.mark.full
@pytest.mark.processes
def test_the_memory_of_a_pool_counts_constants_that_no_executor_has_read() -> None:
    """The values of the program, half of which are the pool's part, those of the pool, those on the device, a holder.

    An executor reads 4 KB of them.
    """
    with pool("process"):
        clients_of(USUAL, 1)[0].ask()
        before_mb = pool_memory_mb("process")
        Client(1, step_of(np.ones(MB << 18, np.float32))).ask()
        assert pool_memory_mb("process") - before_mb > 2.5 * MB + HOLDER_MB


def test_each_kernel_and_request_that_is_measured_has_a_row() -> None:
    assert [*FENCES.values()] == [*WORKLOADS, *PATTERNS, *CHANGING]


def test_a_row_has_the_figures_of_each_level_and_dashes_for_those_that_there_are_not() -> None:
    made = tables({"pool_none_start_ms": 2345.6, "pool_process_first_ms": 44.44, "copy_fence_over_none": 1.079})
    assert "| one device, kernels of 5 ms | `none` | `process` |" in made
    assert "first client of a new pool, ms | 2350 | – |" in made
    assert "finds a spare executor ready, ms | – | 44.4 |" in made
    assert "| copy | – | – | 1.08 |" in made
