"""Files of keys: those of `kaas keys new`, the clients that they identify, and invalid ones."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq
from typer.testing import CliRunner

from kaas.cli.main import app
from kaas.errors import InvalidConfig
from kaas.server.clients.keys import ClientKey, Keys, client_key, new_client, prepare, server_keys
from kaas.server.clients.revoking import rotate
from kaas.server.usage.quotas import Quotas
from kaas.wire.key_files import own_keys


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def alice(folder: Path, tmp_path: Path) -> ClientKey:
    """A client of the folder."""
    own = new_client(folder, "alice", tmp_path / "alice.toml")
    client = client_key(folder / "clients" / "alice.toml")
    assert client == ClientKey("alice", own.public_key, tenant=client.tenant)
    return client


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_new_key_files_are_private_to_their_user(folder: Path, alice: ClientKey, tmp_path: Path) -> None:
    assert {mode(path) for path in (folder, folder / "clients")} == {0o700}
    files = (folder / "server.toml", folder / "clients" / "alice.toml", tmp_path / "alice.toml")
    assert {mode(path) for path in files} == {0o600}
    own = own_keys(tmp_path / "alice.toml")
    assert (own.name, own.public_key, own.server_key) == ("alice", alice.public_key, server_keys(folder).public_key)
    assert zmq.curve_public(own.secret_key.encode()).decode() == own.public_key
    assert own.secret_key not in (folder / "clients" / "alice.toml").read_text()
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "alice.toml", "alice.toml", "clients", "keys", "server.toml",
    ]  # fmt: skip


def test_a_wide_umask_changes_nothing(folder: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        new_client(folder, "alice", tmp_path / "alice.toml")
    finally:
        os.umask(before)
    Keys(folder)
    own_keys(tmp_path / "alice.toml")


def test_clients_are_known_by_their_keys(folder: Path, alice: ClientKey, tmp_path: Path) -> None:
    bob = new_client(folder, "bob", tmp_path / "bob.toml")
    keys = Keys(folder)
    assert keys.by_public_key(alice.public_key) == keys.named("alice") == alice
    found = keys.by_public_key(bob.public_key)
    assert found is not None
    assert (found.name, found.public_key) == ("bob", bob.public_key)
    assert found.tenant != alice.tenant  # a later owner of the name is another tenant
    assert keys.by_public_key(keys.server.public_key) is None
    assert keys.named("nobody") is None
    assert keys.server == prepare(folder)  # made once


def test_a_clients_key_file_sets_its_rights_and_quotas(folder: Path, alice: ClientKey) -> None:
    file = folder / "clients" / "alice.toml"
    file.write_text(file.read_text() + "administrator = true\n[quotas]\nrequests_per_s = 10\nstored_bytes = 1000\n")
    quotas = Quotas(requests_per_s=10, stored_bytes=1000)
    expected = ClientKey("alice", alice.public_key, True, quotas, alice.tenant)
    assert Keys(folder).named("alice") == expected


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../up", "a b", "a'b", "x" * 65, "ä"])
def test_names_that_are_none(folder: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidConfig, match="client's name"):
        new_client(folder, name, tmp_path / "secret.toml")
    assert not folder.exists()


def test_a_name_is_given_once(folder: Path, alice: ClientKey, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="File exists"):
        new_client(folder, "alice", tmp_path / "other.toml")
    assert Keys(folder).named("alice") == alice
    with pytest.raises(InvalidConfig, match="File exists"):
        new_client(folder, "bob", tmp_path / "alice.toml")
    assert Keys(folder).named("bob") is None  # its secret would be nowhere
    with pytest.raises(InvalidConfig, match="No such file"):
        new_client(folder, "bob", tmp_path / "nowhere" / "bob.toml")
    assert Keys(folder).named("bob") is None


# --- files that others may read


@pytest.mark.parametrize("which", ["", "clients", "clients/alice.toml", "server.toml"])
@pytest.mark.parametrize("others", [0o040, 0o004, 0o020, 0o002, 0o010, 0o001])
def test_key_files_open_to_other_users_are_refused(folder: Path, alice: ClientKey, which: str, others: int) -> None:  # noqa: ARG001
    wide = folder / which
    wide.chmod(mode(wide) | others)
    with pytest.raises(InvalidConfig, match=r"others may use .*: chmod [67]00 it"):
        Keys(folder)


def test_a_clients_own_key_file_open_to_other_users_is_refused(alice: ClientKey, tmp_path: Path) -> None:  # noqa: ARG001
    (tmp_path / "alice.toml").chmod(0o640)
    with pytest.raises(InvalidConfig, match="others may use"):
        own_keys(tmp_path / "alice.toml")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("which", ["", "clients", "clients/alice.toml", "server.toml"])
def test_key_files_of_another_owner_are_refused(folder: Path, alice: ClientKey, which: str) -> None:  # noqa: ARG001
    os.chown(folder / which, 12345, -1)
    with pytest.raises(InvalidConfig, match="another user"):
        Keys(folder)


@pytest.mark.parametrize("which", ["clients/alice.toml", "server.toml"])
def test_links_are_not_followed(folder: Path, alice: ClientKey, tmp_path: Path, which: str) -> None:
    file = folder / which
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    if which == "server.toml":
        with pytest.raises(InvalidConfig, match="symbolic links"):
            Keys(folder)
    else:
        assert Keys(folder).by_public_key(alice.public_key) is None


def test_a_linked_folder_is_refused(folder: Path, alice: ClientKey, tmp_path: Path) -> None:  # noqa: ARG001
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(InvalidConfig, match="no folder"):
        Keys(tmp_path / "link")


def test_a_named_pipe_among_the_key_files_does_not_block(
    folder: Path, alice: ClientKey, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(folder / "clients" / "bob.toml", 0o600)
    assert Keys(folder).by_public_key(alice.public_key) == alice
    assert "no file of keys" in caplog.text


# --- invalid files


def _text(**fields: str) -> str:
    return "".join(f"{name} = '{value}'\n" for name, value in fields.items())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "name"),
        ("name = ", "Invalid value"),
        (_text(name="bob"), "public_key"),
        (_text(name="bob", public_key="short"), "no CURVE key"),
        (_text(name="bob", public_key="\u00e4" * 40), "no CURVE key"),
        (_text(name="bob", public_key=" " * 40), "no CURVE key"),
        (_text(name="../bob", public_key="0" * 40), "client's name"),
        (_text(name="bob", public_key="0" * 40, secret="x"), "unknown field `secret`"),
        (_text(name="bob", public_key="0" * 40) + "quotas = {requests_per_s = -1}", "requests_per_s"),
        (_text(name="bob", public_key="0" * 40) + "quotas = {request = 1}", "request"),
        (_text(name="bob", public_key="0" * 40) + "quotas = {request_per_s = 1}", "did you mean 'requests_per_s'?"),
        (_text(name="bob", public_key="0" * 40) + "administrater = true", "did you mean 'administrator'?"),
        (_text(name="alice", public_key="0" * 40), "same name"),
        ("#" * 70_000, "no file of keys"),
    ],
)
def test_an_invalid_key_file_admits_no_client_and_excludes_no_other(
    folder: Path, alice: ClientKey, text: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad = folder / "clients" / "bob.toml"
    bad.write_text(text)
    bad.chmod(0o600)
    keys = Keys(folder)
    assert keys.by_public_key(alice.public_key) == alice
    assert keys.named("bob") is None
    assert said in caplog.text
    assert "bob.toml" in caplog.text


def test_pairs_that_are_none(folder: Path, alice: ClientKey, tmp_path: Path) -> None:  # noqa: ARG001
    file = tmp_path / "alice.toml"
    whole = file.read_text()
    other = zmq.curve_keypair()[0].decode()
    file.write_text(whole.replace(own_keys(file).public_key, other))
    with pytest.raises(InvalidConfig, match="not of one pair"):
        own_keys(file)
    file.write_text(whole.replace(own_keys_of(whole, "server_key"), "x"))
    with pytest.raises(InvalidConfig, match="server_key is no CURVE key"):
        own_keys(file)


def own_keys_of(text: str, field: str) -> str:
    return next(line.split(" = ")[1].strip("'") for line in text.splitlines() if line.startswith(field))


@pytest.mark.parametrize("missing", ["", "clients", "server.toml"])
def test_missing_key_files_are_refused(folder: Path, alice: ClientKey, missing: str, tmp_path: Path) -> None:  # noqa: ARG001
    (folder / missing).rename(tmp_path / "elsewhere")
    with pytest.raises(InvalidConfig, match="No such file"):
        Keys(folder)


# --- files that change


def test_a_refresh_finds_added_and_removed_keys(folder: Path, alice: ClientKey, tmp_path: Path) -> None:
    keys = Keys(folder)
    assert not keys.refresh()
    assert not keys.added()
    bob = new_client(folder, "bob", tmp_path / "bob.toml")
    assert keys.by_public_key(bob.public_key) is None
    assert keys.added()
    assert keys.refresh()
    assert not keys.refresh()
    assert not keys.added()
    assert keys.by_public_key(bob.public_key) is not None
    (folder / "clients" / "alice.toml").unlink()
    assert keys.refresh()
    assert keys.by_public_key(alice.public_key) is None
    assert keys.named("bob") is not None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.chmod(0o644),
        lambda file: file.parent.chmod(0o755),
        lambda file: file.write_text("name = "),
        lambda file: file.parent.rename(file.parent.with_name("elsewhere")),
    ],
)
def test_a_key_file_that_becomes_invalid_admits_no_client(
    folder: Path, alice: ClientKey, spoil: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys(folder)
    spoil(folder / "clients" / "alice.toml")
    assert keys.refresh()
    assert keys.by_public_key(alice.public_key) is None
    assert "clients" in caplog.text
    assert not keys.refresh()


# --- the command


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["keys", "new", "alice"])
    assert done.exit_code == 0
    own = own_keys(tmp_path / "alice.toml")
    assert own.server_key in done.output
    assert own.secret_key not in done.output
    known = Keys(tmp_path / "keys").by_public_key(own.public_key)
    assert known is not None
    assert known.name == "alice"
    done = CliRunner().invoke(app, ["keys", "new", "bob", "--folder", "of/server", "--to", "secret.toml"])
    assert done.exit_code == 0
    assert own_keys(tmp_path / "secret.toml").name == "bob"
    assert Keys(tmp_path / "of" / "server").named("bob") is not None


@pytest.mark.processes
def test_an_error_of_the_command_is_one_line() -> None:
    command = [sys.executable, "-m", "kaas.cli", "keys", "new", "a/b"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("InvalidConfig: a client's name is")
    assert ended.stderr.count("\n") == 1


@pytest.mark.processes
def test_a_client_needs_neither_ray_nor_a_device_for_its_keys() -> None:
    program = "import kaas.server.clients.keys, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(ended.stdout.split()) & {"asyncio", "cuda", "llvmlite", "ray", "rich", "typer"}


def test_a_damaged_key_file_admits_no_client_and_no_other_owner(folder: Path, alice: ClientKey) -> None:
    file = folder / "clients" / "alice.toml"
    sound = file.read_text()
    wrong = [sound.replace(alice.tenant, f"{'1' if alice.tenant[0] == '0' else '0'}{alice.tenant[1:]}")]
    wrong += [sound.replace("name = 'alice'", "name = 'alicf'"), sound[: sound.index("\n") + 1]]
    for text in (*(each.encode() for each in wrong), sound.replace("alice", "al\xefce").encode("latin-1")):
        file.write_bytes(text)
        with pytest.raises(InvalidConfig, match=r"alice\.toml"):
            client_key(file)
        assert Keys(folder).tenants() == {}
    lines = sound.splitlines(keepends=True)
    for number in range(len(lines)):
        file.write_text("".join(lines[:number]))
        assert Keys(folder).tenants() == {}


def test_a_key_that_could_not_be_written_can_be_replaced_again(
    folder: Path, alice: ClientKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails)
        with pytest.raises(InvalidConfig, match="No space left"):
            rotate(folder, "alice", tmp_path / "newer.toml")
    assert [path.name for path in (folder / "clients").iterdir()] == ["alice.toml"]
    assert Keys(folder).named("alice") == alice
    assert rotate(folder, "alice", tmp_path / "newer.toml").public_key != alice.public_key
