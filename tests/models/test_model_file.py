"""The .kaas file: all of a model comes back, the same bytes for the same model, and one error for all damage."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

import kaas
from kaas.errors import CorruptModel, InvalidRequest
from kaas.models import constants_file, model_file
from tests.models.models import LIBRARY, constants, model, models, tensor_names

once_a_function = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

Entries = dict[str, bytes]
Change = Callable[[Entries], Entries]


@given(made=models())
@once_a_function
def test_round_trip(made: kaas.CompiledModel, tmp_path: Path) -> None:
    made.save(tmp_path / "one.kaas")
    back = kaas.load(tmp_path / "one.kaas")
    assert (back.name, back.variants, back.about, back.library) == (made.name, made.variants, made.about, made.library)
    assert back.constants.keys() == made.constants.keys()
    for name, array in made.constants.items():
        assert back.constants[name].dtype == array.dtype
        assert back.constants[name].shape == array.shape
        assert back.constants[name].tobytes() == array.tobytes()
    back.save(tmp_path / "two.kaas")
    assert (tmp_path / "two.kaas").read_bytes() == (tmp_path / "one.kaas").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["one.kaas", "two.kaas"]


def test_constants_are_those_of_the_file_that_was_read(tmp_path: Path) -> None:
    path = tmp_path / "m.kaas"
    model().save(path)
    back = kaas.load(path).constants["w"]
    path.write_bytes(bytes(path.stat().st_size))
    np.testing.assert_array_equal(back, model().constants["w"])
    assert not back.flags.writeable


def test_other_tools_read_the_constants(tmp_path: Path) -> None:
    model().save(tmp_path / "m.kaas")
    with zipfile.ZipFile(tmp_path / "m.kaas") as archive:
        (weights,) = safetensors.numpy.load(archive.read("constants.safetensors")).values()
    np.testing.assert_array_equal(weights, model().constants["w"])


def test_a_model_of_large_constants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the size from which zip files have another header."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    path = tmp_path / "m.kaas"
    model().save(path)
    np.testing.assert_array_equal(kaas.load(path).constants["w"], model().constants["w"])


def test_a_file_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot read"):
        kaas.load(tmp_path / "none.kaas")
    with pytest.raises(InvalidRequest, match="cannot write model 'small'"):
        model().save(tmp_path / "none" / "m.kaas")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidRequest, match="cannot write"):
        model().save(tmp_path / "folder")
    assert os.listdir(tmp_path) == ["folder"]  # and nothing half written


def test_a_saved_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        model().save(tmp_path / "m.kaas")
    finally:
        os.umask(before)
    assert (tmp_path / "m.kaas").stat().st_mode & 0o777 == 0o640


# --- damaged files


def entries_of(path: Path) -> Entries:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(entries: Entries, compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file.getvalue()


def corrupt(path: Path, data: bytes) -> CorruptModel:
    path.write_bytes(data)
    with pytest.raises(CorruptModel) as caught:
        kaas.load(path)
    assert caught.value.path == str(path)
    assert caught.value.reason in caught.value.message
    return caught.value


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model().save(tmp_path / "m.kaas")
    return tmp_path / "m.kaas"


def manifest(change: Callable[[dict[str, Any]], object]) -> Change:
    """Return a change of the manifest's fields."""

    def changed(entries: Entries) -> Entries:
        data = json.loads(entries["manifest.json"])
        change(data)
        return entries | {"manifest.json": json.dumps(data).encode()}

    return changed


def without(name: str) -> Change:
    return lambda entries: {other: data for other, data in entries.items() if not other.startswith(name)}


def buffer(data: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in data["variants"][0]["task"]["buffers"] if one["name"] == name)
    return found


