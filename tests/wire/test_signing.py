"""`kaas code`: keys that sign code, signatures, hashes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kaas.cli.main import app
from kaas.errors import InvalidConfig, InvalidRequest
from kaas.server.clients.allow import Allowed
from kaas.wire.signing import new_signer, public_key, read_signatures, sign, signer, write_signatures
from tests.api.conftest import STEPS, add_task
from tests.server.state.states import Had

KERNELS = Path(__file__).parents[1] / "api" / "kernels" / "steps.ptx"


def run(*args: object) -> Result:
    result = CliRunner().invoke(app, ["code", *map(str, args)], catch_exceptions=False)
    assert result.exit_code == 0
    return result


def test_a_server_that_trusts_a_signer_accepts_its_signed_code(tmp_path: Path) -> None:
    (tmp_path / "task.json").write_text(add_task().to_json())
    key, signatures = tmp_path / "signer.pem", tmp_path / "signatures.json"
    said = run("signer", key).output
    assert key.stat().st_mode & 0o777 == 0o600
    found = re.search(r"signers: \[([0-9a-f]{64})\]", said)
    assert found is not None
    trusted = bytes.fromhex(found.group(1))
    assert trusted == public_key(signer(key))
    run("sign", tmp_path / "task.json", "--key", key, "--to", signatures)
    known = read_signatures(signatures)
    assert list(known) == [add_task().key]
    assert run("hashes", tmp_path / "task.json").output.split()[0] == add_task().key
    for file in (KERNELS, tmp_path / "task.json"):
        assert run("libraries", file).output.split()[0] == STEPS.hash
    with pytest.raises(InvalidRequest, match="code image and no kTask"):
        run("sign", KERNELS, "--key", key)

    async def scenario() -> None:
        async with Had(tmp_path / "state", allowed=Allowed(signers=(trusted,))) as had:
            await had.register("ada", add_task(), signature=known[add_task().key])
        async with Had(tmp_path / "state", allowed=Allowed(signers=(trusted,))) as had:  # and needs no signature again
            assert had.functions.named("ada", add_task().key).key == add_task().key

    asyncio.run(scenario())


def test_new_signatures_are_added_to_those_of_the_file(tmp_path: Path) -> None:
    key = tmp_path / "key"
    new_signer(key)
    write_signatures(tmp_path / "all", {"a": b"1"})
    write_signatures(tmp_path / "all", {"b": sign(signer(key), "b"), "a": b"2"})
    assert read_signatures(tmp_path / "all") == {"a": b"2", "b": sign(signer(key), "b")}


def test_a_signing_key_is_not_overwritten_and_must_be_private(tmp_path: Path) -> None:
    key = tmp_path / "key"
    new_signer(key)
    with pytest.raises(InvalidConfig, match="cannot be made"):
        new_signer(key)
    key.chmod(0o644)
    with pytest.raises(InvalidConfig, match="other users"):
        signer(key)
    with pytest.raises(InvalidConfig, match="cannot be read"):
        signer(tmp_path / "none")
    with pytest.raises(InvalidConfig, match="cannot be read"):
        read_signatures(tmp_path / "none")
    (tmp_path / "senseless").write_text('{"a": "no hex"}')
    (tmp_path / "senseless").chmod(0o600)
    with pytest.raises(InvalidConfig, match="no signatures"):
        read_signatures(tmp_path / "senseless")
    with pytest.raises(InvalidConfig, match="no key"):
        signer(tmp_path / "senseless")
