"""Confines the addresses of instructions that touch memory."""

from __future__ import annotations

from dataclasses import replace

from kaas.code.fencing import calls, table
from kaas.code.fencing.body import Body, bounded, no_moved
from kaas.code.fencing.fences import LocalFrame
from kaas.code.fencing.statements import PtxInstruction, address, is_address
from kaas.code.fencing.variables import BITS, Declared

_BULK_BYTES = 256 << 10
"""At most so many bytes are copied at once: more than a block's shared memory has, and less than a guard."""
_STRIDE = 1 << 20
"""Elements; a matrix has at most 32 rows, and an element 8 bytes."""


def _space(one: PtxInstruction) -> str:
    try:
        return table.space(one.opcode)
    except ValueError as error:
        one.refuse(f"{one.opcode}: {error}")


def _only_address(one: PtxInstruction) -> int:
    """Return the place of the operand that is an address."""
    places = [place for place, operand in enumerate(one.operands) if is_address(operand)]
    if len(places) != 1:
        one.refuse(f"{len(places)} addresses, where one is expected")
    return places[0]


def access(body: Body, one: PtxInstruction) -> None:
    """Confine an instruction with one address."""
    space, place = _space(one), _only_address(one)
    if one.words[0] == "st" and space.startswith("param"):
        calls.note_store(body, one)
    operand, opcode = _confined(body, one, space, one.operands[place])
    body.fences.emit(one.written([*one.operands[:place], operand, *one.operands[place + 1 :]], opcode))


def hint(body: Body, one: PtxInstruction) -> None:
    """Confine a hint about global memory."""
    place = _only_address(one)
    operand, opcode = _confined(body, one, _space(one) or "hint", one.operands[place])
    body.fences.emit(one.written([*one.operands[:place], operand, *one.operands[place + 1 :]], opcode))


def _confined(body: Body, one: PtxInstruction, space: str, operand: str) -> tuple[str, str]:
    """Return a confined address operand, and the opcode with it."""
    base, offset = address(one, operand)
    found = body.find(one, base)
    opcode = one.opcode
    is_store = one.words[0] == "st"
    if isinstance(found, Declared) and found.space not in ("global", "const"):
        if space not in table.HARDWARE:
            one.refuse(f"an access of {base}, in .{found.space}, that does not name its state space")
        if is_store and found.space in ("local", "param") and not 0 <= offset <= found.size - _width(one):
            one.refuse(f"a store outside of {base}")
        return operand, opcode
    if isinstance(found, Declared) and not found.moved:  # of .const, and within the variable
        return operand, opcode
    if space in table.HARDWARE:
        if isinstance(found, Declared):
            one.refuse(f"{base} is not in .{space}")
        frame = body.frame(one, _width(one)) if is_store and space == "local" else True
        if frame is False:
            one.refuse("a store of more bytes than the function has in local memory")
        if isinstance(frame, LocalFrame):
            return f"[{body.fences.of_local(found, offset, frame)}]", opcode
        return operand, opcode
    if space == "const":
        plain = one.words[0] == "ld" and not {"volatile", "relaxed", "acquire"} & {*one.words}
        opcode = opcode.replace(".const", ".global.nc" if plain else ".global", 1)
    if isinstance(found, Declared):
        total = found.offset + offset
        if not -(1 << 31) <= total < 1 << 31:
            one.refuse("the offset of an address has more than 32 bits")
        return f"[{body.fences.block()}+{total}]", opcode
    if space or found in body.fences.known_global:
        return f"[{body.fences.of_global(found)}{f'+{offset}' if offset else ''}]", opcode
    local: LocalFrame | bool = one.words[0] in ("ld", "ldu")
    if is_store and "local" in body.fences.spaces:
        local = body.frame(one, _width(one))
    if not body.fences.accepts(local):
        return f"[{body.fences.of_global(found)}{f'+{offset}' if offset else ''}]", opcode
    return f"[{body.fences.of_generic(found, offset, local)}]", opcode


def _width(one: PtxInstruction) -> int:
    """Return the bytes that a load or store moves."""
    lanes = next((int(word[1]) for word in one.words if word in ("v2", "v4", "v8")), 1)
    bits = BITS.get(one.words[-1])
    if bits is None:
        one.refuse("an access of no type")
    return bits // 8 * lanes


