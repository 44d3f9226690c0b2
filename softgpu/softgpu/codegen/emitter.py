"""Writes LLVM IR text for one kernel: values by shape, registers, the mask of running lanes, calls out of line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from softgpu.analysis.blocks import Step
from softgpu.analysis.plan import Plan
from softgpu.analysis.shapes import (
    UNIFORM,
    VARYING,
    WARP,
    Affine,
    Shape,
    Varying,
    Wide,
    constant,
    is_flat,
    is_uniform,
    level,
    ramp,
)
from softgpu.codegen.values import AS_INTEGER, SCALAR, SIZES, VECTOR, Value, Width, immediate, integer
from softgpu.ptx.kernel import Kernel
from softgpu.ptx.model import Immediate, Not, Operand, PtxError, Register, Special, Symbol
from softgpu.ptx.types import SCALARS
from softgpu.target import Target


@dataclass(slots=True)
class Emitter:
    """The state while the code of a kernel is written. Its methods append lines, and return the names of values."""

    kernel: Kernel
    plan: Plan
    target: Target
    block_shape: tuple[int, int, int]
    special: Callable[[Emitter, str], Value]
    memcheck: bool = False  # each access of memory is checked before it happens
    fenced: bool = False  # no access leaves the window of the launch
    lines: list[str] = field(default_factory=list)
    declared: set[str] = field(default_factory=set)
    registers: dict[str, Value] = field(default_factory=dict)  # known in this block
    written: set[str] = field(default_factory=set)
    cache: dict[object, str] = field(default_factory=dict)  # values that this block has computed already
    functions: dict[str, str] = field(default_factory=dict)  # other functions of the module: text by name
    tables: dict[tuple[int, ...], int] = field(default_factory=dict)  # constants in memory
    flushed: set[str] = field(default_factory=set)  # values without denormals
    casts: dict[str, tuple[str, str]] = field(default_factory=dict)  # bitcast value: (its source, the source's type)
    packed: dict[str, str] = field(default_factory=dict)  # the bits that a <32 x i1> was made from
    label: str = "entry"
    block: int = 0
    all_run: bool = False  # this body is for all 32 lanes; the block has another body for fewer lanes
    count: int = 0
    uses_globals: bool = False
    out_bytes: int = 8  # of %out that the code reads: `safe_pointer` reads an element

    def new(self, text: str) -> str:
        """Append an instruction, and return the name of its result."""
        self.count += 1
        name = f"%v{self.count}"
        self.lines.append(f"{name} = {text}")
        return name

    def put(self, text: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(text)

    def fresh(self, stem: str) -> str:
        """Return a label that is not used yet."""
        self.count += 1
        return f"{stem}.{self.count}"

    def start(self, label: str) -> None:
        """Begin an LLVM block."""
        self.lines.append(f"{label}:")
        self.label = label

    def intrinsic(self, name: str, result: str, arguments: list[tuple[str, str]]) -> str:
        """Call a function with a result; arguments are (type, value)."""
        self.declared.add(f"declare {result} @{name}({', '.join(kind for kind, _ in arguments)})")
        return self.new(f"call {result} @{name}({', '.join(f'{kind} {value}' for kind, value in arguments)})")

    def call(self, name: str, arguments: list[tuple[str, str]]) -> None:
        """Call a function without a result; arguments are (type, value)."""
        self.declared.add(f"declare void @{name}({', '.join(kind for kind, _ in arguments)})")
        self.put(f"call void @{name}({', '.join(f'{kind} {value}' for kind, value in arguments)})")

    def table(self, numbers: tuple[int, ...]) -> str:
        """Return a constant array of 32-bit integers."""
        name = f"@table{self.tables.setdefault(numbers, len(self.tables))}"
        items = ", ".join(f"i32 {integer('i32', number)}" for number in numbers)
        self.declared.add(f"{name} = private unnamed_addr constant [{len(numbers)} x i32] [{items}]")
        return name

    def once(self, key: object, make: Callable[[], str]) -> str:
        """Return the value of this key in the block, and make it at its first use."""
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    def splat(self, element: str, parts: list[str]) -> str:
        """Return the vector whose groups hold these scalars."""
        kind = VECTOR.of(element)
        if len(parts) == 1:
            if not parts[0].startswith("%"):
                return VECTOR.const(element, parts[0])
            one = self.new(f"insertelement {kind} poison, {element} {parts[0]}, i64 0")
            return self.new(f"shufflevector {kind} {one}, {kind} poison, <{WARP} x i32> zeroinitializer")
        few = f"<{len(parts)} x {element}>"
        vector = "poison"
        for index, part in enumerate(parts):
            vector = self.new(f"insertelement {few} {vector}, {element} {part}, i64 {index}")
        segment = WARP // len(parts)
        order = ", ".join(f"i32 {lane // segment}" for lane in range(WARP))
        return self.new(f"shufflevector {few} {vector}, {few} poison, <{WARP} x i32> <{order}>")

    def lane_offsets(self, element: str, offsets: tuple[int, ...]) -> str:
        """Return the constant vector of a shape's offsets."""
        repeated = offsets * (WARP // len(offsets))
        return "<" + ", ".join(f"{element} {integer(element, offset)}" for offset in repeated) + ">"

    def vector(self, value: Value) -> str:
        """Return the value as a vector of 32."""
        if value.vector:
            return value.vector
        match value.shape:
            case Varying():
                value.vector = value.parts[0]
            case Affine(offsets):
                value.vector = self.splat(value.type, value.parts)
                if any(offsets):
                    added = self.lane_offsets(value.type, offsets)
                    value.vector = self.new(f"add {VECTOR.of(value.type)} {value.vector}, {added}")
            case Wide(offsets, signed, scale) as wide:
                base = self.splat("i32", value.parts[: wide.groups])
                lanes = self.new(f"add <{WARP} x i32> {base}, {self.lane_offsets('i32', offsets)}")
                extend = "sext" if signed else "zext"
                lanes = self.new(f"{extend} <{WARP} x i32> {lanes} to <{WARP} x i64>")
                if scale != 1:
                    lanes = self.new(f"mul <{WARP} x i64> {lanes}, {VECTOR.const('i64', scale)}")
                offset = self.splat("i64", value.parts[wide.groups :])
                value.vector = self.new(f"add <{WARP} x i64> {lanes}, {offset}")
        return value.vector

    def groups(self, value: Value, segment: int) -> list[str]:
        """Return the bases of an Affine for groups of this size."""
        assert isinstance(value.shape, Affine)
        have, out = value.shape.segment, []
        if have == segment:
            return value.parts
        for index in range(WARP // segment):
            base = value.parts[index * segment // have]
            shift = value.shape.offsets[index * segment % have]
            out.append(self.new(f"add {value.type} {base}, {integer(value.type, shift)}") if shift else base)
        return out

    def reshape(self, value: Value, shape: Shape) -> Value:
        """Return the same value in a wider shape."""
        if value.shape == shape:
            return value
        match shape, value.shape:
            case Affine(), Affine():
                return Value(shape, value.type, self.groups(value, shape.segment), value.vector)
            case Wide(), Wide():
                parts: list[str] = []
                segment, have = shape.segment, value.shape.segment
                for index in range(shape.groups):
                    base, shift = value.parts[index * segment // have], value.shape.offsets[index * segment % have]
                    parts.append(self.new(f"add i32 {base}, {integer('i32', shift)}") if shift else base)
                offsets = value.parts[value.shape.groups :]
                parts += [offsets[index * segment // have] for index in range(shape.groups)]
                return Value(shape, value.type, parts, value.vector)
        if not isinstance(shape, Varying):
            raise PtxError(0, f"a value of {value.shape} does not fit a register of {shape}")
        return Value(VARYING, value.type, [self.vector(value)])

    def cast(self, value: Value, element: str, signed: bool = False) -> Value:
        """Return the bits of the value as another element type; wider sources are cut, narrower ones extended."""
        if value.type == element:
            return value
        have, want = SIZES[value.type], SIZES[element]
        if isinstance(value.shape, Wide) or (
            isinstance(value.shape, Affine) and not is_flat(value.shape) and have <= want
        ):
            value = Value(VARYING, value.type, [self.vector(value)])
        shape, parts, kind = value.shape, value.parts, value.type
        width = VECTOR if isinstance(shape, Varying) else SCALAR
        if isinstance(shape, Affine) and shape.value is not None and not {kind, element} & AS_INTEGER.keys():
            shape = level(shape.segment)
        if kind in AS_INTEGER and have != want:
            parts = [self.new(f"bitcast {width.of(kind)} {p} to {width.of(AS_INTEGER[kind])}") for p in parts]
            kind = AS_INTEGER[kind]
        middle = AS_INTEGER.get(element, element)
        if have != want:
            how = "trunc" if have > want else "sext" if signed else "zext"
            parts = [self.new(f"{how} {width.of(kind)} {p} to {width.of(middle)}") for p in parts]
            kind = middle
        if kind != element:
            parts = [self._same_bits(p, width.of(kind), width.of(element)) for p in parts]
        return Value(shape, element, parts)

    def _same_bits(self, value: str, kind: str, wanted: str) -> str:
        """Return a bitcast. A cast back returns the first value, so that its properties (`flushed`) stay known."""
        first, was = self.casts.get(value, ("", ""))
        if was == wanted:
            return first
        cast = self.new(f"bitcast {kind} {value} to {wanted}")
        self.casts[cast] = value, kind
        return cast

    def read(self, operand: Operand, element: str, signed: bool = False) -> Value:
        """Return a source operand as `element`."""
        match operand:
            case Register(name):
                return self.cast(self.register(name), element, signed)
            case Immediate(bits, float_bits):
                return immediate(bits, float_bits, element)
            case Not(register):
                value = self.register(register.name)
                width = VECTOR if isinstance(value.shape, Varying) else SCALAR
                flipped = [self.new(f"xor {width.of('i1')} {p}, {width.const('i1', 1)}") for p in value.parts]
                return Value(value.shape, "i1", flipped)
            case Special(name):
                return self.cast(self.special(self, name), element)
            case Symbol(name, offset):
                return self.cast(self.symbol(name, offset), element)
        raise PtxError(0, f"{operand} cannot be read")

    def symbol(self, name: str, offset: int) -> Value:
        """Return the address of a variable in its own space (local, global, parameter: the host address)."""
        kernel = self.kernel
        if name in kernel.shared:
            return Value(constant(kernel.shared[name] + offset), "i64", [str(kernel.shared[name] + offset)])
        if name in kernel.local:
            start = self.new(f"add i64 %local, {kernel.local[name] + offset}")
            return Value(Affine(ramp(WARP, kernel.local_bytes), 16), "i64", [start])
        if name in kernel.globals:
            self.uses_globals = True
            return Value(UNIFORM, "i64", [self.new(f"add i64 %globals, {kernel.globals[name] + offset}")])
        for parameter in kernel.parameters:
            if parameter.name == name:
                base = self.new("ptrtoint ptr %params to i64")
                return Value(UNIFORM, "i64", [self.new(f"add i64 {base}, {parameter.offset + offset}")])
        raise PtxError(0, f"no variable {name}")

    def storage(self, name: str) -> str:
        """Return the element type of a register."""
        return SCALARS[self.kernel.registers[name]].storage

    def slots(self, name: str) -> list[tuple[str, str]]:
        """Return (stack slot, type) of the parts of a register; a varying predicate is kept as a bit mask."""
        kind, shape = self.storage(name), self.plan.shapes[name]
        match shape:
            case Varying():
                return [(f'%"{name}"', "i32" if kind == "i1" else VECTOR.of(kind))]
            case Affine():
                return [(f'%"{name}.{i}"', kind) for i in range(shape.groups)]
            case Wide():
                kinds = ["i32"] * shape.groups + ["i64"] * shape.groups
                return [(f'%"{name}.{i}"', part) for i, part in enumerate(kinds)]

    def register(self, name: str) -> Value:
        """Return the value of a register, and load it at its first use in the block."""
        value = self.registers.get(name)
        if value is None:
            kind, shape = self.storage(name), self.plan.shapes[name]
            parts = [self.new(f"load {part}, ptr {slot}") for slot, part in self.slots(name)]
            if kind == "i1" and isinstance(shape, Varying):
                parts = [self.unpack(parts[0])]
            value = self.registers[name] = Value(shape, kind, parts)
        return value

    def write(self, name: str, value: Value, step: Step, signed: bool = False) -> None:
        """Set a register in the running lanes where the step's guard holds; other lanes keep a value that they need."""
        if name == "_":
            return
        kind, shape = self.storage(name), self.plan.shapes[name]
        value = self.cast(value, kind, signed)
        condition = self.guard(step) if step.inst.guard is not None else None
        if isinstance(shape, Varying):
            vector = self.vector(value)
            choose = self._lanes_to_write(name, condition)
            if choose:
                old = self.vector(self.register(name))
                vector = self.new(f"select {choose}, {VECTOR.of(kind)} {vector}, {VECTOR.of(kind)} {old}")
            value = Value(VARYING, kind, [vector])
        else:
            value = self.reshape(value, shape)
            if condition is not None:
                old_parts = self.register(name).parts
                kinds = [part for _, part in self.slots(name)]
                new = [
                    self.new(f"select i1 {condition.parts[0]}, {part} {one}, {part} {old}")
                    for part, one, old in zip(kinds, value.parts, old_parts, strict=False)
                ]
                value = Value(shape, kind, new)
        self.registers[name] = value
        self.written.add(name)

    def _lanes_to_write(self, name: str, condition: Value | None) -> str:
        shared = not self.all_run and self.plan.is_live_elsewhere(self.block, name)
        if condition is not None and is_uniform(condition.shape) and not shared:
            return f"i1 {condition.parts[0]}"
        if condition is None:
            return f"<{WARP} x i1> {self.lanes()}" if shared else ""
        vector = self.vector(condition)
        if shared:
            vector = self.new(f"and <{WARP} x i1> {vector}, {self.lanes()}")
        return f"<{WARP} x i1> {vector}"

    def guard(self, step: Step) -> Value:
        """Return the truth of the step's guard."""
        register = step.inst.guard
        assert register is not None
        return self.read(Not(register) if step.inst.negated else register, "i1")

    def flush(self, live: int) -> None:
        """Store the registers that later blocks read. live: the set of them."""
        for name in self.written:
            if not live & self.plan.flow.register_bit[name]:
                continue
            value = self.registers[name]
            for (slot, kind), part in zip(self.slots(name), value.parts, strict=False):
                if isinstance(value.shape, Varying) and value.type == "i1":
                    part = self.pack(part)
                self.put(f"store {kind} {part}, ptr {slot}")

    @property
    def is_full(self) -> bool:
        """Return True if all 32 lanes always run this body of the block."""
        return self.all_run or self.plan.is_full(self.block)

    def mask(self) -> str:
        """Return the running lanes as bits."""
        return "-1" if self.is_full else self.once("mask", lambda: self.new("load i32, ptr %mask"))

    def lanes(self) -> str:
        """Return the running lanes as <32 x i1>."""
        mask = self.mask()
        return self.once("lanes", lambda: self.unpack(mask))

    def unpack(self, bits: str, lanes: int = WARP) -> str:
        """Return bits as <lanes x i1>. Processors without mask registers get it from a comparison of vectors."""
        if self.target.has_mask_registers:
            few = bits if lanes == WARP else self.new(f"trunc i32 {bits} to i{lanes}")
            vector = self.new(f"bitcast i{lanes} {few} to <{lanes} x i1>")
        else:
            kind = f"<{lanes} x i32>"
            one = self.new(f"insertelement {kind} poison, i32 {bits}, i64 0")
            each = self.new(f"shufflevector {kind} {one}, {kind} poison, <{lanes} x i32> zeroinitializer")
            places = "<" + ", ".join(f"i32 {integer('i32', 1 << lane)}" for lane in range(lanes)) + ">"
            vector = self.new(f"icmp ne {kind} {self.new(f'and {kind} {each}, {places}')}, zeroinitializer")
        if lanes == WARP:
            self.packed[vector] = bits
        return vector

    def pack(self, vector: str) -> str:
        """Return <32 x i1> as bits."""
        return self.packed.get(vector) or self.new(f"bitcast <{WARP} x i1> {vector} to i32")

    def active(self, step: Step) -> tuple[str, str]:
        """Return the running lanes where the step's guard holds: as bits, and as <32 x i1> ("" if surely all)."""
        if step.inst.guard is None:
            return (self.mask(), "") if self.is_full else (self.mask(), self.lanes())
        condition = self.guard(step)
        if is_uniform(condition.shape):
            bits = self.new(f"select i1 {condition.parts[0]}, i32 {self.mask()}, i32 0")
            return bits, self.unpack(bits)
        vector = self.vector(condition)
        if not self.is_full:
            vector = self.new(f"and <{WARP} x i1> {vector}, {self.lanes()}")
        return self.pack(vector), vector

    def apply(self, shape: Shape, element: str, function: Elementwise, sources: list[Value]) -> Value:
        """Return `function` of each group's scalars if the shape is Affine, else of vectors."""
        if isinstance(shape, Affine):
            columns = [self.groups(source, shape.segment) for source in sources]
            parts = [function(SCALAR, *(column[i] for column in columns)) for i in range(shape.groups)]
            return Value(shape, element, parts)
        return Value(VARYING, element, [function(VECTOR, *(self.vector(source) for source in sources))])

    def outline(self, name: str, result: str, arguments: list[tuple[str, str]], width: Width) -> str:
        """Call the runner's elementwise name(const inputs..., output, lanes). arguments: (element, value)."""
        for index, (element, value) in enumerate(arguments):
            self.put(f"store {width.of(element)} {value}, ptr %in{index}")
        inputs = (("ptr", f"%in{index}") for index in range(len(arguments)))
        self.call(name, [*inputs, ("ptr", "%out"), ("i32", str(width.lanes))])
        return self.result(result, width)

    def result(self, element: str, width: Width = VECTOR, index: int = 0) -> str:
        """Return one of the values that a call has left in %out; lanes that did not run have 0, or a former value."""
        nbytes = width.lanes * SIZES[element] // 8
        self.out_bytes = max(self.out_bytes, (index + 1) * nbytes)
        where = self.new(f"getelementptr i8, ptr %out, i64 {index * nbytes}") if index else "%out"
        return self.new(f"load {width.of(element)}, ptr {where}")


Elementwise = Callable[..., str]
