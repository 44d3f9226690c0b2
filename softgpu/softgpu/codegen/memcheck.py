"""Checked memory accesses: a call of the runner before each, with every running lane's address."""

from __future__ import annotations

from enum import IntEnum

from softgpu.analysis.blocks import Step
from softgpu.codegen.addresses import Place, address_vector
from softgpu.codegen.emitter import Emitter


class Verb(IntEnum):
    """The kind of an access, with the numbers of rt_check.c."""

    READ = 0
    WRITE = 1
    UPDATE = 2


_SPACES = {"global": 1, "const": 1, "shared": 2, "local": 3}


def check(e: Emitter, step: Step, where: Place, mask: str, size: int, verb: Verb) -> None:
    """In memcheck mode, end the launch if the `size` bytes of a lane in `mask` are not all accessible."""
    if not e.memcheck or where.inside:
        return
    words = (modifier.split("::")[0] for modifier in step.op.modifiers)
    space = next((_SPACES[word] for word in words if word in _SPACES), 0)
    e.put(f"store <32 x i64> {address_vector(e, where.named or where.value)}, ptr %addresses")
    numbers = (mask, str(size), str(step.inst.line), str(space), str(int(verb)))
    e.call("sg_rt_check", [("ptr", "%w"), ("ptr", "%addresses"), *(("i32", number) for number in numbers)])
