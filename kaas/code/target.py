"""The devices for which code is compiled: "sm_80+sm_90+ptx" taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kaas.errors import InvalidTarget

_PART = re.compile(r"(sm|compute)_(\d+[af]?)|(ptx)")
_OLDEST = "80"
"""The compute capability of plain "ptx"."""


@dataclass(frozen=True, slots=True)
class Target:
    """Compute capabilities as CUDA writes them, "80" or "90a".

    Fields:
        cubins: of the machine code; a device tries it in this order.
        ptx: of the PTX, which devices of this capability and newer ones can run; None: no PTX is wanted.
    """

    cubins: tuple[str, ...]
    ptx: str | None


def parse(arch: str) -> Target:
    """Return the target of a text of parts joined by "+".

    `sm_N` stands for machine code (a cubin), `compute_N` for PTX, `ptx` for PTX of the oldest sm_N in the text, or else
    of compute_80.

    Raises:
        InvalidTarget: a part is none of these, or PTX is named twice.
    """
    cubins: list[str] = []
    ptx: list[str] = []
    for part in str(arch).split("+"):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise InvalidTarget(
                f'no target {arch!r}: it is sm_N, compute_N and ptx joined by "+", as "sm_80+ptx"', target=str(arch)
            )
        kind, capability, _ = match.groups()
        (cubins if kind == "sm" else ptx).append(capability or "")
    if len(ptx) > 1:
        raise InvalidTarget(f"target {arch!r} asks for PTX twice: one runs on all newer devices", target=arch)
    oldest = min(cubins, key=_number, default=_OLDEST)
    return Target(tuple(dict.fromkeys(cubins)), (ptx[0] or oldest) if ptx else None)


def _number(capability: str) -> int:
    return int(capability.rstrip("af"))
