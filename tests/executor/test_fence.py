"""A client of a fenced executor gets its own results, and nothing of another client's memory."""

from __future__ import annotations

import ctypes
import mmap
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
import softgpu
from kaas.errors import OutOfDeviceMemory
from kaas.executor import client_slots
from kaas.executor.client_slots import FencedSlots
from kaas.executor.device.device import open_device
from kaas.executor.device.windows.gpu_window import GpuWindow
from kaas.executor.device.windows.pages import PAGE_BYTES
from kaas.executor.device.windows.software_window import SoftwareWindow
from kaas.executor.device.windows.window import ClientWindow
from kaas.executor.executor import Executor, InputSource, RunRequest
from tests.executor.conftest import KERNELS, MakeExecutor, with_temporary
from tests.timeouts import until

N = 1024
SECRET = 0x5EC2E7
ATTACK = """.version 8.0
.target sm_80
.address_size 64
.visible .entry attack(.param .u64 where, .param .u64 out, .param .u32 writes)
{
  .reg .b64 %w, %o, %a, %i; .reg .b32 %t, %v, %s; .reg .pred %p;
  ld.param.u64 %w, [where]; ld.param.u64 %o, [out]; ld.param.u32 %s, [writes]; setp.ne.u32 %p, %s, 0;
  mov.u32 %t, %tid.x;
  mul.wide.u32 %i, %t, 8; add.u64 %a, %w, %i; ld.global.u64 %a, [%a];
  ld.global.u32 %v, [%a];
  @%p st.global.u32 [%a], 7;
  mul.wide.u32 %i, %t, 4; add.u64 %o, %o, %i; st.global.u32 [%o], %v;
  ret;
}"""
PRINTS = """.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.global .align 1 .b8 text[13] = {37, 117, 32, 105, 115, 32, 116, 111, 108, 100, 10, 0};
.visible .entry prints(.param .u64 out, .param .u32 n)
{
  .local .align 8 .b8 arguments[8];
  .reg .b64 %t, %l, %m; .reg .b32 %n;
  ld.param.u32 %n, [n]; mov.u64 %l, arguments; cvta.local.u64 %m, %l; st.local.u32 [%l], %n;
  mov.u64 %t, text; cvta.global.u64 %t, %t;
  { .param .b64 f; .param .b64 a; .param .b32 r; st.param.b64 [f], %t; st.param.b64 [a], %m;
    call.uni (r), vprintf, (f, a); ld.param.b32 %n, [r]; }
  ret;
}"""
WHERE, OUT = kaas.Buffer("where", 32, "uint64"), kaas.Buffer("out", 32, "uint32")