WRONG: dict[str, tuple[Change, str]] = {
    "no manifest": (without("manifest"), "it has no manifest.json"),
    "no constants": (without("constants"), "it has no constants.safetensors"),
    "no code": (without("code"), "it has no code 'code/"),
    "no JSON": (lambda entries: entries | {"manifest.json": b"{"}, "manifest.json is no JSON"),
    "deep JSON": (lambda entries: entries | {"manifest.json": b"[" * 200_000}, "manifest.json is no JSON"),
    "another JSON": (lambda entries: entries | {"manifest.json": b"[1]"}, "not that of a model"),
    "a later format": (manifest(lambda data: data.update(kaas_model=2)), "format 2; this version reads 1"),
    "a later field": (manifest(lambda data: data.update(scalars=[])), "no model with a field 'scalars'"),
    "no name": (manifest(lambda data: data.pop("name")), "'name' is missing"),
    "a name that is none": (manifest(lambda data: data.update(name=3)), "a model's name"),
    "no variants": (manifest(lambda data: data.update(variants=[])), "one or more kaas.Variant"),
    "variants that are none": (manifest(lambda data: data.update(variants=[3])), "AttributeError"),
    "a variant of other fields": (manifest(lambda data: data["variants"][0].pop("inputs")), "inputs and a task"),
    "another code": (
        lambda entries: {name: data + b" " * name.startswith("code") for name, data in entries.items()},
        "does not have the content that its name says",
    ),
    "code that is none": (manifest(lambda data: data.update(code=[])), "at least one code image|does not name"),
    "a path outside": (manifest(lambda data: data.update(code=["../../code"])), r"it has no code '\.\./"),
    "an entry too many": (lambda entries: entries | {"../x": b""}, r"does not name: '\.\./x'"),
    "another shape": (manifest(lambda data: buffer(data, "w").update(shape=[5, 2])), "'w' has 40 bytes"),
    "a constant that nobody has": (
        lambda entries: entries | {"manifest.json": entries["manifest.json"].replace(b'"w"', b'"v"')},
        "reads 'v' .*, which is neither an input nor a constant",
    ),
    "a buffer that nobody has": (manifest(lambda data: buffer(data, "w").update(name="v")), "'w' is missing"),
    "an input of another shape": (manifest(lambda data: data["variants"][0]["inputs"][0].update(shape=[4])), "takes"),
    "about that is none": (manifest(lambda data: data.update(about=[1])), "about|TypeError|ValueError"),
    "dtypes of nothing": (
        manifest(lambda data: data.update(dtypes={"z": "complex128"})),
        "no tensor 'z'",
    ),
}


@pytest.mark.parametrize(("change", "words"), WRONG.values(), ids=WRONG)
def test_a_damaged_file_is_refused_with_the_reason(saved: Path, change: Change, words: str) -> None:
    error = corrupt(saved, packed(change(entries_of(saved))))
    assert re.search(words, error.reason), error.reason


def test_a_file_repacked_without_changes_is_loaded(saved: Path) -> None:
    saved.write_bytes(packed(entries_of(saved)))
    assert kaas.load(saved).name == "small"


def test_a_file_that_is_no_whole_zip_is_refused(saved: Path) -> None:
    whole = saved.read_bytes()
    assert "it is empty" in corrupt(saved, b"").reason
    assert "no zip file" in corrupt(saved, b"{}").reason
    for end in range(1, len(whole), 97):
        corrupt(saved, whole[:end])
        corrupt(saved, whole[end:])


@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@once_a_function
def test_a_bit_that_changed(tmp_path: Path, at: float, bit: int) -> None:
    """A changed bit raises, or means nothing: in a date, or in padding."""
    path = tmp_path / "m.kaas"
    model().save(path)
    data = bytearray(path.read_bytes())
    data[int(at * len(data))] ^= 1 << bit
    path.write_bytes(data)
    try:
        back = kaas.load(path)
    except CorruptModel:
        return
    assert back.variants == model().variants
    np.testing.assert_array_equal(back.constants["w"], model().constants["w"])


def test_a_file_with_two_entries_of_one_name_is_refused(saved: Path) -> None:
    twice = packed(entries_of(saved) | {"manifest.jsom": b"{}"}).replace(b"manifest.jsom", b"manifest.json")
    assert "two entries have one name" in corrupt(saved, twice).reason


