"""Special registers: where a thread is in its block and grid, its lane, clocks."""

from __future__ import annotations

from softgpu.analysis.plan import special_shape
from softgpu.analysis.shapes import UNIFORM, VARYING, WARP, Affine, Varying, ramp
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.values import SCALAR, VECTOR, Value, Width, integer

# Byte offsets of the fields of sg_warp (abi.h).
WARP_FIELDS = {"ctaid": 0, "nctaid": 12, "warp": 24, "live": 28, "shared": 32, "local": 40, "dynamic": 48, "total": 52}
WARP_FIELDS |= {"grid": 72, "window_base": 80, "window_mask": 88}

_FIELDS = {f"%{name}.{axis}": (name, index) for name in ("ctaid", "nctaid") for index, axis in enumerate("xyz")}
_CONSTANTS = {"%warp_size": 32, "WARP_SZ": 32, "%gridid": 0, "%smid": 0, "%nsmid": 1, "%warpsize": 32}
_GRID = {"%envreg1": 4, "%envreg2": 0}  # the halves of an address, in the order of cooperative_groups
_CONSTANTS |= {f"%pm{n}{bits}": 0 for n in range(8) for bits in ("", "_64")}
_CLOCKS = {"%clock": "i32", "%clock_hi": "i32", "%clock64": "i64"}
_TIMERS = {"%globaltimer": "i64", "%globaltimer_lo": "i32", "%globaltimer_hi": "i32"}
_LANE_MASKS = {
    "%lanemask_eq": "eq",
    "%lanemask_lt": "lt",
    "%lanemask_le": "le",
    "%lanemask_gt": "gt",
    "%lanemask_ge": "ge",
}
_OTHERS = {"%laneid", "%warpid", "%nwarpid", "%dynamic_smem_size", "%total_smem_size"}
_INDICES = {f"%{name}.{axis}" for name in ("tid", "ntid") for axis in "xyz"}

NAMES = frozenset({*_FIELDS, *_CONSTANTS, *_CLOCKS, *_TIMERS, *_LANE_MASKS, *_OTHERS, *_INDICES, *_GRID})


def special(e: Emitter, name: str) -> Value:
    """Return the value of a special register, one of NAMES."""
    shape = special_shape(name, e.block_shape)
    if name.startswith("%tid."):
        return _thread_index(e, name, shape)
    if name.startswith("%ntid."):
        return Value(shape, "i32", [str(e.block_shape["xyz".index(name[-1])])])
    if name == "%laneid":
        return Value(shape, "i32", ["0"])
    if name in _LANE_MASKS:
        return Value(VARYING, "i32", [_lane_mask(_LANE_MASKS[name])])
    if name in _CLOCKS or name in _TIMERS:
        count = e.intrinsic("sg_rt_nanoseconds" if name in _TIMERS else "llvm.readcyclecounter", "i64", [])
        if name.endswith("_hi"):
            count = e.new(f"lshr i64 {count}, 32")
        return e.cast(Value(UNIFORM, "i64", [count]), (_CLOCKS | _TIMERS)[name])
    if name in _CONSTANTS:
        return Value(UNIFORM, "i32", [str(_CONSTANTS[name])])
    if name in _FIELDS:
        field, index = _FIELDS[name]
        return Value(UNIFORM, "i32", [warp_field(e, WARP_FIELDS[field] + 4 * index, "i32")])
    if name in _GRID:
        return Value(UNIFORM, "i32", [warp_field(e, WARP_FIELDS["grid"] + _GRID[name], "i32")])
    if name == "%warpid":
        return Value(UNIFORM, "i32", [warp_field(e, WARP_FIELDS["warp"], "i32")])
    if name == "%nwarpid":
        x, y, z = e.block_shape
        return Value(UNIFORM, "i32", [str((x * y * z + WARP - 1) // WARP)])
    field = "dynamic" if name == "%dynamic_smem_size" else "total"
    return Value(UNIFORM, "i32", [warp_field(e, WARP_FIELDS[field], "i32")])


def warp_field(e: Emitter, offset: int, kind: str) -> str:
    """Return a field of sg_warp. It never changes while the warp runs: loads of it may move over stores."""

    def load() -> str:
        pointer = e.new(f"getelementptr i8, ptr %w, i64 {offset}")
        return e.new(f"load {kind}, ptr {pointer}, !invariant.load !0")

    return e.once(("field", offset), load)


def _lane_mask(which: str) -> str:
    below = [(1 << lane) - 1 for lane in range(WARP)]
    one = [1 << lane for lane in range(WARP)]
    full = (1 << WARP) - 1
    table = {
        "eq": one,
        "lt": below,
        "le": [a | b for a, b in zip(below, one, strict=False)],
        "ge": [full & ~a for a in below],
        "gt": [full & ~(a | b) for a, b in zip(below, one, strict=False)],
    }
    return "<" + ", ".join(f"i32 {value}" for value in table[which]) + ">"


def _thread_index(e: Emitter, name: str, shape: object) -> Value:
    axis = "xyz".index(name[-1])
    extent = e.block_shape[axis]
    if extent == 1:
        return Value(special_shape(name, e.block_shape), "i32", ["0"])
    below = total = 1
    for index, size in enumerate(e.block_shape):
        below *= size if index < axis else 1
        total *= size
    first = "0" if total <= WARP else e.once("first", lambda: e.new(f"shl i32 {warp_field(e, 24, 'i32')}, 5"))

    def index_of(linear: str, width: Width) -> str:
        kind = width.of("i32")
        if below > 1:
            linear = e.new(f"udiv {kind} {linear}, {width.const('i32', below)}")
        if below * extent < total:
            linear = e.new(f"urem {kind} {linear}, {width.const('i32', extent)}")
        return linear

    if isinstance(shape, Varying):
        linear = e.new(f"add {VECTOR.of('i32')} {e.splat('i32', [first])}, {e.lane_offsets('i32', ramp(WARP, 1))}")
        return Value(VARYING, "i32", [index_of(linear, VECTOR)])
    assert isinstance(shape, Affine)
    parts = []
    for group in range(shape.groups):
        linear = e.new(f"add i32 {first}, {integer('i32', group * shape.segment)}") if group else first
        parts.append(index_of(linear, SCALAR))
    return Value(shape, "i32", parts)
