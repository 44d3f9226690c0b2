"""A kTask as dicts, JSON and msgpack, and its content hash.

The hash covers the canonical dict without code images (libraries count by their own hash). A field at its default is
left out of the dict, so one that is added later leaves the hashes of older kTasks as they are.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from kaas.errors import DuplicateBuffer, InvalidGraph, KaasError
from kaas.ktask.arguments import Access, Argument, Buffer, In, InOut, Literal, Out, Pointers, Scalar, Struct
from kaas.ktask.library import Image, Kernel, Library

FORMAT = 1

_REQUIRED = ("kaas", "buffers", "kernels", "outputs", "libraries")
"""Fields that every kTask has."""

_ACCESS: dict[str, type[Access]] = {"in": In, "out": Out, "inout": InOut}
_ACCESS_NAME = {cls: name for name, cls in _ACCESS.items()}

Fields = tuple[list[Kernel], list[str], int | Scalar, str | None]
"""The arguments of KTask's constructor, in its order."""


class Encodable(Protocol):
    """A KTask as this module reads it: `graph` imports this module."""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The launches, in order."""

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers."""

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """The outputs, in declared order."""

    @property
    def libraries(self) -> tuple[Library, ...]:
        """The libraries of its kernels, each once."""

    @property
    def iterations(self) -> int | Scalar:
        """The number of times that the kernels run."""

    @property
    def name(self) -> str | None:
        """Its name for people, if it has one."""


