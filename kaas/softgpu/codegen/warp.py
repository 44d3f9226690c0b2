"""Instructions in which the lanes of a warp, or the warps of a block, see each other."""

from __future__ import annotations

from kaas.softgpu.analysis.blocks import Step
from kaas.softgpu.analysis.shapes import UNIFORM, VARYING, WARP, Shape, is_uniform
from kaas.softgpu.codegen.emitter import Emitter
from kaas.softgpu.codegen.family import Operation
from kaas.softgpu.codegen.values import VECTOR, Value
from kaas.softgpu.ptx.model import Immediate, Operand, Pair, Register

_ALL = (1 << WARP) - 1


def uniform_shape(_op: Operation, _sources: list[Shape]) -> Shape:
    return UNIFORM


def shuffle_shape(_op: Operation, _sources: list[Shape]) -> Shape:
    return VARYING


def _constant(e: Emitter, operand: Operand) -> int | None:
    if isinstance(operand, Immediate):
        return operand.value
    if isinstance(operand, Register):
        shape = e.plan.shapes[operand.name]
        return getattr(shape, "value", None)
    return None


def source_lane(mode: str, lane: int, by: int, clamp: int) -> tuple[int, bool]:
    """The lane that `lane` reads from and whether it is in range, as the PTX manual's shfl defines them."""
    bound, segment = clamp & 31, clamp >> 8 & 31
    by &= 31
    low = lane & segment
    high = low | (bound & ~segment & 31)
    match mode:
        case "up":
            source, fits = lane - by, lane - by >= high
        case "down":
            source, fits = lane + by, lane + by <= high
        case "bfly":
            source, fits = lane ^ by, (lane ^ by) <= high
        case _:
            source = low | (by & ~segment & 31)
            fits = source <= high
    return (source, True) if fits else (lane, False)


def shuffle(e: Emitter, step: Step) -> None:
    """shfl.sync.mode.b32 d[|p], a, b, c, members."""
    op = step.op
    target, a, b, c = step.inst.operands[:4]
    mode = next(m for m in op.modifiers if m in ("up", "down", "bfly", "idx"))
    source = e.vector(e.read(a, "i32"))
    by, clamp = _constant(e, b), _constant(e, c)
    if by is not None and clamp is not None:
        lanes = [source_lane(mode, lane, by, clamp) for lane in range(WARP)]
        order = ", ".join(f"i32 {lane}" for lane, _ in lanes)
        value = e.new(f"shufflevector <32 x i32> {source}, <32 x i32> poison, <32 x i32> <{order}>")
        fits = "<" + ", ".join(f"i1 {'true' if ok else 'false'}" for _, ok in lanes) + ">"
    else:
        for slot, operand in (
            ("%in0", source),
            ("%in1", e.vector(e.read(b, "i32"))),
            ("%in2", e.vector(e.read(c, "i32"))),
        ):
            e.put(f"store <32 x i32> {operand}, ptr {slot}")
        bits = e.intrinsic(f"kaas_rt_shfl_{mode}", "i32", [(("ptr"), p) for p in ("%in0", "%in1", "%in2", "%out")])
        value = e.new("load <32 x i32>, ptr %out")
        fits = e.new(f"bitcast i32 {bits} to <32 x i1>")
    first = target.first if isinstance(target, Pair) else target
    assert isinstance(first, Register)
    e.write(first.name, Value(VARYING, "i32", [value]), step)
    if isinstance(target, Pair):
        e.write(target.second.name, Value(VARYING, "i1", [fits]), step)


def _members(e: Emitter, _step: Step, operand: Operand | None) -> str:
    """The running lanes among those that the instruction names."""
    mask = e.mask()
    if operand is None or _constant(e, operand) in (-1, _ALL):
        return mask
    named = e.read(operand, "i32")
    if is_uniform(named.shape):
        return e.new(f"and i32 {mask}, {named.parts[0]}")
    return mask


def vote(e: Emitter, step: Step) -> None:
    """vote[.sync].mode d, {!}p[, members]."""
    op = step.op
    target, predicate = step.inst.operands[:2]
    members = _members(e, step, step.inst.operands[2] if len(step.inst.operands) > 2 else None)
    value = e.read(predicate, "i1")
    bits = e.new(f"bitcast <32 x i1> {e.vector(value)} to i32")
    yes = e.new(f"and i32 {bits}, {members}")
    assert isinstance(target, Register)
    if "ballot" in op.modifiers:
        e.write(target.name, Value(UNIFORM, "i32", [yes]), step)
        return
    everyone = e.new(f"icmp eq i32 {yes}, {members}")
    someone = e.new(f"icmp ne i32 {yes}, 0")
    if "uni" in op.modifiers:
        nobody = e.new(f"xor i1 {someone}, true")
        result = e.new(f"or i1 {everyone}, {nobody}")
    else:
        result = everyone if "all" in op.modifiers else someone
    e.write(target.name, Value(UNIFORM, "i1", [result]), step)


