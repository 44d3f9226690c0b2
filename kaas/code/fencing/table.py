"""The table of PTX's instructions: how each reaches memory, and so how it is confined, or why it is refused.

An instruction that is not in the table is refused, and so is a modifier of a memory access that is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

PLAIN = "plain"
"""Touches no memory."""
ACCESS = "access"
"""Reads or writes at the one address among its operands, by the state space in its opcode."""
HINT = "hint"
"""Names global memory by an address, and gives a hint about it; an address without a space is global."""
SHARED = "shared"
"""Touches shared memory only, which hardware bounds, if its opcode says so; else it is refused."""
COPY = "copy"
"""cp.async: from a global address to a shared one, of at most 16 bytes."""
BULK = "bulk"
"""A copy between global and shared memory of a size that a register may hold."""
MATRIX = "matrix"
"""wmma.load and wmma.store: rows with a stride."""
MOVE = "move"
"""mov: the address of a variable or function."""
CONVERT = "convert"
"""cvta: from an address in a state space to a generic one, and back."""
CALL = "call"
BRANCH = "branch"
"""bra: to a label of the function."""
TABLE = "table"
"""brx.idx: to one of a table's labels."""
REFUSED = "refused"

MEMORY = frozenset([ACCESS, HINT, SHARED, COPY, BULK, MATRIX])
"""The kinds of instructions that have addresses among their operands."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """How an instruction is confined; `why` says what it would need, if it is refused."""

    how: str
    why: str = ""


_TEXTURES = "textures and surfaces stand in descriptors, which name addresses"
_TENSORS = "tensor maps name addresses"
_TENSOR_MEMORY = "tensor memory is not known to be bounded"
_MULTIMEM = "multicast addresses lie outside of every window"
_CLUSTER_LAUNCH = "launches of other clusters cannot be confined"
_LAUNCH = "kernels that launch kernels are not confined"

_PLAIN = """
    abs activemask add addc alloca and bar barrier bfe bfi bfind bmsk brev brkpt clz cnot copysign cos cvt div dp2a dp4a
    elect ex2 exit fence fma fns getctarank griddepcontrol isspacep lg2 lop3 mad mad24 madc mapa match max membar min
    mma movmatrix mul mul24 nanosleep neg not or pmevent popc prmt rcp redux rem ret rsqrt sad selp set setmaxnreg setp
    shf shfl shl shr sin slct sqrt stackrestore stacksave sub subc szext tanh testp trap vabsdiff vabsdiff2 vabsdiff4
    vadd vadd2 vadd4 vavrg2 vavrg4 vmad vmax vmax2 vmax4 vmin vmin2 vmin4 vote vset vset2 vset4 vshl vshr vsub vsub2
    vsub4 wgmma xor
    wmma.mma cp.async.commit_group cp.async.wait_group cp.async.wait_all cp.async.bulk.commit_group
    cp.async.bulk.wait_group mbarrier.pending_count createpolicy.fractional createpolicy.cvt
"""

ROWS: dict[str, Confinement] = {
    **{name: Confinement(PLAIN) for name in _PLAIN.split()},
    **{name: Confinement(ACCESS) for name in ("ld", "ldu", "st", "atom", "red")},
    **{name: Confinement(HINT) for name in ("prefetch", "prefetchu", "discard", "applypriority", "createpolicy.range")},
    **{
        name: Confinement(SHARED)
        for name in ("ldmatrix", "stmatrix", "mbarrier", "cp.async.mbarrier", "st.async", "red.async", "st.bulk")
    },
    "cp.async": Confinement(COPY),
    "cp.async.bulk": Confinement(BULK),
    "cp.reduce.async.bulk": Confinement(BULK),
    "cp.async.bulk.prefetch": Confinement(BULK),
    "wmma.load": Confinement(MATRIX),
    "wmma.store": Confinement(MATRIX),
    "mov": Confinement(MOVE),
    "cvta": Confinement(CONVERT),
    "call": Confinement(CALL),
    "bra": Confinement(BRANCH),
    "brx": Confinement(TABLE),
    "cp.async.bulk.tensor": Confinement(REFUSED, _TENSORS),
    "cp.async.bulk.prefetch.tensor": Confinement(REFUSED, _TENSORS),
    "cp.reduce.async.bulk.tensor": Confinement(REFUSED, _TENSORS),
    "prefetch.tensormap": Confinement(REFUSED, _TENSORS),
    "tensormap": Confinement(REFUSED, _TENSORS),
    "multimem": Confinement(REFUSED, _MULTIMEM),
    "tcgen05": Confinement(REFUSED, _TENSOR_MEMORY),
    "clusterlaunchcontrol": Confinement(REFUSED, _CLUSTER_LAUNCH),
    **{
        name: Confinement(REFUSED, _TEXTURES)
        for name in ("tex", "tld4", "txq", "suld", "sust", "sured", "suq", "istypep")
    },
}
"""Instruction, or the longest of its beginnings that has a row -> how it is confined."""

_LAUNCHES = """
    cudaLaunchDevice cudaLaunchDeviceV2 cudaGetParameterBuffer cudaGetParameterBufferV2 cudaDeviceSynchronize
    cudaGraphLaunch
