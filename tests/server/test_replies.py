"""Errors in replies to remote clients: clients can act on them, and they name no file of the server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.client.connecting import error_of
from kaas.errors import (
    MEMCHECK_ELSEWHERE,
    PRINTED_BYTES,
    DeviceLost,
    DeviceUnavailable,
    ETaskFailed,
    InvalidRequest,
    KaasError,
    MissingContent,
    NotProvided,
    Quarantined,
    StepFailed,
    UnexpectedInput,
    UnknownObject,
    UnsupportedCode,
    UsageUnavailable,
    WrongScalar,
    WrongSize,
)
from kaas.server.replies import LONGEST_TEXT, MESSAGE_BYTES, failure_of, without_paths
from kaas.server.sessions import FAILURE_BYTES
from kaas.wire import protocol


def test_an_error_arrives_unchanged() -> None:
    error = WrongSize("4 bytes, not 8", buffer="x", expected_bytes=8, given_bytes=4)
    arrived = error_of(failure_of(1, error))
    assert (type(arrived), arrived.message, arrived.fields) == (WrongSize, error.message, error.fields)


FAULT = """
import kaas, numpy as np
from kaas.server.replies import failure_of
from tests.api.conftest import STEPS, crash_task

x, y = kaas.Buffer("x", 8, "float32"), kaas.Buffer("y", 8, "float32")
beyond = kaas.Kernel(STEPS, "scale", 9, 256, [kaas.In(x), kaas.Out(y), kaas.f32(1), kaas.i32(1 << 30)])
device = kaas.Device("software", memory_bytes=1 << 20, memcheck={memcheck})
task = kaas.KTask([beyond], [y], name="beyond") if {memcheck} else crash_task()
try:
    kaas.run_local(task, {{"x": np.zeros(8, np.float32)}} if {memcheck} else {{}}, device=device)
except kaas.KaasError as error:
    print(error.message)
    print(failure_of(1, error).message)
