"""Code images: PTX, cubin and fatbin, each checked to be whole and of its kind; and names of providers' code."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from kaas.errors import CorruptImage

ELF = b"\x7fELF"
_EM_CUDA = 190
FATBIN = b"\x50\xed\x55\xba"
_FATBIN_HEADER_BYTES = 16
PROVIDED = "provided"
_FILES = (".ptx", ".cubin", ".fatbin")
_NAME = re.compile(r"[\x21-\x7e]{1,200}")
PTX_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?(?:\*/|\Z)|"[^"\n]*"', re.DOTALL)
"""A comment without an end reaches to the end of the text: else each later match would search up to there again."""


@dataclass(frozen=True, slots=True, order=True)
class Image:
    """One code image. Of several in a library the device takes the first that it can run.

    Fields:
        kind: "ptx", "cubin" or "fatbin"; or "provided": the image names code that a provider has on the machine that
            runs it (`kaas.code.providers`).
    """

    kind: str
    data: bytes = field(repr=False)


class Provided(NamedTuple):
    """The name of code that an installed package provides."""

    provider: str
    name: str
    version: str

    def image(self) -> Image:
        """Return the code image that stands for the name."""
        return Image(PROVIDED, "\0".join(self).encode(errors="surrogatepass"))

    @classmethod
    def of(cls, image: Image) -> Provided:
        """Return the name of a checked image: the inverse of `image`."""
        return cls(*image.data.decode().split("\0"))


def described(image: Image) -> str:
    """Return an image in words, for people."""
    if image.kind == PROVIDED:
        named = Provided.of(image)
        return f"{named.name} of {named.provider} {named.version}, provided where it runs"
    return f"{image.kind} of {len(image.data):,} bytes"


def check(image: Image) -> None:
    """Check that a code image is whole and of its kind.

    Raises:
        CorruptImage: its bytes are not of its kind or end too early.
    """
    checks = {"ptx": _check_ptx, "cubin": _check_cubin, "fatbin": _check_fatbin, PROVIDED: _check_provided}
    if image.kind not in checks:
        raise CorruptImage(f"no such kind of code image: {image.kind!r}; the kinds are {', '.join(checks)}")
    checks[image.kind](image.data)


def _check_ptx(data: bytes) -> None:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CorruptImage(f"this is neither PTX text nor a cubin nor a fatbin: {error}") from error
    if ".version" not in text or ".target" not in text:
        raise CorruptImage(f"PTX text needs .version and .target; found none: {_instead(text)}")
    unmatched = _unmatched(text)
    for found in PTX_COMMENT_OR_STRING.finditer(text):  # not `sub`, which no other thread could interrupt
        unmatched -= _unmatched(found.group())
    if unmatched:
        raise CorruptImage("PTX text whose braces do not match: truncated?")


def _instead(text: str) -> str:
    """Return a hint for a text that is no PTX: the call that may have been meant."""
    if "__global__" in text:
        return "this is CUDA C++, which kaas.Library.from_cuda(source) compiles"
    if "\n" not in text and text.endswith(_FILES):
        return f"{text!r} is the name of a file, which kaas.Library.from_file(path) reads"
    return "truncated, or not PTX"


def _unmatched(text: str) -> int:
    """Return the number of opening braces minus the number of closing ones."""
    return text.count("{") - text.count("}")


def _check_cubin(data: bytes) -> None:
    if len(data) < 64 or not data.startswith(ELF):
        raise CorruptImage("a cubin is an ELF file; this one has no ELF header")
    machine = int.from_bytes(data[18:20], "little")
    if machine != _EM_CUDA:
        raise CorruptImage(f"a cubin is ELF for machine {_EM_CUDA} (CUDA); this is for machine {machine}")
    section_table = int.from_bytes(data[40:48], "little")
    section_bytes = int.from_bytes(data[58:60], "little") * int.from_bytes(data[60:62], "little")
    if len(data) < section_table + section_bytes:
        raise CorruptImage(
            f"truncated cubin: {len(data)} bytes, its section table ends at {section_table + section_bytes}"
        )


def _check_fatbin(data: bytes) -> None:
    if not data.startswith(FATBIN):
        raise CorruptImage("a fatbin starts with 50 ed 55 ba; this does not")
    header = int.from_bytes(data[6:8], "little")
    body = int.from_bytes(data[8:16], "little")
    if header < _FATBIN_HEADER_BYTES or len(data) < header + body:
        raise CorruptImage(f"truncated fatbin: {len(data)} bytes, its header announces {header + body}")


def _check_provided(data: bytes) -> None:
    parts = data.split(b"\0")
    if len(parts) != len(Provided._fields) or not all(_NAME.fullmatch(part.decode("latin-1")) for part in parts):
        raise CorruptImage(
            f"provided code is named by {', '.join(Provided._fields)}, each of 1 to 200 visible ASCII characters; "
            f"this is {data[:100]!r}"
        )
