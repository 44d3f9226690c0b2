"""The inputs of one request, sorted by their way to the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from kaas.errors import InputFailed, MissingScalar, WrongScalar
from kaas.executor.cache.ranges import Part, Ranges
from kaas.executor.device.host_arrays import on_host
from kaas.executor.objects import CachedObject, FetchedObject, HeldValue, HostObject, InputObject
from kaas.ktask.arguments import Buffer
from kaas.ktask.dlpack import device_of, is_exporter, tensor_of
from kaas.ktask.dtypes import KIND_BYTES
from kaas.ktask.graph import KTask
from kaas.ktask.request import View, check_fit, input_bytes, raw_bytes

if TYPE_CHECKING:
    from kaas.executor.device.windows.window import ClientWindow
    from kaas.executor.plan.plan import Plan


class InputSource(msgspec.Struct, frozen=True):
    """The source of one input of one request. A Struct, since every request makes some.

    Args:
        value: an array or any object with the buffer protocol; None if fetch returns it.
        key: identity of the object, which is cached under it. None: passed by value, never cached.
        fetch: returns the object when it is not cached; its error becomes the cause of InputFailed.
        offset_bytes: None: the object is the whole input. Otherwise the input is the object's bytes from there on.
        constants: the tuple of constants, by its key, of a function that binds the object; such objects leave the cache
            last. None: no function binds it.
    """

    value: Any = None
    key: bytes | None = None
    fetch: Callable[[], Any] | None = None
    offset_bytes: int | None = None
    constants: bytes | None = None


_ALIGNMENT_BYTES = 256
"""The alignment that cuMemAlloc promises, and that kernels may expect of every buffer."""
_UNREAD = Buffer("object", 1)
"""Stands in errors for the input that a prefetched object will be."""
Find = Callable[[bytes], CachedObject | HostObject | None]
"""Looks an object up in the tiers of a cache."""


class ByValue(msgspec.Struct):
    """The inputs that are passed by value.

    Fields:
        staged: (buffer's index, bytes) of the inputs in host memory.
        placed, moved: arrays on the device, by the buffer's index: (address, owner of the memory). Kernels read placed
            ones where they are. Moved ones are copied, since a kernel writes them, they are not aligned as kernels
            expect, or they are small and read often.
        resident: bit i: the input with index i lies in the arena.
        others: indices of the inputs that are objects with a key instead.
    """

    staged: list[tuple[int, bytes | memoryview]] = []
    placed: dict[int, tuple[int, Any]] = {}
    moved: dict[int, tuple[int, Any]] = {}
    resident: int = 0
    others: list[int] = []


class Inputs(msgspec.Struct):
    """The inputs of a request, and the outputs that it keeps on the device.

    Fields:
        missing: functions that fetch the objects that neither a tier nor `fetched` has. While there are some, the other
            fields are incomplete.
        objects: bytes of every object with a key, by key. fetched: the objects that no tier has.
        parts: objects that are parts of larger ones. replaced: keys of cached parts that these include.
        constants: objects that a function binds, with the keys of their tuples.
        by_value: inputs that are passed by value.
        shared, copied: (buffer's index, key, offset) of objects. Kernels read shared ones where they are cached. Copied
            ones are copied, since a kernel writes them, a view is not aligned as kernels expect, or they are small and
            read often.
        resident: bit i: the buffer with index i lies in the arena.
        kept: the outputs that stay on the device: index -> key. made: key -> buffer. They are among the objects.
            kept_mask: bit i: the output with index i is kept.
        window: where kernels find their memory, if they are confined. Objects in other memory are copied.
    """

    missing: dict[bytes, Callable[[], FetchedObject]] = {}
    objects: dict[bytes, int] = {}
    fetched: dict[bytes, FetchedObject] = {}
    parts: dict[bytes, Part] = {}
    replaced: list[bytes] = []
    constants: dict[bytes, bytes] = {}
    by_value: ByValue = msgspec.field(default_factory=ByValue)
    shared: list[tuple[int, bytes, int]] = []
    copied: list[tuple[int, bytes, int]] = []
    resident: int = 0
    kept: Mapping[int, bytes] = {}
    made: Mapping[bytes, Buffer] = {}
    kept_mask: int = 0
    window: ClientWindow | None = None

    def reach(self, found: InputObject) -> bool:
        """Return True if kernels reach an object where it is, or will be, and not in another client's window alone."""
        return self.window is None or type(found) is not CachedObject or self.window.reaches(found.home)

    def held(self) -> set[bytes]:
        """Return the keys of the fetched objects that the pool holds: they take no room of this executor's."""
        return {key for key, fetched in self.fetched.items() if isinstance(fetched.data, HeldValue)}

    def address(self, cached: CachedObject) -> int:
        """Return the address at which kernels find an object on the device that they reach."""
        return cached.address if self.window is None else self.window.seen_at(cached.address, cached.home)

    def keep(self, plan: Plan, kept: Mapping[int, bytes]) -> None:
        """Note the outputs that will stay on the device; no tier can have them yet."""
        self.kept = kept
        self.kept_mask = sum(1 << index for index in kept)
        self.made = {key: plan.buffers[index] for index, key in kept.items()}
        self.objects.update({key: buffer.nbytes for key, buffer in self.made.items()})


def stage(
    plan: Plan, sources: Mapping[str, InputSource], device: int, stream: int, *, confined: bool = False
) -> ByValue:
    """Return the inputs that are passed by value.

    Args:
        plan: the plan of the kTask.
        sources: the inputs by buffer name.
        device: number of the device. An array on this device stays there, unless kernels are `confined`.
        stream: the stream that reads the array. It waits for the stream that makes the array.
        confined: kernels read nothing outside of their window.

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
            by_value.staged.append((index, value))  # the fast way of small inputs, with the same result
            continue
        value = _value(plan.task, buffer, source)
        if is_exporter(value):
            if device_of(buffer.name, value) == device:
                tensor = tensor_of(buffer.name, value, stream)
                check_fit(buffer, tensor.nbytes, tensor.dtype, source.offset_bytes, tensor.shape)
                address = tensor.address + (source.offset_bytes or 0)
                if confined or index in plan.private or index in plan.often_read or address % _ALIGNMENT_BYTES:
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
    window: ClientWindow | None,
    fetched: Mapping[bytes, FetchedObject],
) -> Inputs:
    """Look up the inputs of a request: in the tiers of the cache, otherwise among the objects fetched for it.

    `kept` maps indices of the outputs that stay on the device to their keys. window: as in `Inputs`.

    Raises:
        WrongSize, WrongShape, WrongDtype
    """
    inputs = Inputs(by_value=by_value, resident=by_value.resident, window=window)
    views: dict[bytes, list[int]] = {}
    for index in by_value.others:
        buffer = plan.buffers[index]
        source = sources[buffer.name]
        key = source.key
        assert key is not None, "the others have keys"
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
        _use(plan, inputs, index, key, found, source, source.offset_bytes or 0)
    for key, indices in views.items():
        by_index = {index: sources[plan.buffers[index].name] for index in indices}
        _gather_views(plan, inputs, key, by_index, fetched, find, ranges)
    if kept:
        inputs.keep(plan, kept)
    return inputs


def gather_whole(
    sources: Iterable[InputSource],
    find: Find,
    ranges: Ranges,
    window: ClientWindow | None,
    fetched: Mapping[bytes, FetchedObject],
) -> Inputs:
    """Look up whole objects that no request reads yet, as `gather` does."""
    inputs = Inputs(window=window)
    for source in sources:
        key = source.key
        assert key is not None, "only objects are cached"
        found = find(key) or inputs.fetched.get(key)
        if found is None:
            found = _whole_object(None, _UNREAD, key, source, inputs, fetched, ranges)
            if found is None:
                continue
        inputs.objects[key] = found.nbytes
        if source.constants is not None:
            inputs.constants[key] = source.constants
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
    """Return a whole object that no tier has; None if it must be fetched."""
    found = fetched.get(key)
    if found is None:
        inputs.missing.setdefault(key, partial(_fetch, task, buffer, source))
        return None
    inputs.fetched[key] = found
    inputs.replaced.extend(part.entry for part in ranges.parts(key))
    return found


def _use(
    plan: Plan, inputs: Inputs, index: int, key: bytes, found: InputObject, source: InputSource, start: int
) -> None:
    copied = (
        index in plan.private or start % _ALIGNMENT_BYTES or (inputs.window is not None and not inputs.reach(found))
    )
    if source.constants is not None:
        inputs.constants[key] = source.constants
    elif index in plan.often_read:
        copied = True
    if copied:
        inputs.copied.append((index, key, start))
        inputs.resident |= 1 << index
    else:
        inputs.shared.append((index, key, start))


def _gather_views(
    plan: Plan,
    inputs: Inputs,
    key: bytes,
    sources: Mapping[int, InputSource],
    fetched: Mapping[bytes, FetchedObject],
    find: Find,
    ranges: Ranges,
) -> None:
    """Look up all views of one object that no tier has whole. They share the object or, if it is large, its parts."""
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
            _use(plan, inputs, index, key, whole, source, start)
            continue
        added = (part for part in new if part.start <= start and end <= part.end)
        covering = next(added, None) or ranges.covering(key, start, end)
        assert covering is not None, "what is not covered is new"
        entry = covering.entry
        found = inputs.fetched.get(entry) or find(entry)
        assert found is not None, "some tier holds each of the ranges"
        inputs.objects[entry] = found.nbytes
        _use(plan, inputs, index, entry, found, source, start - covering.start)


def _take_views(
    plan: Plan,
    inputs: Inputs,
    key: bytes,
    whole: FetchedObject,
    sources: Mapping[int, InputSource],
    spans: Mapping[int, tuple[int, int]],
    ranges: Ranges,
) -> tuple[Part, ...]:
    """Add a fetched object, whole or by the parts that its views cover. Return these parts."""
    for index, source in sources.items():
        check_fit(plan.buffers[index], whole.nbytes, whole.dtype, source.offset_bytes)
    if isinstance(whole.data, HeldValue) or whole.nbytes <= ranges.whole_bytes:
        inputs.fetched[key] = whole
        inputs.replaced.extend(part.entry for part in ranges.parts(key))
        return ()
    new, replaced = ranges.cover(key, spans.values(), whole.nbytes)
    inputs.replaced.extend(part.entry for part in replaced)
    for part in new:
        data = whole.data[part.start : part.end]
        inputs.fetched[part.entry] = FetchedObject(data, len(data), None)
        inputs.parts[part.entry] = part
    return new


def check_scalars(plan: Plan, scalars: Mapping[str, bytes]) -> list[bytes]:
    """Return the scalars' bytes in the plan's order.

    Raises:
        MissingScalar, WrongScalar: the names are not exactly the kTask's, or the bytes have another size than the kind.
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
    """Fetch an object. Raise InputFailed or NotContiguous."""
    value = _value(task, buffer, source)
    if isinstance(value, HeldValue):
        return FetchedObject(value, value.nbytes, None)
    data, dtype, shape = raw_bytes(buffer, on_host(buffer.name, value))
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
