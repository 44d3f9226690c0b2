"""The inputs of one request, resolved and sorted by the way they take to the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from kaas.errors import InputFailed, MissingScalar, WrongScalar
from kaas.executor.cache.ranges import Part, Ranges
from kaas.executor.device.host_arrays import on_host
from kaas.ktask.arguments import Buffer
from kaas.ktask.dlpack import device_of, is_exporter, tensor_of
from kaas.ktask.dtypes import KIND_BYTES
from kaas.ktask.graph import KTask
from kaas.ktask.request import View, check_fit, input_bytes, raw_bytes

if TYPE_CHECKING:
    from kaas.executor.device.memory import HostMemory
    from kaas.executor.plan.plan import Plan


class InputSource(msgspec.Struct, frozen=True):
    """Where one input of one request comes from. A Struct, since every request makes some.

    Args:
        value: an array or anything with the buffer protocol; None if fetch brings it.
        key: identity of the object; it is cached under it. None: passed by value, never cached.
        fetch: gets the object when it is not cached; what it raises becomes the cause of InputFailed.
        offset_bytes: None: the object is the whole input. Else the input is the object's bytes from there on.
        constant: a function binds it; such objects leave the cache last.
    """

    value: Any = None
    key: bytes | None = None
    fetch: Callable[[], Any] | None = None
    offset_bytes: int | None = None
    constant: bool = False


@dataclass(frozen=True, slots=True)
class CachedObject:
    """An object on the device.

    Fields:
        dtype, shape: None: plain bytes, good for every buffer.
    """

    address: int
    nbytes: int
    dtype: str | None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class HostObject:
    """An object in page-locked host memory, as above."""

    memory: HostMemory
    nbytes: int
    dtype: str | None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class FetchedObject:
    """An object that was fetched, since no tier has it."""

    data: memoryview
    nbytes: int
    dtype: str | None
    shape: tuple[int, ...] | None = None


_ALIGNMENT_BYTES = 256
"""What cuMemAlloc promises, and so what kernels may expect of every buffer."""
_UNREAD = Buffer("object", 1)
"""Stands for the input that an object will be, in errors."""
Find = Callable[[bytes], CachedObject | HostObject | None]
"""Looks an object up in the tiers of a cache."""


class ByValue(msgspec.Struct):
    """The inputs that are passed by value.

    Fields:
        staged: (buffer's index, bytes) of those in host memory.
        placed, moved: arrays that lie on the device, by the buffer's index: read where they are, or copied since some
            kernel writes them, they are not aligned as kernels expect, or they are small and read often. (Address, who
            keeps the memory.)
        resident: bit i: that with index i lies in the arena.
        others: indices of the inputs that are objects with a key instead.
    """

    staged: list[tuple[int, bytes | memoryview]] = []
    placed: dict[int, tuple[int, Any]] = {}
    moved: dict[int, tuple[int, Any]] = {}
    resident: int = 0
    others: list[int] = []


class Inputs(msgspec.Struct):
    """What a request brings.

    Fields:
        missing: how to fetch the objects that no tier has and no request has fetched. While there is any, the rest is
            incomplete.
        objects: bytes of every object with a key, by key. arriving: those that no tier has.
        parts: those that are a part of a larger object. replaced: keys of cached parts that these include.
        constants: those that a function binds.
        by_value: what is passed by value.
        shared, copied: (buffer's index, key, offset) of objects that are read where they are cached, or copied since
            some kernel writes them, a view of them is not aligned as kernels expect, or they are small and read often.
        resident: bit i: the buffer with index i lies in the arena.
        kept: the outputs that stay on the device, by index, with the keys that they get; made: the same by key. They
            are among the objects. kept_mask: bit i: that with index i.
    """

    missing: dict[bytes, Callable[[], FetchedObject]] = {}
    objects: dict[bytes, int] = {}
    fetched: dict[bytes, FetchedObject] = {}
    parts: dict[bytes, Part] = {}
    replaced: list[bytes] = []
    constants: set[bytes] = set()
    by_value: ByValue = msgspec.field(default_factory=ByValue)
    shared: list[tuple[int, bytes, int]] = []
    copied: list[tuple[int, bytes, int]] = []
    resident: int = 0
    kept: Mapping[int, bytes] = {}
    made: Mapping[bytes, Buffer] = {}
    kept_mask: int = 0

    def keep(self, plan: Plan, kept: Mapping[int, bytes]) -> None:
        """These outputs, which no tier can have yet, are to stay on the device."""
        self.kept = kept
        self.kept_mask = sum(1 << index for index in kept)
        self.made = {key: plan.buffers[index] for index, key in kept.items()}
        self.objects.update({key: buffer.nbytes for key, buffer in self.made.items()})


def stage(plan: Plan, sources: Mapping[str, InputSource], device: int, stream: int) -> ByValue:
    """The inputs that are passed by value.

    Args:
        device: number of the device; an array that lies there stays there.
        stream: which reads it. It waits for the one in which the array is made.

    Raises:
        InputFailed, WrongSize, WrongShape, WrongDtype, NotContiguous, DeviceUnavailable
    """
    by_value = ByValue()
    for index in plan.inputs:
        buffer = plan.buffers[index]
        source = sources[buffer.name]
        if source.key is not None:
            by_value.others.append(index)
            continue
        by_value.resident |= 1 << index
        value = source.value
        if type(value) is bytes and len(value) == plan.nbytes[index] and source.offset_bytes is None:
            by_value.staged.append((index, value))  # as small inputs come: the rest would say the same, but later
            continue
        value = _value(plan.task, buffer, source)
        if is_exporter(value):
            if device_of(buffer.name, value) == device:
                tensor = tensor_of(buffer.name, value, stream)
                check_fit(buffer, tensor.nbytes, tensor.dtype, source.offset_bytes, tensor.shape)
                address = tensor.address + (source.offset_bytes or 0)
                if index in plan.private or index in plan.often_read or address % _ALIGNMENT_BYTES:
                    by_value.moved[index] = address, tensor
                else:
                    by_value.placed[index] = address, tensor
                    by_value.resident ^= 1 << index
                continue
            value = on_host(buffer.name, value)
        view = value if source.offset_bytes is None else View(value, source.offset_bytes)
        by_value.staged.append((index, input_bytes(buffer, view)))
    return by_value


def gather(
    plan: Plan,
    sources: Mapping[str, InputSource],
    by_value: ByValue,
    kept: Mapping[int, bytes],
    find: Find,
    ranges: Ranges,
    fetched: Mapping[bytes, FetchedObject],
) -> Inputs:
    """Looks up what a request reads: in the tiers of the cache, else among what has been fetched for it.

    Args:
        kept: its outputs that stay on the device, by index, with the keys that they get.

    Raises:
        WrongSize, WrongShape, WrongDtype
    """
    inputs = Inputs(by_value=by_value, resident=by_value.resident)
    views: dict[bytes, list[int]] = {}
    for index in by_value.others:
        buffer = plan.buffers[index]
        source = sources[buffer.name]
        key = source.key
        assert key is not None, "that is what the others have"
        found = find(key) or inputs.fetched.get(key)
        if found is None:
            if source.offset_bytes is not None:
                views.setdefault(key, []).append(index)
                continue
            found = _whole_object(plan.task, buffer, key, source, inputs, fetched, ranges)
            if found is None:
                continue
        check_fit(buffer, found.nbytes, found.dtype, source.offset_bytes, found.shape)
        inputs.objects[key] = found.nbytes
        _use(plan, inputs, index, key, source, source.offset_bytes or 0)
    for key, indices in views.items():
        by_index = {index: sources[plan.buffers[index].name] for index in indices}
        _gather_views(plan, inputs, key, by_index, fetched, find, ranges)
    if kept:
        inputs.keep(plan, kept)
    return inputs


def gather_whole(
    sources: Iterable[InputSource], find: Find, ranges: Ranges, fetched: Mapping[bytes, FetchedObject]
) -> Inputs:
    """As above, for objects that no request reads yet: each of them whole."""
    inputs = Inputs()
    for source in sources:
        key = source.key
        assert key is not None, "only objects are cached"
        found = find(key) or inputs.fetched.get(key)
        if found is None:
            found = _whole_object(None, _UNREAD, key, source, inputs, fetched, ranges)
            if found is None:
                continue
        inputs.objects[key] = found.nbytes
        if source.constant:
            inputs.constants.add(key)
    return inputs


def _whole_object(
    task: KTask | None,
    buffer: Buffer,
    key: bytes,
    source: InputSource,
    inputs: Inputs,
    fetched: Mapping[bytes, FetchedObject],
    ranges: Ranges,
) -> FetchedObject | None:
    """An object that no tier has, whole; None if it has to be fetched."""
    arriving = fetched.get(key)
    if arriving is None:
        inputs.missing.setdefault(key, partial(_fetch, task, buffer, source))
        return None
    inputs.fetched[key] = arriving
    inputs.replaced.extend(part.entry for part in ranges.parts(key))
    return arriving


def _use(plan: Plan, inputs: Inputs, index: int, key: bytes, source: InputSource, offset_bytes: int) -> None:
    apart = index in plan.private or offset_bytes % _ALIGNMENT_BYTES
    if source.constant:
        inputs.constants.add(key)
    elif index in plan.often_read:
        apart = True
    if apart:
        inputs.copied.append((index, key, offset_bytes))
        inputs.resident |= 1 << index
    else:
        inputs.shared.append((index, key, offset_bytes))


def _gather_views(
    plan: Plan,
    inputs: Inputs,
    key: bytes,
    sources: Mapping[int, InputSource],
    fetched: Mapping[bytes, FetchedObject],
    find: Find,
    ranges: Ranges,
) -> None:
    """All views of one object that no tier has whole: they share it or, of a large one, the parts that they cover."""
    spans = {
        index: (source.offset_bytes or 0, (source.offset_bytes or 0) + plan.buffers[index].nbytes)
        for index, source in sources.items()
    }
    new: tuple[Part, ...] = ()
    if key not in inputs.fetched and not all(ranges.covering(key, *span) for span in spans.values()):
        if key not in fetched:
            first = next(iter(sources))
            inputs.missing.setdefault(key, partial(_fetch, plan.task, plan.buffers[first], sources[first]))
            return
        new = _take_views(plan, inputs, key, fetched[key], sources, spans, ranges)
    for index, source in sources.items():
        start, end = spans[index]
        whole = inputs.fetched.get(key)
        if whole is not None:
            check_fit(plan.buffers[index], whole.nbytes, whole.dtype, start)
            inputs.objects[key] = whole.nbytes
            _use(plan, inputs, index, key, source, start)
            continue
        added = (part for part in new if part.start <= start and end <= part.end)
        covering = next(added, None) or ranges.covering(key, start, end)
        assert covering is not None, "what is not covered is new"
        entry = covering.entry
        found = inputs.fetched.get(entry) or find(entry)
        assert found is not None, "some tier holds each of the ranges"
        inputs.objects[entry] = found.nbytes
        _use(plan, inputs, index, entry, source, start - covering.start)


def _take_views(
    plan: Plan,
    inputs: Inputs,
    key: bytes,
    whole: FetchedObject,
    sources: Mapping[int, InputSource],
    spans: Mapping[int, tuple[int, int]],
    ranges: Ranges,
) -> tuple[Part, ...]:
    """Takes an object that was fetched for views of it whole, or in parts, which it gives."""
    for index, source in sources.items():
        check_fit(plan.buffers[index], whole.nbytes, whole.dtype, source.offset_bytes)
    if whole.nbytes <= ranges.whole_bytes:
        inputs.fetched[key] = whole
        return ()
    new, replaced = ranges.cover(key, spans.values(), whole.nbytes)
    inputs.replaced.extend(part.entry for part in replaced)
    for part in new:
        data = whole.data[part.start : part.end]
        inputs.fetched[part.entry] = FetchedObject(data, len(data), None)
        inputs.parts[part.entry] = part
    return new


def check_scalars(plan: Plan, scalars: Mapping[str, bytes]) -> list[bytes]:
    """The scalars in the plan's order.

    Raises:
        MissingScalar, WrongScalar: not exactly the kTask's, or bytes of another size than their kinds have.
    """
    task = plan.task
    if len(scalars) > len(plan.scalars):
        name = min(scalars.keys() - task.scalars.keys())
        raise WrongScalar(f"kTask {task.label!r} has no scalar {name!r}", task=task.label, scalar=name)
    found: list[bytes] = []
    for name in plan.scalars:
        if name not in scalars:
            raise MissingScalar(f"kTask {task.label!r}: scalar {name!r} was not given", task=task.label, scalar=name)
        kind = task.scalars[name]
        given, expected = len(scalars[name]), KIND_BYTES[kind]
        if given != expected:
            raise WrongScalar(
                f"kTask {task.label!r}: scalar {name!r} ({kind}) has {expected} bytes, not {given}",
                task=task.label,
                scalar=name,
                kind=kind,
            )
        found.append(scalars[name])
    return found


def _fetch(task: KTask | None, buffer: Buffer, source: InputSource) -> FetchedObject:
    """
    Raises:
        InputFailed, NotContiguous
    """
    data, dtype, shape = raw_bytes(buffer, on_host(buffer.name, _value(task, buffer, source)))
    return FetchedObject(data, len(data), dtype, shape)


def _value(task: KTask | None, buffer: Buffer, source: InputSource) -> Any:
    if source.fetch is None:
        return source.value
    try:
        return source.fetch()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        label = "prefetch" if task is None else task.label
        raise InputFailed(
            f"kTask {label!r}: input {buffer.name!r} could not be had: {reason}",
            task=label,
            buffer=buffer.name,
            reason=reason,
        ) from error
