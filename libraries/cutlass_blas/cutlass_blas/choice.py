"""Which kernel computes a product: what was measured on such a device if anything was, else a table and a rule.

The rule estimates clocks: tiles go over the multiprocessors in waves, each wave takes as long as one tile, and what a
tile computes beyond the edges of the matrix is lost. Few tiles over a long k are cut into slices (split-K), whose sums
take one more pass over memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cutlass_blas import records
from cutlass_blas.errors import InvalidOption
from cutlass_blas.instances import CORE, Instance, parse
from cutlass_blas.operands import DTYPE_BYTES, SUM_DTYPES
from cutlass_blas.records import Key

Pick = tuple[Instance, int]
"""A kernel, and into how many slices it cuts k."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the rule knows of a device.

    Fields:
        processors: multiprocessors. bytes_per_clock: of device memory, for each of them.
        rates: (kind, unit) -> multiplications and additions of such elements per clock and multiprocessor, at best.
    """

    processors: int
    bytes_per_clock: float
    rates: dict[tuple[str, str], float]


ARCHITECTURES: Final = {
    "sm_80": Architecture(  # A100
        processors=108,
        bytes_per_clock=10,
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
}
"""(unit, elements of a tile) -> part of the rate that tiles of this size reach."""

ALIGNMENT: Final = {16: 1.0, 8: 0.9, 4: 0.7, 2: 0.4}
"""Bytes that one load of a tensor kernel fetches -> part of its rate that is left."""

TILES: Final[dict[str, tuple[tuple[str, tuple[int, int, int], tuple[int, int, int], int], ...]]] = {
    "s": (("simt", (64, 64, 8), (32, 32, 8), 2), ("simt", (128, 128, 8), (32, 64, 8), 4)),
    "d": (("tensor", (64, 64, 16), (32, 32, 16), 3), ("simt", (64, 64, 8), (32, 32, 8), 2)),
    "c": (("simt", (64, 64, 8), (32, 32, 8), 3),),
    "z": (("tensor", (64, 64, 8), (32, 32, 8), 3),),
    "h": (("tensor", (64, 64, 32), (32, 32, 32), 4), ("tensor", (128, 128, 32), (64, 64, 32), 4)),
    "b": (("tensor", (64, 64, 32), (32, 32, 32), 4), ("tensor", (128, 128, 32), (64, 64, 32), 4)),
    "t": (("tensor", (64, 64, 16), (32, 32, 16), 3), ("tensor", (128, 128, 16), (64, 64, 16), 4)),
}
"""Kind -> (unit, tile, warp, stages) of kernels that are made where the core has none that fits: another epilogue,
alignment or pair of transposes."""

WIDEST: Final = {"h": 8, "b": 8, "t": 4}
"""Kind -> elements that a tensor kernel loads at once, at best. The other kinds load single ones."""
NARROWER: Final = {"h": (8, 2, 1), "b": (8, 2, 1), "t": (4, 1)}

_SLICE_K: Final = {"simt": 512, "tensor": 1024}
"""Shorter slices are not worth their pass over memory."""
_LEAST_K: Final = min(_SLICE_K.values())
_TILE_CLOCKS = 2_000
"""What a tile takes besides its multiplications: filling the pipeline, storing."""
_PASS_CLOCKS = 6_000
"""What one more kernel takes besides its bytes."""


def architecture(arch: str | None) -> str:
    """The table that serves a device: the newest that is not newer than it. None: the oldest.

    Raises:
        InvalidOption
    """
    if arch is None:
        return "sm_80"
    known = tuple(ARCHITECTURES)
    if arch in ARCHITECTURES:
        return arch
    number = arch[3:].rstrip("af") if isinstance(arch, str) and arch.startswith("sm_") else ""
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
    """The kernel for a problem, and its slices.

    Args:
        key: align and align_c are powers of two, in elements, that divide every distance of A and B, and of C.
        split: how many slices there have to be; None leaves it to what was measured and the rule.
    """
    measured = records.best(key)
    if measured is not None and (split is None or split == measured.slices):
        return parse(measured.instance), measured.slices
    picks = _picks(key, split, _core)
    return picks[0] if len(picks) == 1 else min(picks, key=lambda pick: clocks(key, *pick))


def candidates(key: Key) -> list[Pick]:
    """All that may serve, the rule's own pick first, then as the rule ranks them."""
    own = min(_picks(key, None, _core), key=lambda pick: clocks(key, *pick))
    every = {*_picks(key, None, _core), *_picks(key, None, _made)}
    return [own, *sorted(every - {own}, key=lambda pick: (clocks(key, *pick), pick[0].name))]