def shared(body: Body, one: PtxInstruction) -> None:
    """Check that an instruction touches shared memory only."""
    spaces = [word for word in one.words if word in table.SPACES]
    if not spaces or not {*spaces} <= table.SHARED_SPACES:
        one.refuse(f"{one.opcode} is refused if its opcode does not name shared memory")
    no_moved(body, one, one.operands)
    body.fences.emit(one.written(one.operands))


def _known_words(one: PtxInstruction) -> list[str]:
    """Return the state spaces in the opcode of a copy, all of whose words are known."""
    spaces = [word for word in one.words if word in table.SPACES]
    strange = [word for word in one.words if word not in table.SPACES and word not in table.COPY_WORDS]
    if strange:
        one.refuse(f".{strange[0]} is not known")
    return spaces


def copy(body: Body, one: PtxInstruction) -> None:
    """Confine cp.async."""
    spaces, operands = _known_words(one), list(one.operands)
    if len(spaces) != 2 or spaces[0] not in ("shared", "shared::cta") or spaces[1] != "global":
        one.refuse("no copy from global to shared memory")
    if [is_address(operand) for operand in operands[:3]] != [True, True, False]:
        one.refuse("no copy between two addresses")
    no_moved(body, one, [operands[0]])
    operands[1], _ = _confined(body, one, "global", operands[1])
    body.fences.emit(one.written(operands))


def bulk(body: Body, one: PtxInstruction) -> None:
    """Confine a copy of a size that a register may hold."""
    spaces, operands = _known_words(one), list(one.operands)
    count = 1 if "prefetch" in one.words else 2
    if len(spaces) != count or spaces == ["global", "global"] or not {*spaces} <= table.SHARED_SPACES | {"global"}:
        one.refuse("no copy between global and shared memory")
    if len(operands) <= count or [is_address(one) for one in operands[: count + 1]] != [True] * count + [False]:
        one.refuse("the operands are not understood")
    for place, space in enumerate(spaces):
        if space == "global":
            operands[place] = f"[{_whole(body, one, operands[place])}]"
        else:
            no_moved(body, one, [operands[place]])
    if "global" in spaces:
        operands[count] = bounded(body, one, operands[count], _BULK_BYTES)
    body.fences.emit(one.written(operands))


def _whole(body: Body, one: PtxInstruction, operand: str) -> str:
    """Return a register with a confined global address, the offset added."""
    base, offset = address(one, operand)
    found = body.find(one, base)
    if not isinstance(found, Declared):
        return body.fences.of_global_sum(found, offset)
    if not found.moved:
        one.refuse(f"{base} is not in .global")
    return body.fences.of_global(body.fences.sum(body.fences.block(), found.offset + offset))


def matrix(body: Body, one: PtxInstruction) -> None:
    """Confine the rows of a matrix, at most 32 with a stride."""
    spaces = [word for word in one.words if word in table.SPACES]
    place, operands = _only_address(one), list(one.operands)
    base, offset = address(one, operands[place])
    found = body.find(one, base)
    if spaces and {*spaces} <= table.SHARED_SPACES:
        no_moved(body, one, operands)
        body.fences.emit(one.written(operands))
        return
    if spaces not in ([], ["global"]) or place > 1 or len(operands) not in (2, 3):
        one.refuse("no matrix in global or shared memory")
    operands[2:] = [bounded(body, one, stride, _STRIDE) for stride in operands[2:]]
    is_global = spaces or found in body.fences.known_global or not body.fences.accepts(local=False)
    if isinstance(found, Declared) or is_global:
        operands[place] = f"[{_whole(body, one, operands[place])}]"
        body.fences.emit(one.written(operands))
        return
    whole = body.fences.whole(found, offset)
    in_shared, in_global = body.fences.either("shared", whole, one.guard)
    for holds, space, inside in (
        (in_shared, "shared", body.fences.to_shared(whole)),
        (in_global, "global", body.fences.of_whole(whole)),
    ):
        operands[place] = f"[{inside}]"
        opcode = ".".join((*one.words[:-1], space, one.words[-1]))
        body.fences.emit(replace(one, guard=f"@{holds}").written(operands, opcode))
