"""A request gets the text of its own client's kernels, and none of another client's."""

from __future__ import annotations

import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import DeviceLost, KaasError
from kaas.executor.device.device import open_device
from kaas.executor.device.monitor import Watched
from kaas.executor.executor import Executor, InputSource, RunRequest
from kaas.executor.failures import Failures, PrintedText
from kaas.executor.slots import Slot
from tests.timeouts import TIMEOUT_S

SAY = """.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.global .align 1 .b8 text[4] = {37,100,10,0};
.visible .entry say(.param .u64 x, .param .u64 out)
{ .reg .b64 %x,%o,%t,%l,%m; .reg .b32 %v,%r; .reg .pred %p; .local .align 8 .b8 arguments[8];
  ld.param.u64 %x,[x]; ld.param.u64 %o,[out]; ld.global.u32 %v,[%x];
  mov.u64 %l,arguments; cvta.local.u64 %m,%l; st.local.u32 [%l],%v; mov.u64 %t,text; cvta.global.u64 %t,%t;
  { .param .b64 f; .param .b64 a; .param .b32 r; st.param.b64 [f],%t; st.param.b64 [a],%m;
    call.uni (r), vprintf, (f, a); ld.param.b32 %r,[r]; }
  setp.lt.s32 %p,%v,2000; @%p bra E; trap;
E: st.global.u32 [%o],%v; ret; }"""
"""It prints a number, and ends the device from 2000 on."""


def request(client: str, number: int) -> RunRequest:
    x, out = kaas.Buffer("x", 1, "int32"), kaas.Buffer("out", 1, "int32")
    say = kaas.Kernel(kaas.Library.from_ptx(SAY), "say", 1, 1, [kaas.In(x), kaas.Out(out)])
    inputs = {"x": InputSource(np.array([number], np.int32))}
    return RunRequest(kaas.KTask([say], [out], name=client), inputs, {}, client)


def fault_beside(other: str) -> tuple[str, str]:
    """Let a kernel fault while a request of another client has printed; return the error's text, and the log's."""
    log: list[str] = []
    device = open_device("software")
    options: Any = {"cache_bytes": 64 << 10, "host_cache_bytes": 0, "slots": 2, "isolation": "fence"}
    executor = Executor(device, **options, on_printed=lambda _, said: log.append(said))
    has_printed, go_on, copy_out = threading.Event(), threading.Event(), Slot.copy_out
    executor.run(request(other, 1), 0)

    def held(slot: Slot, *args: Any) -> Any:
        outputs = copy_out(slot, *args)
        has_printed.set()
        assert go_on.wait(TIMEOUT_S)
        return outputs

    with ThreadPoolExecutor(1) as threads, pytest.MonkeyPatch.context() as patched:
        patched.setattr(Slot, "copy_out", held)
        threads.submit(executor.run, request(other, 7), 0)
        try:
            assert has_printed.wait(TIMEOUT_S)
            with pytest.raises(DeviceLost) as lost:
                executor.run(request("mallory", 2001), 1)
        finally:
            go_on.set()
    return lost.value.fields["printed"], "".join(log)


@pytest.mark.processes
@pytest.mark.parametrize(("other", "printed"), [("alice", ""), ("mallory", "7\n2001\n")])
def test_a_fault_brings_only_text_of_its_own_client(other: str, printed: str) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:  # the device is lost
        assert processes.submit(fault_beside, other).result(TIMEOUT_S) == (printed, "1\n7\n2001\n")


ASSERT = """.version 8.0
.target sm_80
.address_size 64
.extern .func __assertfail (.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 s);
.global .align 1 .b8 secret[7] = {115,101,99,114,101,116,0};
.visible .entry check(.param .u64 out)
{ .reg .b64 %t; mov.u64 %t,secret; cvta.global.u64 %t,%t;
  { .param .b64 m; .param .b64 f; .param .b32 l; .param .b64 n; .param .b64 s;
    st.param.b64 [m],%t; st.param.b64 [f],%t; st.param.b32 [l],1; st.param.b64 [n],%t; st.param.b64 [s],1;
    call.uni __assertfail, (m, f, l, n, s); }
  ret; }"""


def assertion_beside() -> tuple[str, str]:
    """Let an assertion of alice's fail, and let mallory's request end by it first; return its text, and the log's."""
    log: list[str] = []
    options: Any = {"cache_bytes": 64 << 10, "host_cache_bytes": 0, "slots": 2, "isolation": "fence"}
    executor = Executor(open_device("software"), **options, on_printed=lambda _, said: log.append(said))
    out = kaas.Buffer("out", 1, "int32")
    task = kaas.KTask([kaas.Kernel(kaas.Library.from_ptx(ASSERT), "check", 1, 1, [kaas.Out(out)])], [out])
    has_failed, go_on, complete = threading.Event(), threading.Event(), Failures.complete

    def held(failures: Failures, error: KaasError, task: kaas.KTask, watched: Watched | None, client: str) -> None:
        if client == "alice":
            has_failed.set()
            assert go_on.wait(TIMEOUT_S)
        complete(failures, error, task, watched, client)

    with ThreadPoolExecutor(1) as threads, pytest.MonkeyPatch.context() as patched:
        patched.setattr(Failures, "complete", held)
        threads.submit(executor.run, RunRequest(task, {}, {}, "alice"), 0)
        try:
            assert has_failed.wait(TIMEOUT_S)
            with pytest.raises(DeviceLost) as lost:
                executor.run(request("mallory", 7), 1)
        finally:
            go_on.set()
    return lost.value.fields["printed"], "".join(log)


@pytest.mark.processes
def test_a_failed_assertion_is_not_told_to_another_client() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:  # the device is lost
        printed, log = processes.submit(assertion_beside).result(TIMEOUT_S)
    assert printed == ""
    assert "Assertion `secret` failed." in log


def texts(*parts: str) -> Any:
    left = list(parts)
    return lambda: left.pop(0)


def test_text_of_two_clients_that_print_at_a_time_is_nobodys_and_goes_to_the_log() -> None:
    log: list[tuple[str, str]] = []
    printed = PrintedText(texts("both", "bob's, or of both", "bob's"), lambda *said: log.append(said))
    printed.begin("alice")
    printed.begin("bob")
    assert printed.end("alice") == ""
    printed.begin("bob")
    assert printed.end("bob") == "bob's, or of both"  # alice's kernels had ended, and their text was taken
    assert printed.end("bob") == "bob's"
    assert log == [("alice", "both"), ("bob", "bob's, or of both"), ("bob", "bob's")]


def test_all_requests_of_a_client_get_its_text_when_the_device_is_lost() -> None:
    printed = PrintedText(texts("one ", "two", "three"), None)
    printed.begin("alice")
    printed.begin("alice")
    assert printed.of_lost("alice") == "one "
    assert printed.of_lost("alice") == "one two"
    assert printed.of_lost("bob") == ""