"""


@pytest.mark.processes
@pytest.mark.parametrize("memcheck", [True, False])
def test_a_reported_fault_has_no_addresses_and_nothing_of_other_memory(memcheck: bool) -> None:
    code = FAULT.format(memcheck=memcheck)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    whole, told = done.stdout.splitlines()[:2]
    assert "0x" in whole
    assert "nearest" in whole
    assert "0x" not in told
    assert "nearest" not in told
    assert ("MEMCHECK" in whole) is not memcheck
    assert "MEMCHECK" not in told
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in told
    assert "\u2026" not in told
    assert "memory outside its buffers" in told
    assert told.endswith(MEMCHECK_ELSEWHERE) is not memcheck


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (
            "illegal access: 0x7f5812345678, 4 bytes behind the end of the nearest buffer (w: 4096 bytes at "
            "0x7f5812340000)",
            "illegal access: memory outside its buffers",
        ),
        ("misaligned access at 0x7f5812345678", "misaligned access at \u2026"),
        ("illegal access, 4096 bytes before the nearest buffer", "illegal access"),
    ],
)
def test_the_story_of_a_quarantine_has_no_addresses(fault: str, told: str) -> None:
    near = f"worker 3 (pid 1234) ended: {fault}"
    failure = failure_of(1, Quarantined(f"f is not run any more. Last: {near}", function="f", faults=1, story=(near,)))
    said = msgspec.json.encode(failure).decode()
    assert failure.message.endswith(f"worker 3 ended: {told}")
    assert not any(word in said for word in ("0x", "4096", "nearest", "1234"))


@pytest.mark.parametrize("story", [5, None, {"a": 1}, [["/srv/a"], 5], b"\xff"])
def test_fields_of_any_type_make_a_reply(story: Any) -> None:
    """Code that has taken an executor over sends errors of its own."""
    error = Quarantined("no", function="f", faults=1, story=())
    error.story = story
    assert "/srv/a" not in msgspec.json.encode(failure_of(1, error)).decode()


FOLDER = "/srv/kaas/state"
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    "error",
    [
        UsageUnavailable(f"it cannot be written down in {FOLDER}: full", path=FOLDER, reason=f"{FOLDER}/usage.1: full"),
        DeviceUnavailable(f"there is no folder for what is compiled: [Errno 13] Permission denied: '{FOLDER}/.cache'"),
        StepFailed("step 'decode': ImportError: cannot import name 'a' from 'b' (/srv/b.py)", step="decode"),
        ETaskFailed("raised FileNotFoundError: '/srv/my models/x'", function="f", traceback='File "/srv/f.py", line 1'),
        Quarantined("Last: /srv/log ends", function="f", faults=3, story=("/srv/log begins", "/srv/log ends")),
        UnsupportedCode("blas cannot give 'a' of version 1: OSError: no room in /srv/blas", library="a"),
        NotProvided("it is not in /srv/blas", provider="blas"),
        KaasError("an executor failed in a way it should not: open /srv/socket"),
        FileNotFoundError(2, "No such file or directory", f"{FOLDER}/contents/a"),
        PermissionError("/srv/is closed"),
    ],
)
def test_no_error_names_a_file_of_the_server(error: Exception) -> None:
    failure = failure_of(1, error)
    assert "srv" not in msgspec.json.encode(failure).decode()
    assert failure.message


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (f"[Errno 28] No space left on device: {str(Path(FOLDER))!r}", "[Errno 28] No space left on device: …"),
        ("/usr/include/a.h:3:1: fatal error", "…:3:1: fatal error"),
        ("PATH=/usr/bin, ~/bin (/opt/x) and file:///etc/passwd", "PATH=…, … (…) and …"),
        ("'/a folder/of two words' is gone", "… is gone"),
        ("-I/usr/local/x -isystem/usr/y -Wl,-rpath,/opt/z", "-I… -Wl,-rpath,…"),
        ("//srv/x or /srv/my models/it's here/x.bin: no", "…: no"),
        ("no such file: " + repr("/srv/ada's models/x"), "no such file: …"),
        ("3 // 4, non-I/O", "3 // 4, non-I/O"),
        ("3 / 4 of 5 GB/s, and/or tcp://10.0.0.5:7600", "3 / 4 of 5 GB/s, and/or tcp://10.0.0.5:7600"),
    ],
)
def test_a_message_without_its_paths_is_otherwise_unchanged(said: str, told: str) -> None:
    assert without_paths(said) == told


def test_a_client_reads_its_own_names() -> None:
    failure = failure_of(1, UnknownObject("there is no object '/mine/x' here", object="/mine/x"))
    assert (failure.message, failure.fields) == ("there is no object '/mine/x' here", {"object": "/mine/x"})


def test_a_value_error_is_an_invalid_request_and_an_error_of_the_disk_is_not() -> None:
    assert failure_of(1, ValueError("no")).error == InvalidRequest.__name__
    assert failure_of(1, OSError(28, "No space left on device")).error == KaasError.__name__


# --- sizes


TEXTS = st.text(max_size=300).map(lambda text: text * 100)
VALUES = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.binary(max_size=200) | TEXTS,
    lambda each: st.lists(each, max_size=40) | st.dictionaries(TEXTS, each, max_size=10),
    max_leaves=100,
)


@given(TEXTS, VALUES, VALUES)
def test_a_failure_has_a_limited_size(message: str, kind: object, value: object) -> None:
    failure = failure_of(2**63 - 1, WrongScalar(message, kind=kind, value=value, scalar=message))
    assert len(protocol.encode(msgspec.structs.replace(failure, trace="0" * 55))) <= FAILURE_BYTES


def test_a_text_is_cut_by_its_bytes_and_the_items_of_a_list_are_whole() -> None:
    long, hashes = "\U0001f600" * 10_000, tuple(f"{each:064x}" for each in range(1000))
    failure = failure_of(1, UnexpectedInput(long, buffer=long))
    assert failure.message == long[: MESSAGE_BYTES // 4]
    assert failure.fields["buffer"] == long[: LONGEST_TEXT // 4]
    told = failure_of(1, MissingContent("", hashes=hashes)).fields["hashes"]
    assert 200 < len(told) < len(hashes)
    assert tuple(told) == hashes[: len(told)]


def test_the_output_of_kernels_is_whole() -> None:
    printed = "x" * PRINTED_BYTES
    fields = {"device": "0", "kernel": "k" * 100, "task": "t" * 200, "call": "cuLaunchKernel"}
    failure = failure_of(1, DeviceLost("m" * 1000, printed=printed, **fields))
    assert failure.fields == fields | {"printed": printed}
