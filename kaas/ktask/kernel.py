"""One kernel launch as an immutable value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kaas.errors import InvalidGraph
from kaas.ktask.arguments import (
    ARGUMENTS,
    LIMIT,
    Access,
    Argument,
    Buffer,
    Scalar,
    accesses,
    check_name,
    integer,
    integers,
    items,
    scalars_of,
)
from kaas.ktask.library import Library

_LISTS = (list, tuple)


@dataclass(frozen=True, slots=True, init=False)
class Kernel:
    """One launch.

    Args:
        library: the code image set that holds the kernel.
        symbol: its name there (mangled, for C++).
        grid, block: blocks, and threads in a block, in up to three dimensions; an int is one dimension.
        args: in the kernel's own order.
        shared_bytes: dynamic shared memory of each block.
    """

    library: Library
    symbol: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[Argument, ...]
    shared_bytes: int

    def __init__(
        self,
        library: Library,
        symbol: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Iterable[Argument],
        shared_bytes: int = 0,
    ) -> None:
        if not isinstance(library, Library):
            raise InvalidGraph(f"kernel {symbol!r}: library is a kaas.Library, not {library!r}", kernel=str(symbol))
        check_name("a kernel's symbol", symbol)
        args = tuple(args) if isinstance(args, _LISTS) else items(f"kernel {symbol!r}", args)
        for position, argument in enumerate(args):
            if not isinstance(argument, ARGUMENTS):
                raise InvalidGraph(
                    f"kernel {symbol!r}: argument {position} is {argument!r}; wrap values in kaas.i32, "
                    "kaas.f32, … and buffers in In, Out or InOut",
                    kernel=symbol,
                )
        shared = integer(shared_bytes)
        if shared is None or shared < 0:
            raise InvalidGraph(f"kernel {symbol!r}: shared_bytes is {shared_bytes!r}", kernel=symbol)
        put = object.__setattr__
        put(self, "library", library)
        put(self, "symbol", symbol)
        put(self, "grid", _extent(symbol, "grid", grid))
        put(self, "block", _extent(symbol, "block", block))
        put(self, "args", args)
        put(self, "shared_bytes", shared)

    @property
    def accesses(self) -> tuple[Access, ...]:
        return tuple(access for argument in self.args for access in accesses(argument))

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return tuple(dict.fromkeys(access.buffer for access in self.accesses if access.reads))

    @property
    def writes(self) -> tuple[Buffer, ...]:
        return tuple(dict.fromkeys(access.buffer for access in self.accesses if access.writes))

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return tuple(scalar for argument in self.args for scalar in scalars_of(argument))


def _extent(symbol: str, what: str, value: int | Sequence[int]) -> tuple[int, int, int]:
    if type(value) is tuple and len(value) == 3:
        x, y, z = value
        if type(x) is type(y) is type(z) is int and 0 < x < LIMIT and 0 < y < LIMIT and 0 < z < LIMIT:
            return value
    elif type(value) is int and 0 < value < LIMIT:
        return value, 1, 1
    given = integers(value) or ()
    if not 1 <= len(given) <= 3 or any(n < 1 for n in given):
        raise InvalidGraph(f"kernel {symbol!r}: {what} is one to three positive integers, not {value!r}", kernel=symbol)
    x, y, z = given + (1,) * (3 - len(given))
    return x, y, z
