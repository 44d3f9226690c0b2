"""A Relax module lowered by TVM as far as a kTask needs it: calls of PrimFuncs, their host code, their device code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import dlight

from tvm_backend.constants import Array, Names
from tvm_backend.folding import fold
from tvm_backend.outputs import own_outputs
from tvm_backend.targets import Target
from tvm_backend.vectors import without_bool_vectors

Schedule = Callable[[tvm.IRModule], tvm.IRModule]
"""Gives each PrimFunc of a module threads to run on; it runs with the target as the current one."""

DEVICE_FUNCTION = 2
"""`calling_conv` of what runs on the GPU."""

HOST_INTERFACE = ("tirx.MakePackedAPI", "tirx.FP8StorageLegalize", "tirx.BF16StorageLegalize")
"""Passes left out of the host code: they wrap it into TVM's calling convention, with checks of every argument, or want
it wrapped."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """
    Fields:
        functions: Relax functions by name: storage planned, results passed as arguments.
        host: by name what each PrimFunc that they call does on the host; its kernels are called with
            `tirx.call_ffi_kernel`.
        device: the kernels by symbol.
        source: CUDA C++ of all kernels.
        names: what is known of the names of constants.
    """

    functions: Mapping[str, relax.Function]
    host: Mapping[str, tirx.PrimFunc]
    device: Mapping[str, tirx.PrimFunc]
    source: str
    names: Names


def by_dlight(module: tvm.IRModule) -> tvm.IRModule:
    """dlight's schedules: good ones without a measurement."""
    gpu = dlight.gpu
    rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
    return dlight.ApplyDefaultSchedule(*rules)(module)


def fused(module: tvm.IRModule, target: Target, names: Names) -> tvm.IRModule:
    """Operators as PrimFuncs, those that belong together in one, what is constant computed. Normalisation with known
    statistics goes into the weights of the convolution before it."""
    transform = relax.transform
    with target.tvm:
        return tvm.transform.Sequential([
            transform.CanonicalizeBindings(), transform.FoldBatchnormToConv2D(), transform.DecomposeOpsForInference(),
            fold(names), transform.CanonicalizeBindings(),
            relax.backend.DispatchSampling(), relax.backend.DispatchSortScan(),
            transform.LegalizeOps(), transform.AnnotateTIROpPattern(), transform.FoldConstant(), transform.FuseOps(),
            transform.FuseTIR(), transform.DeadCodeElimination(),
        ])(module)  # fmt: skip


def planned(module: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Calls with their results as arguments, in storage that TVM's planner has shared out."""
    transform = relax.transform
    with target.tvm:
        return tvm.transform.Sequential([
            transform.RewriteDataflowReshape(), transform.ToNonDataflow(), own_outputs(target),
            transform.RemovePurityChecking(), transform.CallTIRRewrite(), transform.StaticPlanBlockMemory(),
            transform.DeadCodeElimination(),
        ])(module)  # fmt: skip


def lowered(
    module: tvm.IRModule,
    target: Target,
    schedule: Schedule = by_dlight,
    parameters: Mapping[str, Array] | None = None,
) -> Lowered:
    """All functions of a module at once, so that symbols are unique and equal operators share a kernel.

    Args:
        parameters: the model's constants by name.
    """
    names = Names(parameters or {})
    module = fused(module, target, names)
    with target.tvm:
        module = schedule(module)
    module = planned(module, target)
    host, device = split(module, target)
    source = cuda_source(device, target)
    return Lowered(
        {variable.name_hint: f for variable, f in module.functions.items() if isinstance(f, relax.Function)},
        {variable.name_hint: f for variable, f in host.functions.items()},
        {variable.name_hint: f for variable, f in device.functions.items()},
        source,
        names,
    )


def cuda_source(device: tvm.IRModule, target: Target) -> str:
    """The kernels in CUDA C++. In a process with a driver TVM would go on and compile them, for nothing."""
    compiler = "tvm_callback_cuda_compile"
    usual = tvm.get_global_func(compiler, allow_missing=True)
    tvm_ffi.register_global_func(compiler, lambda _source: b"", override=True)
    try:
        return str(tvm.get_global_func("target.build.cuda")(device, target.tvm).inspect_source())
    finally:
        if usual is not None:
            tvm_ffi.register_global_func(compiler, usual, override=True)


@tvm.ir.instrument.pass_instrument  # type: ignore[untyped-decorator]
class _WithoutHostInterface:
    def should_run(self, _module: tvm.IRModule, info: tvm.transform.PassInfo) -> bool:
        return info.name not in HOST_INTERFACE


def split(module: tvm.IRModule, target: Target) -> tuple[tvm.IRModule, tvm.IRModule]:
    """Host and device code of a module's PrimFuncs, up to code generation."""
    functions = {
        variable: function.with_attr("global_symbol", variable.name_hint)
        for variable, function in module.functions.items()
        if isinstance(function, tirx.PrimFunc)
    }
    pipeline, _, finish = tirx.get_default_tir_pipeline(target.tvm)
    bound = tirx.transform.BindTarget(target.tvm)(without_bool_vectors(tvm.IRModule(functions)))
    with tvm.transform.PassContext(opt_level=3, instruments=[_WithoutHostInterface()]):
        both = pipeline(bound)
    host = tirx.transform.Filter(lambda function: not _on_device(function))(both)
    device = tirx.transform.Filter(_on_device)(both)
    for legalize in (tirx.transform.FP8StorageLegalize(), tirx.transform.BF16StorageLegalize(), finish()):
        device = legalize(device)
    return host, device


def _on_device(function: tirx.PrimFunc) -> bool:
    return int(function.attrs.get("calling_conv", 0)) == DEVICE_FUNCTION
