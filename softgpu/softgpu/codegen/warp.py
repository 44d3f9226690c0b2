"""Instructions through which the lanes of a warp, or the warps of a block, communicate."""

from __future__ import annotations

from softgpu.analysis.blocks import Step
from softgpu.analysis.shapes import UNIFORM, VARYING, WARP, Shape, is_uniform, ramp
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.family import Operation
from softgpu.codegen.values import SCALAR, VECTOR, Value, Width
from softgpu.ptx.model import Immediate, Operand, Pair, Register

_ALL = (1 << WARP) - 1


def uniform_shape(_op: Operation, _sources: list[Shape]) -> Shape:
    """Return the shape of one result for the warp."""
    return UNIFORM


def shuffle_shape(_op: Operation, _sources: list[Shape]) -> Shape:
    """Return the shape of a shuffle's result, which may differ in every lane."""
    return VARYING


def members_shape(_op: Operation, sources: list[Shape]) -> Shape:
    """Return the shape of the result of vote and redux: one for the warp, unless lanes name different members."""
    return UNIFORM if len(sources) < 2 or is_uniform(sources[1]) else VARYING


def _constant(e: Emitter, operand: Operand) -> int | None:
    if isinstance(operand, Immediate):
        return operand.value
    if isinstance(operand, Register):
        shape = e.plan.shapes[operand.name]
        return getattr(shape, "value", None)
    return None


def source_lane(mode: str, lane: int, by: int, clamp: int) -> tuple[int, bool]:
    """Return the lane that `lane` reads from, and True if it is in range, as the PTX manual defines shfl."""
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
    """Emit shfl.sync.mode.b32 d[|p], a, b, c, members."""
    op = step.op
    target, a, b, c = step.inst.operands[:4]
    mode = next(m for m in op.modifiers if m in ("up", "down", "bfly", "idx"))
    source = e.vector(e.read(a, "i32"))
    by, clamp = _constant(e, b), _constant(e, c)
    ran = ""
    if by is not None and clamp is not None:
        lanes = [source_lane(mode, lane, by, clamp) for lane in range(WARP)]
        order = ", ".join(f"i32 {lane}" for lane, _ in lanes)
        value = e.new(f"shufflevector <32 x i32> {source}, <32 x i32> poison, <32 x i32> <{order}>")
        if e.memcheck:
            ran = e.new(f"shufflevector <32 x i32> {_running(e, step)}, <32 x i32> poison, <32 x i32> <{order}>")
        fits = "<" + ", ".join(f"i1 {'true' if ok else 'false'}" for _, ok in lanes) + ">"
    else:
        for slot, operand in (
            ("%in0", source),
            ("%in1", e.vector(e.read(b, "i32"))),
            ("%in2", e.vector(e.read(c, "i32"))),
        ):
            e.put(f"store <32 x i32> {operand}, ptr {slot}")
        bits = e.intrinsic(f"sg_rt_shfl_{mode}", "i32", [(("ptr"), p) for p in ("%in0", "%in1", "%in2", "%out")])
        value = e.result("i32")
        fits = e.unpack(bits)
        if e.memcheck:
            e.put(f"store <32 x i32> {_running(e, step)}, ptr %in0")
            e.intrinsic(f"sg_rt_shfl_{mode}", "i32", [(("ptr"), p) for p in ("%in0", "%in1", "%in2", "%out")])
            ran = e.result("i32")
    if e.memcheck:
        value = _undefined_shown(e, step, value, ran)
    first = target.first if isinstance(target, Pair) else target
    assert isinstance(first, Register)
    e.write(first.name, Value(VARYING, "i32", [value]), step)
    if isinstance(target, Pair):
        e.write(target.second.name, Value(VARYING, "i1", [fits]), step)


def _running(e: Emitter, step: Step) -> str:
    """Return all bits set in the lanes that run the instruction, else 0."""
    return e.new(f"sext <32 x i1> {e.unpack(e.active(step)[0])} to <32 x i32>")


