"""The .kaas file: a compiled model as a zip of manifest, code and constants. docs/models.md describes it.

It holds no pickles and nothing is unpacked to disk, so that a file of unknown origin can be opened. Its kernels are
code: run only those of a trusted origin.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError

from kaas.errors import CorruptModel, KaasError
from kaas.ktask import codec
from kaas.ktask.graph import KTask
from kaas.ktask.library import Image, Library
from kaas.ktask.variant import Variant
from kaas.models import constants_file
from kaas.output_files import output_file

if TYPE_CHECKING:
    from kaas.models.constants_file import Array

FORMAT = 1
MANIFEST, CONSTANTS = "manifest.json", "constants.safetensors"
MANIFEST_BYTES = 256 << 20
CODE_BYTES = 1 << 30
"""The largest manifest, and the most code, after decompression."""
COPIED_BYTES = 1 << 20

_ZIP = b"PK"
_MEANINGLESS = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    OverflowError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    SafetensorError,
    struct.error,
    zlib.error,
)
"""Errors that reading unexpected bytes and values may raise."""
_FIELDS = {"kaas_model", "name", "about", "code", "dtypes", "variants"}


class ModelParts(NamedTuple):
    """The content of a file."""

    name: str
    variants: tuple[Variant, ...]
    constants: Mapping[str, Array]
    about: Mapping[str, str]
    library: Library


def is_model(path: str | os.PathLike[str]) -> bool:
    """Return True if a file is a zip, as models are, and not JSON, as a kTask can be."""
    with Path(path).open("rb") as file:
        return file.read(len(_ZIP)) == _ZIP


# --- writing


def write(path: str | os.PathLike[str], parts: ModelParts) -> None:
    """Write a file, or replace it as a whole: a reader sees the old file or the new one.

    Equal parts give equal bytes, as long as zlib and safetensors are the same. The folder needs room for the constants
    twice.

    Raises:
        InvalidRequest: it is no file that `output_file` takes.
        OSError
    """
    path = output_file(Path(path))
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        tensors, model = Path(folder, "tensors"), Path(folder, "model")
        constants_file.write(tensors, parts.constants)
        with tensors.open("rb") as constants, model.open("wb") as file:
            _write(file, parts, constants)
        model.replace(path)


def _write(file: IO[bytes], parts: ModelParts, constants: io.BufferedReader) -> None:
    manifest = {
        "kaas_model": FORMAT,
        "name": parts.name,
        "about": dict(parts.about),
        "code": [_code_name(image) for image in parts.library.images],
        "dtypes": constants_file.foreign(parts.constants),
        "variants": [
            {"inputs": [codec.from_buffer(buffer) for buffer in variant.inputs], "task": codec.content(variant.task)}
            for variant in parts.variants
        ],
    }
    with zipfile.ZipFile(file, "w") as archive:
        _entry(archive, MANIFEST, io.BytesIO(json.dumps(manifest, indent=1, sort_keys=True).encode()))
        for image in parts.library.images:
            _entry(archive, _code_name(image), io.BytesIO(image.data))
        _entry(archive, CONSTANTS, constants, zipfile.ZIP_STORED)


def _code_name(image: Image) -> str:
    return f"code/{hashlib.sha256(image.data).hexdigest()}.{image.kind}"


def _entry(archive: zipfile.ZipFile, name: str, data: IO[bytes], compression: int = zipfile.ZIP_DEFLATED) -> None:
    """Write an entry, without a time."""
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.create_system = 3  # Unix, wherever this runs
    entry.external_attr = 0o644 << 16
    entry.file_size = data.seek(0, os.SEEK_END)
    entry.compress_type = compression
    data.seek(0)
    with archive.open(entry, "w") as target:
        shutil.copyfileobj(data, target, COPIED_BYTES)


# --- reading


def read(path: str | os.PathLike[str]) -> ModelParts:
    """Return the content of a file; the constants are read-only.

    Raises:
        OSError: there is no such file, or it cannot be read.
        CorruptModel: the file is no model.
    """
    with raising_corrupt_model(path), Path(path).open("rb") as file:
        file_bytes = os.fstat(file.fileno()).st_size
        if not file_bytes:
            raise _corrupt(path, "it is empty")
        with zipfile.ZipFile(file) as archive:
            return _read(path, archive, file_bytes)


@contextmanager
def raising_corrupt_model(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise CorruptModel for all errors of reading a file that is no model."""
    try:
        yield
    except CorruptModel:
        raise
    except KaasError as error:
        raise _corrupt(path, error.message) from error
    except zipfile.BadZipFile as error:
        raise _corrupt(path, _no_zip(path, error)) from error
    except KeyError as error:
        raise _corrupt(path, f"{error} is missing") from error
    except _MEANINGLESS as error:
        raise _corrupt(path, f"{type(error).__name__}: {error}") from error


