"""CUDA C++ compiled by NVRTC: targets, names, headers, and errors of a source that does not compile."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda import pathfinder
from cuda.bindings import nvrtc as bindings

import kaas
from kaas.code import nvrtc
from kaas.errors import ArgumentMismatch, CompileFailed, InvalidTarget, UnknownSymbol, UnsupportedCode

SOURCE = """
template <class T> __global__ void scale(T *values, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) values[i] *= FACTOR;
}
extern "C" __global__ void plain(float *values) { values[threadIdx.x] = FACTOR; }
"""
TWICE = ["-DFACTOR=2"]


def ptx_of(library: kaas.Library) -> str:
    (text,) = (image.data.decode() for image in library.images if image.kind == "ptx")
    return text


@pytest.mark.parametrize(
    ("arch", "kinds", "ptx"),
    [
        ("sm_80+ptx", ["cubin", "ptx"], "sm_80"),
        ("sm_80", ["cubin"], None),
        ("ptx", ["ptx"], "sm_80"),
        ("compute_90", ["ptx"], "sm_90"),
        ("sm_90a+sm_80+ptx", ["cubin", "cubin", "ptx"], "sm_80"),
        ("sm_80+compute_75", ["cubin", "ptx"], "sm_75"),
    ],
)
def test_target(arch: str, kinds: list[str], ptx: str | None) -> None:
    library = kaas.Library.from_cuda(SOURCE, arch, options=TWICE)
    assert [image.kind for image in library.images] == kinds
    assert ptx is None or f".target {ptx}\n" in ptx_of(library)


@pytest.mark.parametrize("arch", ["", "sm80", "sm_80+", "sm_80+ptx+compute_90", "sm_30", "ptx_80"])
def test_no_such_target(arch: str) -> None:
    with pytest.raises(InvalidTarget) as raised:
        kaas.Library.from_cuda(SOURCE, arch, options=TWICE)
    assert raised.value.target == arch


def test_same_source_is_the_same_library() -> None:
    one, two = (kaas.Library.from_cuda(SOURCE, options=TWICE) for _ in range(2))
    assert one == two
    assert one != kaas.Library.from_cuda(SOURCE, options=["-DFACTOR=3"])


def test_names_instantiate_templates() -> None:
    library = kaas.Library.from_cuda(SOURCE, names=["scale<float>", "scale<int>", "plain"], options=TWICE)
    symbols = {entry.name: entry.symbol for entry in library.entries}
    assert symbols == {"scale<float>": "_Z5scaleIfEvPT_i", "scale<int>": "_Z5scaleIiEvPT_i", "plain": "plain"}
    assert all(symbol in ptx_of(library) for symbol in symbols.values())


@pytest.mark.parametrize(("asked", "hint"), [("scale", "scale<...>"), ("scale<double>", "scale<double>")])
def test_a_template_without_instances_names_the_way_to_one(asked: str, hint: str) -> None:
    library = kaas.Library.from_cuda(SOURCE, options=TWICE)
    with pytest.raises(UnknownSymbol, match=re.escape(f"from_cuda(names=['{hint}'])")):
        library.kernel(asked, grid=1, block=32, args=[])


def test_a_name_that_fits_no_kernel_or_several_names_the_kernels_as_the_source_does() -> None:
    library = kaas.Library.from_cuda(SOURCE, names=["scale<float>", "scale<int>"], options=TWICE)
    with pytest.raises(UnknownSymbol, match="several kernels 'scale': 'scale<float>' and 'scale<int>'; name one"):
        library.kernel("scale", grid=1, block=32, args=[])
    with pytest.raises(UnknownSymbol, match="did you mean 'scale<float>' or 'scale<int>'"):
        library.kernel("scael", grid=1, block=32, args=[])


@pytest.mark.usefixtures("softgpu")
def test_errors_of_a_launch_name_the_kernel_as_the_source_does() -> None:
    library = kaas.Library.from_cuda(SOURCE, names=["scale<float>", "scale<int>"], options=TWICE)
    x = kaas.Buffer("x", 32, "float32")
    launch = library.kernel("scale<float>", grid=1, block=32, args=[kaas.InOut(x)])
    with pytest.raises(ArgumentMismatch, match=r"^kernel 'scale<float>' takes 2 arguments, not 1") as raised:
        kaas.run_local(kaas.KTask([launch], [x]), {"x": np.zeros(32, np.float32)}, device=kaas.Device("software"))
    assert raised.value.symbol == "_Z5scaleIfEvPT_i"
    named = kaas.Kernel(library, "scale<float>", 1, 32, [kaas.InOut(x)])
    with pytest.raises(UnknownSymbol, match=r"library\.kernel\('scale<float>', \.\.\.\) takes C\+\+ names"):
        kaas.run_local(kaas.KTask([named], [x]), {"x": np.zeros(32, np.float32)}, device=kaas.Device("software"))


@pytest.mark.usefixtures("softgpu")
def test_code_for_other_devices_alone_says_how_to_add_ptx() -> None:
    library = kaas.Library.from_cuda(SOURCE, "sm_90", options=TWICE)
    x = kaas.Buffer("x", 32, "float32")
    task = kaas.KTask([library.kernel("plain", grid=1, block=32, args=[kaas.InOut(x)])], [x])
    with pytest.raises(UnsupportedCode, match=r'from_cuda\(source, arch="sm_80\+ptx"\) makes both'):
        kaas.run_local(task, {"x": np.zeros(32, np.float32)}, device=kaas.Device("software"))


def test_headers_given_by_name_and_by_folder(tmp_path: Any) -> None:
    (tmp_path / "three.h").write_text("#define FACTOR 3.0f\n")
    source = f'#include "three.h"\n{SOURCE}'
    from_folder = kaas.Library.from_cuda(source, include_paths=[tmp_path])
    assert "0f40400000" in ptx_of(from_folder).lower() or "1077936128" in ptx_of(from_folder)
    assert kaas.Library.from_cuda(source, headers={"three.h": "#define FACTOR 3.0f\n"}) == from_folder


@pytest.mark.parametrize("header", ["cuda_fp16.h", "cuda_bf16.h", "mma.h", "cuda/std/cstdint"])
def test_headers_that_nvrtc_brings(header: str) -> None:
    library = kaas.Library.from_cuda(f"#include <{header}>\n{SOURCE}", options=TWICE)
    assert "plain" in ptx_of(library)


def test_headers_that_cannot_be_unpacked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(nvrtc, "cache_root", lambda: tmp_path / "file")
    with pytest.raises(CompileFailed, match=f"its headers, of 25 MB, unpacked to {tmp_path}/file/nvrtc-"):
        kaas.Library.from_cuda(f"#include <mma.h>\n{SOURCE}", options=TWICE)


def test_an_nvrtc_without_headers_takes_those_of_a_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise RuntimeError("Function nvrtcGetBundledHeadersInfo not found")  # as cuda.bindings says of NVRTC 13.0

    (tmp_path / "cuda_fp16.h").write_text("#define FACTOR 5.0f\n")
    folders = {"cudart": str(tmp_path), "cccl": None}
    monkeypatch.setattr(bindings, "nvrtcGetBundledHeadersInfo", missing)
    monkeypatch.setattr(pathfinder, "find_nvidia_header_directory", folders.__getitem__)
    library = kaas.Library.from_cuda(f"#include <cuda_fp16.h>\n{SOURCE}")
    assert library == kaas.Library.from_cuda(SOURCE, options=["-DFACTOR=5.0f"])


@pytest.mark.parametrize(
    ("source", "words", "line"),
    [
        ("__global__ void k() {\n  oops();\n}", 'identifier "oops" is undefined', 2),
        ("#include <nowhere.h>", 'cannot open source file "nowhere.h"', 1),
    ],
)
def test_errors_carry_line_and_log(source: str, words: str, line: int) -> None:
    with pytest.raises(CompileFailed, match=words) as raised:
        kaas.Library.from_cuda(source, name="mine.cu")
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.source, error.line) == ("mine.cu", line)
    assert words in error.log
    assert error.compiler.startswith("NVRTC ")


def test_options_and_names_that_are_refused() -> None:
    with pytest.raises(CompileFailed, match="--no-such-option"):
        kaas.Library.from_cuda(SOURCE, options=["--no-such-option"])
    with pytest.raises(CompileFailed, match="C\\+\\+ names"):
        kaas.Library.from_cuda(SOURCE, names=["nothing<float>"], options=TWICE)


def test_a_single_name_option_or_folder_needs_no_list(tmp_path: Path) -> None:
    (tmp_path / "three.h").write_text("#define FACTOR (3 * THREE)\n")
    source = f'#include "three.h"\n{SOURCE}'
    names, options = ["scale<float>"], ["-DTHREE=1"]
    listed = kaas.Library.from_cuda(source, names=names, options=options, include_paths=[tmp_path])
    for folder in (tmp_path, str(tmp_path)):
        single = kaas.Library.from_cuda(source, names=names[0], options=options[0], include_paths=folder)
        assert (single, single.entries) == (listed, listed.entries)


@pytest.mark.parametrize("source", [SOURCE.encode(), Path("scale.cu"), None])
def test_a_source_is_a_string(source: Any) -> None:
    with pytest.raises(CompileFailed, match="the source is a string, not"):
        kaas.Library.from_cuda(source)


def test_warnings_are_kept() -> None:
    assert "never referenced" in kaas.Library.from_cuda("__global__ void k() { int unused; }", "sm_80").log
    assert not kaas.Library.from_cuda("__global__ void k() {}", "sm_80").log
