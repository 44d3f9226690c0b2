"""What the plain processes of a pool without Ray are told when they are started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kaas.config import Config, Device
from kaas.wire.messages import Address
from kaas.worker.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class PoolOrders:
    """config: None for the defaults."""

    name: str
    config: Config | None


@dataclass(frozen=True, slots=True)
class ExecutorOrders:
    """options: those of `Executor`. name: its worker's number. address, node: of the pool. sandbox: that
    the process enters before it opens its device; None for none."""

    device: Device
    options: Mapping[str, Any]
    name: str
    address: Address
    node: str
    sandbox: Sandbox | None = None
