"""Confines calls: by name, by address, and those of CUDA's functions without a body."""

from __future__ import annotations

import re

from kaas.code.fencing import table
from kaas.code.fencing.body import Body, KnownValue, ParameterStore
from kaas.code.fencing.program import Shape
from kaas.code.fencing.scopes import Declaration
from kaas.code.fencing.statements import OWN, PtxInstruction, address, is_address
from kaas.code.fencing.variables import Declared

_CONVERSION = re.compile(r"%(?:%|[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*)?)?(?:hh|h|ll|l|z|j|t)?([a-zA-Z]?))")
_NUMBERS = frozenset("diouxXeEfFgGaAcp")
"""printf's conversions that take a number, not the address of a text."""
_DECLARED = {"vprintf": ("b32", "b64 b64"), "__assertfail": ("", "b64 b64 b32 b64 b64")}
"""The types of the results and parameters of CUDA's functions that may be called."""
_EXPANDED = 1 << 18
"""Functions at the indirect calls of a module, each counted at each call that may reach it."""


def note_store(body: Body, one: PtxInstruction) -> None:
    """Note an st.param, which may pass an address to a function of CUDA's."""
    if len(one.operands) != 2 or not is_address(one.operands[0]):
        one.refuse("no store of a parameter")
    base, offset = address(one, one.operands[0])
    variable, source = body.scopes.find(base), body.scopes.find(one.operands[1])
    if not isinstance(variable, Declared):
        one.refuse("a store to a parameter by its address")
    known = body.fences.symbols.get(source) if isinstance(source, Declaration) else None
    whole = not (one.guard or offset or variable in body.stores)
    body.stores[variable] = ParameterStore(len(body.fences.out), one if whole else _PART, one.operands[1], known)


_PART = PtxInstruction(0, "", "", "", (), [])
"""Stands for the stores of a parameter that is not written as a whole, by one instruction."""


def rewrite(body: Body, one: PtxInstruction) -> KnownValue | None:
    """Confine a call."""
    place = 1 if one.operands and one.operands[0][0] == "(" else 0
    if len(one.operands) <= place:
        one.refuse("a call of nothing")
    name = one.operands[place]
    found = body.scopes.find(name)
    if isinstance(found, Declaration):
        _indirect(body, one, place, found)
    elif isinstance(found, Declared):
        one.refuse(f"a call of the variable {name}")
    elif name not in body.program.functions:
        _of_cuda(body, one, name, one.operands[place + 1 :])
    elif body.program.functions[name].is_entry or name in body.function.labels:
        one.refuse("a call of a kernel or label")
    else:
        body.fences.emit(one.written(one.operands))
    return None


def _indirect(body: Body, one: PtxInstruction, place: int, register: Declaration) -> None:
    """Confine a call by address to the functions of the module whose address is taken; another address is the first's.

    Numbers stand for the addresses of functions wherever the module computes with these.
    """
    wanted = body.function.prototypes.get(one.operands[-1])
    if wanted is None or register.bits != 64:
        one.refuse("an indirect call without a prototype or a list of functions")
    names = _fitting(body, one.operands[-1], wanted)
    body.program.expanded += len(names)
    if any(body.scopes.find(name) is not None or name in body.function.labels for name in names):
        one.refuse("an indirect call where the name of a function stands for something else")
    if not names:
        one.refuse("an indirect call that no function of the module fits")
    if body.program.expanded > _EXPANDED:
        one.refuse("too many indirect calls of too many functions")
    target, fits = body.fences.fresh("f"), body.fences.fresh("p")
    body.fences.emit(f"mov.u64 {target}, {names[0]};")
    for name in names[1:]:
        other = body.fences.fresh("f")
        body.fences.emit(f"mov.u64 {other}, {name};")
        body.fences.emit(f"setp.eq.s64 {fits}, {register.name}, {body.program.numbers[name]};")
        body.fences.emit(f"selp.b64 {target}, {other}, {target}, {fits};")
    body.fences.emit(one.written([*one.operands[:place], target, *one.operands[place + 1 :]]))


def _fitting(body: Body, label: str, wanted: Shape | frozenset[str]) -> list[str]:
    """Return the functions that the calls of a prototype, or of a list of functions, may reach."""
    if not isinstance(wanted, frozenset):
        return body.program.by_shape.get(wanted, [])
    if label not in body.listed:
        functions = body.program.functions
        names = {functions[name].name for name in wanted if name in functions}
        body.listed[label] = sorted(names & body.program.numbers.keys())
    return body.listed[label]


def _of_cuda(body: Body, one: PtxInstruction, name: str, operands: list[str]) -> None:
    """Confine a call of a function without a body."""
    if name not in _DECLARED:
        one.refuse(f"a call of {name}: {table.FUNCTIONS.get(name, 'a function that is not here')}")
    names = [part.strip() for part in operands[0][1:-1].split(",")] if operands else []
    stores = [body.stores.get(variable) if isinstance(variable := body.scopes.find(part), Declared) else None
              for part in names]  # fmt: skip
    if any(store is None or store.one is _PART for store in stores):
        one.refuse(f"{name} with arguments that are not known")
    if not body.program.is_declared(name, *_DECLARED[name]):
        one.refuse(f"{name} with other types than CUDA's")
    known = [store for store in stores if store is not None]
    if name == "vprintf" and len(known) == 2:
        _check_format(one, _pass_text(body, one, known[0]))
        _pass_pointer(body, known[1])
    elif name == "__assertfail" and len(known) == 5:
        for place in (0, 1, 3):
            _pass_text(body, one, known[place])
        _pass(body, known[4], "1")
    else:
        one.refuse(f"{name} with {len(known)} arguments")
    body.fences.emit(one.written(one.operands))


def _pass_text(body: Body, one: PtxInstruction, store: ParameterStore) -> bytes:
    """Pass a constant string, which moves out of the reach of the module's kernels. Return the string."""
    variable = store.variable
    if variable is None or variable.pointers or not variable.moved:
        one.refuse("a text that is no constant of the module")
    text = variable.data.partition(b"\0")[0]
    name = body.program.texts.setdefault(text, f"{OWN}_text_{len(body.program.texts)}")
    held = body.fences.fresh("f")
    _pass(body, store, held, f"mov.u64 {held}, {name};", f"cvta.global.u64 {held}, {held};")
    return text


def _check_format(one: PtxInstruction, text: bytes) -> None:
    """Refuse a format that reads or writes at addresses that it is given."""
    for found in _CONVERSION.finditer(text.decode("latin-1")):
        if found[0] != "%%" and found[1] not in _NUMBERS:
            one.refuse(f"printf of {found[0]}")


def _pass_pointer(body: Body, store: ParameterStore) -> None:
    """Pass a generic address, confined."""
    out, body.fences.out = body.fences.out, []
    whole = body.fences.fresh("f")
    body.fences.emit(f"mov.b64 {whole}, {store.source};")
    confined = body.fences.generic(whole, local=True)
    made, body.fences.out = body.fences.out, out
    _pass(body, store, confined, *(line.strip() for line in made))


def _pass(body: Body, store: ParameterStore, operand: str, *before: str) -> None:
    """Replace the operand of a store of 64 bits, with these instructions before."""
    if store.one.words[-1] not in ("b64", "u64", "s64"):
        store.one.refuse("an address that is not passed in 64 bits")
    text = store.one.written([store.one.operands[0], operand])
    body.fences.out[store.place] = "".join(f"\t{line}\n" for line in (*before, text))
