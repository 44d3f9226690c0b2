"""The vectors for clients in other languages are the bytes that KaaS writes, and KaaS reads them back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kaas.wire import protocol
from tests.wire import vectors

READERS = {"from_client": protocol.decode_from_client, "from_server": protocol.decode_from_server}


def stored(stem: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((vectors.FOLDER / f"{stem}.json").read_text())
    return found


def names(stem: str) -> list[str]:
    return [vector["name"] for vector in stored(stem)]


def fields(value: Any) -> Any:
    """A header of JSON, with its bytes."""
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"]) if value.keys() == {"hex"} else {k: fields(v) for k, v in value.items()}
    return [fields(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("path", "text"), list(vectors.files()), ids=["asked", "answered", "same", "refused"])
def test_the_files_are_up_to_date(path: Path, text: str) -> None:
    assert path.read_text() == text, "python -m tests.wire.vectors --write"


@pytest.mark.parametrize("stem", READERS)
def test_every_message_has_a_vector(stem: str) -> None:
    union = {"from_client": protocol.FromClient, "from_server": protocol.FromServer}[stem]
    tags = {kind.__struct_config__.tag for kind in union.__args__}
    assert {vector["header"]["op"] for vector in stored(stem)} == tags


@pytest.mark.parametrize("stem", READERS)
def test_headers_are_read_and_written_as_in_the_vectors(stem: str) -> None:
    for vector in stored(stem):
        data = bytes.fromhex(vector["hex"])
        message = READERS[stem](data)
        assert protocol.encode(message) == data, vector["name"]
        assert msgspec.msgpack.decode(data) == fields(vector["header"]), vector["name"]
        assert message == READERS[stem](msgspec.msgpack.encode(fields(vector["header"]))), vector["name"]


@pytest.mark.parametrize("name", names("same"))
def test_other_ways_to_write_a_message_are_read_as_the_same(name: str) -> None:
    vector = next(vector for vector in stored("same") if vector["name"] == name)
    stem, known = next((stem, found) for stem in READERS for found in stored(stem) if found["name"] == vector["as"])
    assert vector["header"] == known["header"]
    assert READERS[stem](bytes.fromhex(vector["hex"])) == READERS[stem](bytes.fromhex(known["hex"]))


@pytest.mark.parametrize("name", names("refused"))
def test_a_malformed_message_is_refused(name: str) -> None:
    vector = next(vector for vector in stored("refused") if vector["name"] == name)
    with pytest.raises(msgspec.DecodeError):
        protocol.decode_from_client(bytes.fromhex(vector["hex"]))