def _undefined_shown(e: Emitter, step: Step, value: str, ran: str) -> str:
    """Return the value with all bits set in lanes that read a lane that does not run, and report the first such read.

    PTX leaves such a value undefined, so programs that need it are right by chance. Uninitialised memory has all bits
    set in strict mode too. ran: all bits set where the lane that was read runs.
    """
    absent = e.new(f"xor <32 x i32> {ran}, splat (i32 -1)")
    stray = e.new(f"bitcast <32 x i1> {e.new(f'icmp ne <32 x i32> {absent}, zeroinitializer')} to i32")
    lanes = e.new(f"and i32 {e.active(step)[0]}, {stray}")
    e.call("sg_rt_stray_shuffle", [("ptr", "%w"), ("i32", lanes), ("i32", str(step.inst.line))])
    return e.new(f"or <32 x i32> {value}, {absent}")


def _members(e: Emitter, operand: Operand | None) -> tuple[Width, str]:
    """Return the running lanes among those that the instruction names: one mask, or a mask per lane if they differ."""
    mask = e.mask()
    if operand is None or _constant(e, operand) in (-1, _ALL):
        return SCALAR, mask
    named = e.read(operand, "i32")
    if is_uniform(named.shape):
        return SCALAR, e.new(f"and i32 {mask}, {named.parts[0]}")
    return VECTOR, e.new(f"and {VECTOR.of('i32')} {e.vector(named)}, {_splat(e, VECTOR, mask)}")


def _splat(e: Emitter, w: Width, value: str) -> str:
    return e.splat("i32", [value]) if w is VECTOR else value


def _result(w: Width, element: str, value: str) -> Value:
    return Value(VARYING if w is VECTOR else UNIFORM, element, [value])


def vote(e: Emitter, step: Step) -> None:
    """Emit vote[.sync].mode d, {!}p[, members]."""
    op = step.op
    target, predicate = step.inst.operands[:2]
    w, members = _members(e, step.inst.operands[2] if len(step.inst.operands) > 2 else None)
    kind = w.of("i32")
    value = e.read(predicate, "i1")
    bits = _splat(e, w, e.pack(e.vector(value)))
    yes = e.new(f"and {kind} {bits}, {members}")
    assert isinstance(target, Register)
    if "ballot" in op.modifiers:
        e.write(target.name, _result(w, "i32", yes), step)
        return
    all_members = e.new(f"icmp eq {kind} {yes}, {members}")
    no_member = e.new(f"icmp eq {kind} {yes}, {w.const('i32', 0)}")
    if "uni" in op.modifiers:
        result = e.new(f"or {w.of('i1')} {all_members}, {no_member}")
    elif "all" in op.modifiers:
        result = all_members
    else:
        result = e.new(f"xor {w.of('i1')} {no_member}, {w.const('i1', 1)}")
    e.write(target.name, _result(w, "i1", result), step)


def activemask(e: Emitter, step: Step) -> None:
    """Emit activemask: the running lanes as bits."""
    target = step.inst.operands[0]
    assert isinstance(target, Register)
    e.write(target.name, Value(UNIFORM, "i32", [e.mask()]), step)


def match(e: Emitter, step: Step) -> None:
    """Emit match.any/all.sync.type d[|p], a, members."""
    op = step.op
    target, a = step.inst.operands[:2]
    w, members = _members(e, step.inst.operands[2])
    kind = VECTOR.of("i32")
    e.put(f"store {VECTOR.of(f'i{op.type.bits}')} {e.vector(e.read(a, f'i{op.type.bits}'))}, ptr %in0")
    # First among all running lanes: the set of members may differ from lane to lane.
    arguments = [("ptr", "%in0"), ("i32", e.mask()), ("ptr", "%out")]
    e.call(f"sg_rt_match_b{op.type.bits}", arguments)
    each = members if w is VECTOR else e.splat("i32", [members])
    same = e.new(f"and {kind} {e.result('i32')}, {each}")
    found = e.new(f"icmp eq {kind} {same}, {each}")
    if "all" in op.modifiers:
        same = e.new(f"select {VECTOR.of('i1')} {found}, {kind} {each}, {kind} zeroinitializer")
    first = target.first if isinstance(target, Pair) else target
    assert isinstance(first, Register)
    e.write(first.name, Value(VARYING, "i32", [same]), step)
    if isinstance(target, Pair):
        e.write(target.second.name, Value(VARYING, "i1", [found]), step)