def for_sums(key: Key) -> Key:
    """The same product into a workspace, which is dense and has the dtype of the sums; what is left is done after it."""
    out = SUM_DTYPES[key.kind]
    align_c = (key.n | 16 // DTYPE_BYTES[out]) if key.kind in WIDEST else 1
    return key._replace(out=out, align_c=align_c & -align_c, gelu=False)


def clocks(key: Key, instance: Instance, slices: int) -> float:
    """What the rule expects the product to take."""
    arch = ARCHITECTURES[key.arch]
    tile_m, tile_n, tile_k = instance.tile
    tiles = -(-key.m // tile_m) * -(-key.n // tile_n) * key.batch * slices
    steps = -(-key.k // (tile_k * slices))
    rate = arch.rates[key.kind, instance.unit] * EFFICIENCY.get((instance.unit, tile_m * tile_n), 0.5)
    if key.kind in WIDEST:
        rate *= ALIGNMENT[16 * instance.align // WIDEST[key.kind]]
    each = tile_m * tile_n * tile_k * steps / rate + _TILE_CLOCKS
    total = -(-tiles // arch.processors) * each
    if slices > 1:
        moved = 2 * slices * key.m * key.n * DTYPE_BYTES[SUM_DTYPES[key.kind]]
        total += _PASS_CLOCKS + moved / (arch.bytes_per_clock * arch.processors)
    return total


def _picks(key: Key, split: int | None, source: Callable[..., tuple[Instance, ...]]) -> list[Pick]:
    """Each kernel that fits, without slices and with as many as make the device busy, or with those asked for."""
    picks: list[Pick] = []
    if split is None or split == 1:
        picks += [(instance, 1) for instance in _fitting(key, source)]
    if split is None and (key.batch > 1 or key.k < 2 * _LEAST_K):
        return picks
    if split != 1:
        processors = ARCHITECTURES[key.arch].processors
        for instance in _fitting(for_sums(key), source):
            tiles = -(-key.m // instance.tile[0]) * -(-key.n // instance.tile[1])
            slices = split or min(processors // tiles, key.k // _SLICE_K[instance.unit])
            if slices > 1:
                picks.append((instance, slices))
    return picks


def _fitting(key: Key, source: Callable[..., tuple[Instance, ...]]) -> tuple[Instance, ...]:
    """What a source has for a problem; where the core has nothing, what can be made."""
    variant = key.kind, key.out, key.op_a, key.op_b, key.align, key.align_c, key.gelu
    return source(*variant) or _made(*variant)


@lru_cache(maxsize=1024)
def _core(
    kind: str, out: str, op_a: str, op_b: str, align: int, align_c: int, gelu: bool
) -> tuple[Instance, ...]:  # fmt: skip
    """Those of the core that fit."""
    wanted = (kind, out, op_a, op_b, gelu)
    return tuple(
        x
        for x in CORE
        if (x.kind, x.out, x.op_a, x.op_b, x.gelu) == wanted and align % x.align == 0 and align_c % x.align_c == 0
    )


@lru_cache(maxsize=1024)
def _made(
    kind: str, out: str, op_a: str, op_b: str, align: int, align_c: int, gelu: bool
) -> tuple[Instance, ...]:  # fmt: skip
    """Those that fit once they are built."""
    loads = next(n for n in NARROWER.get(kind, (1,)) if align % n == 0)
    stores = next(n for n in (8, 4, 2, 1) if align_c % n == 0 and n * DTYPE_BYTES[out] <= 16) if kind in WIDEST else 1
    made = []
    for unit, tile, warp, stages in TILES[kind]:
        deep = 2 if unit == "tensor" and kind in "hb" and loads == 1 else stages  # 2 bytes are not copied asynchronously
        made.append(Instance(kind, out, op_a, op_b, unit, tile, warp, deep, loads, stores, gelu))
    return tuple(made)
