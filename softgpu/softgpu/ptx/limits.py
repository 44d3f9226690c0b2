"""How large a program may be: beyond these it is refused when it is loaded, not when memory or patience ends."""

from __future__ import annotations

from softgpu.ptx.kernel import Kernel
from softgpu.ptx.model import PtxError, Variable

TEXT_CHARACTERS = 64 << 20
STATEMENTS = 1 << 21  # of a module, empty ones and directives included
OPERANDS_CHARACTERS = 1 << 15  # of an instruction
SCOPES = 64  # within each other, in a function
INITIAL_VALUES = 1 << 22  # of a variable
BRACKETS = 16  # that open in an instruction
LIVE_BITS = 1 << 31  # basic blocks of a kernel times its registers
LOOP_WORK = 1 << 19  # basic blocks, each counted once for every loop around it
REGISTERS = 1 << 18  # of a kernel, those of the functions it calls included
INSTRUCTIONS = 1 << 17  # of a kernel, with calls expanded
CALL_DEPTH = 48
GLOBAL_BYTES = 256 << 20  # .global and .const of a module
SHARED_BYTES = 227 << 10  # declared by a kernel, as the largest GPUs have
LOCAL_BYTES = 512 << 10  # of a thread, as CUDA has it
STACK_BYTES = 64 << 10  # of a thread, for what it takes with alloca
PARAMETER_BYTES = 32764  # as CUDA has it
SHARED_ALIGN = 1024  # where a block's shared memory starts; also in runtime/abi.h
LOCAL_ALIGN = 1024
GLOBAL_ALIGN = 256  # where a module's variables start


def check_text(characters: int) -> None:
    if characters > TEXT_CHARACTERS:
        raise PtxError(1, f"more than {TEXT_CHARACTERS} characters")


def check_statements(count: int, line: int) -> None:
    if count > STATEMENTS:
        raise PtxError(line, f"more than {STATEMENTS} statements")


def check_scopes(depth: int, line: int) -> None:
    if depth > SCOPES:
        raise PtxError(line, f"more than {SCOPES} scopes within each other")


def check_operands(text: str, line: int) -> None:
    """Of one instruction; reading them takes longer the more brackets open."""
    if len(text) > OPERANDS_CHARACTERS:
        raise PtxError(line, f"an instruction of more than {OPERANDS_CHARACTERS} characters")
    if sum(text.count(bracket) for bracket in "[{(") > BRACKETS:
        raise PtxError(line, f"more than {BRACKETS} brackets in an instruction")


def check_initialiser(text: str, line: int) -> None:
    if text.count(",") >= INITIAL_VALUES:
        raise PtxError(line, f"more than {INITIAL_VALUES} initial values")


def check_flow(blocks: int, registers: int) -> None:
    if blocks * registers > LIVE_BITS:
        raise PtxError(0, f"{blocks} basic blocks with {registers} registers: more than {LIVE_BITS} of both together")


def check_loops(work: int) -> None:
    if work > LOOP_WORK:
        raise PtxError(0, "too many loops within each other")


def check_registers(count: int, line: int) -> None:
    if count > REGISTERS:
        raise PtxError(line, f"more than {REGISTERS} registers")


def check_expansion(instructions: int, depth: int, line: int) -> None:
    """While calls are expanded: trees of calls grow without a bound."""
    if instructions > INSTRUCTIONS:
        raise PtxError(line, f"more than {INSTRUCTIONS} instructions once calls are expanded")
    if depth > CALL_DEPTH:
        raise PtxError(line, f"calls more than {CALL_DEPTH} deep")


def check_variable(variable: Variable, end: int) -> None:
    """end: bytes of the module's variables with this one."""
    if end > GLOBAL_BYTES:
        raise PtxError(variable.line, f"more than {GLOBAL_BYTES} bytes of .global and .const variables")
    check_align(variable, GLOBAL_ALIGN)


def check_align(variable: Variable, most: int) -> None:
    if variable.align < 1 or variable.align & (variable.align - 1):
        raise PtxError(variable.line, f"alignment {variable.align} of {variable.name} is no power of two")
    if variable.align > most:
        raise PtxError(variable.line, f"alignment {variable.align} of {variable.name} is above {most}")


def check_kernel(kernel: Kernel, line: int) -> None:
    sizes = (
        ("shared", kernel.shared_bytes, SHARED_BYTES),
        ("local", kernel.local_bytes, LOCAL_BYTES),
        ("parameter", kernel.param_bytes, PARAMETER_BYTES),
    )
    for what, size, most in sizes:
        if size > most:
            raise PtxError(line, f"{kernel.name} has {size} bytes of {what} memory, more than {most}")
    check_registers(len(kernel.registers), line)


def align_up(offset: int, align: int) -> int:
    return (offset + align - 1) // align * align
