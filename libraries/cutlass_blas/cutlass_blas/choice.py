"""The choice of the kernel for a product: the fastest one measured on such a device, else by a table and a rule.

The rule estimates clocks: tiles run on the multiprocessors in waves, each wave takes as long as one tile, and the part
of a tile beyond the edges of the matrix is lost. A few tiles over a long k are cut into slices (split-K), whose sums
take one more pass over memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Final, NamedTuple

from cutlass_blas import records
from cutlass_blas.errors import InvalidOption
from cutlass_blas.instances import CORE, Instance, parse
from cutlass_blas.operands import DTYPE_BYTES, SUM_DTYPES
from cutlass_blas.records import Key

Pick = tuple[Instance, int]
"""A kernel, and the number of slices that k is cut into."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The figures of a device for the rule.

    Fields:
        processors: multiprocessors. bytes_per_clock: of device memory, for each multiprocessor.
        shared_bytes: the shared memory that a block can have on every device that uses this entry.
        rates: (kind, unit) -> multiplications and additions of such elements per clock and multiprocessor, at best.
    """

    processors: int
    bytes_per_clock: float
    shared_bytes: int
    rates: dict[tuple[str, str], float]


ARCHITECTURES: Final = {
    "sm_80": Architecture(  # A100, which has more shared memory than sm_86 and sm_89
        processors=108,
        bytes_per_clock=10,
        shared_bytes=99 << 10,
        rates={
            ("s", "simt"): 64,
            ("d", "simt"): 32,
            ("d", "tensor"): 64,
            ("c", "simt"): 16,
            ("z", "simt"): 8,
            ("z", "tensor"): 16,
            ("h", "tensor"): 1024,
            ("b", "tensor"): 1024,
            ("t", "tensor"): 512,
        },
    ),
    "sm_90": Architecture(  # H100, H200; with the instructions of sm_80 its tensor cores reach two thirds
        processors=132,
        bytes_per_clock=15,
        shared_bytes=227 << 10,
        rates={
            ("s", "simt"): 128,
            ("d", "simt"): 64,
            ("d", "tensor"): 128,
            ("c", "simt"): 32,
            ("z", "simt"): 16,
            ("z", "tensor"): 32,
            ("h", "tensor"): 1400,
            ("b", "tensor"): 1400,
            ("t", "tensor"): 700,
        },
    ),
    "sm_120": Architecture(  # RTX 5090
        processors=170,
        bytes_per_clock=4,
        shared_bytes=99 << 10,
        rates={
            ("s", "simt"): 128,
            ("d", "simt"): 2,
            ("d", "tensor"): 2,
            ("c", "simt"): 32,
            ("z", "simt"): 0.5,
            ("z", "tensor"): 0.5,
            ("h", "tensor"): 256,
            ("b", "tensor"): 256,
            ("t", "tensor"): 128,
        },
    ),
}

EFFICIENCY: Final = {
    ("simt", 64 * 32): 0.6,
    ("simt", 64 * 64): 0.75,
    ("simt", 128 * 64): 0.85,
    ("simt", 128 * 128): 0.92,
    ("simt", 256 * 128): 0.94,
    ("tensor", 64 * 32): 0.35,
    ("tensor", 64 * 64): 0.45,
    ("tensor", 128 * 64): 0.65,
    ("tensor", 128 * 128): 0.85,
    ("tensor", 256 * 128): 0.92,
    ("double", 64 * 32): 0.7,
    ("double", 64 * 64): 0.8,
    ("double", 128 * 64): 0.85,
}
"""(unit, elements of a tile) -> the part of the rate that tiles of this size reach. "double" is tensor cores at
float64: small tiles suffice for their low rate."""

ALIGNMENT: Final = {16: 1.0, 8: 0.9, 4: 0.7, 2: 0.4}
"""Bytes that one load of a tensor kernel fetches -> the part of its rate that remains."""

TILES: Final[dict[str, tuple[tuple[str, tuple[int, int, int], tuple[int, int, int], int], ...]]] = {
    "s": (("simt", (64, 64, 8), (32, 32, 8), 2), ("simt", (128, 128, 8), (32, 64, 8), 4)),
    "d": (("tensor", (64, 64, 16), (32, 32, 16), 4), ("simt", (64, 64, 8), (32, 32, 8), 2)),
    "c": (("simt", (64, 64, 8), (32, 32, 8), 3),),
    "z": (("tensor", (64, 64, 8), (32, 32, 8), 3),),
    "h": (("tensor", (64, 64, 32), (32, 32, 32), 4), ("tensor", (128, 128, 32), (64, 64, 32), 4)),
    "b": (("tensor", (64, 64, 32), (32, 32, 32), 4), ("tensor", (128, 128, 32), (64, 64, 32), 4)),
    "t": (("tensor", (64, 64, 16), (32, 32, 16), 4), ("tensor", (128, 128, 16), (64, 64, 16), 4)),
}
"""Kind -> (unit, tile, warp, stages) of the kernels that are built if no kernel of the core fits the epilogue,
alignment or pair of transposes."""

WIDEST: Final = {"h": 8, "b": 8, "t": 4}
"""Kind -> the most elements that a tensor kernel loads at once. The other kinds load single elements."""
NARROWER: Final = {"h": (8, 2, 1), "b": (8, 2, 1), "t": (4, 1)}

_SLICE_K: Final = {"simt": 512, "tensor": 1024, "double": 512}
"""The shortest slices: shorter ones are not worth their pass over memory."""
_LEAST_K: Final = min(_SLICE_K.values())
_TILE_CLOCKS = 2_000
"""The clocks of a tile in addition to its multiplications: filling the pipeline, storing."""
_PASS_CLOCKS = 6_000
"""The clocks of one more kernel in addition to its bytes."""
_SPLIT_GAIN = 1.2
"""The estimated gain from which slices are worth a workspace and another order of summation."""


def architecture(arch: str | None) -> str:
    """Return the newest known architecture that is not newer than `arch`; the oldest for None.

    Raises:
        InvalidOption: no such architecture.
    """
    if arch is None:
        return "sm_80"
    known = tuple(ARCHITECTURES)
    text = arch if isinstance(arch, str) else ""
    if text in ARCHITECTURES:
        return text
    number = text[3:].rstrip("af") if text.startswith("sm_") else ""
    older = [name for name in known if number.isdecimal() and int(name[3:]) <= int(number)]
    if not older:
        raise InvalidOption(
            f'arch is the name of an architecture from "sm_80" on, not {arch!r}',
            option="arch",
            value=repr(arch),
            known=known,
        )
    return older[-1]


def choose(key: Key, split: int | None = None) -> Pick:
    """Return the kernel for a problem, and its slices.

    Args:
        key: align and align_c are powers of two, in elements, that divide every distance of A and B, and of C.
        split: the required number of slices; None leaves it to the measurements and the rule.
    """
    measured = records.best(key)
    if measured is not None and (split is None or split == measured.slices):
        instance, slices = parse(measured.instance), measured.slices
        made = for_sums(key) if slices > 1 else key
        if _serves(instance, made.kind, made.out, made.op_a, made.op_b, made.align, made.align_c, made.gelu):
            return instance, slices
    return _best(_estimates(key, split, _core) or _estimates(key, split, _made))


def candidates(key: Key) -> list[Pick]:
    """Return all kernels that fit a problem: the rule's own pick first, then as the rule ranks them."""
    core, made = _estimates(key, None, _core), _estimates(key, None, _made)
    ranked = [pick for _, pick in sorted(core + made, key=itemgetter(0))]
    return list(dict.fromkeys([_best(core or made), *ranked]))


