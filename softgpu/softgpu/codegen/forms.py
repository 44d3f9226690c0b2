"""The forms of mma that have code: shapes and kinds of the matrices."""

from __future__ import annotations

from dataclasses import dataclass

SIDE = 8
"""Rows of a tile, and columns of every result."""

TF32_BITS = 0xFFFFE000
"""The bits of a 32-bit float that tensor cores read."""


@dataclass(frozen=True, slots=True)
class Form:
    """A form d[rows, 8] = a[rows, depth] b[depth, 8] + c[rows, 8]; kind: type of a and b; result: type of c and d."""

    rows: int
    depth: int
    kind: str
    result: str

    @property
    def opcode(self) -> str:
        """Return the PTX opcode."""
        shape = f"m{self.rows}n{SIDE}k{self.depth}"
        return f"mma.sync.aligned.{shape}.row.col.{self.result}.{self.kind}.{self.kind}.{self.result}"

    @property
    def name(self) -> str:
        """Return the name of the function with its code."""
        return f"mma_{self.rows}_{self.depth}_{self.kind}_{self.result}"

    @property
    def element(self) -> str:
        """Return the type of the computation."""
        return "double" if self.kind == "f64" else "float"

    @property
    def columns(self) -> int:
        """Return the columns of a tile of a or b: a register holds one element of each lane, or two of 16 bits."""
        return 8 if self.kind in ("f16", "bf16") else 4

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of registers of d, a, b and c."""
        tall, deep = self.rows // SIDE, self.depth // self.columns
        results = tall if self.result == "f16" else 2 * tall
        return results, tall * deep, deep, results

    def register(self, place: int) -> str:
        """Return the element type of the registers of operand `place`."""
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
