"""A path, the wrong language, or nothing where code is wanted is refused at once, with the call that takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kaas
from kaas.errors import CompileFailed, CorruptImage

CUDA = 'extern "C" __global__ void k(float *x) { x[0] = 1; }\n'
TEMPLATE = "template <typename T> __global__ void k(T *x) { x[0] = 1; }\n"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "no kernel in it; a kernel is a function that is declared __global__"),
        ("__device__ int f() { return 1; }", "no kernel in it"),
        (TEMPLATE, r"a template makes one when it is named, as names=\['scale<float>'\]"),
        ("kernels/scale.cu", r"is the name of a file, not source; pathlib.Path\(path\).read_text\(\)"),
        (Path("scale.cu"), r"a string, not PosixPath; pathlib.Path\(path\).read_text\(\)"),
    ],
)
def test_cuda_sources_without_kernels(source: Any, said: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    with pytest.raises(CompileFailed, match=said):
        kaas.Library.from_cuda(source, "ptx")


@pytest.mark.parametrize("header", ["cuda_runtime.h", "stdio.h", "cstdio"])
def test_a_header_of_host_code_is_left_out(header: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    kernel = 'extern "C" __global__ void k(float *x) { printf("%f", x[threadIdx.x]); }\n'
    with pytest.raises(CompileFailed, match=rf'file "{header}"; leave the line out: NVRTC .*, printf included$'):
        kaas.Library.from_cuda(f"#include <{header}>\n{kernel}", "ptx")
    assert kaas.Library.from_cuda(kernel, "ptx").images
    with pytest.raises(CompileFailed, match=r'file "mine\.h"; what CUDA'):
        kaas.Library.from_cuda(f'#include "mine.h"\n{kernel}', "ptx")


def test_a_source_with_a_kernel_is_accepted() -> None:
    assert kaas.Library.from_cuda(CUDA, "ptx").images
    assert kaas.Library.from_cuda(TEMPLATE, "ptx", names="k<float>").images


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CUDA, r"CUDA C\+\+, which kaas.Library.from_cuda\(source\) compiles"),
        ("kernels/scale.ptx", r"is the name of a file, which kaas.Library.from_file\(path\) reads"),
        (Path("scale.ptx"), r"kaas.Library.from_file\(path\) reads a file"),
    ],
)
def test_a_source_that_is_no_ptx_is_refused(text: Any, said: str) -> None:
    with pytest.raises(CorruptImage, match=said):
        kaas.Library.from_ptx(text)


def test_text_is_no_path() -> None:
    with pytest.raises(CorruptImage, match=r"takes a path, .*\.from_cuda\(source\) .*from_ptx\(text\) PTX"):
        kaas.Library.from_file(CUDA * 100)


def test_a_cuda_file_is_no_code_image(tmp_path: Path) -> None:
    (tmp_path / "scale.cu").write_text(CUDA)
    with pytest.raises(CorruptImage, match="from_cuda"):
        kaas.Library.from_file(tmp_path / "scale.cu")
