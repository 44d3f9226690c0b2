"""The fields of an executor's errors: request, kernel, buffer, sizes, and the text that kernels printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import kaas
import softgpu as software
from kaas.errors import (
    PRINTED_BYTES,
    ArgumentMismatch,
    DeviceError,
    DeviceLost,
    InputFailed,
    KaasError,
    LaunchLimit,
    OutOfDeviceMemory,
    RequestTooLarge,
    UnknownSymbol,
    UnsupportedCode,
    WrongDtype,
    WrongSize,
)
from kaas.executor.device.streams import Stream
from kaas.executor.executor import Executor, InputSource, RunRequest
from tests.faults.conftest import ORDINAL, Open, new_context
from tests.faults.workload import CACHE_BYTES, cached

OUTPUT = kaas.Library.from_file(Path(software.__file__).parent / "tests" / "compiler" / "kernels" / "output.ptx")
N = 64


@pytest.fixture(autouse=True)
def reset(forgiven: None) -> Iterator[None]:  # noqa: ARG001
    yield
    new_context()


def printing(times: int) -> RunRequest:
    unused = kaas.Buffer("unused", 1, "int32", init="zero")
    kernels = [
        kaas.Kernel(OUTPUT, "twice", 1, 1, [kaas.i32(times)]),
        kaas.Kernel(OUTPUT, "lanes", 1, 1, [kaas.InOut(unused), kaas.i32(0)]),
    ]
    return RunRequest(kaas.KTask(kernels, [unused], name="printing"), {}, {})


def asserting(values: list[int], times: int = 0) -> RunRequest:
    x, out = (kaas.Buffer(name, len(values), "int32") for name in ("x", "out"))
    kernels = [kaas.Kernel(OUTPUT, "checked", 1, len(values), [kaas.In(x), kaas.Out(out)])]
    if times:
        kernels.insert(0, kaas.Kernel(OUTPUT, "twice", 1, 1, [kaas.i32(times)]))
    return RunRequest(kaas.KTask(kernels, [out]), {"x": InputSource(np.array(values, np.int32))}, {})


# --- printf and assert


def test_printed_text_is_in_the_result(opened: Open, capfd: pytest.CaptureFixture[str]) -> None:
    executor, printed = opened(), "told by 0\ntold by 1\ntold by -1\n"
    for _ in range(2):
        assert executor.run(printing(2)).printed == printed
    assert executor.run(printing(0)).printed == ""
    assert capfd.readouterr().out == 2 * printed


def test_printed_text_of_a_failed_request_is_not_in_the_next_result(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, printed = opened(), "told by 0\ntold by 1\ntold by -1\n"
    refused = DeviceError("refused", call="cuMemcpyDtoHAsync", code=1, code_name="CUDA_ERROR_INVALID_VALUE")
    with monkeypatch.context() as patched:
        patched.setattr(Stream, "copy_out", Mock(side_effect=refused))
        with pytest.raises(DeviceError):
            executor.run(printing(20))
    assert executor.run(printing(2)).printed == printed


def test_no_text_is_read_from_code_that_cannot_print(
    opened: Open, library: kaas.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, request = opened(), one(library)
    monkeypatch.delattr(software, "take_output")
    assert executor.run(request).printed == ""


def test_an_assertion_names_its_place(opened: Open) -> None:
    executor = opened()
    assert list(executor.run(asserting([3, 4])).outputs["out"]) == [3, 4]
    with pytest.raises(DeviceLost) as caught:
        executor.run(asserting([1, 1, -1], times=1))
    error = caught.value
    assert (error.code_name, error.kernel) == ("CUDA_ERROR_ASSERT", "checked")
    failed = 'block: [0,0,0], thread: [2,0,0] Assertion `x[i] > 0 && "x is positive"` failed.'
    assert "output.cu:" in error.message
    assert failed in error.message
    assert error.printed.startswith("told by 0\n")
    assert failed in error.printed
    assert executor.lost is not None
    assert executor.lost.fields["printed"] == error.printed


def test_the_newest_printed_text_is_kept(opened: Open) -> None:
    with pytest.raises(DeviceLost) as caught:
        opened().run(asserting([-1], times=2000))
    printed = caught.value.printed
    assert len(printed) == PRINTED_BYTES
    assert "told by 1999\ntold by -1999\n" in printed
    assert printed.endswith("failed.\n")


# --- errors and their fields


def one(library: kaas.Library, symbol: str = "scale", n: int = N, block: int = N) -> RunRequest:
    a, b = kaas.Buffer("a", n, "int32"), kaas.Buffer("b", n, "int32")
    kernel = kaas.Kernel(library, symbol, 1, block, [kaas.In(a), kaas.Out(b), kaas.i32(2), kaas.i32(n)])
    return RunRequest(kaas.KTask([kernel], [b], name="one"), {"a": InputSource(np.zeros(n, np.int32))}, {})


def failing_fetch() -> Any:
    raise OSError("no such file")


def pinned(executor: Executor, library: kaas.Library) -> RunRequest:
    executor.load([cached(3000, number) for number in range(5)], pin=True)
    return one(library, n=5000)


def out_of_memory(executor: Executor, library: kaas.Library) -> RunRequest:  # noqa: ARG001
    software.inject(software.Fault("out_of_memory", rate=1.0), ORDINAL)
    return one(library)


REAL_CAUSES: dict[str, tuple[Callable[[Executor, kaas.Library], RunRequest], type[KaasError], dict[str, Any]]] = {
    "unknown symbol": (
        lambda _, library: one(library, "scalee"),
        UnknownSymbol,
        {"kernel": "scalee", "symbol": "scalee", "near": ("scale",)},
    ),
    "argument": (
        lambda _, library: one(library, "fill"),
        ArgumentMismatch,
        {"kernel": "fill", "expected_count": 3, "given_count": 4},
    ),
    "no code": (
        lambda *_: one(kaas.Library.from_ptx(".version 8.0\n.target sm_80\n.address_size 64\nnonsense")),
        UnsupportedCode,
        {"kernel": "scale"},
    ),
    "launch": (
        lambda _, library: one(library, block=1 << 11),
        LaunchLimit,
        {"kernel": "scale", "given": 2048, "limit": 1024, "what": "threads in a block"},
    ),
    "too large": (
        lambda _, library: one(library, n=1 << 20),
        RequestTooLarge,
        {"buffer": "a", "buffer_bytes": 4 << 20, "capacity_bytes": CACHE_BYTES, "needed_bytes": 4 << 20},
    ),
    "pinned": (pinned, OutOfDeviceMemory, {"buffer": "a", "buffer_bytes": 20_000, "needed_bytes": 40_448}),
    "driver": (
        out_of_memory,
        OutOfDeviceMemory,
        {"needed_bytes": 512, "call": "cuMemAllocFromPoolAsync", "buffer": "a", "buffer_bytes": 4 * N},
    ),
    "size": (
        lambda _, library: RunRequest(one(library).task, {"a": InputSource(np.zeros(2 * N, np.int32))}, {}),
        WrongSize,
        {"buffer": "a", "expected_bytes": 4 * N, "given_bytes": 8 * N},
    ),
    "dtype": (
        lambda _, library: RunRequest(one(library).task, {"a": InputSource(np.zeros(N, np.float32))}, {}),
        WrongDtype,
        {"buffer": "a", "expected": "int32", "given": "float32"},
    ),
    "fetch": (
        lambda _, library: RunRequest(one(library).task, {"a": InputSource(key=b"a", fetch=failing_fetch)}, {}),
        InputFailed,
        {"buffer": "a", "reason": "OSError: no such file"},
    ),
}


@pytest.mark.parametrize("cause", REAL_CAUSES)
def test_an_error_has_its_fields(opened: Open, library: kaas.Library, cause: str) -> None:
    executor = opened()
    make, expected, fields = REAL_CAUSES[cause]
    request = make(executor, library)
    with pytest.raises(KaasError) as caught:
        executor.run(request)
    error = caught.value
    assert type(error) is expected
    assert {name: error.fields.get(name) for name in fields} == fields
    assert error.fields["task"] == "one"
    if isinstance(error, LaunchLimit | OutOfDeviceMemory | RequestTooLarge):
        assert error.device == executor.device.info().name
    assert executor.lost is None
