"""The CPU that kernels are compiled for, as far as code generation depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm


@dataclass(frozen=True, slots=True)
class Target:
    cpu: str
    features: str
    masked_bits: int  # vectors of elements at least this wide can be loaded and stored under a mask; 0: none can
    has_half: bool

    @property
    def key(self) -> str:
        """Names the machine code this target gives."""
        return f"{llvm.get_default_triple()} {self.cpu} {self.features} llvm{llvm.llvm_version_info}"


@cache
def host() -> Target:
    """This machine. Initialises LLVM's code generator for it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    masked = 8 if features.get("avx512bw") and features.get("avx512vl") else 32 if features.get("avx2") else 0
    half = bool(features.get("f16c")) or llvm.get_default_triple().startswith("aarch64")
    return Target(llvm.get_host_cpu_name(), features.flatten(), masked, half)