@pytest.fixture(params=[SoftwareWindow, GpuWindow])
def windows(request: pytest.FixtureRequest) -> type[ClientWindow]:
    """Those of both kinds of devices: a GPU's run on a software device as they are."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def make_fenced(make_executor: MakeExecutor, windows: type[ClientWindow]) -> MakeExecutor:
    return partial(make_executor, isolation="fence", windows=windows)


@pytest.fixture
def executor(make_fenced: MakeExecutor) -> Executor:
    return make_fenced(64 << 20, slots=2)


@pytest.fixture
def doubling(library: kaas.Library) -> kaas.KTask:
    return doubling_of(library, N)


def doubling_of(library: kaas.Library, size: int) -> kaas.KTask:
    """Return a kTask that doubles the first N of so many numbers."""
    x, y = kaas.Buffer("x", size, "int32"), kaas.Buffer("y", N, "int32")
    args: list[Any] = [kaas.In(x), kaas.Out(y), kaas.i32(2), kaas.i32(N)]
    return kaas.KTask([kaas.Kernel(library, "scale", N // 128, 128, args)], [y])


def double(executor: Executor, task: kaas.KTask, client: str, x: Any, key: bytes | None = None) -> None:
    """Run the kTask, and check its result."""
    result = executor.run(RunRequest(task, {"x": InputSource(x, key=key)}, {}, client))
    np.testing.assert_array_equal(result.outputs["y"], 2 * x)


def attack(executor: Executor, address: int, writes: bool) -> list[int]:
    """Let another client read, and perhaps write, at an address. Return what it read."""
    args: list[Any] = [kaas.In(WHERE), kaas.Out(OUT), kaas.i32(int(writes))]
    task = kaas.KTask([kaas.Kernel(kaas.Library.from_ptx(ATTACK), "attack", 1, 32, args)], [OUT])
    where = np.full(32, address, np.uint64)
    outputs = executor.run(RunRequest(task, {"where": InputSource(where)}, {}, "mallory")).outputs
    return [int(value) for value in outputs["out"]]


def test_clients_take_turns_and_get_their_own_results(executor: Executor, doubling: kaas.KTask) -> None:
    for number in range(6):
        x = np.arange(number, number + N, dtype=np.int32)
        double(executor, doubling, f"client {number % 3}", x)
        double(executor, doubling, f"client {number % 3}", x, key=b"own %d" % number)


def test_clients_that_name_the_same_object_get_the_same_bytes(executor: Executor, doubling: kaas.KTask) -> None:
    x = np.arange(N, dtype=np.int32)
    for client in "abcab":
        double(executor, doubling, client, x, key=b"shared")


def test_no_client_reads_or_changes_objects_and_arenas_of_another(executor: Executor, doubling: kaas.KTask) -> None:
    """Another client's address means the same place in the own window: there the attacker has memory of its own."""
    x = np.full(N, SECRET, np.int32)
    double(executor, doubling, "mallory", np.zeros(N, np.int32), key=b"own")
    double(executor, doubling, "alice", x, key=b"hers")
    for _ in range(2):
        hers = executor.cache.device.values[b"hers"].address
        assert isinstance(executor._slots, FencedSlots)
        (slot,) = executor._slots._clients["alice"].slots.values()
        arena = slot.arena.address
        for address, writes in ((hers, False), (arena, False), (arena, True)):
            assert not {SECRET, 2 * SECRET} & {*attack(executor, address, writes)}
        double(executor, doubling, "alice", x, key=b"hers")


def test_the_attack_works_without_fences(make_executor: MakeExecutor, doubling: kaas.KTask) -> None:
    """Else the test above would show nothing."""
    executor = make_executor(64 << 20)
    double(executor, doubling, "alice", np.full(N, SECRET, np.int32), key=b"hers")
    assert SECRET in attack(executor, executor.cache.device.values[b"hers"].address, writes=False)


def test_requests_of_several_clients_run_at_a_time(executor: Executor, doubling: kaas.KTask) -> None:
    failures: list[BaseException] = []

    def client(number: int) -> None:
        try:
            for turn in range(20):
                x = np.arange(turn, turn + N, dtype=np.int32) * (number + 1)
                double(
                    executor,
                    doubling,
                    f"client {number}",
                    x,
                    key=b"%d of %d" % (turn, number) if turn % 2 else None,
                )
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_objects_leave_one_window_for_those_of_another_client(make_fenced: MakeExecutor, doubling: kaas.KTask) -> None:
    executor = make_fenced(8 << 20)
    for turn in range(3):
        for client in "ab":
            for number in range(3):
                x = np.full(N, 10 * turn + number, np.int32)
                double(executor, doubling, client, x, key=b"%s %d %d" % (client.encode(), turn, number))


def test_an_object_that_was_loaded_ahead_is_where_its_client_reads_it(executor: Executor, doubling: kaas.KTask) -> None:
    x = np.arange(N, dtype=np.int32)
    executor.load([InputSource(x, key=b"ahead")], client="alice")
    double(executor, doubling, "alice", x, key=b"ahead")
    double(executor, doubling, "bob", x, key=b"ahead")


def test_clients_that_were_away_for_longest_give_their_windows_back(
    make_fenced: MakeExecutor, doubling: kaas.KTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_slots, "MOST_CLIENTS", 2)
    executor = make_fenced(64 << 20)
    for turn in range(2):
        for number in range(5):
            double(
                executor,
                doubling,
                f"client {number}",
                np.full(N, turn + number, np.int32),
                key=b"%d" % (10 * turn + number),
            )
            assert len(executor._slots.every()) <= 3
    assert len(executor.cache.device.values) == 2


WAITS = """.version 8.0
.target sm_80
.address_size 64
.visible .entry waits(.param .u64 out)
{
  .reg .b64 %o; .reg .b32 %v; .reg .pred %p;
  ld.param.u64 %o, [out];
  st.volatile.global.u32 [%o+4], 1;
again:
  ld.volatile.global.u32 %v, [%o]; setp.eq.u32 %p, %v, 0; @%p bra again;
  ret;
}"""


