"""A plan refuses mistakes before a kernel runs, by typed errors with fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kaas
from kaas.errors import (
    ArgumentMismatch,
    CorruptImage,
    DeviceUnavailable,
    LaunchLimit,
    MissingInput,
    MissingProvider,
    MissingScalar,
    RequestTooLarge,
    UnexpectedInput,
    UnknownSymbol,
    UnsupportedCode,
    WrongScalar,
)
from kaas.executor.device.device import open_device
from kaas.executor.device.driver_errors import translate
from kaas.executor.executor import Executor, InputSource, RunRequest
from tests.executor.conftest import KERNELS, MakeExecutor
from tests.providers import install
from tests.timeouts import TIMEOUT_S

A, B, C = (kaas.Buffer(name, 64, "int32") for name in "abc")
HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"


def task(library: kaas.Library, symbol: str, args: list[Any], **launch: Any) -> kaas.KTask:
    launch = {"grid": 1, "block": 64} | launch
    return kaas.KTask([kaas.Kernel(library, symbol, args=args, **launch)], [C])


def test_unknown_symbol(executor: Executor, library: kaas.Library) -> None:
    with pytest.raises(UnknownSymbol, match="did you mean 'scale'") as caught:
        executor.prepare(task(library, "scalee", [kaas.Out(C)]))
    error = caught.value
    assert (error.symbol, error.near, error.library) == ("scalee", ("scale",), library.hash)
    with pytest.raises(UnknownSymbol, match="its kernels are add, affine"):
        executor.prepare(task(library, "zzz", [kaas.Out(C)]))


def test_wrong_number_of_arguments(executor: Executor, library: kaas.Library) -> None:
    with pytest.raises(ArgumentMismatch) as caught:
        executor.prepare(task(library, "add", [kaas.In(A), kaas.In(B), kaas.Out(C)]))
    error = caught.value
    assert (error.kernel, error.expected_count, error.given_count) == ("add", 4, 3)


def test_wrong_size_of_an_argument(executor: Executor, library: kaas.Library) -> None:
    with pytest.raises(ArgumentMismatch, match="argument 2 has 4 bytes in the code, not 8") as caught:
        executor.prepare(task(library, "scale", [kaas.In(A), kaas.Out(C), kaas.f64(2.0), kaas.i32(64)]))
    error = caught.value
    assert (error.kernel, error.argument, error.expected_bytes, error.given_bytes) == ("scale", 2, 4, 8)
    short = kaas.Struct(bytes(24), {0: kaas.In(A), 16: kaas.Out(C)})
    with pytest.raises(ArgumentMismatch) as caught:
        executor.prepare(task(library, "packed", [short]))
    assert (caught.value.argument, caught.value.expected_bytes, caught.value.given_bytes) == (0, 32, 24)


@pytest.mark.parametrize(
    ("launch", "what", "given", "limit"),
    [
        ({"block": 65}, "threads in a block", 65, 64),
        ({"block": (1, 1, 65)}, "threads in a block", 65, 64),
        ({"block": (32, 32, 2)}, "threads in a block", 2048, 64),
        ({"grid": (1, 70000)}, "grid.y", 70000, 65535),
        ({"shared_bytes": 200 << 10}, "bytes of shared memory", 200 << 10, 163 << 10),
    ],
)
def test_beyond_a_limit(
    executor: Executor, library: kaas.Library, launch: dict[str, Any], what: str, given: int, limit: int
) -> None:
    with pytest.raises(LaunchLimit) as caught:
        executor.prepare(task(library, "narrow", [kaas.Out(C)], **launch))
    error = caught.value
    assert (error.kernel, error.what, error.given, error.limit) == ("narrow", what, given, limit)


def test_larger_than_the_device(make_executor: MakeExecutor, library: kaas.Library) -> None:
    huge = kaas.Buffer("huge", 1 << 30)
    args: list[Any] = [kaas.In(C), kaas.Out(huge), kaas.i32(1), kaas.i32(1)]
    with pytest.raises(RequestTooLarge) as caught:
        make_executor(1 << 20).prepare(kaas.KTask([kaas.Kernel(library, "scale", 1, 64, args)], [huge]))
    error = caught.value
    assert (error.capacity_bytes, error.needed_bytes) == (1 << 20, 1 << 30)
    assert error.excess_bytes == error.needed_bytes - error.capacity_bytes


def test_instructions_that_do_not_exist(executor: Executor) -> None:
    body = ".reg .f32 %f<2>;\n frobnicate.f32 %f1, %f1;\n bamboozle.b32 %f1;\n ret;\n"
    code = f"{HEADER}.visible .entry odd(.param .u64 p) {{\n{body}}}\n"
    with pytest.raises(UnsupportedCode, match="frobnicate") as caught:
        executor.prepare(task(kaas.Library.from_ptx(code), "odd", [kaas.Out(C)]))
    assert caught.value.library
    first, second = caught.value.instructions
    assert first.startswith("line 6: ")
    assert "frobnicate.f32 %f1, %f1" in first
    assert "bamboozle.b32" in second


def test_the_ptx_is_taken_if_the_cubin_is_for_no_device(executor: Executor, library: kaas.Library) -> None:
    cubin = kaas.Library.from_cubin(_empty_cubin())
    args = [kaas.Out(C), kaas.i32(1), kaas.i32(64)]
    with pytest.raises((CorruptImage, UnsupportedCode)):
        executor.prepare(task(cubin, "fill", args))
    assert executor.prepare(task(cubin | library, "fill", args)).launches[0].block == (64, 1, 1)


def test_provided_code_is_found_where_it_runs(
    executor: Executor, library: kaas.Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    named = kaas.Library.provided("simple", "all", "1")
    install(monkeypatch, tmp_path, "simple", lambda *_: kaas.Library.from_cubin(_empty_cubin()) | library)
    request = RunRequest(task(named, "fill", [kaas.Out(C), kaas.i32(7), kaas.i32(64)]), {}, {})
    assert (executor.run(request).outputs["c"] == 7).all()
    assert not executor.prepare(request.task).prints  # its PTX was taken, which shows that
    with pytest.raises(UnknownSymbol, match="did you mean 'scale'"):
        executor.prepare(task(named, "scalee", [kaas.Out(C)]))


def test_code_without_a_provider(executor: Executor, library: kaas.Library) -> None:
    named = kaas.Library.provided("nobody", "n", "1")
    args = [kaas.Out(C), kaas.i32(1), kaas.i32(64)]
    wanted = task(named, "fill", args)
    with pytest.raises(MissingProvider, match="'nobody'") as caught:
        executor.prepare(wanted)
    error = caught.value
    assert (error.provider, error.name, error.version) == ("nobody", "n", "1")
    assert (error.library, error.kernel, error.task) == (named.hash, "fill", wanted.label)
    assert executor.prepare(task(named | library, "fill", args)).launches  # the images after it take its place
    with pytest.raises(UnsupportedCode, match="'nobody'"):
        executor.prepare(task(named | kaas.Library.from_cubin(_empty_cubin()), "fill", args))


def _empty_cubin() -> bytes:
    header = bytearray(64)
    header[:16] = b"\x7fELF\x02\x01\x01\x33\x07" + bytes(7)
    header[16:20] = (2).to_bytes(2, "little") + (190).to_bytes(2, "little")
    header[40:48] = (64).to_bytes(8, "little")
    header[58:60] = (64).to_bytes(2, "little")
    return bytes(header)


def test_a_kernel_without_parameters(executor: Executor, library: kaas.Library) -> None:
    fill = kaas.Kernel(library, "fill", 1, 64, [kaas.Out(C), kaas.i32(3), kaas.i32(64)])
    empty = kaas.Kernel(library, "empty", 1, 1, [])
    result = executor.run(RunRequest(kaas.KTask([empty, fill, empty], [C]), {}, {}))
    assert (result.outputs["c"] == 3).all()


def test_requests_that_do_not_fit_their_task(executor: Executor, library: kaas.Library) -> None:
    scalar = kaas.Scalar("factor", "i32")
    scale = task(library, "scale", [kaas.In(A), kaas.Out(C), scalar, kaas.i32(64)])
    a, factor = {"a": InputSource(bytes(256))}, {"factor": bytes(4)}
    cases: list[tuple[type[Exception], dict[str, InputSource], dict[str, bytes]]] = [
        (MissingInput, {}, factor),
        (UnexpectedInput, a | {"b": InputSource(bytes(256))}, factor),
        (MissingScalar, a, {}),
        (MissingScalar, a, {"facto": bytes(4)}),
        (WrongScalar, a, factor | {"other": bytes(4)}),
        (WrongScalar, a, {"factor": bytes(8)}),
    ]
    for error, inputs, scalars in cases:
        with pytest.raises(error):
            executor.run(RunRequest(scale, inputs, scalars))
    rounds = kaas.KTask(scale.kernels, [C], iterations=kaas.Scalar("rounds", "i32"))
    with pytest.raises(WrongScalar, match="at least 1"):
        executor.run(RunRequest(rounds, a, factor | {"rounds": bytes(4)}))


def test_no_such_device(softgpu: tuple[int, ...]) -> None:  # noqa: ARG001
    with pytest.raises(DeviceUnavailable) as caught:
        open_device("software", 7)
    assert caught.value.code_name == "CUDA_ERROR_INVALID_DEVICE"
    for kind in ("gpu", "tpu"):
        with pytest.raises(DeviceUnavailable):
            open_device(kind, 0)


@pytest.mark.parametrize(
    ("code", "error"),
    [(2, "OutOfDeviceMemory"), (200, "CorruptImage"), (218, "UnsupportedCode"), (700, "DeviceLost"),
     (719, "DeviceLost"), (101, "DeviceUnavailable"), (1, "DeviceError")],
)  # fmt: skip
def test_every_status_has_its_error(code: int, error: str) -> None:
    translated = translate("cuSomething", code, f"CUDA_ERROR_{code}", "because", "GPU 0")
    assert type(translated).__name__ == error
    assert translated.message == f"cuSomething: CUDA_ERROR_{code}: because"
    if error not in ("CorruptImage", "UnsupportedCode"):
        assert translated.fields["code"] == code
        assert translated.fields["device"] == "GPU 0"


LOST = """
import sys
import kaas
import softgpu
from kaas.errors import DeviceLost
from kaas.executor.device.device import open_device
from kaas.executor.executor import Executor, RunRequest

softgpu.load((1 << 20,))
executor = Executor(open_device("software", 0))
library = kaas.Library.from_file(sys.argv[1])
c = kaas.Buffer("c", 64, "int32")
task = kaas.KTask([kaas.Kernel(library, "failing", 1, 1, [kaas.Out(c)])], [c])
for attempt in range(2):
    try:
        executor.run(RunRequest(task, {}, {}))
    except DeviceLost as error:
        print(error.code_name, executor.lost is not None)
executor.close()
"""


@pytest.mark.processes
def test_a_sticky_error_marks_the_executor_lost() -> None:
    import subprocess
    import sys

    command = [sys.executable, "-c", LOST, str(KERNELS / "simple.ptx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    lines = done.stdout.split("\n")
    assert done.returncode == 0, done.stderr
    assert len(lines) == 3
    assert lines[0] == lines[1]
    assert lines[0].startswith("CUDA_ERROR_")
    assert lines[0].endswith(" True")
