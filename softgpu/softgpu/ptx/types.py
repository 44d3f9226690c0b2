"""The scalar types of PTX, and the LLVM types that hold them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar type.

    kind: b(its), s(igned), u(nsigned), f(loat), p(redicate), h (bfloat16 and pairs of 16-bit floats, which LLVM holds
    as bits), v (pairs of 16-bit integers).
    """

    name: str
    bits: int
    kind: str
    llvm: str  # the element type that arithmetic on it uses

    @property
    def storage(self) -> str:
        """Return the element type of a register with this type."""
        return self.llvm if self.bits != 16 else "i16"

    @property
    def signed(self) -> bool:
        """Return True for signed integers."""
        return self.kind == "s"


def _scalars() -> dict[str, Scalar]:
    table = {
        f"{kind}{bits}": Scalar(f"{kind}{bits}", bits, kind, f"i{bits}") for kind in "bsu" for bits in (8, 16, 32, 64)
    }
    for name, bits, llvm in (("f16", 16, "half"), ("f32", 32, "float"), ("f64", 64, "double")):
        table[name] = Scalar(name, bits, "f", llvm)
    for name, bits in (("bf16", 16), ("f16x2", 32), ("bf16x2", 32)):
        table[name] = Scalar(name, bits, "h", f"i{bits}")
    table |= {name: Scalar(name, 32, "v", "i32") for name in ("u16x2", "s16x2")}
    table["pred"] = Scalar("pred", 1, "p", "i1")
    return table


SCALARS = _scalars()
