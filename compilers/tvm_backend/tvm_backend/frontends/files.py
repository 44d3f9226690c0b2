"""Files that hold models: told apart by their first bytes, not by their names."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tvm_backend.errors import InvalidModel

ZIP = b"PK\x03\x04"


def read(path: Any, name: str) -> Any:
    """The model in a file: an onnx.ModelProto, or a torch.export.ExportedProgram if it is a zip.

    Raises:
        InvalidModel: no such file, neither of the two, or the package that reads it is not installed.
    """
    path = Path(path)
    if first_bytes(path, name) == ZIP:
        _installed("torch", path, name)
        from tvm_backend.frontends import from_torch

        return from_torch.read(path, name)
    _installed("onnx", path, name)
    from tvm_backend.frontends import from_onnx

    return from_onnx.read(path, name)


def first_bytes(path: Path, name: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(ZIP))
    except OSError as error:
        raise InvalidModel(f"{path} cannot be read: {error}", model=name, path=str(path)) from error


def _installed(package: str, path: Path, name: str) -> None:
    if find_spec(package) is None:
        message = f"{path} needs {package}, which is not installed: pip install kaas-tvm[{package}]"
        raise InvalidModel(message, model=name, path=str(path))
