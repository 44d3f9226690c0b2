"""Flattens an entry into one list of instructions: calls are expanded in place, variables get their offsets."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from kaas.softgpu.ptx import carry, limits
from kaas.softgpu.ptx.model import (
    SINK,
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Module,
    Not,
    Operand,
    Pair,
    Parameter,
    PtxError,
    Register,
    Special,
    Symbol,
    Unsupported,
    Variable,
    Vector,
)
from kaas.softgpu.ptx.types import SCALARS

SYSTEM_CALLS = {"vprintf": 2, "__assertfail": 5, "cudaGraphSetConditional": 2}
"""Functions of CUDA that have no body, with the number of their arguments."""

SHARED_ALIGN = 16  # dynamic shared memory starts at a multiple of this many bytes, or more if it asks for more

_PARAM_SPACE = re.compile(r"\.param(::\w+)?")


@dataclass(slots=True)
class Kernel:
    """An entry without calls. Offsets are in bytes from the start of the parameter buffer, the block's shared memory,
    the lane's local memory and the module's globals."""

    name: str
    parameters: tuple[Parameter, ...]
    max_threads: int
    registers: dict[str, str] = field(default_factory=dict)
    body: list[Instruction | Label] = field(default_factory=list)
    shared: dict[str, int] = field(default_factory=dict)
    shared_bytes: int = 0
    local: dict[str, int] = field(default_factory=dict)
    local_bytes: int = 0
    globals: dict[str, int] = field(default_factory=dict)

    @property
    def param_bytes(self) -> int:
        return max((p.offset + p.size for p in self.parameters), default=0)


def flatten(module: Module, entry: Function, global_offsets: dict[str, int], refusals: list[Unsupported]) -> Kernel:
    """The kernel of `entry`; what cannot be expanded is appended to `refusals`."""
    kernel = Kernel(entry.name, entry.parameters, entry.max_threads, globals=global_offsets)
    work = _Flattening(module, kernel, refusals)
    work.expand(entry, {}, (entry.name,), "")
    work.resolve_moves()
    kernel.body = carry.expand(kernel.body, kernel.registers)
    work.place_shared()
    return kernel


def align_up(offset: int, align: int) -> int:
    return (offset + align - 1) // align * align


class _Flattening:
    def __init__(self, module: Module, kernel: Kernel, refusals: list[Unsupported]) -> None:
        self.module, self.kernel, self.refusals = module, kernel, refusals
        self.copies = 0
        self.dynamic: list[str] = []
        self.dynamic_align = SHARED_ALIGN
        self.moves: list[tuple[int, str]] = []  # where the body has ld.param or st.param, and of which call variable
        self.addressed: set[str] = set()  # call variables that more than these name
        self.sizes: dict[str, int] = {}  # of call variables, in bytes

    def expand(self, function: Function, formals: dict[str, str], stack: tuple[str, ...], suffix: str) -> None:
        """Appends the body; `formals` maps the function's parameters to the caller's call variables."""
        limits.check_expansion(len(self.kernel.body) + len(function.body), len(stack), function.line)
        limits.check_registers(len(self.kernel.registers) + len(function.registers), function.line)
        for name, type_name in function.registers.items():
            self.kernel.registers[name + suffix] = type_name
        for variable in function.variables.values():
            self.place(variable, suffix)
        done = f"$done{suffix}"
        names = formals | {
            v.name: v.name + suffix for v in function.variables.values() if v.space in ("param", "local")
        }
        parameters = {v.name: v.size for v in function.variables.values() if v.space == "param"}
        self.sizes |= {names[name]: size for name, size in parameters.items()}
        variables = {names[name] for name in (*formals, *parameters)}
        rename = _renamer(suffix, names)
        for item in function.body:
            if isinstance(item, Label):
                targets = tuple(target + suffix for target in item.targets)
                self.kernel.body.append(Label(item.line, item.name + suffix, targets))
                continue
            base = item.opcode.split(".", 1)[0]
            if suffix:
                item = _renamed(item, rename, suffix)
            if base == "call":
                self.call(item, stack)
            elif base == "ret" and suffix:
                self.kernel.body.append(replace(item, opcode="bra", operands=(Symbol(done),)))
            else:
                named = _named(item, variables)
                if named and base in ("ld", "st") and ".param" in item.opcode:
                    self.moves.append((len(self.kernel.body), named))
                elif named:
                    self.addressed.add(named)
                for operand in item.operands:
                    self.reference(operand)
                self.kernel.body.append(item)
        if suffix:
            self.kernel.body.append(Label(function.line, done))

    def place(self, variable: Variable, suffix: str) -> None:
        if variable.space == "shared":
            self.add_shared(variable)
        elif variable.space == "local":
            limits.check_align(variable, limits.LOCAL_ALIGN)
            offset = align_up(self.kernel.local_bytes, variable.align)
            self.kernel.local[variable.name + suffix] = offset
            # Each lane's area keeps 16-byte alignment: vector accesses go up to that.
            self.kernel.local_bytes = align_up(offset + variable.size, 16)

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
        """Shared variables of the module take room only in the kernels that name them."""
        symbol = operand.base if isinstance(operand, Address) else operand
        if isinstance(symbol, Symbol):
            variable = self.module.variables.get(symbol.name)
            if variable is not None and variable.space == "shared":
                self.add_shared(variable)

    def place_shared(self) -> None:
        if self.dynamic:
            self.kernel.shared_bytes = align_up(self.kernel.shared_bytes, self.dynamic_align)
        for name in self.dynamic:
            self.kernel.shared[name] = self.kernel.shared_bytes

    def call(self, item: Instruction, stack: tuple[str, ...]) -> None:
        lists = [operand for operand in item.operands if isinstance(operand, Vector)]
        callees = [operand for operand in item.operands if not isinstance(operand, Vector)]
        if len(callees) != 1 or not isinstance(callees[0], Symbol):
            self.refusals.append(Unsupported(item.line, f"indirect call: {_one_line(item)}"))
            return
        callee = self.module.functions.get(callees[0].name)
        if callees[0].name in SYSTEM_CALLS and (callee is None or not callee.has_body):
            self.system_call(item, callees[0].name, lists)
            return
        if callee is None or not callee.has_body:
            self.refusals.append(Unsupported(item.line, f"call of {callees[0].name}, which has no body here"))
            return
        if callee.name in stack:
            self.refusals.append(Unsupported(item.line, f"recursive call of {callee.name}"))
            return
        results = lists.pop(0).items if item.operands and isinstance(item.operands[0], Vector) else ()
        arguments = lists[0].items if lists else ()
        if len(results) != len(callee.results) or len(arguments) != len(callee.parameters):
            raise PtxError(
                item.line, f"{callee.name} is called with {len(arguments)} arguments and {len(results)} results"
            )
        self.copies += 1
        inner = f"~{self.copies}"
        self.enter(item, callee, arguments, results, inner, stack)

    def system_call(self, item: Instruction, name: str, lists: list[Vector]) -> None:
        """An instruction of its own, which no PTX text can contain, on the registers of the call variables."""
        arguments = lists[-1].items if lists else ()
        results = lists[0].items if len(lists) > 1 else ()
        if len(arguments) != SYSTEM_CALLS[name]:
            raise PtxError(item.line, f"{name} is called with {len(arguments)} arguments")
        operands = [self.argument(item, argument) for argument in arguments]
        after: list[Instruction] = []
        if name == "vprintf":
            result = results[0] if results else SINK
            if isinstance(result, Symbol):
                place = Address(result, 0)
                result = self.scratch(result.name, 32)
                after.append(replace(item, opcode="st.param.b32", operands=(place, result)))
            operands.insert(0, result)
        self.kernel.body.append(replace(item, opcode=f"call {name}", operands=tuple(operands)))
        for store in after:
            self.move(store)

    def argument(self, item: Instruction, variable: Operand) -> Operand:
        """A register with the value of a call variable."""
        if not isinstance(variable, Symbol):
            return variable
        bits = 8 * self.sizes.get(variable.name, 0)
        if bits not in (32, 64):
            raise PtxError(item.line, f"{variable.name} has no value in {_one_line(item)!r}")
        register = self.scratch(variable.name, bits)
        self.move(replace(item, opcode=f"ld.param.b{bits}", operands=(register, Address(variable, 0))))
        return register

    def scratch(self, variable: str, bits: int) -> Register:
        register = Register(f"{variable}!{len(self.kernel.registers)}")
        self.kernel.registers[register.name] = f"b{bits}"
        return register

    def move(self, item: Instruction) -> None:
        """Appends an ld.param or st.param of a call variable."""
        address = next(operand for operand in item.operands if isinstance(operand, Address))
        assert isinstance(address.base, Symbol)
        self.moves.append((len(self.kernel.body), address.base.name))
        self.kernel.body.append(item)

    def enter(
        self,
        item: Instruction,
        callee: Function,
        arguments: tuple[Operand, ...],
        results: tuple[Operand, ...],
        inner: str,
        stack: tuple[str, ...],
    ) -> None:
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
            jump = Instruction(item.line, "bra", (Symbol(skip),), item.text, item.guard, not item.negated)
            self.kernel.body.append(jump)
        self.kernel.body += before
        self.expand(callee, formals, (*stack, callee.name), inner)
        self.kernel.body += after
        if item.guard is not None:
            self.kernel.body.append(Label(item.line, skip))

    def resolve_moves(self) -> None:
        """A call variable becomes one register for each of its parts; one whose bytes are seen in several ways, or
        whose address is taken, becomes a local variable."""
        parts: dict[str, set[tuple[int, int]]] = {name: set() for name in self.addressed}
        for place, name in self.moves:
            parts.setdefault(name, set()).update(_parts(self.kernel.body[place]))
        for name, spans in parts.items():
            if name in self.addressed or _overlap(spans):
                offset = align_up(self.kernel.local_bytes, 16)
                self.kernel.local[name] = offset
                end = max((start + size for start, size in spans), default=0)
                self.kernel.local_bytes = align_up(offset + max(end, self.sizes[name]), 16)
        body, start = [], 0
        for place, name in self.moves:
            item = self.kernel.body[place]
            assert isinstance(item, Instruction)
            body += self.kernel.body[start:place]
            if name in self.kernel.local:
                body.append(replace(item, opcode=_PARAM_SPACE.sub(".local", item.opcode)))
            else:
                body += self.register_moves(item, name)
            start = place + 1
        self.kernel.body = body + self.kernel.body[start:]

    def register_moves(self, item: Instruction, variable: str) -> list[Instruction]:
        """ld.param or st.param as moves from or to the registers that stand for those bytes."""
        values = next(o for o in item.operands if not isinstance(o, Address))
        scalar = SCALARS[item.opcode.rsplit(".", 1)[1]]
        out = []
        for (offset, _), part in zip(
            _parts(item), values.items if isinstance(values, Vector) else (values,), strict=False
        ):
            slot = Register(f"{variable}+{offset}")
            self.kernel.registers[slot.name] = f"b{scalar.bits}"
            load = item.opcode.startswith("ld")
            opcode = f"mov.b{scalar.bits}"
            if isinstance(part, Register):
                width = SCALARS[self.kernel.registers.get(part.name, f"b{scalar.bits}")].bits
                sign = "s" if scalar.signed else "u"
                narrow = f"{sign}{scalar.bits}"
                if width != scalar.bits:
                    opcode = f"cvt.{sign}{width}.{narrow}" if load else f"cvt.{narrow}.{sign}{width}"
            out.append(replace(item, opcode=opcode, operands=(part, slot) if load else (slot, part)))
        return out


def _named(item: Instruction, variables: set[str]) -> str:
    """The one of these variables that the instruction names; "" if none."""
    for operand in item.operands:
        symbol = operand.base if isinstance(operand, Address) else operand
        if isinstance(symbol, Symbol) and symbol.name in variables:
            return symbol.name
    return ""


def _parts(item: Instruction | Label) -> list[tuple[int, int]]:
    """(offset, size) in bytes of what an ld.param or st.param moves."""
    assert isinstance(item, Instruction)
    address = next((o for o in item.operands if isinstance(o, Address)), None)
    values = next((o for o in item.operands if not isinstance(o, Address)), None)
    scalar = SCALARS.get(item.opcode.rsplit(".", 1)[1])
    if address is None or values is None or scalar is None or len(item.operands) != 2:
        raise PtxError(item.line, f"not a move of a parameter: {_one_line(item)}")
    count = len(values.items) if isinstance(values, Vector) else 1
    size = scalar.bits // 8
    return [(address.offset + index * size, size) for index in range(count)]


def _overlap(spans: set[tuple[int, int]]) -> bool:
    ordered = sorted(spans)
    return any(start + size > after for (start, size), (after, _) in pairwise(ordered))


def _one_line(item: Instruction) -> str:
    return " ".join(item.text.split())


def _renamer(suffix: str, names: dict[str, str]) -> Callable[[Operand], Operand]:
    def rename(operand: Operand) -> Operand:
        match operand:
            case Register("_"):
                return operand
            case Register(name):
                return Register(name + suffix)
            case Symbol(name, offset):
                return Symbol(names.get(name, name), offset)
            case Address(base, offset):
                inner = rename(base)
                assert isinstance(inner, Register | Symbol | Immediate)
                return Address(inner, offset)
            case Vector(items):
                return Vector(tuple(rename(item) for item in items))
            case Pair(first, second):
                return Pair(_register(rename(first)), _register(rename(second)))
            case Not(register):
                return Not(_register(rename(register)))
            case Special() | Immediate():
                return operand

    return rename


def _register(operand: Operand) -> Register:
    assert isinstance(operand, Register)
    return operand


def _renamed(item: Instruction, rename: Callable[[Operand], Operand], suffix: str) -> Instruction:
    base = item.opcode.split(".", 1)[0]
    if base in ("bra", "brx"):
        operands = tuple(Symbol(o.name + suffix) if isinstance(o, Symbol) else rename(o) for o in item.operands)
    else:
        operands = tuple(rename(operand) for operand in item.operands)
    guard = None if item.guard is None else _register(rename(item.guard))
    return replace(item, operands=operands, guard=guard)