def waiting_task() -> kaas.KTask:
    out = kaas.Buffer("out", 2, "uint32")
    return kaas.KTask([kaas.Kernel(kaas.Library.from_ptx(WAITS), "waits", 1, 1, [kaas.Out(out)])], [out])


@contextmanager
def waiting_kernel(executor: Executor) -> Iterator[Future[Any]]:
    """Run a kernel of a client until the end of the `with` statement."""
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(executor.run, RunRequest(waiting_task(), {}, {}, "mallory"))
        until(lambda: run.done() or softgpu.running(executor.device.ordinal) == ("waits",))
        slots = [slot for slot in executor._slots.every() if slot.confined and slot.arena.nbytes]
        seen = np.ctypeslib.as_array((ctypes.c_uint32 * 2).from_address(slots[-1].arena.address))
        until(lambda: run.done() or seen[1] == 1)
        try:
            yield run
        finally:
            seen[0] = 1


def test_objects_leave_while_the_kernels_of_other_clients_run(executor: Executor) -> None:
    objects = [np.full(6 << 20, number, np.int32) for number in range(4)]
    with waiting_kernel(executor) as run:
        for number, data in enumerate(objects):
            left = executor.load([InputSource(data, key=b"%d" % number)], client="alice").evicted
        assert left
        assert not run.done()
    assert run.result().outputs["out"].tolist() == [1, 1]


def end_a_kernel_while_objects_leave() -> None:
    """Let an endless kernel reach its limit while another thread evicts objects, in a process whose device is lost."""
    executor = Executor(open_device("software"), cache_bytes=64 << 20, isolation="fence", slots=2)
    data = np.zeros(6 << 20, np.int32)
    with waiting_kernel(executor):
        for number in range(2):  # a further one has no room
            executor.load([InputSource(data, key=b"%d" % number)], client="alice")
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(executor.run, RunRequest(waiting_task(), {}, {}, "mallory", limit_s=1.0))
        until(lambda: run.done() or softgpu.running(0) == ("waits",))
        with pytest.raises(kaas.errors.DeviceLost):
            all(executor.load([InputSource(data, key=b"%d" % number)], client="alice") for number in count(2))
        with pytest.raises(kaas.errors.DeadlineExceeded):
            run.result()


@pytest.mark.processes
def test_an_endless_kernel_is_ended_while_objects_leave() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        process.submit(end_a_kernel_while_objects_leave).result()


