"""The .kaas file: a compiled model as a zip of manifest, code and constants. docs/models.md describes it.

It holds no pickles and nothing is unpacked to disk, so that a file of unknown origin can be opened; whether its kernels
are to be trusted is another matter.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from kaas import codec, constants_file
from kaas.errors import CorruptModel, KaasError
from kaas.graph import KTask
from kaas.library import Image, Library
from kaas.variant import Variant

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

FORMAT = 1
MANIFEST, CONSTANTS = "manifest.json", "constants.safetensors"
MANIFEST_BYTES = 256 << 20
CODE_BYTES = 1 << 30
"""No manifest, nor all the code together, is larger when it is unpacked."""

_ZIP = b"PK"
_LOCAL = b"PK\x03\x04"
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_ZIP64_FIELD_BYTES = 20
_PADDING_FIELD = 0xD935
"""What tools that align entries of zip files call the field that they pad."""
_MEANINGLESS = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    OverflowError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    struct.error,
    zlib.error,
)
"""What reading bytes and values of any kind may raise where they are not as expected."""
_FIELDS = {"kaas_model", "name", "about", "code", "constants", "variants"}


class Parts(NamedTuple):
    """What a file holds."""

    name: str
    variants: tuple[Variant, ...]
    constants: Mapping[str, Array]
    about: Mapping[str, str]
    library: Library


def is_model(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a zip, as models are, and not JSON, as a kTask can be."""
    with Path(path).open("rb") as file:
        return file.read(len(_ZIP)) == _ZIP


# --- writing


