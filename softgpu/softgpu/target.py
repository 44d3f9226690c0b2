"""The CPU that kernels are compiled for, as far as code generation depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

ENTRY = "sg_kernel"
GLOBALS = "sg_globals"
"""Names in the code of every kernel: its function, and the variable with the address of its module's variables."""

PROBES = '"probe-stack"="inline-asm"'
"""The attribute of every function: it touches the pages of its frame in turn, so none lies beyond a guard."""


@dataclass(frozen=True, slots=True)
class Target:
    """A processor as LLVM names it, and the two properties that code generation depends on."""

    cpu: str
    features: str
    masked_bits: int  # vectors of elements at least this wide can be loaded and stored under a mask; 0: none can
    has_half: bool

    @property
    def has_mask_registers(self) -> bool:
        """Return True if an access under a mask costs the same as one without a mask (AVX-512)."""
        return self.masked_bits == 8

    @property
    def vectors(self) -> str:
        """Return the name of the vector instructions that 32 lanes become; they decide how fast kernels run."""
        return {8: "AVX-512", 32: "AVX2"}.get(self.masked_bits, "no masks")

    @property
    def key(self) -> str:
        """Return a name for the machine code of this target, as part of a cache key."""
        return f"{llvm.get_default_triple()} {self.cpu} {self.features} llvm{llvm.llvm_version_info}"


@cache
def of(name: str) -> Target:
    """Return the processor with this LLVM name, such as "x86-64-v3", with exactly its features.

    Code for it runs here only if this machine has these features.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    has_avx2 = name in ("x86-64-v3", "x86-64-v4")
    masked = 8 if name == "x86-64-v4" else 32 if has_avx2 else 0
    return Target(name, "", masked, has_avx2)


@cache
def host() -> Target:
    """Return this machine's processor, and initialise LLVM's code generator for it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    masked = 8 if features.get("avx512bw") and features.get("avx512vl") else 32 if features.get("avx2") else 0
    half = bool(features.get("f16c")) or llvm.get_default_triple().startswith("aarch64")
    return Target(llvm.get_host_cpu_name(), features.flatten(), masked, half)