def test_windows_are_given_back_while_the_kernels_of_other_clients_run(
    executor: Executor, doubling: kaas.KTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client for whose window another one leaves waits for the kernels: the code of that one is unloaded."""
    x = np.arange(N, dtype=np.int32)
    monkeypatch.setattr(client_slots, "MOST_CLIENTS", 2)
    double(executor, doubling, "alice", x)
    clients = vars(executor._slots)["_clients"]
    with ThreadPoolExecutor(1) as thread, waiting_kernel(executor) as run:
        later = thread.submit(double, executor, doubling, "bob", x)
        until(lambda: later.done() or "alice" not in clients)
        executor.load([InputSource(x, key=b"x")], client="mallory")
        assert not run.done()
        assert not later.done()
    later.result()


LARGE = 2 << 20
"""Numbers of a large object: 8 MiB."""


@pytest.fixture
def doubling_much(library: kaas.Library) -> kaas.KTask:
    return doubling_of(library, LARGE)


@pytest.mark.parametrize("constants", [None, b"model"])
def test_clients_of_one_model_read_its_constants_where_they_are(
    executor: Executor, doubling_much: kaas.KTask, constants: bytes | None
) -> None:
    """They are on the device once: no client's arena has a copy, and all clients get the right numbers."""
    values = np.arange(LARGE, dtype=np.int32)
    weights = InputSource(values, key=b"weights", constants=constants)
    for client in "abcab":
        result = executor.run(RunRequest(doubling_much, {"x": weights}, {}, client))
        np.testing.assert_array_equal(result.outputs["y"], 2 * values[:N])
    assert isinstance(executor._slots, FencedSlots)
    arenas = [slot.arena.nbytes for slot in executor._slots.every()]
    assert len(arenas) >= 5
    assert max(arenas) < values.nbytes
    assert executor.cached_bytes[0] == values.nbytes


def attack_shared(windows: type[ClientWindow], named: bool, writes: bool, place: str) -> None:
    """Let a client attack an object of another, which it names too or not, in a process whose device may be lost.

    place: the address at which the window of this client shows it, or at which copies write it.
    """
    device = open_device("software")
    device.windows = windows
    executor = Executor(device, cache_bytes=64 << 20, isolation="fence", slots=2)
    task = doubling_of(kaas.Library.from_file(KERNELS / "simple.ptx"), LARGE)
    weights = InputSource(np.full(LARGE, SECRET, np.int32), key=b"weights", constants=b"model")
    own = InputSource(np.zeros(LARGE, np.int32), key=b"own", constants=b"another")
    executor.run(RunRequest(task, {"x": weights}, {}, "alice"))
    executor.run(RunRequest(task, {"x": weights if named else own}, {}, "mallory"))
    cached = executor.cache.device.values[b"weights"]
    assert isinstance(executor._slots, FencedSlots)
    address = cached.address
    if place != "copies":
        window = executor._slots._clients[place].window
        assert window.reaches(cached.home)
        address = window.seen_at(address, cached.home)
    read: list[int] = []
    try:
        read = attack(executor, address, writes)
    except kaas.errors.DeviceLost:
        assert writes or not named or place == "copies"
    else:
        assert not writes or place != "mallory"
    assert (SECRET in read) == (named and place == "mallory" and not writes)
    assert (np.ctypeslib.as_array((ctypes.c_int32 * LARGE).from_address(cached.address)) == SECRET).all()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("named", "writes", "place"),
    [
        (True, False, "mallory"),
        (True, True, "mallory"),
        (True, True, "copies"),
        (False, False, "alice"),
        (False, True, "alice"),
        (False, False, "copies"),
    ],
)
def test_a_client_reads_only_large_objects_that_it_names_and_changes_none(
    windows: type[ClientWindow], named: bool, writes: bool, place: str
) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        process.submit(attack_shared, windows, named, writes, place).result()


def write_to_own_object(windows: type[ClientWindow]) -> None:
    """Let a client's kernel write to a small object that the client has cached, in a process whose device is lost."""
    device = open_device("software")
    device.windows = windows
    executor = Executor(device, cache_bytes=64 << 20, isolation="fence", slots=2)
    task = doubling_of(kaas.Library.from_file(KERNELS / "simple.ptx"), N)
    executor.run(RunRequest(task, {"x": InputSource(np.full(N, SECRET, np.int32), key=b"own")}, {}, "mallory"))
    address = executor.cache.device.values[b"own"].address
    with pytest.raises(kaas.errors.DeviceLost):
        attack(executor, address, writes=True)
    assert (np.ctypeslib.as_array((ctypes.c_int32 * N).from_address(address)) == SECRET).all()


@pytest.mark.processes
def test_no_kernel_changes_a_small_object(windows: type[ClientWindow]) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        process.submit(write_to_own_object, windows).result()