def content_hash(task: Encodable) -> str:
    """Return the content hash of a kTask: SHA-256, hex, of everything that defines the kTask."""
    canonical = json.dumps(content(task), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def to_dict(task: Encodable) -> dict[str, Any]:
    """Return a kTask as a dict of plain values, code images as bytes."""
    return {"kaas": FORMAT, **content(task), "libraries": {lib.hash: _images(lib) for lib in task.libraries}}


def from_dict(data: Mapping[str, Any]) -> Fields:
    """Return the fields of a kTask from a dict of `to_dict`.

    Raises:
        InvalidGraph: the data has another shape than `to_dict` gives.
    """
    _require_fields(data)
    try:
        libraries = {name: Library(tuple(Image(i["kind"], i["data"]) for i in images))
                     for name, images in data["libraries"].items()}  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidGraph(f"this is no encoded kTask: {_reason(error)}") from error
    changed = [name for name, library in libraries.items() if name != library.hash]
    if changed:
        raise InvalidGraph(f"code images do not have the content that the kTask names: {', '.join(changed)}")
    return from_content({name: data[name] for name in data.keys() - {"kaas", "libraries"}}, libraries)


def from_content(data: Mapping[str, Any], libraries: Mapping[str, Library]) -> Fields:
    """Return the fields of a kTask from the dict of `content`, given the libraries by hash.

    Raises:
        InvalidGraph: the data has another shape than `content` gives.
    """
    try:
        _refuse_unknown("kTask", data, "buffers kernels outputs name iterations")
        buffers = _buffers(data["buffers"])
        kernels = [_kernel(entry, libraries, buffers) for entry in data["kernels"]]
        repeat = data.get("iterations", 1)
        iterations = Scalar(repeat["scalar"], repeat["kind"]) if isinstance(repeat, Mapping) else repeat
        return kernels, list(data["outputs"]), iterations, data.get("name")
    except KaasError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidGraph(f"this is no encoded kTask: {_reason(error)}") from error


def to_json(task: Encodable) -> str:
    """Return a kTask as JSON; code images in base64."""
    data = to_dict(task)
    for images in data["libraries"].values():
        for image in images:
            image["data"] = base64.b64encode(image["data"]).decode()
    return json.dumps(data, indent=1)


def from_json(text: str | bytes) -> Fields:
    """Return the fields of a kTask from JSON.

    Raises:
        InvalidGraph: the text is no kTask in JSON.
    """
    try:
        data = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidGraph(f"this is no kTask in JSON: {error}") from error
    _require_fields(data)
    try:
        for images in data["libraries"].values():
            for image in images:
                image["data"] = base64.b64decode(image["data"], validate=True)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidGraph(f"this is no kTask in JSON: {_reason(error)}") from error
    return from_dict(data)


def to_msgpack(task: Encodable) -> bytes:
    """Return a kTask as msgpack."""
    import msgspec

    return msgspec.msgpack.encode(to_dict(task))


def from_msgpack(data: bytes) -> Fields:
    """Return the fields of a kTask from msgpack.

    Raises:
        InvalidGraph: the bytes are no kTask in msgpack.
    """
    import msgspec

    try:
        decoded = msgspec.msgpack.decode(data)
    except msgspec.DecodeError as error:
        raise InvalidGraph(f"this is no kTask in msgpack: {error}") from error
    return from_dict(decoded)


# --- to plain values


def content(task: Encodable) -> dict[str, Any]:
    """Return a kTask as `to_dict` does, without the code: kernels name their libraries by hash."""
    data: dict[str, Any] = {
        "buffers": [from_buffer(buffer) for buffer in task.buffers],
        "kernels": [{"kernel": _from_kernel(kernel)} for kernel in task.kernels],
        "outputs": [buffer.name for buffer in task.outputs],
    }
    if task.name is not None:
        data["name"] = task.name
    if isinstance(task.iterations, Scalar):
        data["iterations"] = _from_argument(task.iterations)
    elif task.iterations != 1:
        data["iterations"] = task.iterations
    return data


def _images(library: Library) -> list[dict[str, Any]]:
    return [{"kind": image.kind, "data": image.data} for image in library.images]


def from_buffer(buffer: Buffer) -> dict[str, Any]:
    """Return a buffer as a dict; `to_buffer` is the inverse."""
    data = {"name": buffer.name, "shape": list(buffer.shape), "dtype": buffer.dtype}
    return data | ({"init": buffer.init} if buffer.init is not None else {})


def _from_kernel(kernel: Kernel) -> dict[str, Any]:
    data = {
        "library": kernel.library.hash,
        "symbol": kernel.symbol,
        "grid": list(kernel.grid),
        "block": list(kernel.block),
        "args": [_from_argument(argument) for argument in kernel.args],
    }
    return data | ({"shared_bytes": kernel.shared_bytes} if kernel.shared_bytes else {})


def _from_argument(argument: Argument) -> dict[str, Any]:
    match argument:
        case Access():
            data: dict[str, Any] = {_ACCESS_NAME[type(argument)]: argument.buffer.name}
            return data | ({"offset_bytes": argument.offset_bytes} if argument.offset_bytes else {})
        case Literal():
            return {"literal": argument.kind, "hex": argument.data.hex()}
        case Scalar():
            return {"scalar": argument.name, "kind": argument.kind}
        case Pointers():
            return {"pointers": [_from_argument(entry) for entry in argument.entries]}
        case Struct():
            data = {"struct": argument.blob.hex()}
            if argument.pointers:
                data["fields"] = {str(offset): _from_argument(target) for offset, target in argument.pointers}
            if argument.scalars:
                data["scalars"] = {str(offset): _from_argument(scalar) for offset, scalar in argument.scalars}
            return data | ({"align": argument.align} if argument.align != 16 else {})


# --- from plain values


def _require_fields(data: Any) -> None:
    """Refuse data that is no kTask, or a kTask of another format."""
    if not isinstance(data, Mapping):
        raise InvalidGraph(f"a kTask is a set of named fields ({', '.join(_REQUIRED)}), not a {type(data).__name__}")
    written = data.get("kaas", FORMAT)
    if written != FORMAT:
        raise InvalidGraph(f"this kTask is written in format {written!r}; this version reads {FORMAT}")
    missing = [name for name in _REQUIRED if name not in data]
    if missing:
        raise InvalidGraph(f"this is no kTask: it has no {', no '.join(map(repr, missing))}")


def _reason(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"


def _refuse_unknown(what: str, data: Mapping[str, Any], fields: str) -> None:
    """Refuse fields that a later version may have added: to ignore them would change the results."""
    unknown = data.keys() - set(fields.split())
    if unknown:
        raise InvalidGraph(f"this version knows no {what} with a field {', '.join(sorted(map(repr, unknown)))}")


def _buffers(entries: Iterable[Mapping[str, Any]]) -> dict[str, Buffer]:
    buffers: dict[str, Buffer] = {}
    for buffer in map(to_buffer, entries):
        known = buffers.setdefault(buffer.name, buffer)
        if known != buffer:
            raise DuplicateBuffer(f"two buffers named {known.name!r}: {known} and {buffer}", buffer=known.name)
    return buffers


def to_buffer(data: Mapping[str, Any]) -> Buffer:
    """Return a buffer from the dict that `from_buffer` gives.

    Raises:
        InvalidGraph; KeyError, TypeError: a field is missing, or data is no dict.
    """
    _refuse_unknown("buffer", data, "name shape dtype init")
    return Buffer(data["name"], data["shape"], data["dtype"], init=data.get("init"))


def _kernel(entry: Mapping[str, Any], libraries: Mapping[str, Library], buffers: Mapping[str, Buffer]) -> Kernel:
    _refuse_unknown("entry", entry, "kernel")
    data = entry["kernel"]
    _refuse_unknown("kernel", data, "library symbol grid block args shared_bytes")
    return Kernel(
        libraries[data["library"]],
        data["symbol"],
        data["grid"],
        data["block"],
        [_argument(entry, buffers) for entry in data["args"]],
        data.get("shared_bytes", 0),
    )


def _argument(data: Mapping[str, Any], buffers: Mapping[str, Buffer]) -> Argument:
    match data:
        case {"literal": kind, "hex": text}:
            return Literal(kind, bytes.fromhex(text))
        case {"scalar": name, "kind": kind}:
            return Scalar(name, kind)
        case {"pointers": entries}:
            return Pointers(_access(entry, buffers) for entry in entries)
        case {"struct": text}:
            _refuse_unknown("struct", data, "struct fields scalars align")
            pointers = {int(offset): _target(entry, buffers) for offset, entry in data.get("fields", {}).items()}
            scalars = {int(offset): Scalar(entry["scalar"], entry["kind"])
                       for offset, entry in data.get("scalars", {}).items()}  # fmt: skip
            return Struct(bytes.fromhex(text), pointers, scalars, data.get("align", 16))
    return _access(data, buffers)


def _target(data: Mapping[str, Any], buffers: Mapping[str, Buffer]) -> Access | Pointers:
    if "pointers" in data:
        return Pointers(_access(entry, buffers) for entry in data["pointers"])
    return _access(data, buffers)


def _access(data: Mapping[str, Any], buffers: Mapping[str, Buffer]) -> Access:
    for name, cls in _ACCESS.items():
        if name in data:
            _refuse_unknown("access", data, f"{name} offset_bytes")
            return cls(buffers[data[name]], data.get("offset_bytes", 0))
    raise InvalidGraph(f"no such argument: {dict(data)!r}")
