"""The canary: a small kTask that checks if a server can run kTasks."""

from __future__ import annotations

import struct

from kaas.ktask.arguments import Buffer, Out
from kaas.ktask.graph import KTask
from kaas.ktask.library import Kernel, Library
from kaas.pool.executors.payloads import Payload
from kaas.pool.service import Service
from kaas.wire import specs as pool_wire

CLIENT = "canary"
"""The client name under which it runs."""
LIMIT_S = 30.0
THREADS = 32
PTX = """
.version 6.3
.target sm_75
.address_size 64
.visible .entry canary(.param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [out];
    cvta.to.global.u64 %rd1, %rd0;
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd2, %r0, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r0;
    ret;
}
"""
EXPECTED = struct.pack(f"<{THREADS}I", *range(THREADS))


def canary() -> KTask:
    """Return the kTask: it writes each thread's index."""
    out = Buffer("out", THREADS, "uint32")
    return KTask([Kernel(Library.from_ptx(PTX), "canary", 1, THREADS, [Out(out)])], [out], name="canary")


async def run_canary(service: Service) -> float:
    """Run the canary. Return the seconds that it took, or inf for a wrong output. Raise KaasError if it cannot run."""
    from asyncio import get_running_loop

    loop = get_running_loop()
    task = canary()
    spec = pool_wire.FunctionSpec(task.key)
    function = service.registry.get(spec.key)
    if function is None:
        service.registry.register(pool_wire.encode(spec), task.to_msgpack())
        function = service.registry.get(spec.key)
        assert function is not None, "it was registered"
    begin_s = loop.time()
    invocation = pool_wire.Invocation(function.key, CLIENT, LIMIT_S, 3, True, {}, [], [], None)
    payload = Payload(function, [pool_wire.encode(invocation)], direct=True)
    request = service.pool.begin(function.call(invocation, payload, (), ""))
    try:
        (output,) = await request.answer
    finally:
        if request.answer.cancelled():
            service.pool.cancelled(request)
    return loop.time() - begin_s if output == EXPECTED else float("inf")
