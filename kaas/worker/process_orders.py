"""The orders that the plain processes of a pool without Ray get at their start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kaas.config import Config, Device
from kaas.ktask.images import Image
from kaas.wire.messages import Address
from kaas.worker.sandbox import Sandbox
from softgpu.ahead import CodeAhead


@dataclass(frozen=True, slots=True)
class PoolOrders:
    """The orders of a pool's process. config: None for the defaults."""

    name: str
    config: Config | None


@dataclass(frozen=True, slots=True)
class ExecutorOrders:
    """The orders of an executor's process.

    options: as `executor_options` returns them. name: its worker's number. address, node: of the pool. sandbox: the
    process enters it before it opens its device; None for no sandbox. walls: files that come with messages are of
    held device memory, and none is of shared memory.
    """

    device: Device
    options: Mapping[str, Any]
    name: str
    address: Address
    node: str
    sandbox: Sandbox | None = None
    walls: bool = False


@dataclass(frozen=True, slots=True)
class CompilerOrders:
    """The orders of a compiler's process.

    work: the file from which it reads its `CompilerWork`, once. folder: it writes the code there. limit_bytes: of
    memory. sandbox: it enters this one first; None for no sandbox.
    """

    work: int
    folder: str
    limit_bytes: int
    sandbox: Sandbox | None = None


class CompilerWork(NamedTuple):
    """The work of a compiler's process: one image of a client, or what the operator trusts.

    Fields:
        names: of code, which it requests from providers and writes to its folder. images: those that it compiles.
        limit_s: processor seconds.
    """

    names: Sequence[Image] = ()
    images: Sequence[CodeAhead] = ()
    limit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HolderOrders:
    """The orders of a holder's process.

    parts: how many processes divide the device's memory. link: the socket on which it gets one order after the other.
    """

    device: Device
    parts: int
    link: int
