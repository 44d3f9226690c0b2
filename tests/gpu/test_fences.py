"""Windows of GPUs, on a GPU and on the software GPU: kernels give the same results, and find no other's memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import CannotFence, UnsupportedCode
from kaas.executor.executor import Executor, InputSource, RunRequest
from kaas.ktask.request import encode_scalars
from softgpu.tests.compiler.attacks import ATTACKS, BLOCK, CANARY, WRITES, kernel
from softgpu.tests.compiler.corpus.registry import CASES
from tests.gpu import stored
from tests.gpu.faults import SYMBOLS
from tests.gpu.fences import INSIDE, OVERWRITE, REFUSED, fenced, found, opened, run
from tests.timeouts import TIMEOUT_S

ROOT = Path(__file__).parents[2]
WORDS = 1 << 16
BEYOND_BYTES = 64 << 10
"""From the beginning of the victim's memory, which is larger than the arena that the attacker has there."""
LOOK = """.version 8.0
.target sm_80
.address_size 64
.global .align 4 .u32 calls;
.visible .entry look(.param .u64 w, .param .u64 out, .param .u64 where)
{
  .reg .b64 %rd<5>; .reg .b32 %r<4>; .reg .pred %p0;
  ld.param.u64 %rd0, [w]; ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [where];
  st.global.u64 [%rd2], %rd0; st.global.u64 [%rd2+8], %rd1;
  mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r0, %r0, %r1, %r2;
  mul.wide.u32 %rd3, %r0, 4; add.u64 %rd0, %rd0, %rd3; add.u64 %rd1, %rd1, %rd3;
  ld.global.u32 %r3, [%rd0]; st.global.u32 [%rd1], %r3;
  setp.ne.u32 %p0, %r0, 0; @%p0 ret;
  ld.global.u32 %r3, [calls]; add.u32 %r3, %r3, 1; st.global.u32 [calls], %r3; st.global.u32 [%rd2+16], %r3;
  ret;
}"""


@pytest.fixture
def executor(kind: str) -> Iterator[Executor]:
    made = fenced(kind, slots=2)
    yield made
    made.close()


