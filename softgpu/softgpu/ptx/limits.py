"""Limits on the size of a program. A larger program is refused when it is loaded, before it uses up memory or time.

Every check raises PtxError.
"""

from __future__ import annotations

from softgpu.ptx.kernel import Kernel
from softgpu.ptx.model import PtxError, Variable

TEXT_CHARACTERS = 64 << 20
STATEMENTS = 1 << 21  # of a module, empty statements and directives included
OPERANDS_CHARACTERS = 1 << 15  # of an instruction
SCOPES = 64  # nested, in a function
INITIAL_VALUES = 1 << 22  # of a variable
BRACKETS = 16  # opening brackets of an instruction
LIVE_BITS = 1 << 31  # basic blocks of a kernel times its registers
LOOP_WORK = 1 << 19  # basic blocks, each counted once for every loop around it
REGISTERS = 1 << 18  # of a kernel, registers of the functions it calls included
INSTRUCTIONS = 1 << 17  # of a kernel, with calls expanded
CALL_DEPTH = 48
GLOBAL_BYTES = 256 << 20  # .global and .const of a module
SHARED_BYTES = 227 << 10  # declared by a kernel; the limit of the largest GPUs
LOCAL_BYTES = 512 << 10  # of a thread; CUDA's limit
STACK_BYTES = 64 << 10  # of a thread, for alloca
PARAMETER_BYTES = 32764  # CUDA's limit
SHARED_ALIGN = 1024  # of the start of a block's shared memory; also in runtime/abi.h
LOCAL_ALIGN = 1024
GLOBAL_ALIGN = 256  # of the start of a module's variables


def check_text(characters: int) -> None:
    """Check the length of a PTX text."""
    if characters > TEXT_CHARACTERS:
        raise PtxError(1, f"more than {TEXT_CHARACTERS} characters")


def check_statements(count: int, line: int) -> None:
    """Check the number of statements of a module."""
    if count > STATEMENTS:
        raise PtxError(line, f"more than {STATEMENTS} statements")


def check_scopes(depth: int, line: int) -> None:
    """Check the nesting of scopes in a function."""
    if depth > SCOPES:
        raise PtxError(line, f"more than {SCOPES} scopes within each other")


def check_operands(text: str, line: int) -> None:
    """Check the text of one instruction; the time to read its operands grows with the number of opening brackets."""
    if len(text) > OPERANDS_CHARACTERS:
        raise PtxError(line, f"an instruction of more than {OPERANDS_CHARACTERS} characters")
    if sum(text.count(bracket) for bracket in "[{(") > BRACKETS:
        raise PtxError(line, f"more than {BRACKETS} brackets in an instruction")


def check_initialiser(text: str, line: int) -> None:
    """Check the number of initial values in a declaration."""
    if text.count(",") >= INITIAL_VALUES:
        raise PtxError(line, f"more than {INITIAL_VALUES} initial values")


def check_flow(blocks: int, registers: int) -> None:
    """Check the product of a kernel's basic blocks and registers, the size of its liveness sets."""
    if blocks * registers > LIVE_BITS:
        raise PtxError(0, f"{blocks} basic blocks with {registers} registers: more than {LIVE_BITS} of both together")


def check_loops(work: int) -> None:
    """Check the work of ordering the blocks: each block counts once for every loop around it."""
    if work > LOOP_WORK:
        raise PtxError(0, "too many loops within each other")


def check_registers(count: int, line: int) -> None:
    """Check the number of registers of a kernel."""
    if count > REGISTERS:
        raise PtxError(line, f"more than {REGISTERS} registers")


def check_expansion(instructions: int, depth: int, line: int) -> None:
    """Check the size of a kernel while calls are expanded: a tree of calls has no bound."""
    if instructions > INSTRUCTIONS:
        raise PtxError(line, f"more than {INSTRUCTIONS} instructions once calls are expanded")
    if depth > CALL_DEPTH:
        raise PtxError(line, f"calls more than {CALL_DEPTH} deep")


def check_variable(variable: Variable, end: int) -> None:
    """Check a module's variable. end: the bytes of the module's variables up to and including this one."""
    if end > GLOBAL_BYTES:
        raise PtxError(variable.line, f"more than {GLOBAL_BYTES} bytes of .global and .const variables")
    check_align(variable, GLOBAL_ALIGN)


def check_align(variable: Variable, most: int) -> None:
    """Check that a variable's alignment is a power of two and at most `most` bytes."""
    if variable.align < 1 or variable.align & (variable.align - 1):
        raise PtxError(variable.line, f"alignment {variable.align} of {variable.name} is no power of two")
    if variable.align > most:
        raise PtxError(variable.line, f"alignment {variable.align} of {variable.name} is above {most}")


def check_kernel(kernel: Kernel, line: int) -> None:
    """Check the memory and the registers of a kernel."""
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
    """Return the smallest multiple of `align` that is not below `offset`."""
    return (offset + align - 1) // align * align
