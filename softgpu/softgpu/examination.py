"""Reads and checks the PTX of an image. It imports the parser and the compiler, so it is imported on a cache miss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from softgpu.codegen import checks
from softgpu.module_info import GlobalInfo, KernelInfo, ModuleInfo
from softgpu.ptx import inline, limits
from softgpu.ptx import model as ptx
from softgpu.ptx import parser as ptx_parser
from softgpu.ptx.kernel import Kernel
from softgpu.ptx.limits import align_up
from softgpu.ptx.model import PtxError, Unsupported
from softgpu.ptx.pointers import address_of


def examine(text: str) -> tuple[ModuleInfo, dict[str, Kernel]]:
    """Read and check a whole image: its description, and its kernels by name.

    Raises:
        PtxError: the image has an error.
        Unsupported: no kernel of the image can run here; the message lists everything unsupported.
    """
    module = ptx_parser.parse(text)
    layout = _lay_out(module)
    kernels: dict[str, Kernel] = {}
    refused: dict[str, list[Unsupported]] = {}
    for entry in module.entries:
        if not entry.has_body:
            continue
        refusals: list[Unsupported] = []
        kernel = inline.flatten(module, entry, layout.offsets, refusals)
        limits.check_kernel(kernel, entry.line)
        try:
            refusals += checks.check(kernel)
        except PtxError:
            if not refusals:  # otherwise a refusal may have caused the error
                raise
        kernels[entry.name] = kernel
        if refusals:
            refused[entry.name] = refusals
    if kernels and refused.keys() == kernels.keys():
        raise Unsupported(0, _refusal(one for refusals in refused.values() for one in refusals))
    infos = tuple(_kernel_info(kernel, refused.get(kernel.name, ())) for kernel in kernels.values())
    data = tuple((at, bytes(value)) for at, value in layout.data.items())
    return ModuleInfo(infos, (*layout.infos,), layout.end, data, (*layout.pointers,), module.sources), kernels


@dataclass(slots=True)
class _Layout:
    """The variables of a module, one behind the other.

    Fields:
        offsets, infos: of each. data: initial values, by their offsets. end: the bytes of all.
        pointers: (offset of a pointer, offset of its target).
    """

    offsets: dict[str, int] = field(default_factory=dict)
    infos: list[GlobalInfo] = field(default_factory=list)
    data: dict[int, bytearray] = field(default_factory=dict)
    pointers: list[tuple[int, int]] = field(default_factory=list)
    end: int = 0


def _refusal(refusals: Iterable[Unsupported]) -> str:
    unique = sorted({(refusal.line, refusal.message) for refusal in refusals})
    listed = [f"line {line}: {message}" if line else message for line, message in unique]
    shown = "; ".join(listed[:20]) + (f"; and {len(listed) - 20} more" if len(listed) > 20 else "")
    return f"the software GPU has no code for: {shown}"


def _kernel_info(kernel: Kernel, refusals: Sequence[Unsupported]) -> KernelInfo:
    return KernelInfo(
        kernel.name,
        tuple((p.offset, p.size) for p in kernel.parameters),
        kernel.shared_bytes,
        kernel.local_bytes,
        kernel.max_threads,
        min(255, len(kernel.registers)),
        sum(end - start for start, end in kernel.constants),
        f"kernel {kernel.name}: {_refusal(refusals)}" if refusals else "",
    )


def _lay_out(module: ptx.Module) -> _Layout:
    made = _Layout()
    placed = [v for v in module.variables.values() if v.space in ("global", "const") and not v.external]
    for function in module.functions.values():
        placed += [v for v in function.variables.values() if v.space in ("global", "const")]
    for variable in placed:
        start = align_up(made.end, max(variable.align, 16))
        made.offsets[variable.name] = start
        made.infos.append(GlobalInfo(variable.name, start, variable.size, variable.managed))
        made.end = start + variable.size
        limits.check_variable(variable, made.end)
        if variable.data:
            made.data[start] = bytearray(variable.data)
    for variable in placed:
        for place, name, addend in variable.pointers:
            start = made.offsets[variable.name]
            address = address_of(module, name)
            if name in made.offsets:
                made.pointers.append((start + place, made.offsets[name] + addend))
            elif address is not None:
                made.data[start][place : place + 8] = address.to_bytes(8, "little")
            else:
                raise Unsupported(variable.line, f"the address of {name} in the initial value of {variable.name}")
    return made
