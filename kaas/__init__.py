"""KaaS: graphs of precompiled GPU kernels as serverless functions on Ray. Public names, nothing else."""

from __future__ import annotations

from kaas.arguments import Buffer, In, InOut, Literal, Null, Out, Pointers, Scalar, Struct
from kaas.errors import KaasError
from kaas.graph import KTask
from kaas.kernel import Kernel
from kaas.library import Library
from kaas.literals import bf16, boolean, c64, c128, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from kaas.request import View

__all__ = [
    "Buffer", "In", "InOut", "KTask", "KaasError", "Kernel", "Library", "Literal", "Null", "Out", "Pointers", "Scalar",
    "Struct", "View", "bf16", "boolean", "c128", "c64", "f16", "f32", "f64", "i16", "i32", "i64", "i8", "u16", "u32",
    "u64", "u8",
]  # fmt: skip
