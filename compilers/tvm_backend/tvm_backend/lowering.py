"""Relax modules lowered by TVM as far as a kTask needs: calls of PrimFuncs, their host code, their device code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import dlight

from tvm_backend import shapes
from tvm_backend.constants import Array, Names
from tvm_backend.errors import unsupported
from tvm_backend.folding import fold
from tvm_backend.indices import in_bounds
from tvm_backend.outputs import own_outputs
from tvm_backend.rewrites import unrolled_by_nvrtc, without_bool_vectors, without_unit_reductions
from tvm_backend.stacks import unflattened
from tvm_backend.targets import Target

NOTHING = "kaas_nothing"
"""A kernel that does nothing: it writes outputs without elements, since each output needs a kernel that writes it."""

Schedule = Callable[[tvm.IRModule], tvm.IRModule]
"""Assigns threads to each PrimFunc of a module; called with the target as TVM's current target."""

DEVICE_FUNCTION = 2
"""`calling_conv` of functions that run on the GPU."""

HOST_INTERFACE = ("tirx.MakePackedAPI", "tirx.FP8StorageLegalize", "tirx.BF16StorageLegalize")
"""Passes that the host code does not get: they wrap it into TVM's calling convention, with checks of every argument, or
expect wrapped code."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A lowered module.

    Fields:
        functions: Relax functions by name: storage planned, results passed as arguments.
        host: the host code of each PrimFunc that they call, by name; it calls kernels with `tirx.call_ffi_kernel`.
        device: the kernels by symbol.
        source: CUDA C++ of all kernels.
        names: the known names of constants.
    """

    functions: Mapping[str, relax.Function]
    host: Mapping[str, tirx.PrimFunc]
    device: Mapping[str, tirx.PrimFunc]
    source: str
    names: Names


class Attempt(dlight.ScheduleRule):  # type: ignore[misc]
    """A rule that leaves functions to the next rule if it fails: dlight's GEMV asserts that a loop is left."""

    def __init__(self, rule: Any) -> None:
        super().__init__()
        self.rule = rule

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, tunable: bool) -> Any:
        """Return the rule's schedules of a function, or None if the rule does not apply or fails an assertion."""
        try:
            return self.rule.apply(func, target, tunable)
        except AssertionError:
            return None