def test_a_file_that_would_unpack_to_too_much_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = packed(entries_of(saved) | {"manifest.json": bytes(10_000_000)}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < 100_000
    monkeypatch.setattr(model_file, "MANIFEST_BYTES", 1_000_000)
    assert "manifest.json has 10000000 bytes, more than the 1000000" in corrupt(saved, bomb).reason
    model().save(saved)
    monkeypatch.setattr(model_file, "CODE_BYTES", 10)
    assert "more than the 10 that are read" in corrupt(saved, saved.read_bytes()).reason


def test_a_size_that_is_not_true(saved: Path) -> None:
    """An entry that would unpack to more than it announces takes no more memory than that."""
    bomb = packed(entries_of(saved) | {"manifest.json": b" " * 50_000_000}, zipfile.ZIP_DEFLATED)
    bomb = bomb.replace(struct.pack("<I", 50_000_000), struct.pack("<I", 50))
    tracemalloc.start()
    try:
        assert "Bad CRC" in corrupt(saved, bomb).reason
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_other_ways_of_packing(saved: Path) -> None:
    """Python unpacks these without a limit."""
    assert "neither stored nor deflated" in corrupt(saved, packed(entries_of(saved), zipfile.ZIP_BZIP2)).reason


def test_constants_have_to_be_stored(saved: Path) -> None:
    reason = corrupt(saved, packed(entries_of(saved), zipfile.ZIP_DEFLATED)).reason
    assert "constants.safetensors has to be stored" in reason


def test_constants_of_more_than_the_file(saved: Path) -> None:
    """A size that only the zip's directory announces is not believed."""
    data = saved.read_bytes()
    with zipfile.ZipFile(saved) as archive:
        size = struct.pack("<2I", *2 * [archive.getinfo("constants.safetensors").file_size])
    at = data.rindex(size, 0, data.rindex(b"constants.safetensors"))
    reason = corrupt(saved, data[:at] + struct.pack("<2I", *2 * [0xFFFF_FFF0]) + data[at + 8 :]).reason
    assert f"has 4294967280 bytes, more than the {len(data)} that are read" in reason


# --- safetensors


@given(arrays=st.dictionaries(tensor_names, constants, max_size=5))
@once_a_function
def test_arrays_are_read_back_unchanged(tmp_path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    constants_file.write(tmp_path / "tensors", arrays)
    back = constants_file.arrays_of((tmp_path / "tensors").read_bytes(), constants_file.foreign(arrays))
    assert list(back) == sorted(arrays)
    for name, array in arrays.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert back[name].tobytes() == array.tobytes()
        assert not back[name].flags.writeable


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(InvalidRequest, match=r"cannot write model 'small'.*File too large"):
            large().save(tmp_path / "m.kaas")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []


def large() -> kaas.CompiledModel:
    x, w, y = (kaas.Buffer(name, 10_000, "uint8") for name in "xwy")
    task = kaas.KTask([kaas.Kernel(LIBRARY, "k", 1, 32, [kaas.In(x), kaas.In(w), kaas.Out(y)])], [y])
    return kaas.CompiledModel("small", [kaas.Variant(task, (x,))], {"w": np.zeros(10_000, np.uint8)})


def tensors(header: Any, body: bytes = bytes(8)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def tensor(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"short", "header too small"),
        (struct.pack("<Q", 1 << 60), "header too large"),
        (tensors(b"[" * 100_000), "invalid JSON"),
        (tensors({}), "not fully covered"),
        (tensors(tensor(offsets=[4, 8])), "invalid offset"),
        (tensors(tensor(offsets=[0, 1 << 50])), "invalid|not fully covered"),
        (tensors(tensor(shape=[3])), "invalid shape"),
        (tensors(tensor(shape=[1 << 62, 1 << 62])), "overflow"),
        (tensors(tensor(shape=[1] * 64 + [2])), "dimension"),
        (tensors(tensor(dtype="Q4")), "unknown variant"),
        (tensors(tensor(dtype="F4", shape=[16])), "'F4', which no buffer has"),
    ],
)
def test_tensors_that_are_none(data: bytes, words: str) -> None:
    with pytest.raises((ValueError, SafetensorError), match=words):
        constants_file.arrays_of(data, {})


@pytest.mark.parametrize(
    ("dtype", "words"), [("float32", "cannot be of dtype"), ("complex128", "no bytes of"), ("q", "c")]
)
def test_dtypes_that_the_tensors_have_not(dtype: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        constants_file.arrays_of(tensors(tensor("U8", [1, 8])), {"a": dtype})
