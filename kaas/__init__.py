"""KaaS: graphs of precompiled GPU kernels as serverless functions on Ray. Public names, nothing else."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

import kaas.code  # noqa: F401 - so that `Library.from_cuda` and its like find their modules
from kaas import errors
from kaas.cache_folders import cache_root
from kaas.config import ClientSettings, Config, Device, FunctionProfile
from kaas.errors import KaasError
from kaas.ktask.arguments import (
    Buffer,
    In,
    InOut,
    Literal,
    Null,
    Out,
    Pointers,
    Scalar,
    Struct,
    bf16,
    boolean,
    c64,
    c128,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from kaas.ktask.graph import KTask
from kaas.ktask.library import Kernel, Library
from kaas.ktask.request import View
from kaas.ktask.variant import Variant
from kaas.share import ProfilePoint, Scale, Share

if TYPE_CHECKING:
    from kaas.api.caching import flush, pin, prefetch, put, unpin
    from kaas.api.etasks import ETask, device_constants, etask
    from kaas.api.function import Function, call
    from kaas.api.program import init, invoke, pardon, shutdown, stats, status
    from kaas.api.registration import register, set_share
    from kaas.client.async_client import AsyncClient
    from kaas.client.client import Client
    from kaas.executor.local import run_local
    from kaas.futures import Future
    from kaas.models.model import CompiledModel, load
    from kaas.wire.resident import Resident
    from kaas.worker.held.device_array import DeviceArray

__all__ = [
    "AsyncClient",
    "Buffer",
    "Client",
    "ClientSettings",
    "CompiledModel",
    "Config",
    "Device",
    "DeviceArray",
    "ETask",
    "Function",
    "FunctionProfile",
    "Future",
    "In",
    "InOut",
    "KTask",
    "KaasError",
    "Kernel",
    "Library",
    "Literal",
    "Null",
    "Out",
    "Pointers",
    "ProfilePoint",
    "Resident",
    "Scalar",
    "Scale",
    "Share",
    "Struct",
    "Variant",
    "View",
    "bf16",
    "boolean",
    "c64",
    "c128",
    "cache_root",
    "call",
    "device_constants",
    "errors",
    "etask",
    "f16",
    "f32",
    "f64",
    "flush",
    "i8",
    "i16",
    "i32",
    "i64",
    "init",
    "invoke",
    "load",
    "pardon",
    "pin",
    "prefetch",
    "put",
    "register",
    "run_local",
    "set_share",
    "shutdown",
    "stats",
    "status",
    "u8",
    "u16",
    "u32",
    "u64",
    "unpin",
]

_ON_DEMAND = {
    **dict.fromkeys(("init", "invoke", "pardon", "shutdown", "stats", "status"), "kaas.api.program"),
    **dict.fromkeys(("Function", "call"), "kaas.api.function"),
    **dict.fromkeys(("flush", "pin", "prefetch", "put", "unpin"), "kaas.api.caching"),
    **dict.fromkeys(("ETask", "device_constants", "etask"), "kaas.api.etasks"),
    **dict.fromkeys(("CompiledModel", "load"), "kaas.models.model"),
    "AsyncClient": "kaas.client.async_client",
    "Client": "kaas.client.client",
    "Future": "kaas.futures",
    "DeviceArray": "kaas.worker.held.device_array",
    "Resident": "kaas.wire.resident",
    **dict.fromkeys(("register", "set_share"), "kaas.api.registration"),
    "run_local": "kaas.executor.local",
}
"""Names whose modules load Ray or the CUDA driver's bindings, or may, and these modules."""

_ON_RAY = ("kaas.api.etasks", "kaas.wire.resident")
"""Modules that need Ray."""


def __getattr__(name: str) -> Any:
    if name == "remote":
        return import_module("kaas.remote")
    if name not in _ON_DEMAND:
        raise AttributeError(f"module 'kaas' has no attribute {name!r}")
    if _ON_DEMAND[name] in _ON_RAY:
        from kaas.optional_ray import check_ray

        check_ray()
    value = globals()[name] = getattr(
        import_module(_ON_DEMAND[name]), name
    )  # the next access finds it without this function
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
