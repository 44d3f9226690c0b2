"""The registers that confine addresses: the upper halves of addresses in the window are the same but for some bits.

A window has at least 4 GiB, so that the lower half of an address stays as it is; a GPU does `and` and `or` at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kaas.code.fencing.scopes import Declaration
from kaas.code.fencing.statements import OWN
from kaas.code.fencing.variables import Declared

MASK, BASE, BLOCK = "%kaas_mask", "%kaas_base", "%kaas_block"
_VALUES = ((MASK, "32", 4), (BASE, "32", 12), (BLOCK, "64", 16))
"""The registers of a function's values of the window: their bits, and their places in the const variable, in bytes.

The mask and the base are the upper halves of the window's size - 1 and of its first address.
"""


@dataclass(frozen=True, slots=True)
class LocalFrame:
    """The one variable of a function in local memory, in which its stores stay. most: their largest offset in it."""

    name: str
    most: int


@dataclass(slots=True)
class Fences:
    """Confined addresses of one function, kept for the rest of the basic block, or until their register is written.

    Knowledge of a register only chooses among ways that are all safe; so the facts of a register that is written
    at one place hold everywhere.

    Fields:
        spaces: the state spaces that generic addresses may have, other than global memory. once: names of registers
            that one instruction writes. out: the text of the function. symbols: registers with the address of a
            variable. known_global: registers whose addresses are global ones.
    """

    spaces: tuple[str, ...]
    once: set[str] = field(default_factory=set)
    out: list[str] = field(default_factory=list)
    symbols: dict[Declaration, Declared] = field(default_factory=dict)
    known_global: set[Declaration] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    _kept: dict[Declaration, dict[tuple[int, LocalFrame | bool] | None, str]] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=lambda: {"f": 0, "i": 0, "p": 0})

    def new_block(self) -> None:
        """Forget confined addresses, and facts of registers that several instructions write, at a label."""
        self._kept.clear()
        self.symbols = {register: of for register, of in self.symbols.items() if register.name in self.once}
        self.known_global = {register for register in self.known_global if register.name in self.once}

    def written(self, register: Declaration) -> None:
        """Forget a register that gets a new value."""
        self._kept.pop(register, None)
        self.symbols.pop(register, None)
        self.known_global.discard(register)

    def fresh(self, kind: str) -> str:
        """Return a new register. kind: "f" of 64 bits, "i" of 32, "p" a predicate."""
        self._counts[kind] += 1
        return f"%kaas_{kind}{self._counts[kind] - 1}"

    def emit(self, text: str) -> None:
        """Append an instruction."""
        self.out.append(f"\t{text}\n")

    def block(self) -> str:
        """Return the register with the address of the block of variables."""
        self.used.add(BLOCK)
        return BLOCK

    def of_global(self, address: Declaration | str) -> str:
        """Return a register with an address in the window; the given address is in a register, or is a number."""
        kept = self._kept.setdefault(address, {}) if isinstance(address, Declaration) else {}
        if None not in kept:
            kept[None] = self.of_whole(self._wide(address))
        return kept[None]

    def of_global_sum(self, address: Declaration | str, offset: int) -> str:
        """Return a register with address + offset in the window."""
        return self.of_global(address) if not offset else self.of_whole(self.whole(address, offset))

    def whole(self, address: Declaration | str, offset: int) -> str:
        """Return a 64-bit register with address + offset."""
        whole = self._wide(address)
        return self.sum(whole, offset) if offset else whole

    def of_generic(self, address: Declaration | str, offset: int, local: LocalFrame | bool) -> str:
        """Return a register with address + offset if that is shared or local, and else with an address in the window.

        The offset is part of the test: with it an address may leave shared memory.
        """
        key = (offset, local)
        kept = self._kept.setdefault(address, {}) if isinstance(address, Declaration) else {}
        if key not in kept:
            kept[key] = self.generic(self.whole(address, offset), local)
        return kept[key]

    def accepts(self, local: LocalFrame | bool) -> list[str]:
        """Return the state spaces that generic addresses may have, other than global memory."""
        return [space for space in self.spaces if space != "local" or local is not False]

    def generic(self, whole: str, local: LocalFrame | bool) -> str:
        """Return a register with the address in a 64-bit register, confined unless it is shared or local.

        local: whether addresses of local memory stay as they are; within the frame alone if one is given.
        """
        chosen = self.of_whole(whole)
        spaces = self.accepts(local)
        if not isinstance(local, LocalFrame) and len(spaces) == 2:
            either, other = (self._is_in(space, whole) for space in spaces)
            self.emit(f"or.pred {either}, {either}, {other};")
            return self._select(whole, chosen, either)
        for space in spaces:
            kept = (
                self.within(local, whole, "cvta.local") if space == "local" and isinstance(local, LocalFrame) else whole
            )
            chosen = self._select(kept, chosen, self._is_in(space, whole))
        return chosen

    def within(self, frame: LocalFrame, whole: str, opcode: str, bits: int = 64) -> str:
        """Return a register with the address nearest to that in a register at which a store stays in the frame."""
        start, place, inside = (self.fresh("f" if bits == 64 else "i") for _ in range(3))
        self.emit(f"{opcode}.u{bits} {start}, {frame.name};")
        self.emit(f"sub.s{bits} {place}, {whole}, {start};")
        self.emit(f"min.u{bits} {place}, {place}, {frame.most};")
        self.emit(f"add.s{bits} {inside}, {start}, {place};")
        return inside

    def of_local(self, address: Declaration | str, offset: int, frame: LocalFrame) -> str:
        """Return a register with address + offset, of a store to local memory, within the frame."""
        bits = address.bits if isinstance(address, Declaration) else 64
        whole = address.name if isinstance(address, Declaration) else self._wide(address)
        return self.within(frame, self.sum(whole, offset, bits) if offset else whole, "mov", bits)

    def either(self, space: str, whole: str, guard: str) -> tuple[str, str]:
        """Return predicates: the guard holds and the address is in the space, the guard holds and it is not."""
        inside, outside = self._is_in(space, whole), self.fresh("p")
        self.emit(f"not.pred {outside}, {inside};")
        if guard:
            runs = guard[1:]
            if runs[0] == "!":
                runs = self.fresh("p")
                self.emit(f"not.pred {runs}, {guard[2:]};")
            for holds in (inside, outside):
                self.emit(f"and.pred {holds}, {holds}, {runs};")
        return inside, outside

    def to_shared(self, whole: str) -> str:
        """Return a register with the address in shared memory of a generic address."""
        place = self.fresh("f")
        self.emit(f"cvta.to.shared.u64 {place}, {whole};")
        return place

    def _is_in(self, space: str, whole: str) -> str:
        holds = self.fresh("p")
        self.emit(f"isspacep.{space} {holds}, {whole};")
        return holds

    def _select(self, one: str, other: str, holds: str) -> str:
        chosen = self.fresh("f")
        self.emit(f"selp.b64 {chosen}, {one}, {other}, {holds};")
        return chosen

    def sum(self, whole: str, offset: int, bits: int = 64) -> str:
        """Return a register with the sum."""
        total = self.fresh("f" if bits == 64 else "i")
        self.emit(f"add.s{bits} {total}, {whole}, {offset};")
        return total

    def at_most(self, operand: str, most: int) -> str:
        """Return a register with an unsigned 32-bit operand, or with `most` if that is less."""
        least = self.fresh("i")
        self.emit(f"min.u32 {least}, {operand}, {most};")
        return least

    def _wide(self, address: Declaration | str) -> str:
        if isinstance(address, Declaration) and address.bits != 32:
            return address.name
        whole = self.fresh("f")
        self.emit(
            f"mov.b64 {whole}, {address};" if isinstance(address, str) else f"cvt.u64.u32 {whole}, {address.name};"
        )
        return whole

    def of_whole(self, whole: str) -> str:
        """Return a register with the address of a 64-bit register in the window."""
        self.used |= {MASK, BASE}
        low, high, inside = self.fresh("i"), self.fresh("i"), self.fresh("f")
        self.emit(f"mov.b64 {{{low}, {high}}}, {whole};")
        self.emit(f"and.b32 {high}, {high}, {MASK};")
        self.emit(f"or.b32 {high}, {high}, {BASE};")
        self.emit(f"mov.b64 {inside}, {{{low}, {high}}};")
        return inside

    def prologue(self) -> str:
        """Return the declarations of all these registers, and the loads of the window's values."""
        kinds = {"f": "b64", "i": "b32", "p": "pred"}
        out = [f"\t.reg .{kinds[kind]} %kaas_{kind}<{count}>;\n" for kind, count in self._counts.items() if count]
        for name, bits, place in _VALUES:
            if name in self.used:
                out.append(f"\t.reg .b{bits} {name};\n\tld.const.u{bits} {name}, [{OWN}+{place}];\n")
        return "".join(out)
