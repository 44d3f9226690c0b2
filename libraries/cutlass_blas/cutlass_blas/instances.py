"""The kernels: an Instance describes one matrix product of CUTLASS, and its name is the kernel's symbol."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from kaas import errors

EXTRAS: Final[dict[str, str]] = {"finish": "finish.cuh", "gemv": "gemv.cuh"}
"""Other device code that is built and named like an instance: name -> its file in `device`. Each is one image with
several kernels."""

OUTS: Final = {
    "s": ("float32",),
    "d": ("float64",),
    "c": ("complex64",),
    "z": ("complex128",),
    "h": ("float16", "float32"),
    "b": ("bfloat16", "float32"),
    "t": ("float32",),
}
"""Kind of product -> possible dtypes of its result; the first is the usual one."""
UNITS: Final = {
    "s": ("simt",),
    "d": ("simt", "tensor"),
    "c": ("simt",),
    "z": ("simt", "tensor"),
    "h": ("tensor",),
    "b": ("tensor",),
    "t": ("tensor",),
}
_ELEMENT_BYTES: Final = {"s": 4, "d": 8, "c": 8, "z": 16, "h": 2, "b": 2, "t": 4}
_DTYPE_BYTES: Final = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16}
_INSTRUCTION: Final = {"d": (8, 8, 4), "z": (8, 8, 4), "h": (16, 8, 16), "b": (16, 8, 16), "t": (16, 8, 8)}
_WARPS: Final = 16
"""The most warps in a block."""

TileShape = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Instance:
    """One kernel: D = act(alpha op(A) op(B) + beta C), all four row-major.

    Args:
        kind: of A and B: "s" float32, "d" float64, "c" complex64, "z" complex128, "h" float16, "b" bfloat16, "t"
            float32 multiplied as tf32. The last three are added up in float32, the others in their own type.
        out: dtype of C and D.
        op_a, op_b: "n", "t" or "c".
        unit: "simt" or "tensor".
        tile, warp: (m, n, k) that a block, and each of its warps, computes at once.
        stages: tiles in flight.
        align: the leading dimensions, batch strides and pointers of A and B are multiples of it, in elements.
        align_c: the same for C and D.
        gelu: GELU is applied at the end.
        name: the kernel's symbol. It leaves out the usual values of its kind: "sgemm_nt_128x128x8_4".

    Raises:
        UnknownSymbol: no such kernel can be made.
    """

    kind: str
    out: str
    op_a: str
    op_b: str
    unit: str
    tile: TileShape
    warp: TileShape
    stages: int
    align: int = 1
    align_c: int = 1
    gelu: bool = False
    name: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        why_not = next((reason for wrong, reason in _objections(self) if wrong), "")
        if why_not:
            raise errors.UnknownSymbol(f"the BLAS library can have no such kernel: {why_not}", near=())
        object.__setattr__(self, "name", _name(self))

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return 32 * (self.tile[0] // self.warp[0]) * (self.tile[1] // self.warp[1]) * (self.tile[2] // self.warp[2])

    @property
    def shared_bytes(self) -> int:
        """The bytes of its tiles in flight; with two stages the kernel takes a little more, for padding."""
        m, n, k = self.tile
        return (m + n) * k * self.stages * _ELEMENT_BYTES[self.kind]


def _name(x: Instance) -> str:
    m, n, k = x.tile
    name = f"{x.kind}gemm_{x.op_a}{x.op_b}_{m}x{n}x{k}_{x.stages}"
    if x.warp != _usual_warp(x.unit, x.tile):
        name += "_w{}x{}x{}".format(*x.warp)
    if x.unit != UNITS[x.kind][0]:
        name += f"_{x.unit}"
    if x.align != 1:
        name += f"_a{x.align}"
    if x.out != OUTS[x.kind][0]:
        name += f"_{x.out}"
    if x.align_c != _usual_align_c(x.align, x.out):
        name += f"_c{x.align_c}"
    return name + ("_gelu" if x.gelu else "")


def _usual_warp(unit: str, tile: TileShape) -> TileShape:
    """Return the warp's tile for four warps, two by two.

    A SIMT kernel with a tile of 128 x 128 or more has eight warps, and so has a tensor kernel with a larger tile.
    """
    m, n, k = tile
    if unit == "simt" and m >= 128 and n >= 128:
        return m // 4, n // 2, k
    return max(m // (4 if m >= 256 else 2), 1), max(n // (4 if n >= 256 else 2), 1), k


def _usual_align_c(align: int, out: str) -> int:
    """Return the alignment of A and B, but at most the elements that a thread stores at once (16 bytes)."""
    return min(align, 16 // _DTYPE_BYTES[out])


def _objections(x: Instance) -> Iterator[tuple[bool, str]]:
    yield x.kind not in OUTS, f"no kind {x.kind!r}; the kinds are {', '.join(OUTS)}"
    yield x.out not in OUTS[x.kind], f"the result of kind {x.kind!r} is {' or '.join(OUTS[x.kind])}, not {x.out!r}"
    yield x.unit not in UNITS[x.kind], f"kind {x.kind!r} is computed by {' or '.join(UNITS[x.kind])}, not {x.unit!r}"
    ops = "ntc" if x.kind in "cz" else "nt"
    yield x.op_a not in tuple(ops) or x.op_b not in tuple(ops), f"op is one of {', '.join(ops)} for kind {x.kind!r}"
    yield min(*x.tile, *x.warp, x.stages, x.align, x.align_c) < 1, "sizes are at least 1"
    fits = all(size % part == 0 for size, part in zip(x.tile, x.warp, strict=True))
    yield (
        not fits or x.threads > 32 * _WARPS,
        f"warps of {x.warp} do not share a tile of {x.tile}, at most {_WARPS} of them",
    )
    if x.unit == "tensor":
        parts = zip(x.warp, _INSTRUCTION[x.kind], strict=True)
        yield any(size % part for size, part in parts), f"a warp is a multiple of {_INSTRUCTION[x.kind]}"
        yield x.align not in _aligns(_ELEMENT_BYTES[x.kind]), f"align is one of {_aligns(_ELEMENT_BYTES[x.kind])}"
        yield x.align_c not in _aligns(_DTYPE_BYTES[x.out]), f"align_c is one of {_aligns(_DTYPE_BYTES[x.out])}"
        # an asynchronous copy has at least 4 bytes; two stages are copied through registers
        small = x.align * _ELEMENT_BYTES[x.kind] < 4
        yield small and x.stages != 2, "loads of 2 bytes go with 2 stages"
    else:
        yield (x.align, x.align_c) != (1, 1), "a SIMT kernel loads and stores single elements"
    yield x.stages < 2, "at least 2 stages"
    yield x.kind in "cz" and x.stages < 3, "complex kernels have at least 3 stages"
    yield x.gelu and x.kind in "cz", "GELU is for real numbers"


def _aligns(element_bytes: int) -> tuple[int, ...]:
    return tuple(n for n in (1, 2, 4, 8) if n * element_bytes <= 16)


_NAME = re.compile(
    r"(?P<kind>[sdczhbt])gemm_(?P<op_a>[ntc])(?P<op_b>[ntc])_(?P<tile>\d+x\d+x\d+)_(?P<stages>\d+)"
    r"(?:_w(?P<warp>\d+x\d+x\d+))?(?:_(?P<unit>simt|tensor))?(?:_a(?P<align>\d+))?"
    r"(?:_(?P<out>b?float\d+|complex\d+))?(?:_c(?P<align_c>\d+))?(?P<gelu>_gelu)?"
)


@lru_cache(maxsize=4096)
def parse(name: str) -> Instance:
    """Return the instance of this name.

    Raises:
        UnknownSymbol: no instance has this name.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise errors.UnknownSymbol(f"no kernel of the BLAS library is called {name!r}", near=())
    kind, tile = found["kind"], _shape(found["tile"])
    unit, out = found["unit"] or UNITS[kind][0], found["out"] or OUTS[kind][0]
    align = int(found["align"] or 1)
    instance = Instance(
        kind=kind,
        out=out,
        op_a=found["op_a"],
        op_b=found["op_b"],
        unit=unit,
        tile=tile,
        warp=_shape(found["warp"]) if found["warp"] else _usual_warp(unit, tile),
        stages=int(found["stages"]),
        align=align,
        align_c=int(found["align_c"] or _usual_align_c(align, out)),
        gelu=found["gelu"] is not None,
    )
    if instance.name != name:
        raise errors.UnknownSymbol(
            f"no kernel of the BLAS library is called {name!r}; it is {instance.name!r}", near=(instance.name,)
        )
    return instance


