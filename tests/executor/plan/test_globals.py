"""The next client's kernels never find the values that kernels left in their library's globals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kaas
import softgpu as software
from kaas.errors import UnsupportedCode
from kaas.executor.device.device import open_device
from kaas.executor.executor import Executor, RunRequest
from kaas.executor.plan.globals import Globals
from kaas.executor.plan.variables import variables_of
from tests.executor.conftest import MakeExecutor
from tests.lanes import spread

ROOT = Path(__file__).parents[3]
PTX = (Path(__file__).parents[1] / "kernels" / "globals.ptx").read_text()
FIRST, SECOND = [0, 100, 3, 0, 40, 1000, 7], [1, 99, 5, 5, 41, 1001, 7]
"""The values that `count` finds in the variables the first time, and the second time."""
HIDDEN = ".visible .entry hides() {\n.global .u32 inside = 4;\nret;\n}\n"
"""A kernel whose variable no call of the driver finds by its name in the text."""

OUT = kaas.Buffer("out", 7, "int32")
SEEN = kaas.Buffer("seen", 64, "int32")


@pytest.fixture
def own(softgpu: tuple[int, ...]) -> Iterator[Executor]:  # noqa: ARG001
    executor = Executor(open_device("software", 1), cache_bytes=16 << 20)
    yield executor
    executor.close()


@pytest.fixture(params=["known", "unknown"])
def library(request: pytest.FixtureRequest) -> kaas.Library:
    """Return a library whose globals are restored, or one that must be loaded again."""
    return kaas.Library.from_ptx(PTX + HIDDEN if request.param == "unknown" else PTX)


def counting(library: kaas.Library) -> kaas.KTask:
    return kaas.KTask([kaas.Kernel(library, "count", 1, 1, [kaas.Out(OUT)])], [OUT])


def peeking(library: kaas.Library) -> kaas.KTask:
    return kaas.KTask([kaas.Kernel(library, "peek", 1, 64, [kaas.Out(SEEN)])], [SEEN])


def run(executor: Executor, task: kaas.KTask, client: str) -> list[int]:
    (output,) = executor.run(RunRequest(task, {}, {}, client)).outputs.values()
    return output.tolist()  # type: ignore[no-any-return]


def test_another_client_starts_from_the_first_values(own: Executor, library: kaas.Library) -> None:
    task = counting(library)
    assert [run(own, task, client) for client in "aabbabba"] == [
        FIRST, SECOND, FIRST, SECOND, FIRST, FIRST, SECOND, FIRST]  # fmt: skip
    assert sum(len(slot.plans.kernels) for slot in own._slots) == 1


def test_any_kernel_of_the_library(own: Executor, library: kaas.Library) -> None:
    count, peek = counting(library), peeking(library)
    run(own, count, "a")
    assert run(own, peek, "a")[63] == 5
    assert not any(run(own, peek, "b"))
    assert run(own, count, "b") == FIRST
    assert run(own, count, "a") == FIRST


def test_each_library_by_itself(own: Executor, library: kaas.Library) -> None:
    tasks = [counting(library), counting(kaas.Library.from_ptx(PTX + "// another"))]
    found = [run(own, tasks[which], client) for which, client in [(0, "a"), (1, "b"), (0, "a"), (1, "a"), (0, "b")]]
    assert found == [FIRST, FIRST, SECOND, FIRST, FIRST]


def test_a_failed_request_counts_for_its_client(
    own: Executor, library: kaas.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = counting(library)
    run(own, task, "a")
    with monkeypatch.context() as patch:
        patch.setattr("kaas.executor.slots.Slot.copy_out", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(own, task, "b")
    assert [run(own, task, client) for client in "ba"] == [SECOND, FIRST]


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_the_cost_of_a_change_of_client(own: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    task = counting(kaas.Library.from_ptx(PTX))
    (slot,) = own._slots
    stream = slot.stream
    calls: list[tuple[str, int]] = []
    for name in ("copy", "clear"):
        monkeypatch.setattr(stream, name, recording(getattr(stream, name), name, calls))
    costs = []
    for client in "aaba":
        calls.clear()
        run(own, task, client)
        of_request = [("clear", own.cache.arena_bytes), ("clear", task.outputs[0].nbytes)]
        costs.append([call for call in calls if call not in of_request])
    kept = [("copy", 4), ("copy", 4), ("copy", 4), ("copy", 4), ("copy", 8), ("copy", 24)]
    restored = [("clear", 4), ("clear", 256), *kept]
    assert [sorted(cost) for cost in costs] == [kept, [], restored, restored]


def recording(function: Callable[..., None], name: str, calls: list[tuple[str, int]]) -> Callable[..., None]:
    def record(*args: int) -> None:
        calls.append((name, args[-1]))
        function(*args)

    return record


def test_each_slot_has_its_own(make_executor: MakeExecutor, library: kaas.Library) -> None:
    executor = make_executor(1 << 20, slots=2)
    request = [RunRequest(counting(library), {}, {}, client) for client in "ab"]
    found = [executor.run(request[client], slot) for client, slot in [(0, 0), (1, 1), (0, 0), (1, 1), (0, 1), (1, 0)]]
    assert [result.outputs["out"].tolist() for result in found] == [FIRST, FIRST, SECOND, SECOND, FIRST, FIRST]
    assert sum(len(slot.plans.kernels) for slot in executor._slots) == 2


def test_libraries_without_globals_cost_nothing(own: Executor) -> None:
    simple = kaas.Library.from_file(Path(__file__).parents[1] / "kernels" / "simple.ptx")
    result = kaas.Buffer("result", 64, "int32")
    plan = own.prepare(kaas.KTask([kaas.Kernel(simple, "narrow", 1, 64, [kaas.Out(result)])], [result]))
    assert plan.globals == ()


def test_without_memory_for_the_copy_the_library_is_loaded_anew(own: Executor) -> None:
    task = counting(kaas.Library.from_ptx(PTX))
    software.inject(software.Fault("out_of_memory"), ordinal=1)
    plan = own.prepare(task)
    software.forgive()
    assert [library.known for library in plan.globals] == [False]
    assert [run(own, task, client) for client in "aab"] == [FIRST, SECOND, FIRST]
    assert [library.known for library in own.prepare(task).globals] == [True]


def test_memory_of_evicted_libraries_is_freed(
    own: Executor, library: kaas.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [peeking(kaas.Library.from_ptx(f"{PTX}// {number}")) for number in range(2)]
    monkeypatch.setattr("kaas.executor.plan.graph_cache.MAX_PLANS", 1)
    own.prepare(others[0])
    with own.device.context:
        before = own.device.free_bytes()
    task = counting(library)
    for client in "ab":
        run(own, task, client)
    own.prepare(others[1])
    assert sum(len(slot.plans.kernels) for slot in own._slots) == 1
    own.flush()
    with own.device.context:
        assert own.device.free_bytes() + own.cache.arena_bytes == before


SOURCES = sorted(
    path for folder in ("kaas", "softgpu", "examples", "benchmarks", "tests") for path in (ROOT / folder).rglob("*.ptx")
)


@pytest.mark.parametrize("path", spread(SOURCES, 40), ids=lambda path: path.stem)
def test_the_driver_finds_every_variable(path: Path, own: Executor) -> None:
    image = kaas.Library.from_file(path).images[0]
    with own.device.context:
        try:
            loaded = own.device.load(kaas.Library((image,)))
        except UnsupportedCode:
            pytest.skip("the software GPU refuses it")
        globals_ = Globals(own.device, "x", loaded)
        known, any_of_them = globals_.known, bool(globals_)
        globals_.close()
        loaded.close()
    assert (known, any_of_them) == (True, bool(variables_of(image).found))
