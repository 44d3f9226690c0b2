"""A running server disconnects a revoked client, and a client that gets its name has none of its data."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import kaas
from kaas.cli.main import app
from kaas.errors import KaasError, Unreachable
from kaas.server.clients.keys import ClientKey, Keys
from kaas.server.usage.quotas import Quotas
from kaas.wire import protocol
from kaas.wire.key_files import own_keys
from tests.server.conftest import Serve
from tests.server.servers import DEVICE, WIDTH, Server, Speaker, scaled
from tests.timeouts import TIMEOUT_S, until

ONES = np.ones(WIDTH, np.float32)


def keys(server: Server, *arguments: str) -> str:
    done = CliRunner().invoke(app, ["keys", *arguments, "--folder", str(server.keys)])
    assert done.exit_code == 0, done.output
    return done.output


def connected(server: Server, file: str) -> kaas.Client:
    return kaas.Client(server.endpoint, keys=server.folder / file, patience_s=TIMEOUT_S)


def leave(client: kaas.Client) -> None:
    client.register(scaled(), name="f")
    client.put("x", ONES)
    assert client.call("f", {"x": ONES}, key="once").result()[0] == 2


def has(client: kaas.Client) -> tuple[int, int]:
    return len(client.functions()), len(client.objects())


@pytest.mark.processes
def test_a_name_that_is_given_again_has_nothing_of_the_client_that_was_revoked(serve: Serve) -> None:
    server = serve()
    with connected(server, "alice.keys") as alice, connected(server, "bob.keys") as bob:
        leave(alice)
        leave(bob)
        keys(server, "revoke", "alice")
        keys(server, "new", "alice", "--to", str(server.folder / "alice2.keys"))
        with connected(server, "alice2.keys") as second:
            assert has(second) == (0, 0)
            second.register(scaled(3.0), name="f")
            assert second.call("f", {"x": ONES}, key="once").result()[0] == 3  # not the answer to the other's request
            assert second.usage()["holdings"][0]["nbytes"] >= 0
        with pytest.raises(KaasError):
            kaas.Client(server.endpoint, keys=server.folder / "alice.keys", patience_s=0.5).functions()
        assert has(bob) == (1, 1)
    uploads = list((server.folder / "state" / "contents").glob("*/*"))
    assert len(uploads) == 3  # bob's code and value, and the second alice's code
    server.close()
    again = serve()
    with connected(again, "alice2.keys") as second, connected(again, "bob.keys") as bob:
        assert has(second) == (1, 0)
        assert has(bob) == (1, 1)


REMEMBERS = """.version 8.0
.target sm_80
.address_size 64
.global .align 4 .u32 kept;
.visible .entry remember(.param .u64 out, .param .u32 value)
{
  .reg .b64 %rd; .reg .b32 %r<2>;
  ld.param.u64 %rd, [out]; ld.param.u32 %r0, [value];
  ld.global.u32 %r1, [kept]; st.global.u32 [%rd], %r1; st.global.u32 [kept], %r0;
  ret;
}"""


@pytest.mark.processes
@pytest.mark.parametrize("isolation", ["none", "fence", "process"])
def test_a_name_that_is_given_again_finds_nothing_of_the_revoked_client_on_a_device(
    serve: Serve, isolation: str
) -> None:
    server = serve({"pool": {"devices": [DEVICE], "isolation": isolation}})
    out = kaas.Buffer("out", 1, "uint32")
    code = kaas.Library.from_ptx(REMEMBERS)
    task = kaas.KTask([kaas.Kernel(code, "remember", 1, 1, [kaas.Out(out), kaas.Scalar("value", "u32")])], [out])
    with connected(server, "alice.keys") as alice:
        for expected in (0, 7):
            assert alice.call(task, {}, scalars={"value": 7}).result(TIMEOUT_S)[0] == expected
        before = set(server.children())
    keys(server, "revoke", "alice")
    keys(server, "new", "alice", "--to", str(server.folder / "alice2.keys"))
    with connected(server, "alice2.keys") as second:
        for expected in (0, 8):
            assert second.call(task, {}, scalars={"value": 8}).result(TIMEOUT_S)[0] == expected
    if isolation == "process":
        until(lambda: bool(before - set(server.children())))  # the executor of the earlier alice has ended


@pytest.mark.processes
def test_a_name_given_anew_while_the_server_is_down_has_no_earlier_data(serve: Serve) -> None:
    server = serve()
    with connected(server, "alice.keys") as alice:
        leave(alice)
    server.close()
    keys(server, "revoke", "alice")
    keys(server, "new", "alice", "--to", str(server.folder / "alice2.keys"))
    again = serve()
    with connected(again, "alice2.keys") as second:
        assert has(second) == (0, 0)


@pytest.mark.processes
def test_data_of_a_purged_client_are_removed(serve: Serve) -> None:
    server = serve()
    with connected(server, "alice.keys") as alice:
        leave(alice)
        keys(server, "revoke", "alice", "--purge")
        contents = server.folder / "state" / "contents"
        until(lambda: not list(contents.glob("*/*")))
    assert "alice" not in keys(server, "list").splitlines()[3]


@pytest.mark.processes
def test_a_rotated_key_keeps_its_clients_rights_and_data(serve: Serve) -> None:
    server = serve()
    file = server.keys / "clients" / "alice.toml"
    file.write_text(file.read_text() + "administrator = true\n[quotas]\nstored_bytes = 1000000\n")
    before = Keys(server.keys).named("alice")
    assert before is not None
    with connected(server, "alice.keys") as alice:
        leave(alice)
    keys(server, "rotate", "alice", "--to", str(server.folder / "rotated.keys"))
    after = Keys(server.keys).named("alice")
    assert after == ClientKey("alice", own_keys(server.folder / "rotated.keys").public_key, True,
                              Quotas(stored_bytes=1_000_000), before.tenant)  # fmt: skip
    with connected(server, "rotated.keys") as alice:
        assert has(alice) == (1, 1)
        assert alice.call("f", {"x": ONES}).result()[0] == 2
    with pytest.raises(Unreachable):
        kaas.Client(server.endpoint, keys=server.folder / "alice.keys", patience_s=0.5).functions()


@pytest.mark.processes
@pytest.mark.full
def test_files_of_keys_that_older_versions_have_made(serve: Serve) -> None:
    """They have no tenant."""
    server = serve()
    server.close()
    for name in ("alice", "bob"):
        file = server.keys / "clients" / f"{name}.toml"
        file.write_text("".join(line for line in file.read_text().splitlines(True) if "tenant" not in line))
    (server.folder / "state" / "clients.sqlite").unlink()
    second = serve()
    with connected(second, "alice.keys") as alice:
        leave(alice)
    second.close()
    third = serve()
    with connected(third, "alice.keys") as alice:
        assert has(alice) == (1, 1)
        keys(third, "rotate", "alice", "--to", str(third.folder / "rotated.keys"))
        with connected(third, "rotated.keys") as rotated:
            assert has(rotated) == (1, 1)
        keys(third, "revoke", "alice")
        keys(third, "new", "alice", "--to", str(third.folder / "new.keys"))
        with connected(third, "new.keys") as new:
            assert has(new) == (0, 0)


def test_the_list_of_keys_shows_purged_and_invalid_clients(tmp_path: Path) -> None:
    runner = CliRunner()
    folder = str(tmp_path / "keys")
    for name in ("ada", "bob", "eve"):
        assert not runner.invoke(app, ["keys", "new", name, "--folder", folder, "--to", str(tmp_path / name)]).exit_code
    runner.invoke(app, ["keys", "revoke", "eve", "--purge", "--folder", folder])
    (tmp_path / "keys" / "clients" / "bob.toml").write_text("name = ")
    said = runner.invoke(app, ["keys", "list", "--folder", folder]).output
    assert "ada" in said
    assert "purged" in said
    assert "lets no client in" in said
    wrong = runner.invoke(app, ["keys", "revoke", "nobody", "--folder", folder])
    assert isinstance(wrong.exception, KaasError)


@pytest.mark.processes
def test_programs_of_a_revoked_client_are_disconnected(serve: Serve) -> None:
    server = serve()
    with closing(server.speaker("alice")) as alice:
        assert alice.ask("health")["live"]
        keys(server, "revoke", "alice")
        until(lambda: not answered(alice))


def answered(speaker: Speaker) -> bool:
    speaker.send(protocol.Ask(speaker.number(), "health"))
    return bool(speaker.socket.poll(100)) and bool(speaker.socket.recv_multipart())