def for_sums(key: Key) -> Key:
    """Return the key of the same product into a workspace, which is dense and of the dtype of sums."""
    out = SUM_DTYPES[key.kind]
    align_c = (key.n | 16 // DTYPE_BYTES[out]) if key.kind in WIDEST else 1
    return key._replace(out=out, align_c=align_c & -align_c, gelu=False)


# --- the rule


class Fit(NamedTuple):
    """A kernel that fits. `rate` is its multiplications and additions per clock and multiprocessor."""

    instance: Instance
    tile_m: int
    tile_n: int
    tile_k: int
    rate: float


Estimate = tuple[float, Pick]
"""Estimated clocks and the pick that takes them."""


def _best(estimates: list[Estimate]) -> Pick:
    return min(estimates, key=itemgetter(0))[1]


def _estimates(key: Key, split: int | None, source: Source) -> list[Estimate]:
    """Estimate each kernel without slices and, if k is long, with enough for the device; or with `split` slices."""
    arch, m, n, k = ARCHITECTURES[key.arch], key.m, key.n, key.k
    processors = arch.processors
    found: list[Estimate] = []
    if split is None or split == 1:
        for instance, tile_m, tile_n, tile_k, rate in _fitting(key, source):
            tiles = -(-m // tile_m) * -(-n // tile_n) * key.batch
            each = tile_m * tile_n * (-(-k // tile_k) * tile_k) / rate + _TILE_CLOCKS
            found.append((-(-tiles // processors) * each, (instance, 1)))
        if not found or k < 2 * _LEAST_K or (split is None and key.batch > 1) or split == 1:
            return found
    moved = 2 * m * n * DTYPE_BYTES[SUM_DTYPES[key.kind]] / (arch.bytes_per_clock * processors)
    for instance, tile_m, tile_n, tile_k, rate in _fitting(for_sums(key), source):
        tiles = -(-m // tile_m) * -(-n // tile_n) * key.batch
        slices = split or min(processors // tiles, k // _SLICE_K[_pace(instance)])
        if slices > 1:
            each = tile_m * tile_n * (-(-k // (tile_k * slices)) * tile_k) / rate + _TILE_CLOCKS
            clocks = -(-tiles * slices // processors) * each + slices * moved + _PASS_CLOCKS
            found.append((_SPLIT_GAIN * clocks, (instance, slices)))
    return found


def _fitting(key: Key, source: Source) -> tuple[Fit, ...]:
    return source(key.arch, key.kind, key.out, key.op_a, key.op_b, key.align, key.align_c, key.gelu)


Source = Callable[[str, str, str, str, str, int, int, bool], tuple[Fit, ...]]


@lru_cache(maxsize=1024)
def _core(
    arch: str, kind: str, out: str, op_a: str, op_b: str, align: int, align_c: int, gelu: bool
) -> tuple[Fit, ...]:
    """Return the kernels of the core that fit the problem and the device."""
    most = ARCHITECTURES[arch].shared_bytes
    fitting = (x for x in CORE if _serves(x, kind, out, op_a, op_b, align, align_c, gelu) and x.shared_bytes <= most)
    return tuple(_fit(arch, x) for x in fitting)


def _serves(x: Instance, kind: str, out: str, op_a: str, op_b: str, align: int, align_c: int, gelu: bool) -> bool:
    same = (x.kind, x.out, x.op_a, x.op_b, x.gelu) == (kind, out, op_a, op_b, gelu)
    return same and align % x.align == 0 and align_c % x.align_c == 0


@lru_cache(maxsize=1024)
def _made(
    arch: str, kind: str, out: str, op_a: str, op_b: str, align: int, align_c: int, gelu: bool
) -> tuple[Fit, ...]:
    """Return kernels that fit after they are built."""
    loads = next(n for n in NARROWER.get(kind, (1,)) if align % n == 0)
    stores = min(align_c, 16 // DTYPE_BYTES[out]) if kind in WIDEST else 1
    made = []
    for unit, tile, warp, stages in TILES[kind]:
        deep = 2 if kind in "hb" and loads == 1 else stages  # an asynchronous copy has at least 4 bytes
        made.append(_fit(arch, Instance(kind, out, op_a, op_b, unit, tile, warp, deep, loads, stores, gelu)))
    return tuple(made)


def _pace(x: Instance) -> str:
    """Return the unit for the efficiency of tiles and the length of slices."""
    return "double" if x.unit == "tensor" and x.kind in "dz" else x.unit


def _fit(arch: str, x: Instance) -> Fit:
    rate = ARCHITECTURES[arch].rates[x.kind, x.unit] * EFFICIENCY.get((_pace(x), x.tile[0] * x.tile[1]), 0.5)
    if x.kind in WIDEST:
        rate *= ALIGNMENT[16 * x.align // WIDEST[x.kind]]
    return Fit(x, *x.tile, rate)
