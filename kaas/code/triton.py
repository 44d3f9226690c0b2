"""`Library.from_triton`: a function under @triton.jit, compiled ahead of time and without a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from kaas.code import target
from kaas.code.refusal import missing, refused, title
from kaas.errors import InvalidGraph, InvalidTarget
from kaas.ktask.library import PTX_COMMENT_OR_STRING, Image, Library
from kaas.ktask.signature import KernelSignature, NumberParameter, Parameter, PointerParameter, ScratchParameter

_TYPE = re.compile(r"(\*?)(\w+)(?::(1|2|4|8|16|32|64|128|256))?")
_PARAMETERS = re.compile(r"\.entry\s+[\w$]+\s*\(([^)]*)\)")
_NO_DEVICE = re.compile(r"Value '(\w+)' is not defined for option 'gpu-name'")
_KINDS = {
    **{f"{sign}{bits}": f"{sign}{bits}" for sign in "iu" for bits in (8, 16, 32, 64)},
    "i1": "boolean",
    "u1": "boolean",
    "fp16": "f16",
    "bf16": "bf16",
    "fp32": "f32",
    "fp64": "f64",
}
"""Triton's types of numbers -> kinds."""

_DTYPES = {
    **{f"{sign}{bits}": f"{word}{bits}" for sign, word in (("i", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)},
    "i1": "bool",
    "u1": "bool",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp64": "float64",
    "fp8e5": "float8_e5m2",
    "fp8e4nv": "float8_e4m3fn",
    "fp8e4b15": "uint8",
}
"""Element types of Triton's pointers -> dtypes."""


def library(
    kernel: Any,
    signature: str | Iterable[str] | Mapping[str, str],
    constants: Mapping[str, Any],
    arch: str,
    options: Mapping[str, Any],
) -> Library:
    """Return the library of `Library.from_triton`."""
    try:
        import triton
    except ImportError as error:
        raise missing("Triton", "triton") from error
    compiler, name = f"Triton {triton.__version__}", title(kernel)
    if type(kernel) is not triton.JITFunction:
        raise refused(
            compiler, name, f"a {type(kernel).__name__} is no function under @triton.jit; what decides about its "
            "constants (autotune, heuristics) holds one as .fn"
        )  # fmt: skip
    wanted = target.parse(arch)
    capabilities = {*wanted.cubins, *([wanted.ptx] if wanted.ptx else [])}
    if len(capabilities) != 1:
        raise InvalidTarget(
            f"Triton compiles for one device at a time, not for {arch!r}: join libraries by |", target=arch
        )
    defaults = {part.name: part.default for part in kernel.params if part.is_constexpr and part.has_default}
    constants = defaults | dict(constants)
    types = _types(name, kernel.arg_names, signature, constants)
    parameters = tuple(_parameter(name, key, kind, compiler) for key, kind in types.items())
    made = _compiled(kernel, types, constants, capabilities.pop(), options, compiler)
    entry = _entry(name, parameters, made, compiler)
    kinds = [("cubin", made.asm["cubin"])] * bool(wanted.cubins) + [("ptx", made.asm["ptx"].encode())] * bool(
        wanted.ptx
    )
    return Library(tuple(Image(kind, data) for kind, data in kinds), entries=[entry])


def _types(
    name: str, parameters: list[str], signature: str | Iterable[str] | Mapping[str, str], constants: Mapping[str, Any]
) -> dict[str, str]:
    """Return the type of each parameter that is no constant, in order."""
    open_ = [parameter for parameter in parameters if parameter not in constants]
    if isinstance(signature, Mapping):
        given = {key: kind for key, kind in signature.items() if kind != "constexpr" and key not in constants}
    else:
        listed = re.split(r"[\s,]+", signature.strip(" ,")) if isinstance(signature, str) else list(signature)
        listed = [kind for kind in listed if kind]
        if len(listed) != len(open_):
            raise InvalidGraph(
                f"kernel {name!r} has {len(open_)} parameters that are no constants ({', '.join(open_) or 'none'}), "
                f"and the signature {len(listed)} types",
                kernel=name,
            )
        given = dict(zip(open_, listed, strict=True))
    unknown = [key for key in (*given, *constants) if key not in parameters]
    untyped = [key for key in open_ if key not in given]
    if unknown or untyped:
        wrong = f"has no parameter {', '.join(unknown)}" if unknown else f"needs a type for {', '.join(untyped)}"
        raise InvalidGraph(f"kernel {name!r} {wrong}; its parameters are {', '.join(parameters)}", kernel=name)
    return {key: str(given[key]) for key in open_}


def _compiled(
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    capability: str,
    options: Mapping[str, Any],
    compiler: str,
) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend

    names = kernel.arg_names
    signature = {key: types[key].partition(":")[0] if key in types else "constexpr" for key in names}
    attributes = {
        (names.index(key),): [["tt.divisibility", int(divisor)]]
        for key, kind in types.items()
        if (divisor := kind.partition(":")[2])
    }
    source = ASTSource(kernel, signature, {(names.index(key),): value for key, value in constants.items()}, attributes)
    chosen = {"enable_fp_fusion": True} | {key: value for key, value in options.items() if value is not None}
    device = GPUTarget("cuda", int(capability.rstrip("af")), 32)
    known = {part.name for part in fields(type(make_backend(device).parse_options({})))}
    if unknown := [key for key in chosen if key not in known]:  # Triton itself ignores them without an error
        raise refused(compiler, title(kernel), f"it has no option {', '.join(unknown)}")
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.disable_line_info = True  # else code holds paths of this machine
        try:
            return triton.compile(source, target=device, options=chosen)
        except Exception as error:
            if unknown_device := _NO_DEVICE.search(str(error)):
                raise InvalidTarget(
                    f"{compiler} compiles nothing for {unknown_device[1]}", target=unknown_device[1]
                ) from error
            lines = str(error).strip().splitlines()
            at = re.match(r"at (\d+):", lines[0]) if lines else None
            why = lines[-1] if lines else type(error).__name__
            raise refused(compiler, title(kernel), why, str(error), int(at[1]) if at else None) from error


def _entry(name: str, parameters: tuple[Parameter, ...], made: Any, compiler: str) -> KernelSignature:
    metadata = made.metadata
    if metadata.num_ctas != 1 or metadata.launch_cooperative_grid:
        raise refused(compiler, name, "its blocks are launched as clusters or as a whole grid, which a kTask's are not")
    (listed,) = _PARAMETERS.findall(PTX_COMMENT_OR_STRING.sub("", made.asm["ptx"]))
    sizes = [metadata.global_scratch_size, metadata.profile_scratch_size]
    trailing = listed.count(".param") - len(parameters)
    if trailing not in (0, 1, 2):
        raise refused(compiler, name, f"its code takes {trailing} parameters in addition to those of the function")
    if metadata.profile_scratch_size:
        raise refused(compiler, name, "it is compiled for a profiler, which gives it memory")
    return KernelSignature(
        symbol=metadata.name,
        name=name,
        block=(32 * metadata.num_warps, 1, 1),
        shared_bytes=metadata.shared,
        parameters=parameters,
        scratch=tuple(ScratchParameter(size) for size in sizes[:trailing]),
    )


def _parameter(kernel: str, name: str, kind: str, compiler: str) -> Parameter:
    match = _TYPE.fullmatch(kind)
    if match is not None:
        star, base, divisor = match.groups()
        known = _DTYPES if star else _KINDS
        if base in known:
            return (PointerParameter if star else NumberParameter)(name, known[base], int(divisor or 1))
    raise refused(compiler, kernel, f"parameter {name!r} is of type {kind!r}, which no argument of a kTask gives")
