"""Turns LLVM IR into machine code and puts machine code into this process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm

from softgpu.target import ENTRY, GLOBALS, Target

# More costs twice the compile time and gains nothing on vector code written out in full.
_LEVEL = 1

# LLVM knows symbols by name for the whole process; two runners in one process have the same names.
_linking = threading.Lock()


def _machine(target: Target) -> llvm.TargetMachine:
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=target.cpu, features=target.features, opt=_LEVEL, reloc="static", codemodel="jitdefault", jit=True
    )


def assemble(text: str, target: Target) -> bytes:
    """The object file of a module in LLVM IR; it holds no addresses of this process.

    Threads do not wait for each other: the module has a context of its own, and LLVM shares nothing between contexts.
    """
    context = llvm.create_context()
    module = llvm.parse_assembly(text, context)
    machine = _machine(target)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=_LEVEL))
    passes = _passes()
    run = _unlocked("LLVMPY_RunNewFunctionPassManager")
    for function in module.functions:
        if not function.is_declaration:
            run(passes, function, builder)
    code = _emit(machine, module)
    module.close()
    return code


def _passes() -> llvm.FunctionPassManager:
    """Registers out of memory, and patterns that the code generator is to see as one. The code is written in full where
    it is made, so LLVM's own pipeline of thrice the time finds nothing more in it."""
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    return passes


def _emit(machine: llvm.TargetMachine, module: llvm.ModuleRef) -> bytes:
    with llvm.ffi.OutputString() as error:
        buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, error)
        if not buffer:
            raise RuntimeError(str(error))
    try:
        return ctypes.string_at(llvm.ffi.lib.LLVMPY_GetBufferStart(buffer), llvm.ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        llvm.ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _unlocked(name: str) -> Any:
    """A function of llvmlite's without its lock, which lets one thread at a time into LLVM, whatever its context."""
    return getattr(llvm.ffi.lib, name)._cfn


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
