"""Planted mistakes in the executor: strict mode finds each of them with every seed; without it they do not show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import DeviceLost
from kaas.executor.device.graphs import Graph, ParameterBlock
from kaas.executor.device.streams import EventPair, Stream
from kaas.executor.executor import Executor, InputSource, RunRequest
from softgpu.tests.compiler.test_stray_shuffles import CONSTANT, text
from tests.executor.interpreter import interpret
from tests.faults.conftest import new_context

N = 1000
SEEDS = range(8)
Open = Callable[..., Executor]


@pytest.fixture
def diamond(library: kaas.Library) -> kaas.KTask:
    """Return a kTask: e = 3 (2 a) + -(2 a)."""
    a, b, c, d, e = (kaas.Buffer(name, N, "int32") for name in "abcde")
    steps: list[tuple[str, list[Any]]] = [
        ("scale", [kaas.In(a), kaas.Out(b), kaas.i32(2)]),
        ("scale", [kaas.In(b), kaas.Out(c), kaas.i32(3)]),
        ("scale", [kaas.In(b), kaas.Out(d), kaas.i32(-1)]),
        ("add", [kaas.In(c), kaas.In(d), kaas.Out(e)]),
    ]
    return kaas.KTask([kaas.Kernel(library, name, 8, 128, [*args, kaas.i32(N)]) for name, args in steps], [e])


EDGES = [(0, 1), (0, 2), (1, 3), (2, 3)]


def forget(monkeypatch: pytest.MonkeyPatch, edge: tuple[int, int]) -> None:
    """Make graphs without this edge."""
    add = Graph.add

    def careless(self: Graph, block: ParameterBlock, after: Sequence[int]) -> None:
        add(self, block, [before for before in after if (before, len(self._nodes)) != edge])

    monkeypatch.setattr(Graph, "add", careless)


def wrong(executor: Executor, task: kaas.KTask, *, cached: bool = False) -> int:
    """Return the number of requests, of eight, that fail or differ from the interpreter.

    If `cached`, the requests bring objects, not values.
    """
    count = 0
    for number in range(8):
        a = np.arange(number, number + N, dtype=np.int32)
        source = InputSource(a, key=b"%d" % number if cached else None)
        try:
            seen = executor.run(RunRequest(task, {"a": source}, {})).outputs["e"]
        except DeviceLost:
            count += 1
        else:
            count += not np.array_equal(seen, interpret(task, {"a": a})["e"])
    return count


def planted(open_executor: Open, seed: int, task: kaas.KTask, *, cached: bool = False) -> bool:
    """Return True if a planted mistake shows. The device is reset afterwards."""
    executor = open_executor(seed)
    found = wrong(executor, task, cached=cached) > 0
    executor.close()
    new_context()
    return found


def test_edges_are_those_of_the_diamond(diamond: kaas.KTask) -> None:
    assert sorted(diamond.edges) == EDGES


@pytest.mark.parametrize("edge", EDGES)
def test_a_missing_edge_is_found(
    opened: Open, monkeypatch: pytest.MonkeyPatch, diamond: kaas.KTask, edge: tuple[int, int]
) -> None:
    found = []
    for seed in SEEDS:
        assert not planted(opened, seed, diamond)
        with monkeypatch.context() as patched:
            forget(patched, edge)
            found.append(planted(opened, seed, diamond))
    assert all(found), found


def test_a_missing_edge_does_not_show_without_strict_mode(
    opened: Open, strict: Callable[[int | None], None], monkeypatch: pytest.MonkeyPatch, diamond: kaas.KTask
) -> None:
    executor = opened(0)
    strict(None)
    forget(monkeypatch, EDGES[0])
    assert not wrong(executor, diamond)


def wait_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record the event that other streams wait for before the copy, and not after it."""
    start, stop = EventPair.start, EventPair.stop

    def both(self: EventPair, stream: Stream) -> None:
        start(self, stream)
        stop(self, stream)

    monkeypatch.setattr(EventPair, "start", both)
    monkeypatch.setattr(EventPair, "stop", lambda _, __: None)


def test_a_missing_wait_is_found(opened: Open, monkeypatch: pytest.MonkeyPatch, diamond: kaas.KTask) -> None:
    """Kernels that do not wait for the stream of copies read the memory's old content."""
    found = []
    for seed in SEEDS:
        assert not planted(opened, seed, diamond, cached=True)
        with monkeypatch.context() as patched:
            wait_too_little(patched)
            found.append(planted(opened, seed, diamond, cached=True))
    assert all(found), found


def test_a_shuffle_from_lanes_that_do_not_run(opened: Open, capfd: pytest.CaptureFixture[str]) -> None:
    """It is reported once, by kernel and line, and its values have all bits set."""
    ptx = text("stray", CONSTANT)
    out = kaas.Buffer("out", 32, "uint32")
    kernel = kaas.Kernel(kaas.Library.from_ptx(ptx), "stray", 1, 32, [kaas.Out(out), kaas.u32(8)])
    executor = opened(0)
    for _ in range(2):
        seen = executor.run(RunRequest(kaas.KTask([kernel], [out]), {}, {})).outputs["out"].view(np.uint32)
        np.testing.assert_array_equal(seen, [*range(8, 24), *[0xFFFFFFFF] * 8, *[0] * 8])
    (message,) = capfd.readouterr().err.splitlines()
    assert f"kernel stray, PTX line {1 + ptx[: ptx.index('shfl')].count(chr(10))}: thread (16, 0, 0)" in message
