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
    """Relax modules: TVM's JSON without the constants, whose bytes follow: in JSON they would cost seconds."""
    import tvm
    import tvm_ffi

    for part in parts:
        constants: list[Any] = []

        def taken(constant: Any, constants: list[Any] = constants) -> Any:
            constants.append(constant.value)
            return tvm.ir.Var(f"constant {len(constants)}", constant.ty)

        functions = sorted(part.module.functions.items(), key=lambda item: item[0].name_hint)
        texts = [
            (variable.name_hint, tvm.ir.save_json(tvm_ffi.structural_map(function, (tvm.ir.GenericConst, taken))))
            for variable, function in functions
        ]
        feed(digest, f"{part.batch_size} {part.function} {part.inputs} {part.outputs} {texts}")
        for value in constants:
            feed(digest, f"{value.dtype} {tuple(value.shape)}")
            digest.update(value.numpy().reshape(-1).view("uint8"))
