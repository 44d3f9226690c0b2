"""Turns LLVM IR into machine code, and loads machine code into this process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm

from softgpu.target import ENTRY, GLOBALS, Target

# A higher level doubles the compile time, and gains nothing: the vector code is complete already.
_LEVEL = 1

# LLVM's symbols are global in the process, and two runners in one process have the same names.
_linking = threading.Lock()


# Registers that live long in code of many branches meet in phi nodes, and with them the time of LLVM's passes and of
# its register allocation grows faster than the code. CUTLASS's largest kernels have 1,300 of them.
_MOST_PHIS = 10_000


def _machine(target: Target) -> llvm.TargetMachine:
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=target.cpu, features=target.features, opt=_LEVEL, reloc="static", codemodel="jitdefault", jit=True
    )


def assemble(text: str, target: Target) -> bytes:
    """Return the object file of a module in LLVM IR; it holds no addresses of this process.

    Code in which too many variables would meet after branches keeps them in memory: it runs slower, and is compiled in
    a time that grows with its length only.

    Threads do not wait for each other: the module has a context of its own, and LLVM shares nothing between contexts.
    """
    context = llvm.create_context()
    machine = _machine(target)
    module = llvm.parse_assembly(text, context)
    _run(machine, module, _to_registers())
    if str(module).count(" = phi ") > _MOST_PHIS:
        module.close()
        module = llvm.parse_assembly(text, context)
    else:
        _run(machine, module, _combined())
    code = _emit(machine, module)
    module.close()
    return code


# LLVM's own pipeline takes three times as long as these two, and finds nothing more: the generated code is complete.


def _to_registers() -> llvm.FunctionPassManager:
    """Return passes that move variables from memory to registers."""
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    return passes


def _combined() -> llvm.FunctionPassManager:
    """Return passes that combine instructions."""
    passes = llvm.create_new_function_pass_manager()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    return passes


def _run(machine: llvm.TargetMachine, module: llvm.ModuleRef, passes: llvm.FunctionPassManager) -> None:
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=_LEVEL))
    run = _unlocked("LLVMPY_RunNewFunctionPassManager")
    for function in module.functions:
        if not function.is_declaration:
            run(passes, function, builder)


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
    """Return a function of llvmlite without llvmlite's lock, which admits one thread at a time for all contexts."""
    return getattr(llvm.ffi.lib, name)._cfn


@dataclass(slots=True, weakref_slot=True)
class Loaded:
    """Machine code in memory, as long as this object lives. entry: the address of the kernel's function."""

    engine: llvm.ExecutionEngine
    entry: int


def place(code: bytes, target: Target, symbols: Mapping[str, int], globals_address: int | None) -> Loaded:
    """Load an object file.

    symbols: addresses of the functions that it calls. globals_address: address of the module's variables; None if the
    code uses none.
    """
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
