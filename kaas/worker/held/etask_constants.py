"""The constants that an eTask's process maps: it asks the pool for the device's holder, and the holder for them."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from kaas.config import Device
from kaas.errors import DeviceUnavailable, KaasError
from kaas.ktask.arguments import Buffer
from kaas.ktask.request import check_fit
from kaas.worker.epochs import WorkerPost
from kaas.worker.held.device_array import DeviceArray
from kaas.worker.held.terms import LEASE_BYTES, HeldTuple, HolderAddress, address_of

if TYPE_CHECKING:
    from kaas.executor.device.device import OpenDevice
    from kaas.executor.device.device_memory import HeldMemory

HOLDERS = 3
"""Holders that are asked, one after the other, if they end."""
BYTES_PER_S = 256 << 20
"""A holder makes at least so many bytes of memory a second, beyond its limit."""


class _HolderLost(Exception):
    """A holder has ended, or stands still."""


class MappedConstants:
    """A tuple of constants, mapped until this object is gone."""

    def __init__(self, device: OpenDevice, memory: HeldMemory, layout: HeldTuple, connection: socket.socket) -> None:
        """Map them. connection: to the holder, which lets them be as long as it is open.

        Raises:
            OutOfDeviceMemory: this process has no room for them. DeviceLost
        """
        self._layout = layout
        self._ordinal = device.ordinal
        with device.context:
            self._address = memory.take(layout.whole_bytes)
        end = weakref.finalize(self, _unmap, device, memory, connection)
        end.atexit = False  # the process ends, and all of it with it

    def array(self, buffer: Buffer, entry: int, offset_bytes: int | None) -> DeviceArray:
        """Return one of the constants as a buffer of kernels.

        Raises:
            WrongSize, WrongShape, WrongDtype: it does not fit the buffer.
        """
        at_bytes, nbytes, dtype, shape = self._layout.entries[entry]
        check_fit(buffer, nbytes, dtype, offset_bytes, shape)
        return DeviceArray(buffer, self._address + at_bytes + (offset_bytes or 0), self._ordinal, self)


def _unmap(device: OpenDevice, memory: HeldMemory, connection: socket.socket) -> None:
    with suppress(KaasError), device.context:  # a device that is lost takes its mappings with it
        memory.free_idle()
    connection.close()


class ETaskConstants:
    """The constants of one eTask's process. Any thread may call `mapped`."""

    def __init__(self, device: Device, post: WorkerPost) -> None:
        self._kind = device.kind
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")  # before code of the program changes it
        self._post = post
        self._device: OpenDevice | None = None
        self._mapped: WeakValueDictionary[bytes, MappedConstants] = WeakValueDictionary()
        self._lock = threading.Lock()

    @property
    def client(self) -> str:
        """The client for which the eTask runs."""
        return self._post.start.client

    def mapped(self, constants: Any, awaited: Sequence[Any], expected_bytes: int) -> MappedConstants:
        """Map a tuple of constants, or return the mapping that is there.

        Args:
            constants: the reference. awaited: references to values that may still be to come.
            expected_bytes: about as many as they have, for the time of a copy.

        Raises:
            InputFailed: a value cannot be had. OutOfDeviceMemory, DeviceLost. DeviceUnavailable: holders end again and
                again.
        """
        from kaas.executor.device.device import open_device

        if awaited := list(dict.fromkeys(awaited)):
            ray.wait(awaited, num_returns=len(awaited), fetch_local=False)
        with self._lock:
            if self._device is None:
                self._device = open_device(self._kind)
            with self._device.context:
                self._device.free_bytes()  # fails on a lost device, where memory could still be mapped
            found = self._mapped.get(constants.binary())
            if found is None:
                found = self._mapped[constants.binary()] = self._from_holder(self._device, constants, expected_bytes)
            return found

    def _from_holder(self, device: OpenDevice, constants: Any, expected_bytes: int) -> MappedConstants:
        lost, why = "", ""
        for _ in range(HOLDERS):
            holder: HolderAddress = self._answer(self._holder(lost))
            limit_s = holder.limit_s + expected_bytes / BYTES_PER_S
            try:
                return self._mapped_by(holder, device, constants, limit_s)
            except _HolderLost as error:
                lost, why = holder.name, str(error)
        raise DeviceUnavailable(f"{HOLDERS} holders of device memory gave no answer, one after the other; {why}")

    def _holder(self, lost: str) -> Any:
        return self._post.pool.holder.remote(self._post.start.worker, self._visible, lost)

    def _mapped_by(self, holder: HolderAddress, device: OpenDevice, constants: Any, limit_s: float) -> MappedConstants:
        from kaas.executor.device.device_memory import HeldMemory

        lease = secrets.token_bytes(LEASE_BYTES)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.settimeout(limit_s)
            connection.connect(address_of(holder.name))
            connection.send(lease)
            layout = self._answer(holder.actor.hold.remote(lease, constants.binary(), [constants]), limit_s)
            word, files, _, _ = socket.recv_fds(connection, 1, 1)
            if not word:
                raise _HolderLost("it has ended")
            try:
                memory = HeldMemory(files[0])
            finally:
                os.close(files[0])
            return MappedConstants(device, memory, layout, connection)
        except (OSError, RayActorError, GetTimeoutError) as error:
            connection.close()
            raise _HolderLost(f"the last: {error}") from error
        except BaseException:
            connection.close()
            raise

    def _answer(self, ref: Any, limit_s: float | None = None) -> Any:
        """Return the value of a call, without Ray's wrapping of an error."""
        try:
            return ray.get(ref, timeout=limit_s)
        except RayTaskError as error:
            raise error.cause from None
