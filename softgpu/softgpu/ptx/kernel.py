"""A kernel without calls: `inline` makes it from an entry, and the compiler makes code from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from softgpu.ptx.model import Instruction, Label, Parameter


@dataclass(slots=True)
class Kernel:
    """An entry without calls.

    Offsets are in bytes from the start of the parameter buffer, the block's shared memory, the lane's local memory and
    the module's globals.
    """

    name: str
    parameters: tuple[Parameter, ...]
    max_threads: int
    registers: dict[str, str] = field(default_factory=dict)
    body: list[Instruction | Label] = field(default_factory=list)
    shared: dict[str, int] = field(default_factory=dict)
    shared_bytes: int = 0
    local: dict[str, int] = field(default_factory=dict)
    local_bytes: int = 0
    globals: dict[str, int] = field(default_factory=dict)
    constants: tuple[tuple[int, int], ...] = ()  # (start, end) of the globals that are .const

    @property
    def param_bytes(self) -> int:
        """Return the size of the parameter buffer in bytes."""
        return max((p.offset + p.size for p in self.parameters), default=0)
