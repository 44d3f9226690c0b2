"""A random program as PTX."""

from __future__ import annotations

from math import prod

from softgpu.tests.compiler.random.ops import OPS
from softgpu.tests.compiler.random.tables import table_words
from softgpu.tests.compiler.random.tree import (
    ACCUMULATORS,
    COLUMNS,
    LOCAL_BYTES,
    OWN_BYTES,
    SHARED_BYTES,
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
    used,
    waits,
    walk,
)

POINTERS = ("in", "own", "column", "acc", "out")
_DECLARED = {"r": "b32", "u": "b32", "d": "b64", "h": "b16", "f": "f32", "g": "f64", "x": "b16", "p": "pred"}
_STARTS = {
    "r0": "mov.u32 %r0, %tid.x;",
    "r1": "mov.u32 %r1, %gid;",
    "r2": "ld.global.u32 %r2, [%first];",
    "r3": "mov.u32 %r3, %laneid;",
    "r4": "mov.u32 %r4, 0;",
    "r5": "mov.u32 %r5, %tid.y;",
    "u0": "mov.u32 %u0, %ctaid.x;",
    "u1": "ld.global.u32 %u1, [%pin];",
    "d0": "mul.wide.u32 %d0, %gid, 4;",
    "d1": "ld.global.u64 %d1, [%first+8];",
    "d2": "mov.u64 %d2, 1;",
    "h0": "ld.global.u16 %h0, [%first+4];",
    "h1": "cvt.u16.u32 %h1, %number;",
    "f0": "cvt.rn.f32.u32 %f0, %number;",
    "f1": "ld.global.f32 %f1, [%first];",
    "f2": "mov.f32 %f2, 0f3F800000;",
    "g0": "cvt.rn.f64.u32 %g0, %gid;",
    "g1": "ld.global.f64 %g1, [%first+8];",
    "x0": "cvt.rn.f16.u32 %x0, %number;",
    "x1": "ld.global.b16 %x1, [%first+6];",
    "p0": "and.b32 %t, %number, 1; setp.ne.u32 %p0, %t, 0;",
    "p1": "setp.lt.u32 %p1, %number, 20;",
    "p2": "ld.global.s32 %t, [%first]; setp.lt.s32 %p2, %t, 0;",
}
"""The PTX that sets the initial value of each register."""


