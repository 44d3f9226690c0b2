"""The CPU that kernels are compiled for, as far as code generation depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

ENTRY = "sg_kernel"
GLOBALS = "sg_globals"
"""Names in the code of every kernel: its function, and where the address of its module's variables is put."""


@dataclass(frozen=True, slots=True)
class Target:
    cpu: str
    features: str
    masked_bits: int  # vectors of elements at least this wide can be loaded and stored under a mask; 0: none can
    has_half: bool

    @property
    def has_mask_registers(self) -> bool:
        """Whether an access under a mask costs what one without does (AVX-512)."""
        return self.masked_bits == 8

    @property
    def vectors(self) -> str:
        """The instructions that vectors of 32 lanes become, in a word: what decides how fast kernels run."""
        return {8: "AVX-512", 32: "AVX2"}.get(self.masked_bits, "no masks")

    @property
    def key(self) -> str:
        """Names the machine code this target gives."""
        return f"{llvm.get_default_triple()} {self.cpu} {self.features} llvm{llvm.llvm_version_info}"


@cache
def of(name: str) -> Target:
    """A processor of LLVM's names, such as "x86-64-v3", with what that has and nothing more. Code for it runs here only
    if this machine has as much."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    has_avx2 = name in ("x86-64-v3", "x86-64-v4")
    masked = 8 if name == "x86-64-v4" else 32 if has_avx2 else 0
    return Target(name, "", masked, has_avx2)


@cache
def host() -> Target:
    """This machine. Initialises LLVM's code generator for it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    masked = 8 if features.get("avx512bw") and features.get("avx512vl") else 32 if features.get("avx2") else 0
    half = bool(features.get("f16c")) or llvm.get_default_triple().startswith("aarch64")
    return Target(llvm.get_host_cpu_name(), features.flatten(), masked, half)
