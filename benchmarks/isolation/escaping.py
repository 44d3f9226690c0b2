"""Kernels of a client that try to reach another client's memory, in pools that keep clients apart.

The other client has canaries in both tiers of the cache, and in its arena. The attacker is told where on the device
they are, and tries each instruction that touches memory, with several shapes of addresses
(softgpu/tests/compiler/attacks.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import numpy as np

import kaas
from kaas.errors import KaasError
from softgpu.tests.compiler.attacks import ATTACKS, BLOCK, CANARY, SHAPES, WRITES, kernel
from softgpu.tests.compiler.harness import HEADER

VICTIM, ATTACKER = "alice", "mallory"
DEVICE = kaas.Device("software", 64 << 20)
CACHE_BYTES, WORDS, OBJECTS = 8 << 20, 1 << 18, 12
"""Of the caches of each client, of an object, and of the victim: most of its objects are in host memory."""
TWICE = 2
EVERY = 20
"""The victim's data is compared after so many attacks."""
KEEPER = (
    HEADER
    + """
.visible .entry look(.param .u64 w, .param .u64 out, .param .u64 where)
{
  .reg .b64 %rd<5>; .reg .b32 %r<4>;
  ld.param.u64 %rd0, [w]; ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [where];
  st.global.u64 [%rd2], %rd0; st.global.u64 [%rd2+8], %rd1;
  mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r0, %r0, %r1, %r2;
  mul.wide.u32 %rd3, %r0, 4; add.u64 %rd0, %rd0, %rd3; add.u64 %rd1, %rd1, %rd3;
  ld.global.u32 %r3, [%rd0]; st.global.u32 [%rd1], %r3;
  ret;
}"""
)


class Owner:
    """A client with objects, which it reads, and tells where they are."""

    def __init__(self, client: str, content: int) -> None:
        self._client, self._content = client, content
        w, out = (kaas.Buffer(name, WORDS, "uint32") for name in ("w", "out"))
        where = kaas.Buffer("where", 2, "uint64")
        args = [kaas.In(w), kaas.Out(out), kaas.Out(where)]
        code = kaas.Library.from_ptx(KEEPER)
        task = kaas.KTask([kaas.Kernel(code, "look", WORDS // 256, 256, args)], [out, where])
        self._functions = [kaas.register(task, {"w": self._value(number)}) for number in range(OBJECTS)]

    def _value(self, number: int) -> np.ndarray[Any, Any]:
        value = np.full(WORDS, self._content, np.uint32)
        value[0] = number
        return value

    def look(self, number: int) -> tuple[bool, list[int]]:
        """Return whether an object is as it was, and the addresses of the object and the arena."""
        out, where = kaas.call(self._functions[number], {}, client=self._client).result()
        return bool((np.asarray(out) == self._value(number)).all()), [int(address) for address in np.asarray(where)]

    def whole(self) -> bool:
        """Return True if all objects are as they were."""
        return all(self.look(number)[0] for number in range(OBJECTS))


def attempts() -> Iterator[tuple[str, str]]:
    """Yield each attack with the same address in all lanes, and with one other shape."""
    others = cycle([shape for shape in SHAPES if shape not in ("uniform", "far apart")])
    for name in ATTACKS:
        yield name, "uniform"
        yield name, next(others)


def attack(name: str, shape: str, address: int) -> np.ndarray[Any, Any]:
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
    return np.asarray(kaas.call(task, inputs, client=ATTACKER).result())


def escapes(isolation: str) -> tuple[int, int, int]:
    """Return the numbers of attacks, of those that faulted, and of those that read or changed the victim's memory."""
    kaas.init(
        ray=False,
        name=f"escapes {isolation} {os.getpid()}",
        config=kaas.Config(
            devices=(DEVICE,),
            isolation=isolation,
            client_executors=TWICE,
            cache_bytes=CACHE_BYTES * (TWICE if isolation == "process" else 1),
            host_cache_bytes=2 * CACHE_BYTES * (TWICE if isolation == "process" else 1),
            policy="fcfs",
        ),
    )
    try:
        victim, attacker, tried, faulted, escaped = Owner(VICTIM, CANARY), Owner(ATTACKER, 0), 0, 0, 0
        for name, shape in attempts():
            whole, places = victim.look(tried % OBJECTS)
            escaped += not whole
            attacker.look(tried % OBJECTS)  # so that the attacker has memory at the same places of its own window
            try:
                seen = attack(name, shape, places[1 if name in WRITES else tried // 2 % 2])  # objects are read-only
            except KaasError:
                faulted += 1
            else:
                escaped += bool(np.isin(seen, [CANARY, CANARY & 0xFFFF, CANARY & 0xFF]).any())
            tried += 1
            if tried % EVERY == 0:
                escaped += not victim.whole()
        escaped += not victim.whole()
    finally:
        kaas.shutdown()
    return tried, faulted, escaped
