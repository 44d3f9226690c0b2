"""Functions by address: the value of a pointer to a function, and the functions that a call through it may reach."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from softgpu.ptx.model import Address, Function, Instruction, Module, Operand, Parameter, Signature, Symbol, Vector

# Addresses of functions are outside of all memory, so that a read or write through one is a fault.
FIRST_FUNCTION = 0x5F << 56
STRIDE = 16

_AT_ONCE = 8  # modules that threads read at the same time: the caches do not keep older modules alive


def address_of(module: Module, name: str) -> int | None:
    """Return the address of a function; None if there is no function of that name."""
    return _addresses(module).get(name)


def within_reach(module: Module, signature: Signature) -> list[Function]:
    """Return the functions with a body that a call with this signature may reach.

    Without a list of targets these are the functions whose address the module takes.
    """
    if signature.targets is not None:
        found = [module.functions[name] for name in signature.targets if name in module.functions]
    else:
        wanted = (_sizes(signature.results), _sizes(signature.parameters))
        taken = (module.functions[name] for name in _taken(module))
        found = [f for f in taken if (_sizes(f.results), _sizes(f.parameters)) == wanted]
    return [function for function in found if function.has_body and not function.is_entry]


def _sizes(parameters: tuple[Parameter, ...]) -> list[tuple[int, bool]]:
    return [(one.size, one.in_register) for one in parameters]


@lru_cache(maxsize=_AT_ONCE)
def _addresses(module: Module) -> dict[str, int]:
    places: dict[int, int] = {}  # by the function: an alias has the address of its function
    return {
        name: places.setdefault(id(function), FIRST_FUNCTION + STRIDE * len(places))
        for name, function in module.functions.items()
    }


@lru_cache(maxsize=_AT_ONCE)
def _taken(module: Module) -> tuple[str, ...]:
    """Return the functions whose address the module takes, in the order of the text."""
    names = {name for variable in module.variables.values() for _, name, _ in variable.pointers}
    for function in module.functions.values():
        names |= {name for variable in function.variables.values() for _, name, _ in variable.pointers}
        for item in function.body:
            if isinstance(item, Instruction) and not item.opcode.startswith(("bra", "brx", "call")):
                names.update(name for operand in item.operands for name in _symbols(operand))
    return tuple(name for name in module.functions if name in names)


def _symbols(operand: Operand) -> Iterator[str]:
    match operand:
        case Symbol(name):
            yield name
        case Address(base):
            yield from _symbols(base)
        case Vector(items):
            for item in items:
                yield from _symbols(item)
