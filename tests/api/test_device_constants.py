"""`kaas.device_constants`: eTasks have the constants of a function on their device once, and none can change them."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import kaas
from kaas import errors
from tests.api.conftest import STEPS
from tests.code.present import present
from tests.timeouts import TIMEOUT_S, until

pytestmark = pytest.mark.ray

COUNT = 1 << 20  # of floats: 4 MiB
READ = 1024  # of them
DEVICE_BYTES = 64 << 20
START_LIMIT_S = 20.0
NUMBA = pytest.mark.skipif(not present("numba_cuda"), reason="needs numba-cuda")
SPOIL = """.version 8.0
.target sm_80
.address_size 64
.visible .entry spoil(.param .u64 x, .param .u64 y)
{
  .reg .u64 %rd<3>;
  .reg .f32 %f<2>;
  ld.param.u64 %rd1, [x];
  mov.f32 %f1, 0f00000000;
  st.global.f32 [%rd1], %f1;
  ret;
}"""


@pytest.fixture(scope="module", autouse=True)
def four_workers_on_a_device(start: Callable[..., bool]) -> Iterator[None]:
    devices = (kaas.Device("software", DEVICE_BYTES),)
    config = kaas.Config(devices=devices, policy="exclusive", etask_workers=4, start_limit_s=START_LIMIT_S)
    start(config=config)
    yield
    before = holders()
    kaas.shutdown()
    until(lambda: not set(before) & set(holders()))


def holders() -> list[int]:
    """The processes that hold device memory for eTasks."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if "HolderActor" in (each / "cmdline").read_text() and (each / "stat").read_text().split()[-50] != "Z":
                found.append(int(each.name))
        except OSError:  # it has ended
            continue
    return found


def constants(seed: int, count: int = COUNT) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=count).astype(np.float32)