def _shape(text: str) -> TileShape:
    m, n, k = map(int, text.split("x"))
    return m, n, k


def _several(
    kind: str,
    ops: str,
    tile: TileShape,
    stages: int,
    *,
    unit: str = "",
    align: int = 1,
    out: str = "",
    gelu: bool = False,
) -> tuple[Instance, ...]:
    """Return an instance for each pair in `ops`, separated by spaces; defaults are the kind's usual values."""
    unit, out = unit or UNITS[kind][0], out or OUTS[kind][0]
    warp, align_c = _usual_warp(unit, tile), _usual_align_c(align, out)
    return tuple(
        Instance(kind, out, op[0], op[1], unit, tile, warp, stages, align, align_c, gelu) for op in ops.split()
    )


CORE: Final[tuple[Instance, ...]] = (
    *_several("s", "nn nt tn tt", (64, 64, 8), 2),
    *_several("s", "nn nt tn tt", (128, 128, 8), 4),
    *_several("s", "nn nt tn", (128, 64, 8), 4),
    *_several("s", "nn", (256, 128, 8), 4),
    *_several("s", "nn", (64, 64, 8), 2, gelu=True),
    *_several("d", "nn nt tn tt", (64, 64, 8), 2),
    *_several("d", "nn nt tn tt", (64, 64, 16), 4, unit="tensor"),
    *_several("c", "nn nt tn tt nc cn cc tc ct", (64, 64, 8), 3),
    *_several("c", "nn nt tn", (128, 128, 8), 3),
    *_several("c", "nn", (128, 64, 8), 3),
    *_several("z", "nn", (64, 64, 8), 3),
    *_several("z", "nn nt tn cn", (64, 64, 8), 3, unit="tensor"),
    *_several("h", "nn nt tn tt", (128, 128, 32), 4, align=8),
    *_several("h", "nn nt", (128, 256, 64), 3, align=8),
    *_several("h", "nn", (64, 64, 32), 4, align=8),
    *_several("h", "nn", (64, 64, 32), 3, align=2),
    *_several("h", "nn", (64, 64, 32), 2),
    *_several("h", "nn tn", (128, 128, 32), 4, align=8, out="float32"),
    *_several("h", "nn", (128, 128, 32), 4, align=8, gelu=True),
    *_several("b", "nn tn", (128, 128, 32), 4, align=8),
    *_several("b", "nn", (64, 64, 32), 4, align=8),
    *_several("b", "nn", (64, 64, 32), 2),
    *_several("t", "nn nt tn", (128, 128, 16), 4, align=4),
    *_several("t", "nn", (64, 64, 16), 4, align=4),
    *_several("t", "nn", (64, 64, 16), 3),
)
"""The instances that `python -m cutlass_blas build` makes, and wheels have; any other is built at its first use. They
are one tile for small matrices, one for large ones if that pays, and one that serves any shape."""