def activemask(e: Emitter, step: Step) -> None:
    target = step.inst.operands[0]
    assert isinstance(target, Register)
    e.write(target.name, Value(UNIFORM, "i32", [e.mask()]), step)


def match(e: Emitter, step: Step) -> None:
    """match.any/all.sync.type d[|p], a, members."""
    op = step.op
    target, a = step.inst.operands[:2]
    members = _members(e, step, step.inst.operands[2])
    kind = f"i{op.type.bits}"
    e.put(f"store {VECTOR.of(kind)} {e.vector(e.read(a, kind))}, ptr %in0")
    mode = "any" if "any" in op.modifiers else "all"
    name = f"kaas_rt_match_{mode}_b{op.type.bits}"
    same = e.intrinsic(name, "i32", [("ptr", "%in0"), ("i32", members), ("ptr", "%out")])
    first = target.first if isinstance(target, Pair) else target
    assert isinstance(first, Register)
    e.write(first.name, Value(VARYING, "i32", [e.new("load <32 x i32>, ptr %out")]), step)
    if isinstance(target, Pair):
        e.write(target.second.name, Value(UNIFORM, "i1", [e.new(f"icmp ne i32 {same}, 0")]), step)


def reduce(e: Emitter, step: Step) -> None:
    """redux.sync.op.type d, a, members."""
    op = step.op
    target, a, members = step.inst.operands
    mask = _members(e, step, members)
    e.put(f"store <32 x i32> {e.vector(e.read(a, 'i32'))}, ptr %in0")
    name = next(m for m in op.modifiers if m != "sync")
    if name in ("min", "max"):
        name += "_s32" if op.type.signed else "_u32"
    value = e.intrinsic(f"kaas_rt_redux_{name}", "i32", [("ptr", "%in0"), ("i32", mask)])
    assert isinstance(target, Register)
    e.write(target.name, Value(UNIFORM, "i32", [value]), step)


def _barrier_arguments(e: Emitter, operands: tuple[Operand, ...]) -> list[tuple[str, str]]:
    numbers = [e.groups(e.read(operand, "i32"), WARP)[0] for operand in operands[:2]]
    numbers += ["0"] * (2 - len(numbers))
    return [("ptr", "%w"), *(("i32", number) for number in numbers)]


def barrier(e: Emitter, step: Step) -> None:
    """bar.sync a[, threads], bar.arrive a, threads and bar.warp.sync. Other warps run at this point."""
    op = step.op
    if "warp" in op.modifiers:
        e.put('fence syncscope("singlethread") seq_cst')
    elif "arrive" in op.modifiers:
        e.call("kaas_rt_arrive", _barrier_arguments(e, step.inst.operands))
    else:
        e.call("kaas_rt_barrier", _barrier_arguments(e, step.inst.operands))


def barrier_reduce(e: Emitter, step: Step) -> None:
    """bar.red.op.type d, a[, threads], {!}p."""
    op = step.op
    target, *numbers, predicate = step.inst.operands
    bits = e.new(f"bitcast <32 x i1> {e.vector(e.read(predicate, 'i1'))} to i32")
    arguments = [*_barrier_arguments(e, tuple(numbers)), ("i32", bits), ("i32", e.mask())]
    value = e.intrinsic(
        f"kaas_rt_barrier_{next(m for m in op.modifiers if m in ('popc', 'and', 'or'))}", "i32", arguments
    )
    assert isinstance(target, Register)
    if "popc" in op.modifiers:
        e.write(target.name, Value(UNIFORM, "i32", [value]), step)
    else:
        e.write(target.name, Value(UNIFORM, "i1", [e.new(f"icmp ne i32 {value}, 0")]), step)


def fence(e: Emitter, _step: Step) -> None:
    e.put("fence seq_cst")


def nothing(e: Emitter, step: Step) -> None:
    """Hints."""


def trap(e: Emitter, step: Step) -> None:
    e.call("kaas_rt_trap", [("ptr", "%w"), ("i32", str(step.inst.line))])


def elect(e: Emitter, step: Step) -> None:
    """elect.sync d|p, members: the lowest of the running lanes."""
    target, members = step.inst.operands
    mask = _members(e, step, members)
    lane = e.intrinsic("llvm.cttz.i32", "i32", [("i32", mask), ("i1", "false")])
    one = e.new(f"shl i32 1, {lane}")
    assert isinstance(target, Pair)
    e.write(target.first.name, Value(UNIFORM, "i32", [lane]), step)
    e.write(target.second.name, Value(VARYING, "i1", [e.new(f"bitcast i32 {one} to <32 x i1>")]), step)
