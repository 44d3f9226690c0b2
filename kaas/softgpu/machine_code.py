"""Turns LLVM IR into machine code and puts machine code into this process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import llvmlite.binding as llvm

from kaas.softgpu.codegen.kernel import ENTRY, GLOBALS
from kaas.softgpu.target import Target

# More costs twice the compile time and gains nothing on vector code written out in full.
_LEVEL = 1

# LLVM knows symbols by name for the whole process; two runners in one process have the same names.
_linking = threading.Lock()


def _machine(target: Target) -> llvm.TargetMachine:
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=target.cpu, features=target.features, opt=_LEVEL, reloc="static", codemodel="jitdefault", jit=True
    )


def assemble(text: str, target: Target) -> bytes:
    """The object file of a module in LLVM IR; it holds no addresses of this process."""
    module = llvm.parse_assembly(text)
    machine = _machine(target)
    options = llvm.create_pipeline_tuning_options(speed_level=_LEVEL)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    code: bytes = machine.emit_object(module)
    return code


@dataclass(slots=True)
class Loaded:
    """Machine code in memory, for as long as this object lives."""

    engine: llvm.ExecutionEngine
    entry: int

    def close(self) -> None:
        self.engine.close()


def place(code: bytes, target: Target, symbols: Mapping[str, int], globals_address: int | None) -> Loaded:
    """Loads an object file. symbols: addresses of the functions that it calls; globals_address: of the module's
    variables."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(target))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    with _linking:
        for name, address in symbols.items():
            llvm.add_symbol(name, address)
        engine.finalize_object()
    if globals_address is not None:
        slot = engine.get_global_value_address(GLOBALS)
        ctypes.c_uint64.from_address(slot).value = globals_address
    return Loaded(engine, engine.get_function_address(ENTRY))
