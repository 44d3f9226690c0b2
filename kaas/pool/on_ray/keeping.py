"""Invocations whose outputs stay on devices: makes their references, and forgets or writes back the outputs."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kaas.errors import KaasError
from kaas.pool.executors.payloads import Payload
from kaas.pool.executors.residents import Placed
from kaas.wire import specs
from kaas.wire.resident import Resident

if TYPE_CHECKING:
    from kaas.pool.service import Service

KEPT_PER_SWEEP = 64
"""A sweep looks for outputs that no program can name any more. For each new kept output, it examines this many."""


class KeptOutputs:
    """The outputs that stay on devices. Use an object of this class from the pool's loop only."""

    def __init__(self, service: Service, own: Any, names: Callable[[], Container[str]]) -> None:
        """Begin without outputs.

        own: the handle of the pool's actor. names: returns the names of all references to objects of the pool.
        """
        self._service = service
        self._residents = service.residents
        self._own = own
        self._names = names
        self._kept = 0  # outputs since the last sweep

    async def invoke(
        self, invocation: specs.Invocation, message: bytes, refs: Sequence[Any], keep: Mapping[int, bytes]
    ) -> Sequence[Any]:
        """Run an invocation, as `Service.invoke` does. keep: keys of the outputs that stay, by position."""
        function = await self._service.function(invocation.function)
        payload = Payload(function, (message,), refs, keep)
        keys = () if function.inline else keep.values()
        for key in keys:
            self._residents.expect(key, payload)
        try:
            outputs = await self._service.invoke(invocation, payload.frames, refs, keep)
        except BaseException:
            self._residents.forget(keys)
            raise
        self._tidy(len(keys))
        layouts = zip(outputs, function.outputs, function.output_bytes, strict=True)
        return tuple(
            self._resident(value, dtype, shape, nbytes) if isinstance(value, Placed) else value
            for value, (dtype, shape), nbytes in layouts
        )

    def _resident(self, placed: Placed, dtype: str, shape: tuple[int, ...], nbytes: int) -> Resident:
        value = self._own.materialise.remote(placed.key)
        self._residents.named(placed.key, value.hex())
        return Resident(shape, dtype, nbytes, placed.device, placed.key, value, self._own)

    def _tidy(self, kept: int) -> None:
        """Forget, in sweeps, outputs that no program can name any more. Write back one output if there are too many."""
        self._kept += kept
        if self._kept > len(self._residents) // KEPT_PER_SWEEP:
            self._kept = 0
            for worker, keys in self._residents.nameless(self._names()).items():
                self._service.pool.caches.discard(worker, keys)
        surplus = self._residents.surplus()
        if surplus is not None:
            self._own.wanted.remote(surplus)

    async def wanted(self, key: bytes) -> None:
        """Write back an output, since a program waits for it."""
        worker = self._residents.ask(key)
        if worker is None:
            return
        try:
            await self._service.pool.caches.write_back(worker, key)
        except KaasError:
            self._residents.lost(key)  # the device may have failed; its task can run again
