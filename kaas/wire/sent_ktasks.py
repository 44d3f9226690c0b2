"""kTasks and libraries as remote clients send them: a kTask names its libraries by hash, a library travels once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kaas.errors import CorruptImage, InvalidGraph, KaasError
from kaas.ktask import codec
from kaas.ktask.graph import KTask
from kaas.ktask.images import Image
from kaas.ktask.library import Library

TASK_BYTES = 16 << 20
MOST_KERNELS = 1 << 16
MOST_OUTPUTS = 1 << 10
MOST_DIMENSIONS = 32
MOST_IMAGES = 64
NAME_BYTES = 200
"""Limits of one kTask or library from a remote client: a larger one could keep the server busy for long."""
_LONGEST_HEADER = 32
"""Bytes of an image's kind and size."""


def encode_task(task: KTask) -> bytes:
    """Return a kTask without its code, as Register carries it."""
    return msgspec.msgpack.encode({"kaas": codec.FORMAT, **codec.content(task)})


@dataclass(frozen=True, slots=True)
class SentTask:
    """A kTask whose libraries are not found yet. libraries: their hashes, each once. kernels: the number of kernels."""

    data: bytes | memoryview = field(repr=False)
    libraries: tuple[str, ...]
    kernels: int

    @property
    def content(self) -> dict[str, Any]:
        """Return the content as `codec.content` does. Only here every kernel becomes dozens of objects."""
        content = _decode(self.data)
        content.pop("kaas", None)
        return content

    def built(self, libraries: Mapping[str, Library]) -> KTask:
        """Return the kTask with its libraries.

        Raises:
            InvalidGraph, InvalidCode
        """
        try:
            return KTask(*codec.from_content(self.content, libraries))
        except KaasError:
            raise
        except Exception as error:  # the bytes are a remote client's: any error means that they are no kTask
            raise InvalidGraph(f"this is no encoded kTask: {type(error).__name__}: {error}") from error


def decode_task(data: bytes | memoryview) -> SentTask:
    """Check the limits of an encoded kTask; return it.

    Raises:
        InvalidGraph
    """
    if len(data) > TASK_BYTES:
        raise InvalidGraph(f"a remote client's kTask has at most {TASK_BYTES} bytes, not {len(data)}")
    try:
        sent = _decode_head(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidGraph(f"this is no kTask in msgpack: {error}") from error
    if sent.kaas != codec.FORMAT:
        raise InvalidGraph(f"this kTask is written in format {sent.kaas}; this version reads {codec.FORMAT}")
    for what, number, limit in (
        ("kernels", len(sent.kernels), MOST_KERNELS),
        ("outputs", len(sent.outputs), MOST_OUTPUTS),
        ("dimensions", max((len(buffer.shape) for buffer in sent.buffers), default=0), MOST_DIMENSIONS),
    ):
        if number > limit:
            raise InvalidGraph(f"a remote client's kTask has at most {limit} {what}, not {number}")
    if len((sent.name or "").encode()) > NAME_BYTES:  # the name stands in usage, statistics and the log
        raise InvalidGraph(f"a remote client's kTask has a name of at most {NAME_BYTES} bytes of UTF-8")
    libraries = tuple(dict.fromkeys(entry.kernel.library for entry in sent.kernels))
    return SentTask(data, libraries, len(sent.kernels))


def with_code(task: bytes, libraries: Mapping[str, Library]) -> bytes:
    """Return the bytes of `KTask.to_msgpack` from those of `encode_task`, without decoding the kTask.

    Args:
        libraries: of the kTask, by hash, in the order in which its kernels first name them.
    """
    assert task[0] & 0xF0 == _FEW_FIELDS, "a kTask has fewer fields than a msgpack map counts in its first byte"
    images = {name: [{"kind": i.kind, "data": i.data} for i in each.images] for name, each in libraries.items()}
    return b"".join((bytes((task[0] + 1,)), task[1:], _encode("libraries"), _encode(images)))


class _SentBuffer(msgspec.Struct, gc=False):
    shape: list[int]


class _SentKernel(msgspec.Struct, gc=False):
    library: str


class _SentKTask(msgspec.Struct, gc=False):
    kernel: _SentKernel


class _Task(msgspec.Struct):
    """The parts of an encoded kTask that are checked before the rest is decoded."""

    buffers: list[_SentBuffer]
    kernels: list[_SentKTask]
    outputs: list[str]
    name: str | None = None
    kaas: int = codec.FORMAT


_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode
_decode_head = msgspec.msgpack.Decoder(_Task).decode
_encode = msgspec.msgpack.Encoder().encode
_FEW_FIELDS = 0x80
"""The upper bits of the first byte of a msgpack map with at most 15 fields."""

# --- libraries


def encode_library(library: Library) -> bytes:
    """Return the bytes to upload; their SHA-256 is the library's hash."""
    return b"".join(part for image in library.images for part in (_header(image), image.data))


def _header(image: Image) -> bytes:
    return f"{image.kind}:{len(image.data)}:".encode()


def decode_images(data: bytes | memoryview) -> tuple[Image, ...]:
    """Invert `encode_library`. The images themselves are not checked.

    Raises:
        CorruptImage
    """
    images = []
    for image in _images(memoryview(data)):
        images.append(image)
        if len(images) > MOST_IMAGES:
            raise CorruptImage(f"a remote client's library has at most {MOST_IMAGES} code images")
    return tuple(images)


def _images(data: memoryview) -> Iterator[Image]:
    position = 0
    while position < len(data):
        kind, size, header = _announced(bytes(data[position : position + _LONGEST_HEADER]))
        position += header + size
        if position > len(data):
            raise CorruptImage(f"a code image of {size} bytes that ends {position - len(data)} bytes too early")
        image = Image(kind, bytes(data[position - size : position]))
        if len(_header(image)) != header:
            raise CorruptImage("a library's images are each written as `kind:bytes:`, without zeros before the number")
        yield image


def _announced(begin: bytes) -> tuple[str, int, int]:
    """Return kind and size of the image that begins so, and the offset of its data."""
    parts: Sequence[bytes] = begin.split(b":", 2)
    if len(parts) != 3 or not (parts[0].isalpha() and parts[1].isdigit()):
        raise CorruptImage("this is no encoded library: of each image it has `kind:bytes:` and then the data")
    return parts[0].decode("ascii"), int(parts[1]), len(parts[0]) + len(parts[1]) + 2