def _corrupt(path: str | os.PathLike[str], reason: str) -> CorruptModel:
    return CorruptModel(
        f"{os.fspath(path)} is no model that can be read: {reason}", path=os.fspath(path), reason=reason
    )


def _no_zip(path: str | os.PathLike[str], error: zipfile.BadZipFile) -> str:
    """Return the reason for a file that the zip module does not read."""
    if is_model(path):
        return f"its end is missing or it is damaged ({error}); copy it again"
    return "it is no zip file, as `kaas compile` and CompiledModel.save write them"


def _read(path: str | os.PathLike[str], archive: zipfile.ZipFile, file_bytes: int) -> ModelParts:
    entries = {entry.filename: entry for entry in archive.infolist()}
    if len(entries) < len(archive.infolist()):
        raise _corrupt(path, "two entries have one name")
    if any(entry.header_offset < 0 for entry in entries.values()):
        raise _corrupt(path, "its beginning is missing")
    if MANIFEST not in entries:
        raise _corrupt(path, f"it has no {MANIFEST}")
    manifest = _manifest(path, _unpacked(path, archive, entries[MANIFEST], MANIFEST_BYTES))
    images = _images(path, archive, entries, manifest["code"])
    unknown = entries.keys() - {MANIFEST, CONSTANTS, *manifest["code"]}
    if unknown:
        raise _corrupt(path, f"entries that the manifest does not name: {', '.join(map(repr, sorted(unknown)))}")
    if CONSTANTS not in entries:
        raise _corrupt(path, f"it has no {CONSTANTS}")
    if entries[CONSTANTS].compress_type != zipfile.ZIP_STORED:  # so that they are no larger than the file
        raise _corrupt(path, f"{CONSTANTS} has to be stored, not compressed")
    data = _unpacked(path, archive, entries[CONSTANTS], file_bytes)
    constants = constants_file.arrays_of(data, manifest.get("dtypes", {}))
    del data  # each array has its own bytes
    library = Library(images)
    variants = tuple(_variant(entry, library) for entry in manifest["variants"])
    return ModelParts(manifest["name"], variants, constants, manifest.get("about", {}), library)


def _manifest(path: str | os.PathLike[str], text: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _corrupt(path, f"{MANIFEST} is no JSON: {error}") from error
    if not isinstance(manifest, dict) or "kaas_model" not in manifest:
        raise _corrupt(path, f"{MANIFEST} is not that of a model: it does not say which format it has (kaas_model)")
    if manifest["kaas_model"] != FORMAT:
        raise _corrupt(path, f"it is written in format {manifest['kaas_model']!r}; this version reads {FORMAT}")
    unknown = manifest.keys() - _FIELDS
    if unknown:
        raise _corrupt(path, f"this version knows no model with a field {', '.join(sorted(map(repr, unknown)))}")
    return manifest


def _images(
    path: str | os.PathLike[str], archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], names: Any
) -> tuple[Image, ...]:
    images: list[Image] = []
    left_bytes = CODE_BYTES
    for name in names:
        found = re.fullmatch(r"code/([0-9a-f]{64})\.([a-z]+)", name)
        if found is None or name not in entries:
            raise _corrupt(path, f"it has no code {name!r}")
        data = _unpacked(path, archive, entries[name], left_bytes)
        left_bytes -= len(data)
        if hashlib.sha256(data).hexdigest() != found[1]:
            raise _corrupt(path, f"{name} does not have the content that its name says")
        images.append(Image(found[2], data))
    return tuple(images)


def _unpacked(path: str | os.PathLike[str], archive: zipfile.ZipFile, entry: zipfile.ZipInfo, limit: int) -> bytes:
    if entry.file_size > limit:
        raise _corrupt(path, f"{entry.filename} has {entry.file_size} bytes, more than the {limit} that are read")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _corrupt(path, f"{entry.filename} is neither stored nor deflated")
    with archive.open(entry) as file:
        data = file.read(entry.file_size)  # without a size it would unpack all data, even beyond the announced size
    if len(data) < entry.file_size:
        raise _corrupt(path, f"{entry.filename} ends after {len(data)} of {entry.file_size} bytes")
    return data


def _variant(entry: Mapping[str, Any], library: Library) -> Variant:
    if entry.keys() != {"inputs", "task"}:
        raise ValueError(f"a variant has inputs and a task, not {', '.join(sorted(map(repr, entry)))}")
    task = KTask(*codec.from_content(entry["task"], {library.hash: library}))
    return Variant(task, tuple(map(codec.to_buffer, entry["inputs"])))
