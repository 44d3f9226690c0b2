"""Flattens an entry into one list of instructions: calls are expanded in place, variables get their offsets."""

from __future__ import annotations

from dataclasses import replace

from softgpu import refused
from softgpu.ptx import carry, limits, pointers
from softgpu.ptx import stack as stacks
from softgpu.ptx.call_variables import CallVariables, one_line
from softgpu.ptx.kernel import Kernel
from softgpu.ptx.limits import align_up
from softgpu.ptx.model import (
    SINK,
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Module,
    Operand,
    PtxError,
    Register,
    Signature,
    Special,
    Symbol,
    Unsupported,
    Variable,
    Vector,
)
from softgpu.ptx.renaming import renamed, renamer
from softgpu.ptx.types import SCALARS

SYSTEM_CALLS = {"vprintf": 2, "__assertfail": 5, "cudaGraphSetConditional": 2}
"""Functions of CUDA that have no body, with the number of their arguments."""

SHARED_ALIGN = 16  # the alignment of dynamic shared memory in bytes, unless it asks for more


_RESERVED = Variable("$reserved", "shared", 1024, 16, 0)
"""The part of shared memory that cooperative groups use; only kernels that read its place have it."""

_RESERVED_PLACES = {
    f"%reserved_smem_offset_{name}": at for name, at in (("begin", 0), ("0", 0), ("1", 0), ("end", 1024))
}


def flatten(module: Module, entry: Function, global_offsets: dict[str, int], refusals: list[Unsupported]) -> Kernel:
    """Return the kernel of `entry`, and append the calls and declarations that have no code to `refusals`."""
    kernel = Kernel(entry.name, entry.parameters, entry.max_threads, globals=global_offsets)
    kernel.constants = _constants(module, global_offsets)
    work = _Flattening(module, kernel, refusals)
    work.expand(entry, {}, (entry.name,), "")
    work.variables.resolve()
    work.place_stack()
    kernel.local_bytes = align_up(kernel.local_bytes, work.local_align)  # so that the area of every lane is aligned
    kernel.body = carry.expand(kernel.body, kernel.registers)
    work.place_shared()
    return kernel


def _constants(module: Module, offsets: dict[str, int]) -> tuple[tuple[int, int], ...]:
    variables = [v for v in module.variables.values() if v.space == "const" and v.name in offsets]
    return tuple((offsets[v.name], offsets[v.name] + v.size) for v in variables)


