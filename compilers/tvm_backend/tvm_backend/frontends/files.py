"""Files that hold models. Their first bytes tell the format, not their names."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from tvm_backend.errors import InvalidModel
from tvm_backend.frontends.content import Digest, feed, feed_all

ZIP = b"PK\x03\x04"
CHUNK_BYTES = 8 << 20


def read(path: Path, name: str) -> Any:
    """Return the model of a file: an onnx.ModelProto, or the torch.export.ExportedProgram of a zip.

    Raises:
        InvalidModel: no such file, neither of the two, or the package that reads it is not installed.
    """
    with _opened(path, name) as file:
        start = file.read(len(ZIP))
    if start == ZIP:
        _installed("torch", path, name)
        from tvm_backend.frontends import from_torch

        return from_torch.read(path, name)
    _installed("onnx", path, name)
    from tvm_backend.frontends import from_onnx

    return from_onnx.read(path, name)


def feed_file(digest: Digest, path: Path, name: str) -> None:
    """Add the file's bytes, and the bytes of the files with an ONNX model's external tensors."""
    with _opened(path, name) as file:
        content = file.read()
    feed(digest, str(len(content)))
    whole = memoryview(content)
    feed_all(digest, (whole[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)))
    if content.startswith(ZIP) or b"location" not in content:
        return
    _installed("onnx", path, name)
    from tvm_backend.frontends import from_onnx

    for other in from_onnx.external_files(path, name):
        with _opened(other, name) as file:
            feed(digest, f"{other.name} {other.stat().st_size}")
            feed_all(digest, iter(lambda: file.read(CHUNK_BYTES), b""))


def _opened(path: Path, name: str) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise InvalidModel(f"{path} cannot be read: {error}", model=name, path=str(path)) from error


def _installed(package: str, path: Path, name: str) -> None:
    if find_spec(package) is None:
        message = f"{path} needs {package}, which is not installed: pip install {package}"
        raise InvalidModel(message, model=name, path=str(path))
