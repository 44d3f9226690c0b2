"""The tables of softgpu/docs/softgpu.md are what the code and the tests say, and leave nothing out."""

from __future__ import annotations

from softgpu import instructions, refused
from softgpu.tests.compiler import tables

# The instruction keywords of the PTX manual (ISA 9.0, "Reserved Instruction Keywords"), those of the control flow too.
_LINES = (
    "abs activemask add addc alloca and applypriority atom bar barrier bfe bfi bfind bmsk bra brev brkpt brx call",
    "clz cnot copysign cos cp createpolicy cvt cvta discard div dp2a dp4a elect ex2 exit fence fma fns getctarank",
    "griddepcontrol isspacep istypep ld ldmatrix ldu lg2 lop3 mad mad24 madc mapa match max mbarrier membar min",
    "mma mov movmatrix mul mul24 multimem nanosleep neg not or pmevent popc prefetch prefetchu prmt rcp red redux",
    "rem ret rsqrt sad selp set setmaxnreg setp shf shfl shl shr sin slct sqrt st stackrestore stacksave stmatrix",
    "sub subc suld suq sured sust szext tanh tcgen05 tensormap testp tex tld4 trap txq vabsdiff vabsdiff2",
    "vabsdiff4 vadd vadd2 vadd4 vavrg2 vavrg4 vmad vmax vmax2 vmax4 vmin vmin2 vmin4 vote vset vset2 vset4 vshl",
    "vshr vsub vsub2 vsub4 wgmma wmma xor",
)
KEYWORDS = {word for line in _LINES for word in line.split()}


def test_the_page_is_up_to_date() -> None:
    text = tables.PAGE.read_text()
    assert text == tables.page(text), "python -m softgpu.tests.compiler.tables --write"


def test_every_keyword_of_the_manual_is_in_the_table() -> None:
    known = {name.split(".")[0] for name, *_ in tables.instruction_rows()}
    assert not KEYWORDS - known
    assert known - KEYWORDS == {"clusterlaunchcontrol"}


def test_every_family_with_code_has_a_test() -> None:
    assert not [name for name, _, _, test in tables.instruction_rows() if not test]


def test_no_family_is_both_supported_and_refused() -> None:
    assert not {name for name, _, _ in instructions.supported()} & set(refused.REFUSED)
