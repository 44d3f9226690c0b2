"""kTasks with mistakes in the software GPU's strict and memcheck modes: a missing edge, an overrun."""

from __future__ import annotations

from itertools import product

import pytest

from softgpu.tests.driver.test_memcheck import run
from softgpu.tests.driver.test_strict import SEEDS
from tests.lanes import spread

pytestmark = pytest.mark.processes

ARENA = """
import numpy as np
import kaas
from kaas.errors import KaasError
library = kaas.Library.from_file("tests/executor/kernels/simple.ptx")
x, y = (kaas.Buffer(name, 64, "int32") for name in "xy")
short = kaas.Buffer("short", 41, "int32")
def scale(source, target, count):
    return kaas.Kernel(library, "scale", 2, 32, [kaas.In(source), kaas.Out(target), kaas.i32(3), kaas.i32(count)])
task = kaas.KTask([scale(x, short, 42), scale(short, y, 41)], [y])
try:
    kaas.run_local(task, {"x": np.ones(64, np.int32)})
except KaasError as error:
    print(error)
"""


def test_an_overrun_inside_an_arena_names_the_buffer() -> None:
    printed = run("-c", ARENA, SOFTGPU_MEMCHECK="1")
    assert "kernel scale: PTX line " in printed
    assert "0 bytes behind the end of the nearest buffer (short: 164 bytes at " in printed


EDGES = """
import sys
import numpy as np
import kaas
from kaas.errors import KaasError
library = kaas.Library.from_file("tests/executor/kernels/simple.ptx")
x, a, b, y = (kaas.Buffer(name, 64, "int32") for name in "xaby")
three, count = kaas.i32(3), kaas.i32(64)
first, second = (
    kaas.Kernel(library, "scale", 2, 32, [kaas.In(source), kaas.Out(target), three, count])
    for source, target in [(x, a), (a, b)]
)
add = kaas.Kernel(library, "add", 2, 32, [kaas.In(a), kaas.In(b), kaas.Out(y), count])
task = kaas.KTask([first, second, add], [y])
gone = [tuple(map(int, pair)) for pair in sys.argv[1:]]
assert {(0, 1), (1, 2)} <= set(task.edges)
object.__setattr__(task, "edges", tuple(edge for edge in task.edges if edge not in gone))
try:
    print(int(kaas.run_local(task, {"x": np.ones(64, np.int32)})["y"].sum()))
except KaasError as error:
    print(error)
"""


@pytest.mark.parametrize(("gone", "seed"), spread(product(["none", "01", "12"], SEEDS), 4))
def test_a_missing_edge(gone: str, seed: str) -> None:
    printed = run("-c", EDGES, *([] if gone == "none" else [gone]), SOFTGPU_STRICT=seed)
    if gone == "none":
        assert printed.strip() == str(12 * 64)
    else:
        assert "a race: kernel " in printed
        assert "no edges of their graph order them" in printed