def write(path: str | os.PathLike[str], parts: Parts) -> None:
    """Write a file, or replace it: who reads it has all of the old one or all of the new. The same parts are the same
    bytes, so far as zlib is the same.

    Raises:
        OSError
    """
    path = Path(path)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            _write(file, parts)
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _umask() -> int:
    """This process's, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _write(file: IO[bytes], parts: Parts) -> None:
    pieces = list(constants_file.encoded(parts.constants))
    manifest = {
        "kaas_model": FORMAT,
        "name": parts.name,
        "about": dict(parts.about),
        "code": [_code_name(image) for image in parts.library.images],
        "constants": {"sha256": _sha256(pieces), "dtypes": constants_file.foreign(parts.constants)},
        "variants": [
            {"inputs": [codec.from_buffer(buffer) for buffer in variant.inputs], "task": codec.content(variant.task)}
            for variant in parts.variants
        ],
    }
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        _entry(archive, MANIFEST, [memoryview(json.dumps(manifest, indent=1, sort_keys=True).encode())])
        for image in parts.library.images:
            _entry(archive, _code_name(image), [memoryview(image.data)])
        _entry(archive, CONSTANTS, pieces, aligned=True)


def _code_name(image: Image) -> str:
    return f"code/{hashlib.sha256(image.data).hexdigest()}.{image.kind}"


def _sha256(pieces: Iterable[memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _entry(archive: zipfile.ZipFile, name: str, pieces: Iterable[memoryview], *, aligned: bool = False) -> None:
    """Write an entry, without a time. aligned: uncompressed, and so that it can be mapped."""
    pieces = list(pieces)
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.create_system = 3  # Unix, wherever this runs
    entry.external_attr = 0o644 << 16
    entry.file_size = sum(piece.nbytes for piece in pieces)
    entry.compress_type = zipfile.ZIP_STORED if aligned else zipfile.ZIP_DEFLATED
    large = entry.file_size > zipfile.ZIP64_LIMIT // 2
    if aligned:
        assert archive.fp is not None, "it is open"
        at = archive.fp.tell() + _LOCAL_HEADER.size + len(name) + (_ZIP64_FIELD_BYTES if large else 0) + 4
        padding = -at % constants_file.ALIGNMENT_BYTES
        entry.extra = struct.pack("<2H", _PADDING_FIELD, padding) + bytes(padding)
    with archive.open(entry, "w", force_zip64=large) as target:
        for piece in pieces:
            target.write(piece)


# --- reading


def read(path: str | os.PathLike[str]) -> Parts:
    """What a file holds. The constants are read-only views of the file, which is mapped; it must not be changed in
    place while they live, and may be replaced or removed.

    Raises:
        OSError: there is no such file, or none that can be read.
        CorruptModel
    """
    import numpy as np

    with told_as_corrupt(path), Path(path).open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise _corrupt(path, "it is empty")
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        with zipfile.ZipFile(file) as archive:
            return _read(path, archive, mapped)


@contextmanager
def told_as_corrupt(path: str | os.PathLike[str]) -> Iterator[None]:
    """What reading raises for a file that is none of ours, as the one error that says so."""
    try:
        yield
    except CorruptModel:
        raise
    except KaasError as error:
        raise _corrupt(path, error.message) from error
    except zipfile.BadZipFile as error:
        raise _corrupt(path, f"{error}: this is no zip file, or not all of one") from error
    except KeyError as error:
        raise _corrupt(path, f"{error} is missing") from error
    except _MEANINGLESS as error:
        raise _corrupt(path, f"{type(error).__name__}: {error}") from error


def _corrupt(path: str | os.PathLike[str], reason: str) -> CorruptModel:
    return CorruptModel(
        f"{os.fspath(path)} is no model that can be read: {reason}", path=os.fspath(path), reason=reason
    )


def _read(path: str | os.PathLike[str], archive: zipfile.ZipFile, mapped: Array) -> Parts:
    entries = {entry.filename: entry for entry in archive.infolist()}
    if len(entries) < len(archive.infolist()):
        raise _corrupt(path, "two entries have one name")
    if MANIFEST not in entries:
        raise _corrupt(path, f"it has no {MANIFEST}")
    manifest = _manifest(path, _unpacked(path, archive, entries[MANIFEST], MANIFEST_BYTES))
    images = _images(path, archive, entries, manifest["code"])
    unknown = entries.keys() - {MANIFEST, CONSTANTS, *manifest["code"]}
    if unknown:
        raise _corrupt(path, f"entries that the manifest does not name: {', '.join(map(repr, sorted(unknown)))}")
    if CONSTANTS not in entries:
        raise _corrupt(path, f"it has no {CONSTANTS}")
    data = _stored(path, entries[CONSTANTS], mapped)
    if _sha256([data.data]) != manifest["constants"]["sha256"]:
        raise _corrupt(path, "the constants are not those that the manifest names")
    constants = constants_file.decoded(data, manifest["constants"].get("dtypes", {}))
    library = Library(images)
    variants = tuple(_variant(entry, library) for entry in manifest["variants"])
    return Parts(manifest["name"], variants, constants, manifest.get("about", {}), library)


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
        data = file.read(entry.file_size)  # asked for all, it would unpack all there is, whatever size was announced
    if len(data) < entry.file_size:
        raise _corrupt(path, f"{entry.filename} ends after {len(data)} of {entry.file_size} bytes")
    return data


def _stored(path: str | os.PathLike[str], entry: zipfile.ZipInfo, mapped: Array) -> Array:
    """An uncompressed entry, where it lies."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size or entry.flag_bits & 1:
        raise _corrupt(path, f"{entry.filename} has to be stored, neither compressed nor encrypted")
    at = entry.header_offset
    header = mapped[at : at + _LOCAL_HEADER.size].tobytes()
    if len(header) < _LOCAL_HEADER.size or not header.startswith(_LOCAL):
        raise _corrupt(path, f"{entry.filename} is not where the zip's directory says")
    *_, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    start = at + _LOCAL_HEADER.size + name_bytes + extra_bytes
    data = mapped[start : start + entry.file_size]
    if len(data) < entry.file_size:
        raise _corrupt(path, f"{entry.filename} ends after {len(data)} of {entry.file_size} bytes")
    return data


def _variant(entry: Mapping[str, Any], library: Library) -> Variant:
    if entry.keys() != {"inputs", "task"}:
        raise ValueError(f"a variant has inputs and a task, not {', '.join(sorted(map(repr, entry)))}")
    task = KTask(*codec.from_content(entry["task"], {library.hash: library}))
    return Variant(task, tuple(map(codec.to_buffer, entry["inputs"])))
