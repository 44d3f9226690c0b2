"""Finds the PTX in an image that a program gives to the driver: PTX text, or a fatbin that holds PTX."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

INVALID_IMAGE, NO_BINARY_FOR_GPU = 200, 209  # CUresult

_FATBIN_MAGIC, _FATBIN_WRAPPER_MAGIC = 0xBA55ED50, 0x466243B1
_HEADER = struct.Struct("<IHHQ")  # magic, version, header bytes, bytes that follow
_ENTRY = struct.Struct("<HHIQ")  # kind, version, header bytes, payload bytes
_ENTRY_BYTES = 64
_FLAGS_OFFSET = 40  # of the 64-bit flags in an entry's header
PTX_KIND, CUBIN_KIND = 1, 2
_LZ4, _ZSTANDARD, _COMPRESSED = 0x2000, 0x8000, 0xF000  # flags: the method of compression; 0 of 0xF000: uncompressed
_STORED_BYTES_OFFSET = 16  # of the payload's own 32-bit length: padding follows it
_WHOLE_BYTES_OFFSET = 56  # of the 64-bit length of an LZ4 payload before compression
_LARGEST_PTX_BYTES = 256 << 20
_ELF_MACHINE_CUDA = 190


class ImageError(Exception):
    """An image without PTX that can be compiled; `result` is the CUresult of the reason."""

    def __init__(self, result: int, message: str) -> None:
        super().__init__(result, message)
        self.result, self.message = result, message

    def __str__(self) -> str:
        return self.message


def ptx_of(image: bytes) -> str:
    """Return the PTX text of an image.

    Raises:
        ImageError: the image has no PTX that can be read here.
    """
    if image[:4] == b"\x7fELF":
        raise _no_ptx_in_elf(image)
    if len(image) >= 4 and struct.unpack_from("<I", image)[0] == _FATBIN_MAGIC:
        image = _from_fatbin(image)
    elif len(image) >= 4 and struct.unpack_from("<I", image)[0] == _FATBIN_WRAPPER_MAGIC:
        raise ImageError(INVALID_IMAGE, "a fatbin wrapper holds a pointer: hand over the fatbin itself")
    text = image.split(b"\0", 1)[0]
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        raise ImageError(INVALID_IMAGE, "the image is neither PTX text, nor a fatbin, nor a cubin") from None


def fatbin_of(text: str) -> bytes:
    """Return a fatbin that holds this PTX: an image with its own length, as the result of linking needs one."""
    payload = text.encode() + b"\0"
    payload += bytes(-len(payload) % 8)
    entry = _ENTRY.pack(PTX_KIND, 0x0101, _ENTRY_BYTES, len(payload)).ljust(_ENTRY_BYTES, b"\0")
    return _HEADER.pack(_FATBIN_MAGIC, 1, _HEADER.size, len(entry) + len(payload)) + entry + payload


def _no_ptx_in_elf(image: bytes) -> ImageError:
    if len(image) >= 20 and struct.unpack_from("<H", image, 18)[0] == _ELF_MACHINE_CUDA:
        return ImageError(
            NO_BINARY_FOR_GPU,
            "a cubin holds GPU machine code: the software GPU runs PTX (nvcc -ptx, or -fatbin with PTX)",
        )
    return ImageError(INVALID_IMAGE, "the image is an object file of another machine, not GPU code")


class Entry(NamedTuple):
    """One image in a fatbin.

    compression: the bits of its flags for the method of compression; 0: uncompressed. whole_bytes: the length before
    compression, which the header of an LZ4 entry holds; else 0.
    """

    kind: int
    compression: int
    payload: bytes
    whole_bytes: int = 0

    def content(self) -> bytes:
        """Return the image, decompressed.

        Raises:
            ImageError: the compression is unknown or cannot be read here, or the image is corrupt.
        """
        if not self.compression:
            return self.payload
        try:
            if self.compression == _LZ4:
                return _from_lz4(self.payload, self.whole_bytes)
            if self.compression == _ZSTANDARD:
                return _from_zstandard(self.payload)
        except ImportError as error:  # a GPU's own driver needs no such package
            raise ImageError(
                NO_BINARY_FOR_GPU, f"this fatbin is compressed, and what decompresses it is not installed: {error}"
            ) from error
        raise ImageError(
            NO_BINARY_FOR_GPU, f"the PTX in this fatbin is compressed in an unknown way, {self.compression:#x}"
        )


def entries(image: bytes) -> Iterator[Entry]:
    """Yield the entries of a fatbin.

    Raises:
        ImageError: the fatbin is cut off or corrupt.
    """
    if len(image) < _HEADER.size:
        raise ImageError(INVALID_IMAGE, "the fatbin is cut off")
    _, _, start, length = _HEADER.unpack_from(image)
    if start < _HEADER.size or start + length > len(image):
        raise ImageError(INVALID_IMAGE, f"the fatbin is cut off: {start + length} bytes announced, {len(image)} there")
    position, end = start, start + length
    while position + _ENTRY.size <= end:
        kind, _, header, payload = _ENTRY.unpack_from(image, position)
        if header < _ENTRY.size or position + header + payload > end:
            raise ImageError(INVALID_IMAGE, "the fatbin is corrupt: an entry reaches beyond its end")
        flags = struct.unpack_from("<Q", image, position + _FLAGS_OFFSET)[0] if header >= _FLAGS_OFFSET + 8 else 0
        stored = struct.unpack_from("<I", image, position + _STORED_BYTES_OFFSET)[0] if flags & _COMPRESSED else 0
        has_length = flags & _COMPRESSED == _LZ4 and header >= _WHOLE_BYTES_OFFSET + 8
        whole = struct.unpack_from("<Q", image, position + _WHOLE_BYTES_OFFSET)[0] if has_length else 0
        begin = position + header
        yield Entry(kind, flags & _COMPRESSED, image[begin : begin + min(stored or payload, payload)], whole)
        position = begin + payload


def _from_fatbin(image: bytes) -> bytes:
    for entry in entries(image):
        if entry.kind == PTX_KIND:
            return entry.content()
    raise ImageError(NO_BINARY_FOR_GPU, "this fatbin holds no PTX, which is what the software GPU runs")


def _from_lz4(content: bytes, whole_bytes: int) -> bytes:
    import lz4.block

    if whole_bytes > _LARGEST_PTX_BYTES:
        raise ImageError(INVALID_IMAGE, f"the PTX in this fatbin claims more than {_LARGEST_PTX_BYTES} bytes")
    try:
        return bytes(lz4.block.decompress(content, uncompressed_size=whole_bytes))
    except lz4.block.LZ4BlockError as error:
        raise ImageError(INVALID_IMAGE, f"the PTX in this fatbin cannot be decompressed: {error}") from error


def _from_zstandard(content: bytes) -> bytes:
    import zstandard

    try:
        if zstandard.frame_content_size(content) > _LARGEST_PTX_BYTES:
            raise ImageError(INVALID_IMAGE, f"the PTX in this fatbin claims more than {_LARGEST_PTX_BYTES} bytes")
        return zstandard.ZstdDecompressor().decompress(content, max_output_size=_LARGEST_PTX_BYTES)
    except zstandard.ZstdError as error:
        raise ImageError(INVALID_IMAGE, f"the PTX in this fatbin cannot be decompressed: {error}") from error
