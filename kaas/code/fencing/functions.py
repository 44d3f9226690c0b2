"""Confines the instructions of one function."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from kaas.code.fencing import accesses, calls, symbols, table
from kaas.code.fencing.body import NAMES, Body, KnownValue, bounded, no_moved
from kaas.code.fencing.fences import Fences
from kaas.code.fencing.program import PtxFunction, PtxModule
from kaas.code.fencing.scopes import Declaration, Scopes, local_variables
from kaas.code.fencing.statements import PtxInstruction, Statement, is_address
from kaas.code.fencing.variables import Declared


def rewritten(program: PtxModule, function: PtxFunction) -> str:
    """Return the text of a function's body, confined, braces included."""
    body = Body(program, function, Scopes(program.variables), Fences(program.spaces, _written_once(function)))
    body.local = _only_local(program, function)
    for parameter in (*function.results, *function.parameters):
        if parameter.is_register:
            body.scopes.declare_register(parameter.name, parameter.kind)
        else:
            body.scopes.declare(Declared(parameter.name, "param", parameter.size, parameter.align, function.line, ""))
    for statement, one in function.body:
        if one is None:
            _other(body, statement)
        else:
            _instruction(body, one)
    return "{\n" + body.fences.prologue() + symbols.copied(body) + "".join(body.fences.out) + "}\n"


def _only_local(program: PtxModule, function: PtxFunction) -> str | None:
    """Return the name of the function's one variable in local memory; "" if it has none, None if it has more."""
    found = [variable.name for variable in program.variables.values() if variable.space == "local"] * 2
    found += [
        variable.name
        for statement, one in function.body
        if one is None and statement.kind == "declaration" and re.match(r"\.local\b", statement.text)
        for variable in local_variables(statement)
    ]
    if len(found) > 1 or any(one is not None and _takes_memory(one) for _, one in function.body):
        return None
    return found[0] if found else ""


def _takes_memory(one: PtxInstruction) -> bool:
    """Return True if an instruction makes local memory that has no name in the text."""
    return one.words[0] in ("alloca", "stackrestore") or (one.words[0] == "cvta" and "param" in one.opcode)


def _written_once(function: PtxFunction) -> set[str]:
    """Return the names of registers that one instruction writes."""
    written = Counter(
        name
        for _, one in function.body
        if one is not None and one.operands and not is_address(one.operands[0])
        for name in NAMES.findall(one.operands[0])
    )
    return {name for name, count in written.items() if count == 1}


def _other(body: Body, statement: Statement) -> None:
    """Rewrite a statement that is no instruction."""
    text = statement.text
    match statement.kind:
        case "label":
            body.fences.new_block()
            body.stores.clear()
            text += ":"
        case "open":
            body.scopes.open()
        case "close":
            body.scopes.close()
        case "declaration" if re.match(r"\.reg\b", text):
            body.scopes.declare_registers(statement)
        case "declaration":
            made = body.program.locals.get(id(statement)) or local_variables(statement)
            for variable in made:
                body.scopes.declare(variable)
            if made[0].moved:
                return
    body.fences.emit(text.strip())


def _instruction(body: Body, one: PtxInstruction) -> None:
    row = table.row(one.opcode)
    if row is None:
        one.refuse(f"{one.words[0]} is not known to be safe")
    if row.how == table.REFUSED:
        one.refuse(f"{one.opcode} is refused: {row.why}")
    if one.operands and one.operands[0] == "[?]":
        one.refuse("the operands are not understood")
    if row.how not in table.MEMORY and any(is_address(operand) for operand in one.operands):
        one.refuse(f"{one.opcode} with an address is not known to be safe")
    facts = _RULES[row.how](body, one)
    if one.operands and not is_address(one.operands[0]):
        for name in NAMES.findall(one.operands[0]):
            found = body.scopes.find(name)
            if isinstance(found, Declaration):
                body.fences.written(found)
    if facts is not None:
        body.note(one, facts)


def _plain(body: Body, one: PtxInstruction) -> KnownValue | None:
    if one.words[0] == "stackrestore":
        body.program.stacks.add(body.function.name)
    no_moved(body, one, one.operands)
    body.fences.emit(one.written(one.operands))
    return _moved_parameter(body, one) if one.words[0] == "add" and body.fences.symbols else None


def _moved_parameter(body: Body, one: PtxInstruction) -> KnownValue | None:
    """Return the parameter whose address is a summand: the sum points into it, too."""
    for operand in one.operands[1:]:
        found = body.scopes.find(operand)
        symbol = body.fences.symbols.get(found) if isinstance(found, Declaration) else None
        if symbol is not None and symbol.space == "param":
            return KnownValue(symbol, is_global=False)
    return None


def _branch(body: Body, one: PtxInstruction) -> None:
    if len(one.operands) != 1 or one.operands[0] not in body.function.labels:
        one.refuse("a branch to no label of the function")
    body.fences.emit(one.written(one.operands))


def _table(body: Body, one: PtxInstruction) -> None:
    count = body.function.tables.get(one.operands[1], 0) if len(one.operands) == 2 else 0
    if not count:
        one.refuse("a branch by a table that is not known")
    index = bounded(body, one, one.operands[0], count - 1)
    body.fences.emit(one.written([index, one.operands[1]]))


_RULES: dict[str, Callable[[Body, PtxInstruction], KnownValue | None]] = {
    table.PLAIN: _plain,
    table.ACCESS: accesses.access,
    table.HINT: accesses.hint,
    table.SHARED: accesses.shared,
    table.COPY: accesses.copy,
    table.BULK: accesses.bulk,
    table.MATRIX: accesses.matrix,
    table.MOVE: symbols.move,
    table.CONVERT: symbols.convert,
    table.CALL: calls.rewrite,
    table.BRANCH: _branch,
    table.TABLE: _table,
}
