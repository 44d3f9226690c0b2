"""Variables of code are memory of the device: they get room, leave when no request uses them, or are refused."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import OutOfDeviceMemory, RequestTooLarge
from kaas.executor.device.device import open_device
from kaas.executor.executor import Executor, InputSource, RunRequest
from tests.executor.conftest import MakeExecutor, with_temporary

VARIABLES = """.version 8.0
.target sm_80
.address_size 64
.global .align 4 .b8 many[{bytes}];
.visible .entry counts{number}(.param .u64 out)
{{
  .reg .b64 %o; .reg .b32 %v;
  ld.param.u64 %o, [out];
  atom.global.add.u32 %v, [many], 1; st.global.u32 [%o], %v;
  ret;
}}"""


def counting(nbytes: int, number: int = 0) -> kaas.KTask:
    """Return a kTask whose code has a variable of so many bytes, and which returns 0 when the code is fresh."""
    out = kaas.Buffer("out", 1, "uint32")
    library = kaas.Library.from_ptx(VARIABLES.format(bytes=nbytes, number=number))
    return kaas.KTask([kaas.Kernel(library, f"counts{number}", 1, 1, [kaas.Out(out)])], [out])


@pytest.mark.parametrize("isolation", ["none", "fence"])
def test_code_with_variables_gets_room(make_executor: MakeExecutor, isolation: str) -> None:
    """Objects leave for it, and so does code of the same slot with other variables."""
    executor = make_executor(256 << 20, isolation=isolation, slots=1)
    data = np.zeros(20 << 20, np.int32)
    for number in range(3):
        executor.load([InputSource(data, key=b"%d" % number)], client="alice")
    for number in range(3):
        for _ in range(2):
            executor.run(RunRequest(counting(100 << 20, number), {}, {}, "mallory"))
    with pytest.raises(OutOfDeviceMemory, match="variables of a module"):
        executor.run(RunRequest(counting(256 << 20), {}, {}, "mallory"))


def test_code_of_idle_clients_leaves_for_a_request_that_needs_the_memory_of_its_variables(
    make_executor: MakeExecutor,
) -> None:
    executor = make_executor(256 << 20, isolation="fence", slots=2)
    executor.run(RunRequest(counting(200 << 20), {}, {}, "mallory"))
    executor.load([InputSource(np.zeros(40 << 20, np.int32), key=b"x")], client="alice")
    assert not any(len(slot.plans.kernels) for slot in executor._slots.every())


@pytest.mark.parametrize("isolation", ["none", "fence"])
def test_a_request_without_room_beside_its_variables_is_told_so(make_executor: MakeExecutor, isolation: str) -> None:
    """Each of both would have room alone."""
    executor = make_executor(256 << 20, isolation=isolation, slots=1)
    variables, big = counting(100 << 20), with_temporary(200 << 20)
    task = kaas.KTask([*variables.kernels, *big.kernels], [*variables.outputs, *big.outputs])
    refused = r"has \d+ besides \d{9} that variables of code, ends of pages or other programs take, \d+ too few"
    with pytest.raises(RequestTooLarge, match=refused):
        executor.run(RunRequest(task, {}, {}, "alice"))


def variables_in_a_part() -> None:
    """Let code with variables run on a fourth of a device, as an executor of one client does."""
    executor = Executor(open_device("software", memory_bytes=256 << 20, parts=4), slots=1)
    executor.run(RunRequest(counting(60 << 20), {}, {}, "ann"))
    with pytest.raises(OutOfDeviceMemory):
        executor.run(RunRequest(counting(65 << 20), {}, {}, "ann"))


@pytest.mark.processes
def test_variables_of_code_have_no_more_than_the_part_of_their_executor() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        process.submit(variables_in_a_part).result()


@pytest.mark.parametrize("isolation", ["none", "fence"])
def test_code_whose_variables_have_no_room_together_is_refused(make_executor: MakeExecutor, isolation: str) -> None:
    """Each library alone has room."""
    executor = make_executor(256 << 20, isolation=isolation, slots=1)
    out = kaas.Buffer("out", 1, "uint32")
    libraries = [kaas.Library.from_ptx(VARIABLES.format(bytes=100 << 20, number=number)) for number in range(4)]
    args: list[list[Any]] = [[kaas.Out(out)], *[[kaas.InOut(out)]] * 3]
    kernels = [kaas.Kernel(each, f"counts{number}", 1, 1, args[number]) for number, each in enumerate(libraries)]
    for _ in range(2):
        with pytest.raises(OutOfDeviceMemory):
            executor.run(RunRequest(kaas.KTask(kernels, [out]), {}, {}, "mallory"))
    assert executor.run(RunRequest(counting(100 << 20), {}, {}, "alice")).outputs["out"].view(np.uint32)[0] == 0


@pytest.mark.parametrize("isolation", ["none", "fence"])
def test_code_leaves_for_a_request_though_its_client_has_another_one(
    make_executor: MakeExecutor, isolation: str
) -> None:
    """The client's present request does not use it, in its own slot or in another."""
    executor = make_executor(256 << 20, isolation=isolation, slots=2)
    own, temporary = counting(1 << 10), with_temporary(200 << 20)
    for slot in range(2):
        executor.run(RunRequest(counting(100 << 20, 1 + slot), {}, {}, "mallory"), slot)
    slots = executor._slots
    with executor.device.context:
        taken = slots.take(0, client="mallory")
        try:
            taken.plans.get(own, 256 << 20, "mallory")
            outputs = executor.run(RunRequest(temporary, {}, {}, "alice")).outputs
            assert outputs["y"].view(np.uint32).tolist() == [1]
            assert [*taken.plans.graphs] == [own.key]
        finally:
            slots.give(taken)
