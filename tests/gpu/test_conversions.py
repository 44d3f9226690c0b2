"""NaN becomes the same integers on a GPU and on the software GPU (PTX ISA, cvt)."""

from __future__ import annotations

import numpy as np
import pytest

import kaas
from kaas.config import Device
from kaas.executor.local import run_local

TYPES = [f"{sign}{bits}" for bits in (8, 16, 32, 64) for sign in "su"]
NANS = {"f16": "mov.b16 %f16, 0x7E00;", "f32": "mov.f32 %f32, 0f7FC00000;", "f64": "mov.f64 %f64, 0d7FF8000000000000;"}


def conversions(real: str) -> kaas.KTask:
    """Return a kTask that converts a NaN to each type; out[i] holds the bits of TYPES[i]."""
    lines = []
    for place, name in enumerate(TYPES):
        target = "%wide" if name.endswith("64") else "%narrow"
        lines += [f"cvt.rzi.{name}.{real} {target}, %{real};", f"st.global.u{name[1:]} [%out+{8 * place}], {target};"]
    ptx = f"""
.version 7.3
.target sm_80
.address_size 64
.visible .entry convert(.param .u64 out)
{{
 .reg .b16 %f16;
 .reg .f32 %f32;
 .reg .f64 %f64;
 .reg .b32 %narrow;
 .reg .b64 %wide, %out;
 ld.param.u64 %out, [out];
 {NANS[real]}
 {" ".join(lines)}
 ret;
}}
"""
    out = kaas.Buffer("out", len(TYPES), "uint64", init="zero")
    return kaas.KTask([kaas.Kernel(kaas.Library.from_ptx(ptx), "convert", 1, 1, [kaas.InOut(out)])], [out])


@pytest.mark.parametrize("real", NANS)
def test_nan_becomes_zero_or_the_highest_bit(kind: str, real: str) -> None:
    found = run_local(conversions(real), {}, device=Device(kind))["out"]
    highest = [1 << (int(name[1:]) - 1) if "64" in (name[1:], real[1:]) else 0 for name in TYPES]
    np.testing.assert_array_equal(found, np.array(highest, np.uint64), err_msg=str(TYPES))
