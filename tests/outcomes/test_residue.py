"""A client's kernels find nothing of another client's in shared and local memory, in the arena and in variables."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import kaas
from kaas.executor.device.device import open_device
from kaas.executor.executor import Executor, InputSource, RunRequest
from tests.gpu import residue

CACHE_BYTES = 16 << 20


@pytest.fixture
def executor(softgpu: tuple[int, ...]) -> Iterator[Executor]:  # noqa: ARG001
    made = Executor(open_device("software", 1), slots=2, cache_bytes=CACHE_BYTES)
    yield made
    made.close()


def run(executor: Executor, symbol: str, client: str, slot: int) -> list[int]:
    request = RunRequest(residue.task(symbol), {"out": InputSource(np.zeros(2, np.uint32))}, {}, client)
    return executor.run(request, slot).outputs["out"].tolist()  # type: ignore[no-any-return]


def test_another_client_finds_nothing_in_shared_and_local_memory(executor: Executor) -> None:
    """With any number of slots, and although the clients take turns."""
    for slot in (0, 1, 0):
        run(executor, "leave", "one", 0)
        assert run(executor, "look", "two", slot) == [0, 0]


REMEMBERS = """.version 8.0
.target sm_80
.address_size 64
.global .align 4 .u32 changed;
.global .align 4 .u32 begun = 5;
.visible .entry remember(.param .u64 room, .param .u64 out)
{
  .reg .b64 %r, %o; .reg .b32 %v;
  ld.param.u64 %r, [room]; ld.param.u64 %o, [out];
  ld.global.u32 %v, [%r]; st.global.u32 [%o], %v; st.global.u32 [%r], 7;
  ld.global.u32 %v, [changed]; st.global.u32 [%o+4], %v; st.global.u32 [changed], 7;
  ld.global.u32 %v, [begun]; st.global.u32 [%o+8], %v; st.global.u32 [begun], 7;
  ret;
}"""


def test_another_client_finds_nothing_in_the_arena_and_in_variables(executor: Executor) -> None:
    """The kernel returns what it finds in memory that it has not written, and leaves numbers there."""
    room, out = kaas.Buffer("room", 1024, "uint32"), kaas.Buffer("out", 3, "uint32")
    code = kaas.Library.from_ptx(REMEMBERS)
    task = kaas.KTask([kaas.Kernel(code, "remember", 1, 1, [kaas.Out(room), kaas.Out(out)])], [out])

    def found(client: str, slot: int) -> list[int]:
        return executor.run(RunRequest(task, {}, {}, client), slot).outputs["out"].tolist()  # type: ignore[no-any-return]

    for slot in (0, 1, 0):
        assert [found("one", slot), found("one", slot)] == [[0, 0, 5], [7, 7, 7]]  # where something is, it is found
        assert found("two", slot) == [0, 0, 5]