def by_dlight(module: tvm.IRModule) -> tvm.IRModule:
    """Schedule a module with dlight, whose schedules are good without a measurement."""
    gpu = dlight.gpu
    rules = (gpu.Matmul(), Attempt(gpu.GEMV()), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
    return dlight.ApplyDefaultSchedule(*rules)(module)


def fused(module: tvm.IRModule, target: Target, names: Names) -> tvm.IRModule:
    """Turn operators into PrimFuncs, fuse them, and compute constant parts.

    Batch normalisation with known statistics is folded into the weights of the convolution before it.
    """
    transform = relax.transform
    with target.tvm:
        module = tvm.transform.Sequential([
            transform.CanonicalizeBindings(), transform.FoldBatchnormToConv2D(), transform.DecomposeOpsForInference(),
            fold(names), transform.CanonicalizeBindings(), unflattened, in_bounds, transform.CanonicalizeBindings(),
            relax.backend.DispatchSampling(), relax.backend.DispatchSortScan(),
            transform.LegalizeOps(), transform.AnnotateTIROpPattern(), transform.FoldConstant(), transform.FuseOps(),
            transform.FuseTIR(), transform.DeadCodeElimination(),
        ])(module)  # fmt: skip
    return without_unit_reductions(module)


def planned(module: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Pass results as arguments, and place them in storage by TVM's planner."""
    transform = relax.transform
    with target.tvm:
        return tvm.transform.Sequential([
            transform.RewriteDataflowReshape(), transform.ToNonDataflow(), transform.RemovePurityChecking(),
            own_outputs(target), transform.CallTIRRewrite(), transform.StaticPlanBlockMemory(),
            transform.DeadCodeElimination(),
        ])(module)  # fmt: skip


def lowered(
    module: tvm.IRModule,
    target: Target,
    schedule: Schedule = by_dlight,
    parameters: Mapping[str, Array] | None = None,
    model: str = "model",
) -> Lowered:
    """Lower all functions of a module together, so that symbols are unique and equal operators share a kernel.

    Args:
        module: in Relax, with known shapes.
        target: the target to generate code for.
        schedule: assigns threads to PrimFuncs; dlight's schedules by default.
        parameters: the model's constants by name.
        model: its name, for errors.

    Raises:
        UnsupportedOperators: not all shapes are known.
    """
    if places := shapes.unknown(module):
        raise unsupported(model, places)
    names = Names(parameters or {})
    module = fused(module, target, names)
    with target.tvm:
        module = schedule(module)
    module = planned(module, target)
    host, device = split(module, target)
    source = cuda_source(device, target)
    functions = {variable.name_hint: f for variable, f in module.functions.items() if isinstance(f, relax.Function)}
    if any(_returns_nothing(function.ret_ty) for function in functions.values()):
        source += f'extern "C" __global__ void {NOTHING}(void *) {{}}\n'
    return Lowered(
        functions,
        {variable.name_hint: f for variable, f in host.functions.items()},
        {variable.name_hint: f for variable, f in device.functions.items()},
        source,
        names,
    )


def cuda_source(device: tvm.IRModule, target: Target) -> str:
    """Return the kernels in CUDA C++.

    With a CUDA runtime library installed, TVM would also compile them and ask for a device: both are replaced here.
    """

    def kept(source: bytes, *_: Any) -> Any:
        return tvm.get_global_func("runtime.SourceModuleCreate")(bytes(source).decode(), "cu")

    with replaced("tvm_callback_cuda_compile", str.encode), replaced("ffi.Module.create.cuda", kept):
        return str(tvm.get_global_func("target.build.cuda")(device, target.tvm).inspect_source())


@contextmanager
def replaced(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Replace one of TVM's global functions for a while, if TVM has it."""
    usual = tvm.get_global_func(name, allow_missing=True)
    if usual is None:
        yield
        return
    tvm_ffi.register_global_func(name, function, override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func(name, usual, override=True)


@tvm.ir.instrument.pass_instrument
class _WithoutHostInterface:
    def should_run(self, _module: tvm.IRModule, info: tvm.transform.PassInfo) -> bool:
        return info.name not in HOST_INTERFACE


def split(module: tvm.IRModule, target: Target) -> tuple[tvm.IRModule, tvm.IRModule]:
    """Return the host code and the device code of a module's PrimFuncs, ready for code generation."""
    functions = {
        variable: function.with_attr("global_symbol", variable.name_hint)
        for variable, function in module.functions.items()
        if isinstance(function, tirx.PrimFunc)
    }
    pipeline, _, finish = tirx.get_default_tir_pipeline(target.tvm)
    bound = tirx.transform.BindTarget(target.tvm)(unrolled_by_nvrtc(without_bool_vectors(tvm.IRModule(functions))))
    with tvm.transform.PassContext(opt_level=3, instruments=[_WithoutHostInterface()]):
        both = pipeline(bound)
    host = tirx.transform.Filter(lambda function: not _on_device(function))(both)
    device = tirx.transform.Filter(_on_device)(both)
    for legalize in (tirx.transform.FP8StorageLegalize(), tirx.transform.BF16StorageLegalize(), finish()):
        device = legalize(device)
    return host, device


def _on_device(function: tirx.PrimFunc) -> bool:
    return int(function.attrs.get("calling_conv", 0)) == DEVICE_FUNCTION


def _returns_nothing(ty: Any) -> bool:
    """Return True if a result, or one of several results, is a tensor without elements."""
    if isinstance(ty, relax.TupleType):
        return any(_returns_nothing(field) for field in ty.fields)
    shape = getattr(ty, "shape", None)
    return isinstance(shape, relax.ShapeExpr) and 0 in [int(extent) for extent in shape.values]
