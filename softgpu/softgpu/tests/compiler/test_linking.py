"""PTX texts joined into one image: what each declares, another defines; what each keeps to itself stays apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgpu import image
from softgpu.c_interface import CompileError
from softgpu.tests.compiler.harness import HEADER

MAIN = f"""{HEADER}
.extern .func (.param .b32 r) scaled(.param .b32 x);
.extern .global .align 4 .u32 offset;
.global .align 4 .b8 own[8] = {{1, 0, 0, 0, 2, 0, 0, 0}}; // of this text {{ only }}
.visible .entry k(.param .u64 out)
{{
 .reg .b32 %v, %i;
 .reg .b64 %out, %at, %where;
 .file 1 "main.cu"
 .loc 1 3 0
 mov.u32 %i, %tid.x;
 {{
 .param .b32 x;
 .param .b32 r;
 st.param.b32 [x], %i;
 call.uni (r), scaled, (x);
 ld.param.b32 %v, [r];
 }}
 ld.global.u32 %i, [offset];
 add.u32 %v, %v, %i;
 ld.global.u32 %i, [own+4];
 add.u32 %v, %v, %i;
 ld.param.u64 %out, [out];
 mov.u32 %i, %tid.x;
 mul.wide.u32 %at, %i, 4;
 add.u64 %out, %out, %at;
 st.global.u32 [%out], %v;
 ret;
}}
"""
OTHER = f"""{HEADER.replace("8.0", "8.2")}
/* names that the first text has too */
.visible .global .align 4 .u32 offset = 1000;
.global .align 4 .u32 own = 10;
.func (.param .b32 r) helper(.param .b32 x)
{{
 .reg .b32 %v, %w;
 ld.param.b32 %v, [x];
 ld.global.u32 %w, [own];
 mul.lo.u32 %v, %v, %w;
 st.param.b32 [r], %v;
 ret;
}}
.visible .func (.param .b32 r) scaled(.param .b32 x)
{{
 .reg .b32 %v;
 ld.param.b32 %v, [x];
 {{
 .param .b32 a;
 .param .b32 b;
 st.param.b32 [a], %v;
 call.uni (b), helper, (a);
 ld.param.b32 %v, [b];
 }}
 st.param.b32 [r], %v;
 ret;
}}
"""
THIRD = f"""{HEADER}
.weak .func (.param .b32 r) scaled(.param .b32 x)
{{
 st.param.b32 [r], 7;
 ret;
}}
"""


@pytest.mark.parametrize("texts", [(MAIN, OTHER), (OTHER, MAIN), (THIRD, MAIN, OTHER), (MAIN, OTHER, THIRD)])
def test_declarations_meet_definitions_and_private_names_stay_apart(gpu: Any, texts: tuple[str, ...]) -> None:
    joined = gpu.compiler.link([(f"input {number}", text.encode()) for number, text in enumerate(texts)])
    out = np.zeros(32, np.uint32)
    gpu.run(image.ptx_of(joined), "k", 1, 32, out)
    np.testing.assert_array_equal(out, 10 * np.arange(32) + 1002)


def test_one_text_is_linked_unchanged(gpu: Any) -> None:
    joined = gpu.compiler.link([("one", OTHER.encode())])
    assert image.ptx_of(joined) == OTHER


def test_a_name_that_two_texts_define(gpu: Any) -> None:
    with pytest.raises(CompileError, match="offset is defined by more than one of the inputs"):
        gpu.compiler.link([("a", OTHER.encode()), ("b", OTHER.encode())])


def test_an_input_without_ptx_is_named(gpu: Any) -> None:
    with pytest.raises(CompileError, match=r"b: .*neither PTX"):
        gpu.compiler.link([("a", MAIN.encode()), ("b", b"\xff\xfe\xfd")])