def reduce(e: Emitter, step: Step) -> None:
    """Emit redux.sync.op.type d, a, members."""
    op = step.op
    target, a, named = step.inst.operands
    w, members = _members(e, named)
    e.put(f"store <32 x i32> {e.vector(e.read(a, 'i32'))}, ptr %in0")
    name = next(m for m in op.modifiers if m != "sync")
    if name in ("min", "max"):
        name += "_s32" if op.type.signed else "_u32"
    assert isinstance(target, Register)
    if w is SCALAR:
        value = e.intrinsic(f"sg_rt_redux_{name}", "i32", [("ptr", "%in0"), ("i32", members)])
    else:
        e.put(f"store <32 x i32> {members}, ptr %in1")
        e.call(f"sg_rt_redux_each_{name}", [("ptr", "%in0"), ("ptr", "%in1"), ("i32", e.mask()), ("ptr", "%out")])
        value = e.result("i32")
    e.write(target.name, _result(w, "i32", value), step)


def _of_one(e: Emitter, value: Value) -> str:
    """Return the value that all running lanes have, even if the compiler does not know that they agree."""
    if is_uniform(value.shape):
        return value.parts[0]
    first = e.intrinsic("llvm.cttz.i32", "i32", [("i32", e.mask()), ("i1", "false")])
    return e.new(f"extractelement <{WARP} x i32> {e.vector(value)}, i32 {first}")


def _barrier_arguments(e: Emitter, operands: tuple[Operand, ...]) -> list[tuple[str, str]]:
    numbers = [_of_one(e, e.read(operand, "i32")) for operand in operands[:2]]
    numbers += ["0"] * (2 - len(numbers))
    return [("ptr", "%w"), *(("i32", number) for number in numbers)]


def barrier(e: Emitter, step: Step) -> None:
    """Emit bar.sync a[, threads], bar.arrive a, threads and bar.warp.sync. Other warps run at a bar.sync."""
    op = step.op
    if "warp" in op.modifiers:
        e.put('fence syncscope("singlethread") seq_cst')
    elif "arrive" in op.modifiers:
        e.call("sg_rt_arrive", _barrier_arguments(e, step.inst.operands))
    else:
        e.call("sg_rt_barrier", _barrier_arguments(e, step.inst.operands))


def barrier_reduce(e: Emitter, step: Step) -> None:
    """Emit bar.red.op.type d, a[, threads], {!}p."""
    op = step.op
    target, *numbers, predicate = step.inst.operands
    bits = e.pack(e.vector(e.read(predicate, "i1")))
    arguments = [*_barrier_arguments(e, tuple(numbers)), ("i32", bits), ("i32", e.mask())]
    value = e.intrinsic(
        f"sg_rt_barrier_{next(m for m in op.modifiers if m in ('popc', 'and', 'or'))}", "i32", arguments
    )
    assert isinstance(target, Register)
    if "popc" in op.modifiers:
        e.write(target.name, Value(UNIFORM, "i32", [value]), step)
    else:
        e.write(target.name, Value(UNIFORM, "i1", [e.new(f"icmp ne i32 {value}, 0")]), step)


def fence(e: Emitter, _step: Step) -> None:
    """Emit a fence of the strongest order."""
    e.put("fence seq_cst")


def nothing(e: Emitter, step: Step) -> None:
    """Emit no code: the instruction is a hint."""


def policy(e: Emitter, step: Step) -> None:
    """Emit createpolicy d, ...: a hint for caches, which do not exist here. The policy is 0."""
    target = step.inst.operands[0]
    assert isinstance(target, Register)
    e.write(target.name, Value(UNIFORM, "i64", ["0"]), step)


def trap(e: Emitter, step: Step) -> None:
    """Emit trap, which ends the launch with an error."""
    e.call("sg_rt_trap", [("ptr", "%w"), ("i32", str(step.inst.line))])


def elect(e: Emitter, step: Step) -> None:
    """Emit elect.sync d|p, members: it picks the lowest of the running members."""
    target, named = step.inst.operands
    w, members = _members(e, named)
    each = members if w is VECTOR else e.splat("i32", [members])
    kind = VECTOR.of("i32")
    lane = e.intrinsic(f"llvm.cttz.{VECTOR.name('i32')}", kind, [(kind, each), ("i1", "false")])
    chosen = e.new(f"icmp eq {kind} {lane}, {e.lane_offsets('i32', ramp(WARP, 1))}")
    assert isinstance(target, Pair)
    e.write(target.first.name, Value(VARYING, "i32", [lane]), step)
    e.write(target.second.name, Value(VARYING, "i1", [chosen]), step)