"""
_ALLOCATED = "memory that kernels allocate lies outside of the window"

FUNCTIONS: dict[str, str] = {
    "malloc": _ALLOCATED,
    "free": _ALLOCATED,
    **dict.fromkeys(_LAUNCHES.split(), _LAUNCH),
}
"""CUDA's functions without a body that are refused, with the reason."""

SPACES = frozenset(
    ["global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry", "param::func"]
)

SHARED_SPACES = frozenset(["shared", "shared::cta", "shared::cluster"])

HARDWARE = frozenset(SPACES - {"global", "const"})
"""State spaces that hardware bounds."""

_MODIFIERS = frozenset(
    [
        "weak",
        "relaxed",
        "acquire",
        "release",
        "acq_rel",
        "sc",
        "volatile",
        "mmio",
        "cta",
        "cluster",
        "gpu",
        "sys",
        "nc",
        "ca",
        "cg",
        "cs",
        "lu",
        "cv",
        "wb",
        "wt",
        "v2",
        "v4",
        "v8",
        "noftz",
        "add",
        "and",
        "or",
        "xor",
        "cas",
        "exch",
        "min",
        "max",
        "inc",
        "dec",
        "L1::evict_normal",
        "L1::evict_unchanged",
        "L1::evict_first",
        "L1::evict_last",
        "L1::no_allocate",
        "L2::evict_normal",
        "L2::evict_unchanged",
        "L2::evict_first",
        "L2::evict_last",
        "L2::cache_hint",
        "level::cache_hint",
        "L2::64B",
        "L2::128B",
        "L2::256B",
        "L1",
        "L2",
        "b8",
        "b16",
        "b32",
        "b64",
        "b128",
        "u8",
        "u16",
        "u32",
        "u64",
        "s8",
        "s16",
        "s32",
        "s64",
        "f16",
        "f16x2",
        "bf16",
        "bf16x2",
        "f32",
        "f64",
        "fractional",
        "range",
    ]
)

COPY_WORDS = frozenset(
    [
        "cp",
        "reduce",
        "async",
        "bulk",
        "prefetch",
        "ca",
        "cg",
        "L2",
        "L2::64B",
        "L2::128B",
        "L2::256B",
        "L2::cache_hint",
        "level::cache_hint",
        "bulk_group",
        "cp_mask",
        "mbarrier::complete_tx::bytes",
        "multicast::cluster",
        "add",
        "min",
        "max",
        "inc",
        "dec",
        "and",
        "or",
        "xor",
        "noftz",
        "u32",
        "u64",
        "s32",
        "s64",
        "b32",
        "b64",
        "f16",
        "bf16",
        "f32",
        "f64",
    ]
)
"""The words of cp's opcodes, state spaces left out."""


@lru_cache(maxsize=4096)
def row(opcode: str) -> Confinement | None:
    """Return the row of an opcode; None if the table has none."""
    words = opcode.split(".")
    if "tensor" in words or "tensormap" in words:
        return Confinement(REFUSED, _TENSORS)
    names = (".".join(words[:count]) for count in range(len(words), 0, -1))
    return next((ROWS[name] for name in names if name in ROWS), None)


@lru_cache(maxsize=4096)
def space(opcode: str) -> str:
    """Return the state space that the opcode of a memory access names; "" for a generic address.

    Raises:
        ValueError: a word of the opcode is not known.
    """
    found = [word for word in opcode.split(".")[1:] if word in SPACES]
    strange = [word for word in opcode.split(".")[1:] if word not in SPACES and word not in _MODIFIERS]
    if strange:
        raise ValueError(f".{strange[0]} is not known")
    if len(found) > 1:
        raise ValueError(f"both .{found[0]} and .{found[1]}")
    return found[0] if found else ""
