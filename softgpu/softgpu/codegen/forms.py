"""The forms of mma that have code: shapes and kinds of the matrices."""

from __future__ import annotations

from dataclasses import dataclass

SIDE = 8
"""Rows of a tile, and columns of every result."""

TF32_BITS = 0xFFFFE000
"""Of a 32-bit float, those that tensor cores look at."""


@dataclass(frozen=True, slots=True)
class Form:
    """d[rows, 8] = a[rows, depth] b[depth, 8] + c[rows, 8]; kind: of a and b, result: of c and d."""

    rows: int
    depth: int
    kind: str
    result: str

    @property
    def opcode(self) -> str:
        shape = f"m{self.rows}n{SIDE}k{self.depth}"
        return f"mma.sync.aligned.{shape}.row.col.{self.result}.{self.kind}.{self.kind}.{self.result}"

    @property
    def name(self) -> str:
        return f"mma_{self.rows}_{self.depth}_{self.kind}_{self.result}"

    @property
    def element(self) -> str:
        """What is computed in."""
        return "double" if self.kind == "f64" else "float"

    @property
    def columns(self) -> int:
        """Of a tile of a or b: a register holds one or, of 16-bit kinds, two elements of each lane."""
        return 8 if self.kind in ("f16", "bf16") else 4

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """How many registers d, a, b and c are."""
        tall, deep = self.rows // SIDE, self.depth // self.columns
        results = tall if self.result == "f16" else 2 * tall
        return results, tall * deep, deep, results

    def register(self, place: int) -> str:
        """The element type of the registers of operand `place`."""
        if place in (1, 2):
            return "double" if self.kind == "f64" else "i32"
        return {"f16": "i32", "f32": "float", "f64": "double"}[self.result]


FORMS = {
    form.opcode: form
    for form in (
        *(Form(16, depth, "f16", result) for depth in (8, 16) for result in ("f16", "f32")),
        *(Form(16, depth, "bf16", "f32") for depth in (8, 16)),
        *(Form(16, depth, "tf32", "f32") for depth in (4, 8)),
        Form(8, 4, "f64", "f64"),
    )
}
