"""The strategy that draws random programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from hypothesis import strategies as st

from softgpu.tests.compiler.random import integers, reals  # noqa: F401 - they fill the table
from softgpu.tests.compiler.random.ops import OPS
from softgpu.tests.compiler.random.tree import (
    ACCUMULATORS,
    COLUMNS,
    LOCAL_BYTES,
    OWN_BYTES,
    REGISTERS,
    SHARED_BYTES,
    TABLE_BYTES,
    TYPES,
    Accumulate,
    Apply,
    Atomic,
    BlockVote,
    Body,
    Call,
    Exchange,
    Function,
    If,
    Leave,
    Load,
    Loop,
    Place,
    Program,
    Shuffle,
    Source,
    Statement,
    Store,
    Switch,
    Tangle,
    Vote,
)

SHAPES = [(32,), (1,), (7,), (64,), (33,), (48,), (8, 4), (5, 7, 3), (100,), (16, 16), (3, 1, 50), (1000,), (1024,)]
GRIDS = [(1,), (2,), (3,), (2, 2), (1, 1, 3)]


@dataclass(frozen=True)
class Site:
    """together: the lanes here are known, so they may vote. uniform: all threads of the block are here."""

    depth: int = 0
    together: bool = False
    uniform: bool = False
    leave: tuple[str, ...] = ()
    functions: int = 0
    memory: bool = True

    def inside(self, **changes: object) -> Site:
        return replace(self, depth=self.depth + 1, **changes)  # type: ignore[arg-type]


def registers(kind: str) -> st.SearchStrategy[str]:
    return st.integers(0, REGISTERS[kind] - 1).map(lambda number: f"{kind}{number}")


_INTEGERS = [0, 1, 2, 3, 5, 7, 8, 15, 31, 32, 33, 63, 64, 100, 255, 256, 32767, 32768, 65535, 1 << 31, (1 << 32) - 1]
_F32 = [0, 0x3F800000, 0xBF800000, 0x40490FDB, 0x00000001, 0x7F7FFFFF, 0x7F800000, 0x80000000, 0x4B000001, 0x3E99999A]
_F64 = [
    0,
    0x3FF0000000000000,
    0xBFE0000000000000,
    0x400921FB54442D18,
    1,
    0x7FEFFFFFFFFFFFFF,
    1 << 63,
    0x43E0000000000000,
]
CONSTANTS = {
    "r": _INTEGERS,
    "u": _INTEGERS,
    "d": [*_INTEGERS, 1 << 63, (1 << 64) - 1],
    "h": [n for n in _INTEGERS if n < 65536],
    "f": _F32,
    "g": _F64,
}


@cache
def sources(kind: str) -> st.SearchStrategy[Source]:
    plain: st.SearchStrategy[Source] = registers(kind)
    if kind == "r":
        plain = st.one_of(plain, registers("u"))
    return st.one_of(plain, plain, st.sampled_from(CONSTANTS[kind])) if kind in CONSTANTS else plain


@cache
def guards() -> st.SearchStrategy[str]:
    some = st.builds(lambda no, p: no + p, st.sampled_from(["", "!"]), registers("p"))
    return st.one_of(st.just(""), st.just(""), st.just(""), some)


@st.composite
def applies(draw: st.DrawFn) -> Apply:
    name = draw(st.sampled_from(sorted(OPS)))
    op = OPS[name]
    targets = draw(st.tuples(*map(registers, op.results)).filter(lambda names: len(set(names)) == len(names)))
    operands = tuple(draw(sources(kind)) for kind in op.operands)
    if name.startswith("bfe"):  # PTX takes no larger numbers there, but registers
        operands = tuple(value & 255 if isinstance(value, int) else value for value in operands)
    return Apply(name, targets, operands, draw(guards()) if len(targets) == 1 else "")


_UNIFORM_OPS = sorted(name for name, op in OPS.items() if op.results == "r" and not op.operands.strip("r"))


@st.composite
def uniform_applies(draw: st.DrawFn) -> Apply:
    name = draw(st.sampled_from(_UNIFORM_OPS))
    return Apply(name, (draw(registers("u")),), tuple(draw(sources("u")) for _ in OPS[name].operands))


_MORE = {"in": 1024, "table": TABLE_BYTES, "own": OWN_BYTES, "shared": SHARED_BYTES, "local": LOCAL_BYTES}


@st.composite
def places(draw: st.DrawFn, spaces: tuple[str, ...], size: int, *, plain: bool = False) -> Place:
    """plain: without a register."""
    usable = [space for space in spaces if "column" not in space or size <= 4]
    space = draw(st.sampled_from(usable))
    ways = [""] if space in ("in", "table") else ["", "", "generic"]
    how = draw(st.sampled_from(ways if space in ("in", "table", "local") else [*ways, "volatile", "ordered"]))
    if "column" in space:
        return Place(space, draw(st.integers(0, COLUMNS - 1)), how=how)
    offset = draw(st.integers(0, 16 // size - 1)) * size
    if space == "in":
        by = draw(st.one_of(st.just(""), registers("u"), registers("r")))
        scales = [n for n in (1, 2, 4, 8, 16) if n % size == 0]
        scale = draw(st.sampled_from([0, *scales])) if not by.startswith("r") else 0
        return Place(space, offset, by, scale, draw(st.sampled_from(["", "nc", "generic", "volatile"])))
    by = "" if plain else draw(st.one_of(st.just(""), registers("r"), registers("u")))
    if not by:
        offset = draw(st.integers(0, _MORE[space] // size - 1)) * size
    return Place(space, offset if not by else 0, by, how=how)


_VECTORS = {1: (1, 2, 4), 2: (1, 2, 4), 4: (1, 2, 4), 8: (1, 2)}


@st.composite
def loads(draw: st.DrawFn, spaces: tuple[str, ...]) -> Load:
    name = draw(st.sampled_from(sorted(TYPES)))
    count = draw(st.sampled_from(_VECTORS[int(name[1:]) // 8]))
    size = int(name[1:]) // 8 * count
    kind = TYPES[name]
    targets = draw(st.permutations([f"{kind}{n}" for n in range(max(count, REGISTERS[kind]))]))[:count]
    if any(int(target[1:]) >= REGISTERS[kind] for target in targets):
        count, targets = 1, targets[:1] if int(targets[0][1:]) < REGISTERS[kind] else [f"{kind}0"]
        size = int(name[1:]) // 8
    return Load(name, tuple(targets), draw(places(spaces, size)), draw(guards()))


@st.composite
def stores(draw: st.DrawFn, spaces: tuple[str, ...]) -> Store:
    name = draw(st.sampled_from([name for name in sorted(TYPES) if name[0] != "f"]))
    count = draw(st.sampled_from(_VECTORS[int(name[1:]) // 8]))
    values = tuple(draw(registers(TYPES[name])) for _ in range(count))
    return Store(name, values, draw(places(spaces, int(name[1:]) // 8 * count)), draw(guards()))


_ATOMICS = [
    (op, kind) for op in ("add", "min", "max") for kind in ("u32", "s32", "u64", "s64") if (op, kind) != ("add", "s64")
]
_ATOMICS += [(op, kind) for op in ("and", "or", "xor", "exch", "cas") for kind in ("b32", "b64")]
_ATOMICS += [("inc", "u32"), ("dec", "u32")]


@st.composite
def atomics(draw: st.DrawFn) -> Atomic:
    op, kind = draw(st.sampled_from(_ATOMICS))
    letter = "d" if kind.endswith("64") else "r"
    place = replace(draw(places(("own", "shared"), int(kind[1:]) // 8, plain=True)), how="")
    count = 2 if op == "cas" else 1
    return Atomic(op, kind, draw(registers(letter)), place, tuple(draw(sources(letter)) for _ in range(count)))


@st.composite
def accumulates(draw: st.DrawFn) -> Accumulate:
    cell = draw(st.integers(0, len(ACCUMULATORS) - 1))
    return Accumulate(cell, draw(sources("d" if ACCUMULATORS[cell].endswith("64") else "r")), draw(st.booleans()))


def warp_statements() -> st.SearchStrategy[Statement]:
    r, p = registers("r"), registers("p")
    by = st.one_of(st.integers(0, 31), registers("r"), registers("u"))
    modes = st.sampled_from(["up", "down", "bfly", "idx"])
    reduced = [f"redux.{name}" for name in ("add.u32", "min.u32", "max.s32", "min.s32", "and.b32", "or.b32", "xor.b32")]
    return st.one_of(
        st.builds(Shuffle, modes, r, p, r, by, st.sampled_from([32, 16, 8, 4, 1])),
        st.builds(Vote, st.sampled_from(["all", "any", "uni"]), st.tuples(p), p),
        st.builds(Vote, st.just("ballot"), st.tuples(r), p),
        st.builds(Vote, st.just("match.any"), st.tuples(r), r),
        st.builds(Vote, st.just("match.all"), st.tuples(r, p), r),
        st.builds(Vote, st.sampled_from(reduced), st.tuples(r), r),
    )


def block_statements() -> st.SearchStrategy[Statement]:
    r = registers("r")
    return st.one_of(
        st.builds(Exchange, r, r, st.integers(0, 40), st.one_of(st.just(""), r, registers("u"))),
        st.builds(BlockVote, st.sampled_from(["popc", "and", "or"]), registers("u"), registers("p")),
        st.builds(BlockVote, st.just("sum"), registers("u"), r),
    )


READ = ("in", "table", "own", "column", "shared", "shared_column", "local")
WRITE = ("own", "column", "shared", "shared_column", "local")


@cache
def statements(site: Site) -> st.SearchStrategy[Statement]:
    simple: list[st.SearchStrategy[Statement]] = [applies()] * 5
    simple += [loads(READ), stores(WRITE), atomics(), accumulates()] if site.memory else [loads(("table",))]
    if site.leave:
        simple.append(st.builds(Leave, st.sampled_from(site.leave), registers("p")))
    if site.functions:
        call = st.builds(
            Call, st.integers(0, site.functions - 1), registers("r"), st.tuples(registers("r"), registers("r"))
        )
        simple.append(call)
    if site.together:
        simple.append(warp_statements())
    if site.uniform:
        simple += [block_statements(), uniform_applies()]
    if site.depth < 3:
        simple += nested(site)
    return st.one_of(simple)


def nested(site: Site) -> list[st.SearchStrategy[Statement]]:
    """Statements with bodies: of lanes that know each other, and of lanes that may leave."""
    exits = tuple(way for way in site.leave if way in ("ret", "exit"))
    apart = site.inside(uniform=False)
    loose = site.inside(uniform=False, together=False, leave=("break", "continue", *exits))
    tight = site.inside(uniform=False, leave=exits)
    count = st.one_of(registers("r"), registers("r"), st.integers(1, 5))
    p = registers("p")
    out: list[st.SearchStrategy[Statement]] = [
        st.builds(If, p, bodies(apart), bodies(apart)),
        st.builds(Loop, count, st.booleans(), bodies(loose)),
        st.builds(Loop, count, st.booleans(), bodies(tight)),
        st.builds(Switch, registers("r"), st.lists(bodies(apart), min_size=1, max_size=4).map(tuple)),
        st.builds(Tangle, p, count, bodies(tight.inside(together=False)), bodies(tight.inside(together=False))),
    ]
    if site.uniform:
        same = site.inside()
        out.append(st.builds(If, registers("u"), bodies(same), bodies(same)))
        out.append(st.builds(Loop, st.one_of(registers("u"), st.integers(1, 4)), st.booleans(), bodies(same)))
    return out


@st.composite
def bodies(draw: st.DrawFn, site: Site) -> Body:
    return tuple(draw(st.lists(statements(site), max_size=4)))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    functions = []
    for number in range(draw(st.sampled_from([0, 0, 1, 2]))):
        site = Site(1, functions=number, memory=False, leave=("ret",))
        functions.append(Function(draw(bodies(site)), draw(st.booleans())))
    # Where threads may end early, no thread waits for others.
    ends = draw(st.sampled_from([False, False, True]))
    site = Site(together=not ends, uniform=not ends, leave=("ret", "exit") if ends else (), functions=len(functions))
    body = tuple(draw(st.lists(statements(site), min_size=1, max_size=12)))
    grid, block = draw(st.sampled_from(GRIDS)), draw(st.sampled_from(SHAPES))
    return Program(grid, block, body, tuple(functions), draw(st.integers(0, 7)))
