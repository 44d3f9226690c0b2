"""`Library.kernel`: a launch, completed from the signatures of the library's kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kaas.errors import InvalidGraph, UnknownSymbol
from kaas.ktask.arguments import LIMIT, Argument, integers, items
from kaas.ktask.images import Image
from kaas.ktask.signature import KernelSignature, Parameter
from kaas.ktask.symbols import kernels_of, mangled_start, unknown

Extent = int | Sequence[int]


@dataclass(frozen=True, slots=True)
class KnownLibrary:
    """A library as this module reads it: its hash, the signatures of its kernels, its images."""

    library: str
    entries: tuple[KernelSignature, ...]
    images: tuple[Image, ...]


@dataclass(frozen=True, slots=True)
class CompletedLaunch:
    """The fields of a `kaas.Kernel` but for its library."""

    symbol: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: list[Argument]
    shared_bytes: int


def complete(
    known: KnownLibrary,
    name: str | None,
    grid: Extent,
    args: Iterable[Any] | Mapping[str, Any],
    block: Extent | None,
    shared_bytes: int | None,
) -> CompletedLaunch:
    """Return a launch, completed by the signature of its kernel; see `kaas.Library.kernel`."""
    entry = _entry(known, name)
    block = _fixed(entry, "block", _in_three_dimensions(entry.block), _in_three_dimensions(block))
    if block is None:
        raise InvalidGraph(
            f"kernel {entry.name!r}: its library does not know the block; pass block=...", kernel=entry.symbol
        )
    shared_bytes = _fixed(entry, "shared_bytes", entry.shared_bytes, shared_bytes) or 0
    blocks, threads = extent(entry.symbol, entry.name, "grid", grid), extent(entry.symbol, entry.name, "block", block)
    scratch = [part.argument(entry.symbol, math.prod(blocks)) for part in entry.scratch]
    return CompletedLaunch(entry.symbol, blocks, threads, [*_arguments(entry, args), *scratch], shared_bytes)


def _entry(library: KnownLibrary, name: str | None) -> KernelSignature:
    """Return the signature of a library's kernel.

    Raises:
        UnknownSymbol: no kernel, or several, have this name.
        InvalidGraph: no name is given, and the library does not hold exactly one kernel.
    """
    known = {entry.symbol: entry for entry in library.entries}
    symbols = [*known, *(symbol for symbol in kernels_of(library.images) if symbol not in known)]
    if name is None:
        if len(symbols) != 1:
            have = f"its kernels are {', '.join(symbols)}" if symbols else "its images do not list their kernels"
            raise InvalidGraph(f"library {library.library[:12]}: say which kernel; {have}")
        name = symbols[0]
    named = [entry for entry in library.entries if entry.name == name]
    if named:
        return named[0]
    if name in symbols or not symbols:
        return known.get(name, KernelSignature(name, name))
    mangled = [symbol for symbol in symbols if symbol.startswith(mangled_start(name))]
    if len(mangled) > 1:
        several = " and ".join(repr(known[symbol].name if symbol in known else symbol) for symbol in mangled)
        message = f"library {library.library[:12]} has several kernels {name!r}: {several}; name one"
        raise UnknownSymbol(message, library=library.library, symbol=name, kernel=name, near=tuple(mangled))
    if not mangled:
        names = [known[symbol].name if symbol in known else symbol for symbol in symbols]
        instance = name if "<" in name else f"{name}<...>"
        missing = f"; a template has only the kernels that from_cuda(names=[{instance!r}]) or its code instantiates"
        raise unknown(library.library, name, names, missing)
    return known.get(mangled[0], KernelSignature(mangled[0], name))


def _in_three_dimensions(extent: Extent | None) -> Any:
    """Return an extent in three dimensions, so that 128 equals (128, 1, 1). Kernel refuses all other values."""
    given = integers(extent)
    return given + (1,) * (3 - len(given)) if given else extent


def _fixed(entry: KernelSignature, what: str, fixed: Any, given: Any) -> Any:
    if fixed is not None and given is not None and given != fixed:
        raise InvalidGraph(f"kernel {entry.name!r}: {what} is {fixed} by its code, not {given}", kernel=entry.symbol)
    return given if fixed is None else fixed


def _arguments(entry: KernelSignature, args: Iterable[Any] | Mapping[str, Any]) -> list[Argument]:
    parameters = entry.parameters
    if parameters is None:
        if isinstance(args, Mapping):
            raise InvalidGraph(
                f"kernel {entry.name!r}: the names of its parameters are not known; list the arguments in order",
                kernel=entry.symbol,
            )
        return list(items(f"kernel {entry.name!r}", args))
    given = _named(entry, parameters, args) if isinstance(args, Mapping) else items(f"kernel {entry.name!r}", args)
    if len(given) != len(parameters):
        raise InvalidGraph(
            f"kernel {entry.name!r} takes {len(parameters)} arguments ({_names(parameters)}), not {len(given)}",
            kernel=entry.symbol,
        )
    expanded: list[Argument] = []
    for parameter, argument in zip(parameters, given, strict=True):
        try:
            expanded += parameter.expanded(argument)
        except InvalidGraph as error:
            fields = {**error.fields, "kernel": entry.symbol}
            raise type(error)(f"kernel {entry.name!r}: {error.message}", **fields) from error
    return expanded


def _named(entry: KernelSignature, parameters: tuple[Parameter, ...], args: Mapping[str, Any]) -> tuple[Any, ...]:
    names = [parameter.name for parameter in parameters]
    missing, unexpected = [n for n in names if n not in args], [n for n in args if n not in names]
    if missing or unexpected:
        wrong = [f"{', '.join(missing)} is missing"] * bool(missing) + [f"no {n}" for n in unexpected]
        raise InvalidGraph(f"kernel {entry.name!r} takes {_names(parameters)}: {'; '.join(wrong)}", kernel=entry.symbol)
    return tuple(args[n] for n in names)


def _names(parameters: tuple[Parameter, ...]) -> str:
    return ", ".join(parameter.name for parameter in parameters) or "none"


def extent(symbol: str, shown: str, what: str, value: int | Sequence[int]) -> tuple[int, int, int]:
    """Return one to three positive integers as three. `shown` is the kernel's name for users.

    Raises:
        InvalidGraph: the value is no such extent.
    """
    if type(value) is tuple and len(value) == 3:
        x, y, z = value
        if type(x) is type(y) is type(z) is int and 0 < x < LIMIT and 0 < y < LIMIT and 0 < z < LIMIT:
            return value
    elif type(value) is int and 0 < value < LIMIT:
        return value, 1, 1
    given = integers(value) or ()
    if not 1 <= len(given) <= 3 or any(n < 1 for n in given):
        raise InvalidGraph(f"kernel {shown!r}: {what} is one to three positive integers, not {value!r}", kernel=symbol)
    x, y, z = given + (1,) * (3 - len(given))
    return x, y, z
