"""Libraries: known by content, and refused when truncated."""

from __future__ import annotations

import copy
import pickle
import struct
from pathlib import Path

import pytest

import kaas
from kaas.errors import CorruptImage
from kaas.ktask.images import described
from kaas.ktask.library import Image
from tests.ktask.strategies import PTX


def cubin(sections: int = 4, machine: int = 190) -> bytes:
    """Return an ELF header and as many empty section headers as it announces."""
    header = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 0, 64, 0, 64, 0, 0, 64, sections, 0)
    return header + bytes(64 * sections)


def fatbin(body: int = 100) -> bytes:
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, body) + bytes(body)


def test_content_is_identity() -> None:
    assert kaas.Library.from_ptx(PTX) == kaas.Library.from_ptx(PTX.encode() + b"\0\0")
    assert kaas.Library.from_ptx(PTX) != kaas.Library.from_ptx(PTX + "//")
    assert (
        kaas.Library.from_ptx(PTX).hash == "aeae2e572eba5b1f316acb5a2ef12e917ac4fe367a6e803fb2ab638f23a51b69"
    )  # frozen, as the hashes of kTasks are


def test_files_of_one_name_do_not_collide(tmp_path: Path) -> None:
    for folder, text in (("one", PTX), ("two", PTX + "// two")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.cubin").write_text(text)  # the bytes decide what it is, not the suffix
    one, two = (kaas.Library.from_file(tmp_path / folder / "a.cubin") for folder in ("one", "two"))
    assert one != two
    assert [image.kind for image in one.images] == ["ptx"]


@pytest.mark.parametrize(("kind", "data"), [("ptx", PTX.encode()), ("cubin", cubin()), ("fatbin", fatbin())])
def test_from_file_recognises_the_kind_of_an_image(kind: str, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(data)
    library = kaas.Library.from_file(path)
    assert [(image.kind, image.data) for image in library.images] == [(kind, data)]
    assert library == getattr(kaas.Library, f"from_{kind}")(data)
    assert library.nbytes == len(data)


def test_union_keeps_order_and_drops_duplicates() -> None:
    both = kaas.Library.from_cubin(cubin()) | kaas.Library.from_ptx(PTX)
    assert [image.kind for image in both.images] == ["cubin", "ptx"]
    assert both | kaas.Library.from_ptx(PTX) == both


def test_copies_are_equal() -> None:
    library = kaas.Library.from_cubin(cubin()) | kaas.Library.from_ptx(PTX)
    for copied in (pickle.loads(pickle.dumps(library)), copy.deepcopy(library)):
        assert copied == library
        assert copied.images == library.images


@pytest.mark.parametrize("cut", [0, 3, 20, 63, 100, -1])
def test_truncated_cubins_are_refused(cut: int) -> None:
    with pytest.raises(CorruptImage):
        kaas.Library.from_cubin(cubin()[:cut])


@pytest.mark.parametrize("cut", [0, 3, 15, 50, -1])
def test_truncated_fatbins_are_refused(cut: int) -> None:
    with pytest.raises(CorruptImage):
        kaas.Library.from_fatbin(fatbin()[:cut])


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", PTX[: PTX.index("}")].encode(), b"int main() {}", b".version 9.0"])
def test_malformed_ptx_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptImage):
        kaas.Library.from_ptx(data)


def test_braces_in_comments_and_strings_do_not_count() -> None:
    kaas.Library.from_ptx(PTX + '// {{{ \n/* { \n { */\n.file 1 "{"\n')


def test_cubin_of_another_machine_is_refused() -> None:
    with pytest.raises(CorruptImage, match="62"):
        kaas.Library.from_cubin(cubin(machine=62))


def test_a_library_needs_images_of_known_kinds() -> None:
    with pytest.raises(CorruptImage):
        kaas.Library(())
    with pytest.raises(CorruptImage, match="hsaco"):
        kaas.Library((Image("hsaco", b""),))


def test_provided_code_is_a_name() -> None:
    named = kaas.Library.provided("blas", "sgemm_nn", "1.0")
    assert [(image.kind, image.data) for image in named.images] == [("provided", b"blas\0sgemm_nn\0001.0")]
    assert named == kaas.Library.provided("blas", "sgemm_nn", "1.0")
    assert (
        len({named, *(kaas.Library.provided(*p) for p in (("bla", "ssgemm_nn", "1.0"), ("blas", "sgemm_nn", "1")))})
        == 3
    )
    assert [described(image) for image in (named | kaas.Library.from_ptx(PTX)).images] == [
        "sgemm_nn of blas 1.0, provided where it runs",
        f"ptx of {len(PTX)} bytes",
    ]
    launch = named.kernel("sgemm", grid=1, block=32, args=[kaas.i32(1)])  # its kernels are not known here
    assert (launch.library, launch.symbol) == (named, "sgemm")


@pytest.mark.parametrize(
    "names",
    [
        ("", "n", "1"),
        ("p", "n\0m", "1"),
        ("p", "n", "1 "),
        ("p", "ñ", "1"),
        ("p", "n", "1" * 201),
        ("p", "n", None),
        ("\ud800", "n", "1"),
    ],
)
def test_names_of_provided_code_are_plain(names: tuple[str, str, str]) -> None:
    with pytest.raises(CorruptImage, match="provided code is named by"):
        kaas.Library.provided(*names)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        kaas.Library.from_file(tmp_path / "nothing.ptx")
