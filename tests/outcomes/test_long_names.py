"""Long names of a client do not enlarge its replies, the usage and the server's memory: they are refused or cut."""

from __future__ import annotations

from pathlib import Path

import pytest

import kaas
from kaas.server import session_manager
from kaas.server.building.building import LONGEST_LABEL
from kaas.server.replies import LONGEST_TEXT
from kaas.server.sessions import FAILURE_BYTES
from kaas.server.usage.usage_file import read_usage
from kaas.wire import protocol
from kaas.wire.sent_ktasks import NAME_BYTES, encode_task
from tests.server.conftest import Serve
from tests.server.servers import WIDTH, Speaker, scaled

pytestmark = pytest.mark.processes

LONG = 1 << 20
PTX = """
.version 8.0
.target sm_75
.address_size 64
.visible .entry SYMBOL(.param .u64 y)
{
    .reg .b64 %y;
    ld.param.u64 %y, [y];
    st.global.u32 [%y], 7;
    ret;
}
"""


def named(name: str) -> kaas.KTask:
    task = scaled()
    return kaas.KTask(task.kernels, task.outputs, name=name)


def test_a_ktask_has_a_name_that_is_not_too_long(serve: Serve) -> None:
    alice = serve().speaker()
    assert alice.register(named("é" * (NAME_BYTES // 2))).function
    told, _ = alice.reply_to(
        protocol.Failure,
        protocol.Register(alice.number()),
        encode_task(named("é" * (NAME_BYTES // 2 + 1))),
    )
    assert (told.error, f"at most {NAME_BYTES} bytes" in told.message) == ("InvalidGraph", True)
    alice.close()


def charged(folder: Path) -> list[tuple[str, int]]:
    return [(flow.function, flow.requests) for flow in read_usage(folder).flows]


def test_a_request_of_a_long_symbol_is_charged_whenever_the_server_is_killed(serve: Serve) -> None:
    server = serve()
    alice = server.speaker()
    y = kaas.Buffer("y", 1, "uint32")
    symbol = "s" * LONG
    kernel = kaas.Kernel(kaas.Library.from_ptx(PTX.replace("SYMBOL", symbol)), symbol, 1, 1, [kaas.Out(y)])
    function = alice.register(kaas.KTask([kernel], [y])).function
    alice.invoke(function)
    answer, frames = alice.receive()
    assert (type(answer), frames) == (protocol.Result, [b"\7\0\0\0"])
    server.close()  # before the journal is in the SQLite file, or after
    alice.close()
    ((label, requests),) = charged(server.folder / "state")
    assert requests == 1
    assert len(label) <= LONGEST_LABEL


def test_an_error_with_a_long_name_is_cut_to_its_limit(serve: Serve) -> None:
    alice = serve().speaker()
    x = kaas.Buffer("x" * LONG, WIDTH, "float32")
    (kernel,) = scaled().kernels
    task = kaas.KTask([kaas.Kernel(kernel.library, "scale", 4, 256, [kaas.In(x), *kernel.args[1:]])], ["y"])
    function = alice.register(task).function
    alice.send(protocol.Invoke(alice.number(), function))
    failure, _ = alice.receive()
    assert isinstance(failure, protocol.Failure)
    assert failure.error == "MissingInput"
    assert failure.fields["buffer"] == x.name[:LONGEST_TEXT]
    assert len(protocol.encode(failure)) <= FAILURE_BYTES
    alice.close()


def refused(speaker: Speaker, message: protocol.FromClient) -> protocol.Failure:
    return speaker.reply_to(protocol.Failure, message)[0]


def test_a_header_that_would_hold_up_others_is_not_read(serve: Serve) -> None:
    """The loop would take it at once, while all others wait."""
    alice = serve().speaker()
    function = alice.register(scaled()).function
    number = alice.invoke(function, bytes(4 * WIDTH))
    assert isinstance(alice.receive()[0], protocol.Result)
    alice.send(protocol.Received((number,) * session_manager.HEADER_BYTES))
    assert alice.quiet()
    assert alice.ask("status")["open"] == 1, "it was not received"
    failure = refused(
        alice,
        protocol.Invoke(17, function, store={str(each): "" for each in range(session_manager.HEADER_BYTES // 4)}),
    )
    assert (failure.number, failure.error) == (17, "InvalidRequest")
    assert f"at most {session_manager.HEADER_BYTES} bytes" in failure.message
    alice.send(protocol.Received((number,) * (session_manager.HEADER_BYTES - 64)))
    assert alice.quiet()
    assert alice.ask("status")["open"] == 0
    alice.close()
