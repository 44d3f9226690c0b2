"""What a model consists of, as bytes for a hash: equal models give equal bytes in every process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tvm_backend.frontends.parts import Part


class Digest(Protocol):
    """A hash as hashlib makes them."""

    def update(self, data: Any, /) -> None: ...


def feed(digest: Digest, text: str) -> None:
    """Text, with its length before it, so that no two lists of texts look alike."""
    data = text.encode()
    digest.update(f"{len(data)}:".encode())
    digest.update(data)


def feed_parts(digest: Digest, parts: Sequence[Part]) -> None:
    """Relax modules: TVM's hash of each function's structure, which leaves the constants out, and these in order.
    PrimFuncs as text: TVM's hash of them differs from process to process."""
    import tvm
    import tvm_ffi

    for part in parts:
        constants: list[Any] = []
        functions = sorted(part.module.functions.items(), key=lambda item: item[0].name_hint)
        for variable, function in functions:
            inner = isinstance(function, tvm.tirx.PrimFunc)
            structure = function.script() if inner else tvm_ffi.structural_hash(function, skip_tensor_content=True)
            feed(digest, f"{part.batch_size} {part.function} {part.inputs} {variable.name_hint} {structure}")
            tvm_ffi.structural_walk(function, (tvm.ir.GenericConst, constants.append))
        for value in (constant.value for constant in constants):
            feed(digest, f"{value.dtype} {tuple(value.shape)}")
            digest.update(value.numpy().reshape(-1).view("uint8"))