def scaled(count: int = COUNT) -> kaas.KTask:
    """y = factor * x, of the first numbers of x."""
    x, y = kaas.Buffer("x", count, "float32"), kaas.Buffer("y", READ, "float32")
    arguments: list[Any] = [kaas.In(x), kaas.Out(y), kaas.Scalar("factor", "f32"), kaas.i32(READ)]
    return kaas.KTask([kaas.Kernel(STEPS, "scale", READ // 256, 256, arguments)], [y])


def model(seed: int, **more: Any) -> kaas.Function:
    return kaas.register(scaled(), {"x": constants(seed), **more})


@kaas.etask
class _Reader:
    """Reads constants with a kernel of its own, as long as it lives."""

    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}

    def map(self, function: kaas.Function) -> dict[str, Any]:
        """Return what is known of the constants."""
        self.arrays = dict(kaas.device_constants(function))
        return {name: (each.shape, each.dtype, each.nbytes) for name, each in self.arrays.items()}

    def run(self, factor: float) -> Any:
        return kaas.run_local(scaled(), {"x": self.arrays["x"]}, scalars={"factor": factor})["y"]

    def spoil(self) -> None:
        x, y = kaas.Buffer("x", COUNT, "float32"), kaas.Buffer("y", READ, "float32")
        kernel = kaas.Kernel(kaas.Library.from_ptx(SPOIL), "spoil", 1, 1, [kaas.In(x), kaas.Out(y)])
        kaas.run_local(kaas.KTask([kernel], [y]), {"x": self.arrays["x"]})

    def drop(self) -> None:
        self.arrays.clear()

    def files(self) -> tuple[int, dict[int, int]]:
        """Return this process, and bytes of mapped device memory that it has made readable, by inode."""
        mapped: dict[int, int] = {}
        for line in Path("/proc/self/maps").read_text().splitlines():
            place, access, _, _, inode, *name = line.split()
            if "memfd:softgpu" in "".join(name) and access == "r--s":
                begin, end = (int(each, 16) for each in place.split("-"))
                mapped[int(inode)] = mapped.get(int(inode), 0) + end - begin
        return os.getpid(), mapped

    def interfaces(self) -> Any:
        """Return how other libraries see the array."""
        from numba import cuda

        x = self.arrays["x"]
        found = cuda.as_cuda_array(x)[:READ].copy_to_host()
        return x.__cuda_array_interface__, x.__dlpack_device__(), found


Reader: Any = _Reader  # type checkers take it for the class


def get(ref: Any) -> Any:
    return ray.get(ref, timeout=TIMEOUT_S)


def raised(ref: Any) -> Any:
    """Return the error of an eTask's own code."""
    with pytest.raises(errors.KaasError) as caught:
        get(ref)
    cause = caught.value.cause  # type: ignore[attr-defined]  # Ray's
    return cause.__cause__ if isinstance(cause, errors.ETaskFailed) else cause


def check(reader: Any, seed: int, factor: float = 2.0) -> None:
    np.testing.assert_array_equal(get(reader.run.remote(factor)), np.float32(factor) * constants(seed)[:READ])


def readers(*clients: str) -> list[Any]:
    return [Reader.options(client=client) for client in clients]


def test_four_etasks_of_one_model_have_its_constants_on_the_device_once() -> None:
    function = model(1)
    four = readers("a", "b", "c", "d")
    for each in four:
        assert get(each.map.remote(function)) == {"x": ((COUNT,), "float32", 4 * COUNT)}
    for each in four:
        check(each, 1)
    found = dict(get(each.files.remote()) for each in four)
    assert len(found) == 4
    assert len({tuple(files.items()) for files in found.values()}) == 1
    (files, *_) = found.values()
    assert list(files.values()) == [4 * COUNT]
    assert len(holders()) == 1


@NUMBA
def test_other_libraries_take_the_arrays_without_a_copy() -> None:
    (reader,) = readers("a")
    get(reader.map.remote(model(2)))
    described, device, found = get(reader.interfaces.remote())
    address, read_only = described.pop("data")
    assert address % 256 == 0
    assert read_only
    assert described == {"shape": (COUNT,), "typestr": "<f4", "strides": None, "version": 3}
    assert device == (2, 0)
    np.testing.assert_array_equal(found, constants(2)[:READ])


@NUMBA
def test_several_constants_and_views_have_their_places() -> None:
    x, y = kaas.Buffer("x", (4, 256), "float32"), kaas.Buffer("y", READ, "float32")
    small = kaas.Buffer("small", 3, "int64")
    kernel = kaas.Kernel(
        STEPS, "scale", 4, 256, [kaas.In(x), kaas.Out(y), kaas.Scalar("factor", "f32"), kaas.i32(READ)]
    )
    second = kaas.Kernel(STEPS, "scale", 4, 256, [kaas.In(small), kaas.Out(y), kaas.f32(1), kaas.i32(0)])
    given = constants(3)
    task = kaas.KTask([second, kernel], [y])
    function = kaas.register(task, {"x": kaas.View(ray.put(given), 4096), "small": np.arange(3)})

    @kaas.etask
    def copied(function: kaas.Function) -> Any:
        from numba import cuda

        return {name: cuda.as_cuda_array(each).copy_to_host() for name, each in kaas.device_constants(function).items()}

    found = get(copied.options(client="a").remote(function))
    np.testing.assert_array_equal(found["x"], given[1024:2048].reshape(4, 256))
    np.testing.assert_array_equal(found["small"], np.arange(3))


def test_an_etask_that_writes_constants_fails_alone() -> None:
    function = model(4)
    mallory, bob = readers("mallory", "bob")
    for each in (mallory, bob):
        get(each.map.remote(function))
    assert isinstance(raised(mallory.spoil.remote()), errors.DeviceLost)
    assert isinstance(raised(mallory.map.remote(model(5))), errors.DeviceLost)
    check(bob, 4)
    (carol,) = readers("carol")
    get(carol.map.remote(function))
    check(carol, 4)
    os.kill(get(mallory.files.remote())[0], signal.SIGKILL)  # a lost device stays lost in its process


def test_a_killed_holder_takes_nothing_from_those_that_have_mapped() -> None:
    function, other = model(6), model(7)
    a, b = readers("a", "b")
    get(a.map.remote(function))
    (before,) = holders()
    os.kill(before, signal.SIGKILL)
    until(lambda: before not in holders())
    check(a, 6)
    (c,) = readers("c")
    get([b.map.remote(other), c.map.remote(function)])  # at once: both wait for the same holder
    assert len(holders()) == 1
    check(b, 7)
    get(b.map.remote(function))
    for each in (a, b, c):
        check(each, 6)
    first, second, third = (files for _, files in get([each.files.remote() for each in (a, b, c)]))
    assert second == third
    assert not first.keys() & second.keys()  # the next holder starts empty


@pytest.mark.full
def test_a_holder_that_stands_still_is_replaced() -> None:
    (reader,) = readers("a")
    get(reader.map.remote(model(8)))
    (before,) = holders()
    os.kill(before, signal.SIGSTOP)
    get(reader.map.remote(model(9)))
    check(reader, 9)
    until(lambda: before not in holders())


def test_constants_that_no_etask_has_make_room_and_others_do_not() -> None:
    big = (DEVICE_BYTES >> 1) // 4
    a, b = readers("a", "b")
    for seed in (10, 11, 12):  # half of the device each
        get(a.map.remote(kaas.register(scaled(big), {"x": constants(seed, big)})))
        get(a.drop.remote())
    get(a.map.remote(kaas.register(scaled(big), {"x": constants(13, big)})))
    get(b.map.remote(model(14)))
    another = kaas.register(scaled(big), {"x": constants(15, big)})
    assert isinstance(raised(b.map.remote(another)), errors.OutOfDeviceMemory)
    check(b, 14)
    killed, _ = get(a.files.remote())
    os.kill(killed, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{killed}/exe").is_symlink())  # all its files are closed
    get(b.map.remote(another))
    get(b.drop.remote())


def test_bad_requests() -> None:
    function = model(16)
    with pytest.raises(errors.InvalidRequest, match="eTask"):
        kaas.device_constants(function)
    (reader,) = readers("a")
    for wrong in (None, scaled(), "resnet"):
        assert isinstance(raised(reader.map.remote(wrong)), errors.InvalidRequest)
    assert get(reader.map.remote(kaas.register(scaled()))) == {}
    bobs = function.options(client="bob")
    assert re.search("'bob'.*'a'", str(raised(reader.map.remote(bobs))))
    assert get(readers("bob")[0].map.remote(bobs))

    @ray.remote
    def fails() -> Any:
        raise ValueError("no weights")

    with pytest.raises(errors.KaasError) as caught:
        get(reader.map.remote(kaas.register(scaled(), {"x": fails.remote()})))
    assert "no weights" in str(caught.value)
    short = kaas.register(scaled(), {"x": ray.put(constants(17, READ))})
    assert isinstance(raised(reader.map.remote(short)), errors.WrongSize)


@pytest.mark.full
def test_a_holder_ends_with_the_process_of_the_pool() -> None:
    function = model(19)
    (reader,) = readers("a")
    get(reader.map.remote(function))
    before = set(holders())
    os.kill(kaas.status().pid, signal.SIGKILL)
    until(lambda: not before & set(holders()))
    get(reader.map.remote(function))
    check(reader, 19)
    assert len(holders()) == 1