class Owner:
    """A client with an object that is full of one value, and with variables."""

    def __init__(self, executor: Executor, client: str, value: int) -> None:
        self._executor, self._client = executor, client
        self._content = np.full(WORDS, value, np.uint32)
        w, out = (kaas.Buffer(name, WORDS, "uint32") for name in ("w", "out"))
        where = kaas.Buffer("where", 3, "uint64")
        args: list[Any] = [kaas.In(w), kaas.Out(out), kaas.Out(where)]
        self._task = kaas.KTask(
            [kaas.Kernel(kaas.Library.from_ptx(LOOK), "look", WORDS // 256, 256, args)], [out, where]
        )

    def look(self, slot: int = 0) -> tuple[list[int], int]:
        """Check the object. Return its address and that of the arena, and the calls in this slot so far."""
        source = InputSource(self._content, key=f"of {self._client}".encode(), constants=b"of one")
        found = self._executor.run(RunRequest(self._task, {"w": source}, {}, self._client), slot).outputs
        np.testing.assert_array_equal(found["out"], self._content)
        *places, calls = map(int, found["where"])
        return places, calls


def attack(executor: Executor, name: str, shape: str, address: int) -> np.ndarray[Any, Any]:
    """Run an attack; return what the attacker's threads have read."""
    buffers = {each: kaas.Buffer(each, BLOCK, "uint64") for each in ("where", "own", "table")}
    out = kaas.Buffer("out", BLOCK, "uint32")
    code = kaas.Library.from_ptx(
        kernel(shape, ATTACKS[name], "ld.param.u64 %rd0, [where]; ld.global.u64 %rd0, [%rd0];")
    )
    args: list[Any] = [*map(kaas.In, buffers.values()), kaas.Out(out), kaas.u32(0)]
    task = kaas.KTask([kaas.Kernel(code, "k", 1, BLOCK, args)], [out])
    inputs = {
        "where": np.full(BLOCK, address, np.uint64),
        "own": np.zeros(BLOCK, np.uint64),
        "table": address + 8 * np.arange(BLOCK, dtype=np.uint64),
    }
    sources = {each: InputSource(value) for each, value in inputs.items()}
    return executor.run(RunRequest(task, sources, {}, "mallory"), 0).outputs["out"]


@pytest.mark.parametrize("name", stored.names())
def test_outputs_are_those_without_fences(executor: Executor, name: str) -> None:
    case = stored.load(name)
    scalars = encode_scalars(case.task, case.scalars)
    for client in "aaba":
        sources = {name: InputSource(value) for name, value in case.inputs.items()}
        found = executor.run(RunRequest(case.task, sources, scalars, client)).outputs
        stored.assert_same(found, case.outputs, case.rtol)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_kernels_of_real_compilers_give_numpys_results_in_a_window(name: str) -> None:
    """tests/executor/device/windows has the same test for the software GPU."""
    device = opened("gpu")
    with device.context:
        window = device.window()
        case = CASES[name]()
        if case.image in REFUSED:
            with pytest.raises(CannotFence):
                run(case, window)
        else:
            case.check(run(case, window))
        window.close()
    device.close()


def test_two_clients_have_their_own_objects_arenas_and_variables(executor: Executor) -> None:
    alice, mallory = Owner(executor, "alice", CANARY), Owner(executor, "mallory", 0)
    turns = ((alice, 0), (mallory, 0), (alice, 0), (alice, 1), (mallory, 0))
    assert [owner.look(slot)[1] for owner, slot in turns] == [1, 1, 2, 1, 2]
    hers, his = alice.look()[0], mallory.look()[0]
    assert not {*hers} & {*his}


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["uniform", "row", "loaded"])
def test_no_attack_reads_or_changes_memory_of_another_client(executor: Executor, shape: str) -> None:
    """The attacker has memory at the same places of its own window, so that no attack is a fault."""
    alice, mallory = Owner(executor, "alice", CANARY), Owner(executor, "mallory", 0)
    for number, name in enumerate(INSIDE):
        places, _ = alice.look()
        mallory.look()
        writes = name in WRITES or name.startswith("atom")
        place = places[1 if writes else number % 2]  # objects can only be read
        seen = attack(executor, name, shape, place + BEYOND_BYTES)
        assert not found(name, seen), name
    alice.look()


def test_the_attacks_work_without_fences(kind: str) -> None:
    """Else the test above would show nothing."""
    executor = Executor(opened(kind), cache_bytes=64 << 20)
    place = Owner(executor, "alice", CANARY).look()[0][0] + BEYOND_BYTES
    assert (attack(executor, "ld.global", "uniform", place) == CANARY).all()
    attack(executor, "st.global", "uniform", place)
    with pytest.raises(AssertionError):
        Owner(executor, "alice", CANARY).look()
    executor.close()


def test_machine_code_alone_is_refused_by_name(executor: Executor) -> None:
    folder = ROOT / "tests" / "executor" / "kernels"
    out = kaas.Buffer("out", 7, "int32")
    code = kaas.Library.from_file(folder / "globals.cubin")
    task = kaas.KTask([kaas.Kernel(code, "count", 1, 1, [kaas.Out(out)])], [out])
    with pytest.raises(UnsupportedCode, match=r"cubin of .* bytes, without PTX: fences rewrite PTX") as refused:
        executor.run(RunRequest(task, {}, {}, "alice"))
    assert (refused.value.kernel, refused.value.library) == ("count", code.hash)


@pytest.mark.processes
@pytest.mark.parametrize("symbol", [symbol for symbol in SYMBOLS if symbol != "stray"])
def test_a_kernel_that_fails_in_its_window_loses_the_device_for_its_process(kind: str, symbol: str) -> None:
    ended, printed = run_apart(kind, symbol)
    assert printed == ["7", *[SYMBOLS[symbol]] * 3], ended.stdout + ended.stderr
    assert ended.returncode == 0


@pytest.mark.processes
def test_a_kernel_that_writes_to_an_object_fails(kind: str) -> None:
    """So no client changes what another one reads. A request that has a copy of the object may write that."""
    ended, printed = run_apart(kind, OVERWRITE)
    assert printed[0] == "7", ended.stdout + ended.stderr
    assert {*printed[1:]} <= {"7", "CUDA_ERROR_ILLEGAL_ADDRESS"}
    assert printed[-1] == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert ended.returncode == 0


def run_apart(kind: str, symbol: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run `tests.gpu.fences` in a process of its own; return also the results and errors that it prints."""
    command = [sys.executable, "-m", "tests.gpu.fences", kind, symbol]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return ended, [line for line in ended.stdout.split() if line.isdigit() or line.startswith("CUDA_ERROR")]