def test_a_client_without_addresses_for_its_window_gets_those_of_another(
    make_fenced: MakeExecutor, doubling: kaas.KTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process has 2^47 of them, and a large GPU's windows take a terabyte each."""
    executor, most, there = make_fenced(64 << 20), 2, list[ClientWindow]()
    make = executor.device.windows

    def window(*arguments: Any) -> ClientWindow:
        if len(there) == most:
            raise OutOfDeviceMemory("the host has no addresses left")
        made = make(*arguments)
        there.append(made)
        return made

    def close(made: ClientWindow) -> None:
        there.remove(made)
        close_it(made)

    close_it = ClientWindow.close
    monkeypatch.setattr(ClientWindow, "close", close)
    monkeypatch.setattr(executor.device, "windows", window)
    for number in (0, 1, 2, 0, 3):
        double(executor, doubling, f"client {number}", np.full(N, number, np.int32), key=b"%d" % number)
    assert len(there) == most


def test_variables_of_code_are_each_clients_own(executor: Executor) -> None:
    library = kaas.Library.from_file(Path(__file__).parent / "kernels" / "globals.ptx")
    out = kaas.Buffer("out", 7, "int32")
    task = kaas.KTask([kaas.Kernel(library, "count", 1, 1, [kaas.Out(out)])], [out])
    found = [executor.run(RunRequest(task, {}, {}, client), 0).outputs["out"].tolist() for client in "abaab"]
    first, second = [0, 100, 3, 0, 40, 1000, 7], [1, 99, 5, 5, 41, 1001, 7]
    assert [found[0], found[1], found[2], found[4]] == [first, first, second, second]
    assert found[3] not in (first, second)


def test_an_output_that_stays_is_read_by_its_client_and_by_others(
    make_fenced: MakeExecutor, doubling: kaas.KTask
) -> None:
    saved: dict[bytes, Any] = {}
    executor = make_fenced(64 << 20, on_write_back=saved.__setitem__)
    x = np.arange(N, dtype=np.int32)
    kept = RunRequest(doubling, {"x": InputSource(x)}, {}, "alice", keep={"y": b"kept"})
    assert "y" not in executor.run(kept).outputs
    for client in ("alice", "bob", "alice"):
        result = executor.run(RunRequest(doubling, {"x": InputSource(key=b"kept")}, {}, client))
        np.testing.assert_array_equal(result.outputs["y"], 4 * x)
    executor.write_back([b"kept"])
    np.testing.assert_array_equal(saved[b"kept"], 2 * x)


def test_a_kernel_prints_what_its_client_gave(executor: Executor) -> None:
    code = kaas.Library.from_ptx(PRINTS)
    task = kaas.KTask([kaas.Kernel(code, "prints", 1, 1, [kaas.Out(OUT), kaas.Scalar("n", "u32")])], [OUT])
    for client, number in (("alice", 7), ("bob", 8)):
        scalars = {"n": number.to_bytes(4, "little")}
        assert executor.run(RunRequest(task, {}, scalars, client)).printed == f"{number} is told\n"


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[PAGE_BYTES + 512] * 130, [512, PAGE_BYTES - 512] * 125])
def test_no_client_takes_memory_from_others_for_good(
    softgpu: tuple[int, ...], make_executor: MakeExecutor, library: kaas.Library, sizes: list[int]
) -> None:
    """Objects of odd sizes hold more pages than they have bytes; they leave when another client needs the memory."""
    executor = make_executor(softgpu[1], isolation="fence")  # all of the device: 256 MB
    weights = InputSource(np.arange(40 << 20, dtype=np.int32), key=b"weights", constants=b"model")  # 160 MiB
    task, temporary = doubling_of(library, 40 << 20), with_temporary(200 << 20)
    for _ in range(2):
        for number, nbytes in enumerate(sizes):
            x = np.arange(nbytes // 4, dtype=np.int32)
            executor.load([InputSource(x, key=b"odd %d" % number)], client="mallory")
            if nbytes < 1024:
                small = [InputSource(x, key=b"odd %d" % each) for each in range(0, number + 1, 2)]
        if sizes[0] < PAGE_BYTES:
            executor.load(small, client="mallory")  # used last: the large ones leave first
        executor.run(RunRequest(temporary, {}, {}, "mallory"))
        result = executor.run(RunRequest(task, {"x": weights}, {}, "alice"))
        np.testing.assert_array_equal(result.outputs["y"], 2 * np.arange(N))


def test_memory_that_changes_its_client_takes_no_page_of_the_host_again(make_fenced: MakeExecutor) -> None:
    """Temporaries of clients in turns, of which three have room, and ever new objects: few accesses are page faults."""
    executor, temporary = make_fenced(64 << 20, slots=1), with_temporary(16 << 20)
    task = doubling_of(kaas.Library.from_file(KERNELS / "simple.ptx"), LARGE // 2)

    def faults(action: Callable[[], object]) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        action()
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    def turn() -> None:
        for client in "abcdef":
            executor.run(RunRequest(temporary, {}, {}, client))

    def load(numbers: range) -> None:
        for number in numbers:
            x = InputSource(values, key=b"%d" % number)
            executor.run(RunRequest(task, {"x": x}, {}, "a"))

    values = np.ones(LARGE // 2, np.int32)
    turn()
    pages = 6 * (16 << 20) // mmap.PAGESIZE
    assert faults(turn) < pages / 10
    load(range(20))
    pages = 20 * values.nbytes // mmap.PAGESIZE
    assert faults(lambda: load(range(20, 40))) < pages / 4