class _Flattening:
    def __init__(self, module: Module, kernel: Kernel, refusals: list[Unsupported]) -> None:
        self.module, self.kernel, self.refusals = module, kernel, refusals
        self.copies = 0
        self.dynamic: list[str] = []
        self.dynamic_align = SHARED_ALIGN
        self.variables = CallVariables(kernel)
        self.local_align = 16
        self.frame_end = 0  # of the local variables of the functions that are being expanded
        self.has_stack = False

    def expand(self, function: Function, formals: dict[str, str], stack: tuple[str, ...], suffix: str) -> None:
        """Append the body; `formals` maps the function's parameters to the caller's call variables."""
        limits.check_expansion(len(self.kernel.body) + len(function.body), len(stack), function.line)
        limits.check_registers(len(self.kernel.registers) + len(function.registers), function.line)
        self.refusals += function.refusals
        for name, type_name in function.registers.items():
            self.kernel.registers[name + suffix] = type_name
        for variable in function.variables.values():
            self.place(variable, suffix)
        done = f"$done{suffix}"
        names = formals | {
            v.name: v.name + suffix for v in function.variables.values() if v.space in ("param", "local")
        }
        parameters = {v.name: v.size for v in function.variables.values() if v.space == "param"}
        self.variables.sizes |= {names[name]: size for name, size in parameters.items()}
        variables = {names[name] for name in (*formals, *parameters)}
        rename = renamer(suffix, names)
        takes_stack = any(stacks.is_stack(item) for item in function.body)
        if takes_stack:
            self.open_stack(function.line, suffix)
        for item in function.body:
            if isinstance(item, Label):
                targets = tuple(target + suffix for target in item.targets)
                self.kernel.body.append(Label(item.line, item.name + suffix, targets))
                continue
            base = item.opcode.split(".", 1)[0]
            if suffix:
                item = renamed(item, rename, suffix)
            if "L2::cache_hint" in item.opcode:
                item = replace(item, operands=item.operands[:-1])  # the policy, which is a hint
            if base == "call":
                self.call(item, function, stack)
            elif stacks.is_stack(item):
                self.kernel.body += stacks.expanded(item)
            elif base == "ret" and suffix:
                self.kernel.body.append(replace(item, opcode="bra", operands=(Symbol(done),)))
            else:
                self.variables.note(item, variables)
                for operand in item.operands:
                    self.reference(operand)
                operands = tuple(self.placed(operand) for operand in item.operands)
                self.kernel.body.append(item if operands == item.operands else replace(item, operands=operands))
        if suffix:
            self.kernel.body.append(Label(function.line, done))
            if takes_stack:
                self.kernel.body.append(stacks.restore(function.line, suffix))

    def open_stack(self, line: int, suffix: str) -> None:
        kernel = self.kernel
        if not self.has_stack:
            self.has_stack = True
            kernel.registers |= stacks.registers()
            kernel.body.insert(0, stacks.start(line))
            self.variables.moves = [(place + 1, name) for place, name in self.variables.moves]
        if suffix:
            kernel.registers |= stacks.registers(suffix)
            kernel.body.append(stacks.save(line, suffix))

    def place(self, variable: Variable, suffix: str) -> None:
        if variable.space == "shared":
            self.add_shared(variable)
        elif variable.space == "local":
            limits.check_align(variable, limits.LOCAL_ALIGN)
            self.local_align = max(self.local_align, variable.align)
            offset = align_up(self.frame_end, variable.align)
            self.kernel.local[variable.name + suffix] = offset
            # Each lane's area keeps 16-byte alignment, which the widest vector access needs.
            self.frame_end = align_up(offset + variable.size, 16)
            self.kernel.local_bytes = max(self.kernel.local_bytes, self.frame_end)

    def add_shared(self, variable: Variable) -> None:
        limits.check_align(variable, limits.SHARED_ALIGN)
        if variable.name in self.kernel.shared or variable.name in self.dynamic:
            return
        if variable.external:
            self.dynamic.append(variable.name)
            self.dynamic_align = max(self.dynamic_align, variable.align)
            return
        offset = align_up(self.kernel.shared_bytes, max(variable.align, 1))
        self.kernel.shared[variable.name] = offset
        self.kernel.shared_bytes = offset + variable.size

    def reference(self, operand: Operand) -> None:
        """Place a shared variable of the module that the operand names: it takes room only in such kernels."""
        symbol = operand.base if isinstance(operand, Address) else operand
        if isinstance(symbol, Symbol):
            variable = self.module.variables.get(symbol.name)
            if variable is not None and variable.space == "shared":
                self.add_shared(variable)

    def place_stack(self) -> None:
        if self.has_stack:
            self.kernel.local[stacks.AREA] = self.kernel.local_bytes
            self.kernel.local_bytes += limits.STACK_BYTES

    def place_shared(self) -> None:
        if self.dynamic:
            self.kernel.shared_bytes = align_up(self.kernel.shared_bytes, self.dynamic_align)
        for name in self.dynamic:
            self.kernel.shared[name] = self.kernel.shared_bytes

    def placed(self, operand: Operand) -> Operand:
        """Return the address for the name of a function, and the place for a register of reserved memory's offset."""
        if isinstance(operand, Special) and operand.name in _RESERVED_PLACES:
            self.add_shared(_RESERVED)
            return Symbol(_RESERVED.name, _RESERVED_PLACES[operand.name])
        if not isinstance(operand, Symbol) or operand.name in self.module.variables or operand.offset:
            return operand
        address = pointers.address_of(self.module, operand.name)
        return operand if address is None else Immediate(address)

    def call(self, item: Instruction, caller: Function, stack: tuple[str, ...]) -> None:
        lists = [operand for operand in item.operands if isinstance(operand, Vector)]
        results = lists.pop(0).items if item.operands and isinstance(item.operands[0], Vector) else ()
        arguments = lists[0].items if lists else ()
        match [operand for operand in item.operands if not isinstance(operand, Vector)]:
            case [Symbol(name)]:
                self.direct_call(item, name, arguments, results, stack)
            case [Register() as pointer, Symbol(label)] if label in caller.signatures:
                self.indirect_call(item, pointer, caller.signatures[label], arguments, results, stack)
            case _:
                raise PtxError(item.line, f"neither a function nor a pointer and its prototype: {one_line(item)}")

    def direct_call(
        self,
        item: Instruction,
        name: str,
        arguments: tuple[Operand, ...],
        results: tuple[Operand, ...],
        stack: tuple[str, ...],
    ) -> None:
        callee = self.module.functions.get(name)
        if name in SYSTEM_CALLS and (callee is None or not callee.has_body):
            self.system_call(item, name, arguments, results)
        elif callee is None or not callee.has_body:
            belongs = refused.function(name)
            why = f"of {belongs}" if belongs else "which has no body here"
            self.refusals.append(Unsupported(item.line, f"call of {name}, {why}"))
        elif callee.name in stack:
            self.refusals.append(Unsupported(item.line, f"recursive call of {callee.name}"))
        else:
            self.enter(item, callee, arguments, results, stack)

    def indirect_call(
        self,
        item: Instruction,
        pointer: Register,
        signature: Signature,
        arguments: tuple[Operand, ...],
        results: tuple[Operand, ...],
        stack: tuple[str, ...],
    ) -> None:
        """Append a choice among the functions that the pointer may hold, and an error for any other value.

        It leaves out functions that are being expanded: the expansion of recursion would not end.
        """
        self.copies += 1
        done = f"$called~{self.copies}"
        if item.guard is not None:
            self.kernel.body.append(_jump(item, done, item.guard, not item.negated))
        plain = replace(item, guard=None)
        chosen = Register(f"$chosen~{self.copies}")
        self.kernel.registers[chosen.name] = "pred"
        for number, callee in enumerate(pointers.within_reach(self.module, signature)):
            if callee.name in stack:
                continue
            other = f"{done}.{number}"
            address = pointers.address_of(self.module, callee.name)
            assert address is not None
            compare = replace(plain, opcode="setp.eq.u64", operands=(chosen, pointer, Immediate(address)))
            self.kernel.body += [compare, _jump(item, other, chosen, True)]
            self.enter(plain, callee, arguments, results, stack)
            self.kernel.body += [_jump(item, done), Label(item.line, other)]
        self.kernel.body.append(replace(plain, opcode="call nowhere", operands=(pointer,)))
        self.kernel.body.append(Label(item.line, done))

    def system_call(
        self, item: Instruction, name: str, arguments: tuple[Operand, ...], results: tuple[Operand, ...]
    ) -> None:
        """Append an instruction that no PTX text can contain, on the registers of the call variables."""
        if len(arguments) != SYSTEM_CALLS[name]:
            raise PtxError(item.line, f"{name} is called with {len(arguments)} arguments")
        operands = [self.variables.read(item, argument) for argument in arguments]
        after: list[Instruction] = []
        if name == "vprintf":
            result = results[0] if results else SINK
            if isinstance(result, Symbol):
                place = Address(result, 0)
                result = self.variables.scratch(result.name, 32)
                after.append(replace(item, opcode="st.param.b32", operands=(place, result)))
            operands.insert(0, result)
        self.kernel.body.append(replace(item, opcode=f"call {name}", operands=tuple(operands)))
        for store in after:
            self.variables.move(store)

    def enter(
        self,
        item: Instruction,
        callee: Function,
        arguments: tuple[Operand, ...],
        results: tuple[Operand, ...],
        stack: tuple[str, ...],
    ) -> None:
        """Expand the body of `callee` here."""
        if len(results) != len(callee.results) or len(arguments) != len(callee.parameters):
            raise PtxError(
                item.line, f"{callee.name} is called with {len(arguments)} arguments and {len(results)} results"
            )
        self.copies += 1
        inner = f"~{self.copies}"
        formals: dict[str, str] = {}
        before, after = [], []
        for formal, actual in (
            *zip(callee.parameters, arguments, strict=False),
            *zip(callee.results, results, strict=False),
        ):
            if formal.in_register:
                own = Register(formal.name + inner)
                move = f"mov.{'pred' if formal.type == 'pred' else 'b' + str(SCALARS[formal.type].bits)}"
                if formal in callee.results:
                    after.append(Instruction(item.line, move, (actual, own), item.text))
                else:
                    before.append(Instruction(item.line, move, (own, actual), item.text))
            elif isinstance(actual, Symbol):
                formals[formal.name] = actual.name
            else:
                raise PtxError(item.line, f"{callee.name} wants a .param variable for {formal.name}")
        skip = f"$skip{inner}"
        if item.guard is not None:
            self.kernel.body.append(_jump(item, skip, item.guard, not item.negated))
        self.kernel.body += before
        frame = self.frame_end  # functions that do not call each other share their memory
        self.expand(callee, formals, (*stack, callee.name), inner)
        self.frame_end = frame
        self.kernel.body += after
        if item.guard is not None:
            self.kernel.body.append(Label(item.line, skip))


def _jump(item: Instruction, label: str, guard: Register | None = None, negated: bool = False) -> Instruction:
    return Instruction(item.line, "bra", (Symbol(label),), item.text, guard, negated)
