"""The .param variables of calls, which become registers if no instruction takes their address."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import pairwise

from softgpu.ptx.kernel import Kernel
from softgpu.ptx.limits import align_up
from softgpu.ptx.model import Address, Instruction, Label, Operand, PtxError, Register, Symbol, Vector
from softgpu.ptx.types import SCALARS

_PARAM_SPACE = re.compile(r"\.param(::\w+)?")


@dataclass(slots=True)
class CallVariables:
    """The call variables of one kernel; `moves` are the places in its body that only read or write one of them."""

    kernel: Kernel
    moves: list[tuple[int, str]] = field(default_factory=list)  # (place of an ld.param or st.param, its variable)
    addressed: set[str] = field(default_factory=set)  # the variables that other instructions name
    sizes: dict[str, int] = field(default_factory=dict)  # in bytes

    def note(self, item: Instruction, variables: set[str]) -> None:
        """Note the call variable that the body's next instruction names, if it names one."""
        named = _named(item, variables)
        if named and item.opcode.startswith(("ld.", "st.")) and ".param" in item.opcode:
            self.moves.append((len(self.kernel.body), named))
        elif named:
            self.addressed.add(named)

    def read(self, item: Instruction, variable: Operand) -> Operand:
        """Return a register with the value of a call variable; another operand stays as it is."""
        if not isinstance(variable, Symbol):
            return variable
        bits = 8 * self.sizes.get(variable.name, 0)
        if bits not in (32, 64):
            raise PtxError(item.line, f"{variable.name} has no value in {one_line(item)!r}")
        register = self.scratch(variable.name, bits)
        self.move(replace(item, opcode=f"ld.param.b{bits}", operands=(register, Address(variable, 0))))
        return register

    def scratch(self, variable: str, bits: int) -> Register:
        """Return a new register of this width for the value of a call variable."""
        register = Register(f"{variable}!{len(self.kernel.registers)}")
        self.kernel.registers[register.name] = f"b{bits}"
        return register

    def move(self, item: Instruction) -> None:
        """Append an ld.param or st.param of a call variable."""
        address = next(operand for operand in item.operands if isinstance(operand, Address))
        assert isinstance(address.base, Symbol)
        self.moves.append((len(self.kernel.body), address.base.name))
        self.kernel.body.append(item)

    def resolve(self) -> None:
        """Replace each call variable by one register for each of its parts.

        It becomes a local variable instead if its address is taken, or if accesses to its bytes overlap in part.
        """
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
        """Return an ld.param or st.param as moves from or to the registers of those bytes."""
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
    """Return the variable of these that the instruction names; "" if it names none."""
    for operand in item.operands:
        symbol = operand.base if isinstance(operand, Address) else operand
        if isinstance(symbol, Symbol) and symbol.name in variables:
            return symbol.name
    return ""


def _parts(item: Instruction | Label) -> list[tuple[int, int]]:
    """Return (offset, size) in bytes of each part that an ld.param or st.param moves."""
    assert isinstance(item, Instruction)
    address = next((o for o in item.operands if isinstance(o, Address)), None)
    values = next((o for o in item.operands if not isinstance(o, Address)), None)
    scalar = SCALARS.get(item.opcode.rsplit(".", 1)[1])
    if address is None or values is None or scalar is None or len(item.operands) != 2:
        raise PtxError(item.line, f"not a move of a parameter: {one_line(item)}")
    count = len(values.items) if isinstance(values, Vector) else 1
    size = scalar.bits // 8
    return [(address.offset + index * size, size) for index in range(count)]


def _overlap(spans: set[tuple[int, int]]) -> bool:
    ordered = sorted(spans)
    return any(start + size > after for (start, size), (after, _) in pairwise(ordered))


def one_line(item: Instruction) -> str:
    """Return the text of an instruction in one line."""
    return " ".join(item.text.split())
