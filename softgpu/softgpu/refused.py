"""The instructions of PTX that have no code here, with the reason that a refusal gives."""

from __future__ import annotations

_TENSOR = "tensor cores"
_ASYNC = "asynchronous copies"
_BARRIER = "asynchronous barriers"
_TEXTURE = "textures"
_SURFACE = "surfaces"
_CLUSTER = "clusters of blocks"
_VIDEO = "scalar video instructions"
_LATER = "newer GPUs than sm_80"

REFUSED: dict[str, str] = {
    "mma.sp": _TENSOR,
    "wmma": _TENSOR,
    "wgmma": _TENSOR,
    "tcgen05": _TENSOR,
    "stmatrix": _TENSOR,
    "movmatrix": _TENSOR,
    "cp.async.bulk": _ASYNC,
    "cp.async.mbarrier": _BARRIER,
    "cp.reduce.async": _ASYNC,
    "st.async": _ASYNC,
    "st.bulk": _ASYNC,
    "red.async": _ASYNC,
    "tensormap": _ASYNC,
    "mbarrier": _BARRIER,
    "tex": _TEXTURE,
    "tld4": _TEXTURE,
    "txq": _TEXTURE,
    "istypep": _TEXTURE,
    "suld": _SURFACE,
    "sust": _SURFACE,
    "sured": _SURFACE,
    "suq": _SURFACE,
    "mapa": _CLUSTER,
    "getctarank": _CLUSTER,
    "barrier.cluster": _CLUSTER,
    "clusterlaunchcontrol": _CLUSTER,
    "griddepcontrol": _LATER,
    "multimem": _LATER,
    "setmaxnreg": _LATER,
    "vadd": _VIDEO,
    "vsub": _VIDEO,
    "vabsdiff": _VIDEO,
    "vmin": _VIDEO,
    "vmax": _VIDEO,
    "vshl": _VIDEO,
    "vshr": _VIDEO,
    "vmad": _VIDEO,
    "vset": _VIDEO,
}

_MEMORY = "memory that kernels allocate"
_LAUNCHES = "kernels that launch kernels"
_GRAPHS = "kernels that launch graphs"
_GRID = "barriers of a whole grid"

MISSING_FUNCTIONS = {
    "malloc": _MEMORY,
    "free": _MEMORY,
    "cudaGetParameterBufferV2": _LAUNCHES,
    "cudaLaunchDeviceV2": _LAUNCHES,
    "cudaGetParameterBuffer": _LAUNCHES,
    "cudaLaunchDevice": _LAUNCHES,
    "cudaDeviceSynchronize": _LAUNCHES,
    "cudaGraphLaunch": _GRAPHS,
    "cudaGetCurrentGraphExec": _GRAPHS,
    "cudaGraphKernelNodeSetParam": _GRAPHS,
    "cudaGraphKernelNodeSetEnabled": _GRAPHS,
    "cudaGraphKernelNodeSetGridDim": _GRAPHS,
    "cudaGraphKernelNodeUpdatesApply": _GRAPHS,
    "cudaCGGetIntrinsicHandle": _GRID,
    "cudaCGSynchronize": _GRID,
    "cudaCGSynchronizeGrid": _GRID,
}
"""CUDA functions that have no body and no code here, with the reason."""

_FAMILIES = {"__cudaCDP": _LAUNCHES, "cudaCDP": _LAUNCHES, "__cudaCDP2Graph": _GRAPHS, "cudaGraph": _GRAPHS}
"""Prefixes of functions of CUDA's device runtime: the full names change with its versions."""


def function(name: str) -> str:
    """Return the feature that a function without a body belongs to; "" if CUDA has no such function."""
    starts = [start for start in _FAMILIES if name.startswith(start)]
    return MISSING_FUNCTIONS.get(name) or (_FAMILIES[max(starts, key=len)] if starts else "")


def reason(opcode: str) -> str:
    """Return the feature that an opcode without code belongs to; "" if it is not known."""
    words = opcode.split(".")
    names = (".".join(words[:count]) for count in range(len(words), 0, -1))
    return next((f"{name}, of {REFUSED[name]}" for name in names if name in REFUSED), "")


_REGISTERS = {"%current_graph_exec": _GRAPHS, "%cluster": _CLUSTER, "%nclusterid": _CLUSTER}


def register(name: str) -> str:
    """Return the name of a special register without code here, with the feature it belongs to if that is known."""
    known = (f", of {why}" for start, why in _REGISTERS.items() if name.startswith(start))
    return name + next(known, "")
