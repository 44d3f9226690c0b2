"""One kernel that the software GPU cannot run keeps none of its module's other kernels from running."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kaas
from kaas.errors import UnsupportedCode


def entry(name: str, registers: str, body: str) -> str:
    """A kernel of one argument, whose address is in %y."""
    return f"""
.visible .entry {name}(.param .u64 y)
{{
 {registers}
 .reg .b64 %y;
 ld.param.u64 %y, [y];
 {body}
 ret;
}}
"""


FILL = """mov.u32 %i, %tid.x;
 mul.wide.u32 %at, %i, 4;
 add.u64 %y, %y, %at;
 st.global.u32 [%y], %i;"""
GOOD = entry("fill", ".reg .b32 %i; .reg .b64 %at;", FILL)
BAD = entry("sample", ".reg .b32 %r<4>;", "tex.1d.v4.u32.s32 {%r0, %r1, %r2, %r3}, [%y, {%r0}];")
WIDE = entry("wide", ".reg .b128 %q<2>;", "ld.global.b128 %q0, [%y];")
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


def task(library: kaas.Library, symbol: str) -> kaas.KTask:
    y = kaas.Buffer("y", 32, "uint32")
    return kaas.KTask([kaas.Kernel(library, symbol, 1, 32, [kaas.Out(y)])], [y])


def fills(library: kaas.Library, symbol: str = "fill") -> None:
    """Run a kernel of a library, which stores the number of each thread."""
    np.testing.assert_array_equal(kaas.run_local(task(library, symbol), {})["y"], np.arange(32))


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize("text", [HEAD + GOOD + BAD, HEAD + BAD + GOOD])
def test_an_unsupported_kernel_is_refused_by_name_and_line_and_others_run(text: str) -> None:
    library = kaas.Library.from_ptx(text)
    fills(library)
    line = 1 + text[: text.index("tex.1d")].count("\n")
    with pytest.raises(UnsupportedCode, match=f"kernel sample: .*line {line}: no code for tex, of textures") as caught:
        kaas.run_local(task(library, "sample"), {})
    assert caught.value.kernel == "sample"
    (instruction,) = caught.value.instructions
    assert instruction.startswith(f"line {line}: no code for tex")


@pytest.mark.usefixtures("softgpu")
def test_registers_of_a_kind_that_is_unknown_here_concern_their_kernel_only() -> None:
    library = kaas.Library.from_ptx(HEAD + GOOD + WIDE)
    fills(library)
    with pytest.raises(UnsupportedCode, match=r"kernel wide: .*line \d+: no code for '.reg .b128 %q<2>'"):
        kaas.run_local(task(library, "wide"), {})


LAUNCHES = Path(__file__).parent / "kernels" / "device_runtime.ptx"


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize(
    ("symbol", "words"),
    {
        "launches": "call of __cudaCDP2GetParameterBufferV2, of kernels that launch kernels",
        "copies": "call of __cudaCDP2MemcpyAsync, of kernels that launch kernels",
        "goes_on": "call of cudaGraphLaunch, of kernels that launch graphs",
    }.items(),
)
def test_dynamic_parallelism_as_nvcc_13_compiles_it_is_refused_in_words(symbol: str, words: str) -> None:
    library = kaas.Library.from_file(LAUNCHES)
    with pytest.raises(UnsupportedCode, match=rf"kernel {symbol}: .*line \d+: {words}"):
        kaas.run_local(task(library, symbol), {})
    fills(library)


@pytest.mark.usefixtures("softgpu")
def test_an_image_that_has_every_kernel_is_preferred() -> None:
    """A library with an image for newer GPUs and one that runs here."""
    plain = GOOD.replace("fill", "sample")
    images = [kaas.Library.from_ptx(HEAD + GOOD + BAD).images[0], kaas.Library.from_ptx(HEAD + GOOD + plain).images[0]]
    fills(kaas.Library(tuple(images)), "sample")