class Writer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.threads = prod(program.block)
        self.total = self.threads * prod(program.grid)
        self.lines: list[str] = []
        self.labels = 0
        self.done = ""  # where a function's ret goes: its end
        self.loops: list[tuple[str, str]] = []  # the labels for break and continue
        self.members = "-1" if self.threads % 32 == 0 else "%here"

    def put(self, *lines: str) -> None:
        self.lines += lines

    def number(self) -> int:
        self.labels += 1
        return self.labels

    def fresh(self, kind: str) -> str:
        name = f"%{kind}x{self.number()}"
        self.put(f".reg .{'pred' if kind == 'q' else 'b32'} {name};")
        return name

    # --- operands

    def source(self, value: Source, kind: str) -> str:
        if isinstance(value, str):
            return f"%{value}"
        return {"f": f"0f{value:08X}", "g": f"0d{value:016X}"}.get(kind, str(value))

    def guard(self, guard: str) -> str:
        return "" if not guard else f"@!%{guard[1:]} " if guard[0] == "!" else f"@%{guard} "

    def condition(self, name: str) -> str:
        """A predicate that keeps the condition."""
        kept = self.fresh("q")
        if name.startswith("p"):
            self.put(f"mov.pred {kept}, %{name};")
        else:
            self.put(f"and.b32 %t, %{name}, 1;", f"setp.ne.u32 {kept}, %t, 0;")
        return kept

    def place(self, place: Place, size: int, order: str = "relaxed.gpu") -> tuple[str, str]:
        """The words for the space, and the address. order: of an access that has one."""
        offset, base = place.offset, ""
        space = {"in": "global", "table": "const", "own": "global", "column": "global"}.get(
            place.space, place.space.removesuffix("_column")
        )
        match place.space:
            case "in":
                base = self.shared_input(place)
            case "table" if not place.by:
                base = "tab"
            case "table":
                self.put(f"and.b32 %t, %{place.by}, 63;", "mul.wide.u32 %a, %t, 16;", "mov.u64 %w, tab;")
                self.put("add.s64 %a, %w, %a;")
                base = "%a"
            case "own" | "local":
                base = self.moved("%own" if place.space == "own" else "%local", place.by, 64 - size, 64)
            case "shared":
                base = self.moved("%shared", place.by, SHARED_BYTES - size, 32)
            case "column":
                base, offset = "%column", place.offset * self.total * 4
            case _:
                base, offset = "%scolumn", place.offset * self.threads * 4
        if place.how == "generic" and space != "const":
            if space == "shared":
                self.put(f"cvt.u64.u32 %a, {base};", "cvta.shared.u64 %a, %a;")
                base = "%a"
            elif space == "local":
                self.put(f"cvta.local.u64 %a, {base};")
                base = "%a"
            words = ""
        else:
            words = {"volatile": f".volatile.{space}", "nc": f".{space}.nc", "ordered": f".{order}.{space}"}.get(
                place.how, f".{space}"
            )
        return words, f"[{base}+{offset}]" if offset else f"[{base}]"

    def shared_input(self, place: Place) -> str:
        if not place.by and not place.scale:
            return "%pin"
        if place.by:
            self.put(f"and.b32 %t, %{place.by}, 63;", "mul.wide.u32 %a, %t, 16;", "add.s64 %a, %a, %pin;")
        if place.scale:
            self.put(f"mad.wide.u32 %a, %gid, {place.scale}, {'%a' if place.by else '%pin'};")
        return "%a"

    def moved(self, base: str, by: str, mask: int, bits: int) -> str:
        if not by:
            return base
        self.put(f"and.b32 %t, %{by}, {mask};")
        if bits == 32:
            self.put(f"add.u32 %s, {base}, %t;")
            return "%s"
        self.put("cvt.u64.u32 %a, %t;", f"add.s64 %a, {base}, %a;")
        return "%a"

    # --- statements

    def body(self, body: Body) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, statement: Statement) -> None:
        match statement:
            case Apply(name, targets, sources, guard):
                op = OPS[name]
                names = dict(zip("de", (f"%{t}" for t in targets), strict=False))
                given = zip("abc", sources, op.operands, strict=False)
                names |= {letter: self.source(value, kind) for letter, value, kind in given}
                *before, last = (line.format(**names) for line in op.text)
                self.put(*before, self.guard(guard) + last)
            case Load(kind, names, place, guard) | Store(kind, names, place, guard):
                self.move(statement, kind, names, place, guard)
            case Atomic(op, kind, target, place, sources):
                words, address = self.place(place, int(kind[1:]) // 8)
                letter = target[0]
                operands = [f"%{target}", address, *(self.source(value, letter) for value in sources)]
                self.put(f"atom{words}.{op}.{kind} {', '.join(operands)};")
            case Accumulate(cell, value, with_result):
                name = ACCUMULATORS[cell]
                wide = name.endswith("64")
                operand = f"[%pacc+{8 * cell}], {self.source(value, 'd' if wide else 'r')};"
                self.put(
                    f"atom.global.{name} {'%w' if wide else '%t'}, {operand}"
                    if with_result
                    else f"red.global.{name} {operand}"
                )
            case Call(function, target, (first, second)):
                self.call(self.program.functions[function], function, target, first, second)
            case Shuffle() | Vote():
                self.warp(statement)
            case Exchange() | BlockVote():
                self.block(statement)
            case _:
                self.flow(statement)

    def move(self, what: Statement, kind: str, names: tuple[str, ...], place: Place, guard: str) -> None:
        order = ("acquire.gpu" if isinstance(what, Load) else "release.cta") if place.offset % 8 else "relaxed.sys"
        words, address = self.place(place, int(kind[1:]) // 8 * len(names), order)
        vector = f".v{len(names)}" if len(names) > 1 else ""
        listed = ", ".join(f"%{name}" for name in names)
        values = f"{{{listed}}}" if vector else listed
        if isinstance(what, Load):
            self.put(f"{self.guard(guard)}ld{words}{vector}.{kind} {values}, {address};")
        else:
            self.put(f"{self.guard(guard)}st{words}{vector}.{kind} {address}, {values};")

    def call(self, function: Function, number: int, target: str, first: str, second: str) -> None:
        if function.in_registers:
            self.put(f"call (%{target}), f{number}, (%{first}, %{second});")
            return
        self.put("{", ".param .b32 a, b, c;", f"st.param.b32 [a], %{first};", f"st.param.b32 [b], %{second};")
        self.put(f"call (c), f{number}, (a, b);", f"ld.param.b32 %{target}, [c];", "}")

    def warp(self, statement: Shuffle | Vote) -> None:
        match statement:
            case Shuffle(mode, target, fits, source, by, width):
                self.shuffle(mode, target, fits, source, self.source(by, "r"), width)
            case Vote("match.any", (target,), source):
                self.put(f"and.b32 %t, %{source}, 3;", f"match.any.sync.b32 %{target}, %t, {self.members};")
            case Vote("match.all", (target, same), source):
                self.put(f"and.b32 %t, %{source}, 3;", f"match.all.sync.b32 %{target}|%{same}, %t, {self.members};")
            case Vote("ballot", (target,), source):
                self.put(f"vote.sync.ballot.b32 %{target}, %{source}, {self.members};")
            case Vote(mode, (target,), source) if mode.startswith("redux"):
                _, op, kind = mode.split(".")
                self.put(f"redux.sync.{op}.{kind} %{target}, %{source}, {self.members};")
            case Vote(mode, (target,), source):
                self.put(f"vote.sync.{mode}.pred %{target}, %{source}, {self.members};")

    def shuffle(self, mode: str, target: str, fits: str, source: str, by: str, width: int) -> None:
        segment = 32 - width
        clamp = segment << 8 | (0 if mode == "up" else 31)
        everyone = self.members == "-1"
        if not everyone:
            # before the shuffle writes what it reads
            ask = {
                "up": "sub.u32 %lane, %lane, %t;",
                "down": "add.u32 %lane, %lane, %t;",
                "bfly": "xor.b32 %lane, %lane, %t;",
            }
            self.put("mov.u32 %lane, %laneid;", f"and.b32 %t, {by}, 31;")
            if mode == "idx":
                self.put(f"and.b32 %t, %t, {31 & ~segment};", f"and.b32 %lane, %lane, {segment};")
            self.put(ask.get(mode, "or.b32 %lane, %lane, %t;"))
        self.put(f"shfl.sync.{mode}.b32 %{target}|%{fits}, %{source}, {by}, {clamp}, {self.members};")
        if not everyone:
            self.put("mov.u32 %t, %laneid;", f"selp.b32 %lane, %lane, %t, %{fits};")
            self.put(f"shr.u32 %t, {self.members}, %lane;", "and.b32 %t, %t, 1;", "setp.ne.u32 %q, %t, 0;")
            self.put(f"selp.b32 %{target}, %{target}, 0, %q;")

    def block(self, statement: Exchange | BlockVote) -> None:
        match statement:
            case Exchange(target, source, shift, by):
                self.put("shl.b32 %t, %number, 2;", "mov.u32 %s, left;", "add.u32 %t, %s, %t;")
                self.put(f"st.shared.u32 [%t], %{source};", "bar.sync 0;")
                self.put(f"mov.u32 %t, %{by};" if by else f"add.u32 %t, %number, {shift};")
                self.put(f"rem.u32 %t, %t, {self.threads};", "shl.b32 %t, %t, 2;", "add.u32 %t, %s, %t;")
                self.put(f"ld.shared.u32 %{target}, [%t];", "bar.sync 0;")
            case BlockVote("sum", target, source):
                self.put("setp.eq.u32 %q, %number, 0;", "@%q st.shared.u32 [cell], 0;", "bar.sync 0;")
                self.put(f"red.shared.add.u32 [cell], %{source};", "bar.sync 0;")
                self.put(f"ld.shared.u32 %{target}, [cell];", "bar.sync 0;")
            case BlockVote("popc", target, source):
                self.put(f"barrier.sync.aligned 0;\nbar.red.popc.u32 %{target}, 0, %{source};")
            case BlockVote(mode, target, source):
                self.put(f"bar.red.{mode}.pred %q, 1, %{source};", f"selp.u32 %{target}, 1, 0, %q;")

    # --- control flow

    def flow(self, statement: Statement) -> None:
        match statement:
            case If(condition, then, otherwise):
                self.branch(condition, then, otherwise)
            case Loop(count, bottom, body):
                self.loop(count, bottom, body)
            case Leave(("ret" | "exit") as how, condition):
                self.put(f"@%{condition} bra {self.done};" if self.done else f"@%{condition} {how};")
            case Leave(how, condition):
                self.put(f"@%{condition} bra {self.loops[-1][how == 'continue']};")
            case Switch(index, cases):
                self.switch(index, cases)
            case Tangle(condition, count, first, second):
                self.tangle(condition, count, first, second)

    def branch(self, condition: str, then: Body, otherwise: Body) -> None:
        taken, number, outer = self.condition(condition), self.number(), self.members
        masks = waits((*then, *otherwise)) and condition.startswith("p")
        if masks:
            yes, no = self.fresh("m"), self.fresh("m")
            self.put(f"vote.sync.ballot.b32 {yes}, {taken}, {outer};", f"not.b32 {no}, {yes};")
            self.put(f"and.b32 {no}, {no}, {outer};")
        self.put(f"@!{taken} bra E{number};")
        self.members = yes if masks else outer
        self.body(then)
        if otherwise:
            self.put(f"bra D{number};", f"E{number}:")
            self.members = no if masks else outer
            self.body(otherwise)
            self.put(f"D{number}:")
        else:
            self.put(f"E{number}:")
        self.members = outer

    def counter(self, count: Source, least: int) -> tuple[str, str]:
        counter, limit = self.fresh("k"), self.fresh("k")
        self.put(f"mov.u32 {counter}, 0;", f"and.b32 {limit}, {self.source(count, 'r')}, 7;")
        if least:
            self.put(f"max.u32 {limit}, {limit}, {least};")
        return counter, limit

    def loop(self, count: Source, bottom: bool, body: Body) -> None:
        counter, limit = self.counter(count, int(bottom))
        more, number, outer = self.fresh("q"), self.number(), self.members
        masks = waits(body) and isinstance(count, str) and not count.startswith("u")
        if masks:
            self.members = self.fresh("m")
            self.put(f"mov.b32 {self.members}, {outer};")
        ask = [f"setp.lt.u32 {more}, {counter}, {limit};"]
        if masks:
            ask.append(f"vote.sync.ballot.b32 {self.members}, {more}, {self.members};")
        self.put(f"H{number}:")
        if not bottom:
            self.put(*ask, f"@!{more} bra D{number};")
        self.loops.append((f"D{number}", f"C{number}"))
        self.body(body)
        self.loops.pop()
        self.put(f"C{number}:", f"add.u32 {counter}, {counter}, 1;")
        self.put(*([*ask, f"@{more} bra H{number};"] if bottom else [f"bra.uni H{number};"]), f"D{number}:")
        self.members = outer

    def switch(self, index: str, cases: tuple[Body, ...]) -> None:
        chosen, number, outer = self.fresh("k"), self.number(), self.members
        self.put(f"rem.u32 {chosen}, %{index}, {len(cases)};")
        if any(waits(case) for case in cases):
            self.members = self.fresh("m")
            self.put(f"match.any.sync.b32 {self.members}, {chosen}, {outer};")
        targets = ", ".join(f"S{number}_{case}" for case in range(len(cases)))
        self.put(f"T{number}: .branchtargets {targets};", f"brx.idx {chosen}, T{number};")
        for place, case in enumerate(cases):
            self.put(f"S{number}_{place}:")
            self.body(case)
            self.put(f"bra D{number};")
        self.put(f"D{number}:")
        self.members = outer

    def tangle(self, condition: str, count: Source, first: Body, second: Body) -> None:
        left, number, more = self.fresh("k"), self.number(), self.fresh("q")
        start = self.condition(condition)
        self.put(f"and.b32 {left}, {self.source(count, 'r')}, 7;", f"@{start} bra B{number};", f"A{number}:")
        self.body(first)
        self.put(
            f"sub.s32 {left}, {left}, 1;", f"setp.le.s32 {more}, {left}, 0;", f"@{more} bra D{number};", f"B{number}:"
        )
        self.body(second)
        self.put(
            f"sub.s32 {left}, {left}, 2;", f"setp.gt.s32 {more}, {left}, 0;", f"@{more} bra A{number};", f"D{number}:"
        )

    # --- the whole

    def declare(self, names: list[str]) -> None:
        self.put(".reg .b32 %t, %s, %lane;", ".reg .b64 %a, %w;", ".reg .pred %q;", ".reg .f32 %ff;", ".reg .f64 %gg;")
        self.put(*(f".reg .{_DECLARED[name[0]]} %{name};" for name in names))

    def function(self, function: Function, number: int) -> None:
        names = used(function.body)
        self.members, self.done = "", f"R{number}"
        if function.in_registers:
            self.put(f".func (.reg .b32 %res) f{number}(.reg .b32 %one, .reg .b32 %two)", "{")
            start = ["mov.b32 %r0, %one;", "mov.b32 %r1, %two;"]
        else:
            self.put(f".func (.param .b32 res) f{number}(.param .b32 one, .param .b32 two)", "{")
            start = ["ld.param.b32 %r0, [one];", "ld.param.b32 %r1, [two];"]
        self.declare(sorted({*names, "r0", "r1"}))
        zeros = {
            "f": "mov.f32 %{}, 0f00000000;",
            "g": "mov.f64 %{}, 0d0000000000000000;",
            "p": "setp.ne.u32 %{}, 0, 0;",
        }
        other = "mov.b{1} %{0}, 0;"
        bits = {"d": 64, "h": 16, "x": 16}
        self.put(
            *start, *(zeros.get(n[0], other).format(n, bits.get(n[0], 32)) for n in names if n not in ("r0", "r1"))
        )
        self.body(function.body)
        end = "mov.b32 %res, %r0;" if function.in_registers else "st.param.b32 [res], %r0;"
        self.put(f"{self.done}:", end, "ret;", "}")
        self.done, self.members = "", "-1" if self.threads % 32 == 0 else "%here"

    def kernel(self) -> None:
        program, body = self.program, self.program.body
        spaces = {s.place.space for s in walk(body) if isinstance(s, Load | Store | Atomic)}
        self.put(f".visible .entry k({', '.join(f'.param .u64 {name}' for name in POINTERS)})", "{")
        self.declare(used(body))
        self.put(*(f".reg .b64 %p{name};" for name in POINTERS), ".reg .b64 %first, %own, %column, %local;")
        self.put(".reg .b32 %number, %gid, %shared, %scolumn, %here;")
        self.put(*(f"ld.param.u64 %p{name}, [{name}];" for name in POINTERS))
        bx, by, bz = (*program.block, 1, 1)[:3]
        gx, gy, _ = (*program.grid, 1, 1)[:3]
        self.put("mov.u32 %number, %tid.x;")
        if by * bz > 1:
            self.put("mov.u32 %t, %tid.y;", f"mad.lo.u32 %number, %t, {bx}, %number;", "mov.u32 %t, %tid.z;")
            self.put(f"mad.lo.u32 %number, %t, {bx * by}, %number;")
        self.put("mov.u32 %gid, %ctaid.x;", "mov.u32 %t, %ctaid.y;", f"mad.lo.u32 %gid, %t, {gx}, %gid;")
        self.put("mov.u32 %t, %ctaid.z;", f"mad.lo.u32 %gid, %t, {gx * gy}, %gid;")
        self.put("mov.u32 %t, %ntid.x;", "mov.u32 %s, %ntid.y;", "mul.lo.u32 %t, %t, %s;", "mov.u32 %s, %ntid.z;")
        self.put("mul.lo.u32 %t, %t, %s;", "mad.lo.u32 %gid, %gid, %t, %number;")
        self.put("mad.wide.u32 %first, %gid, 16, %pin;", f"mad.wide.u32 %own, %gid, {OWN_BYTES}, %pown;")
        self.put("mad.wide.u32 %column, %gid, 4, %pcolumn;")
        self.memory(spaces)
        if self.members == "%here":
            self.put("activemask.b32 %here;")
        self.put(*(_STARTS[name] for name in used(body)))
        self.body(body)
        self.results()
        self.put("ret;", "}")

    def memory(self, spaces: set[str]) -> None:
        if "local" in spaces:
            self.put(f".local .align 16 .b8 mine[{LOCAL_BYTES}];", "mov.u64 %local, mine;")
            self.put(
                *(f"st.local.v4.u32 [%local+{at}], {{%gid, %number, %gid, 7}};" for at in range(0, LOCAL_BYTES, 16))
            )
        if "shared" in spaces:
            self.put(f".shared .align 16 .b8 rows[{self.threads * SHARED_BYTES}];", "mov.u32 %t, rows;")
            self.put(f"mad.lo.u32 %shared, %number, {SHARED_BYTES}, %t;")
            self.put(
                *(f"st.shared.v4.u32 [%shared+{at}], {{%gid, 1, 2, %number}};" for at in range(0, SHARED_BYTES, 16))
            )
        if "shared_column" in spaces:
            self.put(f".shared .align 4 .b8 columns[{self.threads * COLUMNS * 4}];", "mov.u32 %t, columns;")
            self.put("mad.lo.u32 %scolumn, %number, 4, %t;")
            self.put(*(f"st.shared.u32 [%scolumn+{at * self.threads * 4}], %gid;" for at in range(COLUMNS)))
        if any(isinstance(s, Exchange) for s in walk(self.program.body)):
            self.put(f".shared .align 4 .b8 left[{self.threads * 4}];")
        if any(isinstance(s, BlockVote) for s in walk(self.program.body)):
            self.put(".shared .align 4 .b8 cell[4];")

    def results(self) -> None:
        """Each register that is used, in a row of 8 bytes for each thread."""
        self.put("mad.wide.u32 %a, %gid, 8, %pout;")
        for slot, name in enumerate(used(self.program.body)):
            address = f"[%a+{slot * self.total * 8}]"
            if name.startswith("p"):
                self.put(f"selp.u32 %t, 1, 0, %{name};", f"st.global.u32 {address}, %t;")
            else:
                self.put(f"st.global.{_DECLARED[name[0]]} {address}, %{name};")


def ptx(program: Program) -> str:
    writer = Writer(program)
    writer.put(".version 8.0", ".target sm_80", ".address_size 64")
    bodies = (program.body, *(function.body for function in program.functions))
    if any(isinstance(s, Load) and s.place.space == "table" for body in bodies for s in walk(body)):
        words = ", ".join(str(word) for word in table_words())
        writer.put(f".const .align 16 .u32 tab[{len(table_words())}] = {{{words}}};")
    for number, function in enumerate(program.functions):
        writer.function(function, number)
    writer.kernel()
    return "\n".join(writer.lines) + "\n"
