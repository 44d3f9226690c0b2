"""What remote clients are told of what went wrong: what they can act on, and nothing of the server's files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kaas.errors import (
    DeviceUnavailable,
    ETaskFailed,
    InvalidRequest,
    KaasError,
    NotProvided,
    Quarantined,
    StepFailed,
    UnknownObject,
    UnsupportedCode,
    UsageUnavailable,
    WrongSize,
)
from kaas.remote.answers import failure_of, without_paths
from kaas.remote.failures import error_of


def test_an_error_arrives_as_it_was() -> None:
    error = WrongSize("4 bytes, not 8", buffer="x", expected_bytes=8, given_bytes=4)
    arrived = error_of(failure_of(1, error))
    assert (type(arrived), arrived.message, arrived.fields) == (WrongSize, error.message, error.fields)


FOLDER = "/srv/kaas/state"


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
def test_what_else_is_said_stays(said: str, told: str) -> None:
    assert without_paths(said) == told


def test_a_client_reads_its_own_names() -> None:
    failure = failure_of(1, UnknownObject("there is no object '/mine/x' here", object="/mine/x"))
    assert (failure.message, failure.fields) == ("there is no object '/mine/x' here", {"object": "/mine/x"})


def test_what_a_message_leads_to_is_its_fault_and_not_what_the_disk_says() -> None:
    assert failure_of(1, ValueError("no")).error == InvalidRequest.__name__
    assert failure_of(1, OSError(28, "No space left on device")).error == KaasError.__name__
