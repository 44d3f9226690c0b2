"""The code of an mma form: a function of the module that widens tiles and adds up rows of eight columns.

Registers of a warp, one behind the other in memory, are tiles of eight rows; those of the second factor are transposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from softgpu.analysis.shapes import WARP
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.forms import SIDE, TF32_BITS, Form
from softgpu.target import PROBES


def function(form: Form, e: Emitter) -> str:
    """Return the text of void mma(ptr %a, ptr %b, ptr %c): c += a b, on registers of whole warps."""
    return "\n".join(_TensorFunction(form, e).lines())


class _TensorFunction:
    def __init__(self, form: Form, e: Emitter) -> None:
        self.form, self.e = form, e
        self.type = form.element
        self.row = f"<{SIDE} x {form.element}>"
        self.tile = SIDE * form.columns
        self.text: list[str] = []
        self.count = 0

    def new(self, text: str) -> str:
        self.count += 1
        self.text.append(f"%t{self.count} = {text}")
        return f"%t{self.count}"

    def at(self, pointer: str, kind: str, index: int) -> str:
        return self.new(f"getelementptr {kind}, ptr {pointer}, i64 {index}")

    def lines(self) -> list[str]:
        form = self.form
        tall, deep = form.rows // SIDE, form.depth // form.columns
        a, b = "%a", "%b"
        if form.kind != "f64":
            for name, count in (("wide_a", tall * deep), ("wide_b", deep)):
                self.text.append(f"%{name} = alloca [{count * self.tile} x float], align 64")
            a, b = self.widened("%a", "%wide_a", tall * deep), self.widened("%b", "%wide_b", deep)
        rows = [row for tile in range(deep) for row in self.turned(b, tile)]
        for high in range(tall):
            sums = list(self.load_rows(high))
            for k, row in enumerate(rows):
                for i in range(SIDE):
                    place = (k // form.columns * tall + high) * self.tile + i * form.columns + k % form.columns
                    factor = self.splat(self.new(f"load {self.type}, ptr {self.at(a, self.type, place)}"))
                    sums[i] = self.fma(factor, row, sums[i])
            self.store_rows(high, sums)
        head = f"define internal void @{form.name}(ptr noalias %a, ptr noalias %b, ptr noalias %c) {PROBES} {{"
        return [head, *self.text, "ret void", "}"]

    def splat(self, scalar: str) -> str:
        one = self.new(f"insertelement {self.row} poison, {self.type} {scalar}, i64 0")
        return self.new(f"shufflevector {self.row} {one}, {self.row} poison, <{SIDE} x i32> zeroinitializer")

    def fma(self, a: str, b: str, c: str) -> str:
        name = f"llvm.fma.v{SIDE}{'f64' if self.type == 'double' else 'f32'}"
        self.e.declared.add(f"declare {self.row} @{name}({self.row}, {self.row}, {self.row})")
        return self.new(f"call {self.row} @{name}({self.row} {a}, {self.row} {b}, {self.row} {c})")

    def widened(self, source: str, target: str, count: int) -> str:
        """Convert tiles of a smaller type to floats; of tf32, drop the bits below its fraction."""
        for index in range(count):
            here, there = self.at(source, f"<{WARP} x i32>", index), self.at(target, "float", index * self.tile)
            if self.form.kind == "f16" and not self.e.target.has_half:
                self.run_time("half_to_float", here, there, self.tile)
                continue
            wide = f"<{self.tile} x float>"
            self.text.append(f"store {wide} {self.widen(here)}, ptr {there}, align 32")
        return target

    def widen(self, here: str) -> str:
        kind, wide, bits = self.form.kind, f"<{self.tile} x float>", f"<{self.tile} x i32>"
        match kind:
            case "f16":
                halves = self.new(f"load <{self.tile} x half>, ptr {here}, align 64")
                return self.new(f"fpext <{self.tile} x half> {halves} to {wide}")
            case "bf16":
                halves = self.new(f"load <{self.tile} x i16>, ptr {here}, align 64")
                long = self.new(f"zext <{self.tile} x i16> {halves} to {bits}")
                number = self.new(f"shl {bits} {long}, splat (i32 16)")
            case _:
                long = self.new(f"load {bits}, ptr {here}, align 64")
                number = self.new(f"and {bits} {long}, splat (i32 {TF32_BITS})")
        return self.new(f"bitcast {bits} {number} to {wide}")

    def run_time(self, name: str, source: str, target: str, count: int) -> None:
        self.e.declared.add(f"declare void @sg_rt_{name}(ptr, ptr, i32)")
        self.text.append(f"call void @sg_rt_{name}(ptr {source}, ptr {target}, i32 {count})")

    def turned(self, source: str, tile: int) -> list[str]:
        """Return the rows of a tile of b, which is transposed in memory.

        Each shuffle moves the first bit of an element's place to the end; three of them move the bits of its column.
        """
        count = self.form.columns
        start = tile * self.tile
        rows = [
            self.new(f"load {self.row}, ptr {self.at(source, self.type, start + SIDE * i)}, align 32")
            for i in range(count)
        ]
        for _ in range(3):
            pairs = list(zip(rows[: count // 2], rows[count // 2 :], strict=True))
            rows = [self.mixed(self.row, one, other, start, SIDE) for one, other in pairs for start in (0, SIDE // 2)]
        return rows

    def mixed(self, kind: str, one: str, other: str, start: int, lanes: int) -> str:
        """Return the elements of both vectors in turn, from `start` on."""
        order = (index for i in range(SIDE // 2) for index in (start + i, lanes + start + i))
        return self.new(f"shufflevector {kind} {one}, {kind} {other}, {_order(order)}")

    def load_rows(self, high: int) -> Iterator[str]:
        """Yield the rows of the high-th tile of c: two registers hold the even and the odd columns."""
        if self.form.result == "f16":
            source = self.at("%c", f"<{WARP} x i32>", high)
            if not self.e.target.has_half:
                self.text.append(f"%sums{high} = alloca [{SIDE * SIDE} x float], align 64")
                self.run_time("half_to_float", source, f"%sums{high}", SIDE * SIDE)
            for i in range(SIDE):
                if self.e.target.has_half:
                    halves = self.new(f"load <{SIDE} x half>, ptr {self.at(source, 'half', SIDE * i)}, align 16")
                    yield self.new(f"fpext <{SIDE} x half> {halves} to {self.row}")
                else:
                    yield self.new(f"load {self.row}, ptr {self.at(f'%sums{high}', 'float', SIDE * i)}, align 32")
            return
        few = f"<{SIDE // 2} x {self.type}>"
        for i in range(SIDE):
            one, other = (self.new(f"load {few}, ptr {where}, align 16") for where in self.halves(high, i))
            yield self.mixed(few, one, other, 0, SIDE // 2)

    def halves(self, high: int, row: int) -> list[str]:
        """Return pointers to the even and the odd columns of a row of c."""
        return [self.at("%c", self.type, (2 * high + odd) * WARP + row * SIDE // 2) for odd in (0, 1)]

    def store_rows(self, high: int, sums: list[str]) -> None:
        for i, row in enumerate(sums):
            if self.form.result != "f16":
                few = f"<{SIDE // 2} x {self.type}>"
                for odd, where in enumerate(self.halves(high, i)):
                    order = _order(range(odd, SIDE, 2))
                    part = self.new(f"shufflevector {self.row} {row}, {self.row} poison, {order}")
                    self.text.append(f"store {few} {part}, ptr {where}, align 16")
                continue
            target = self.at("%c", "half", (high * SIDE + i) * SIDE)
            if self.e.target.has_half:
                halves = self.new(f"fptrunc {self.row} {row} to <{SIDE} x half>")
                self.text.append(f"store <{SIDE} x half> {halves}, ptr {target}, align 16")
            else:
                here = self.at(f"%sums{high}", "float", SIDE * i)
                self.text.append(f"store {self.row} {row}, ptr {here}, align 32")
                self.run_time("float_to_half", here, target, SIDE)


def _order(places: Iterable[int]) -> str:
    listed = [f"i32 {place}" for place in places]
    return f"<{len(listed)} x i32> <{', '.join(listed)}>"
