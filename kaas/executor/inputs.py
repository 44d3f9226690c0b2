"""The inputs of one request, resolved and sorted by the way they take to the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from kaas.arguments import Buffer
from kaas.dtypes import KIND_BYTES
from kaas.errors import InputFailed, MissingScalar, WrongScalar
from kaas.executor.device import HostMemory
from kaas.executor.plan import Plan
from kaas.executor.ranges import Part, Ranges
from kaas.request import View, check_fit, input_bytes, raw_bytes


@dataclass(frozen=True, slots=True)
class Source:
    """Where one input of one request comes from.

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
    """An object on the device. dtype None: plain bytes, good for every buffer."""

    address: int
    nbytes: int
    dtype: str | None


@dataclass(frozen=True, slots=True)
class HostObject:
    """An object in page-locked host memory, as above."""

    memory: HostMemory
    nbytes: int
    dtype: str | None


@dataclass(frozen=True, slots=True)
class Arriving:
    """An object that was fetched, since no tier has it."""

    data: memoryview
    nbytes: int
    dtype: str | None


_UNREAD = Buffer("object", 1)
"""Stands for the input that an object will be, in errors."""
Find = Callable[[bytes], CachedObject | HostObject | None]
"""Looks an object up in the tiers of a cache."""


@dataclass(slots=True)
class Inputs:
    """What a request brings.

    Fields:
        objects: bytes of every object with a key, by key. arriving: those that no tier has.
        parts: those that are a part of a larger object. replaced: keys of cached parts that these include.
        constants: those that a function binds. fetching_s: seconds spent on what arrives.
        staged: (buffer's index, bytes) of what is passed by value.
        shared, copied: (buffer's index, key, offset) of objects that are read where they are cached, or that some
            kernel writes, so that the request works on a copy.
        resident: bit i: the buffer with index i lies in the arena.
    """

    objects: dict[bytes, int] = field(default_factory=dict)
    arriving: dict[bytes, Arriving] = field(default_factory=dict)
    parts: dict[bytes, Part] = field(default_factory=dict)
    replaced: list[bytes] = field(default_factory=list)
    constants: set[bytes] = field(default_factory=set)
    fetching_s: float = 0.0
    staged: list[tuple[int, memoryview]] = field(default_factory=list)
    shared: list[tuple[int, bytes, int]] = field(default_factory=list)
    copied: list[tuple[int, bytes, int]] = field(default_factory=list)
    resident: int = 0


def gather(plan: Plan, sources: Mapping[str, Source], find: Find, ranges: Ranges) -> Inputs:
    """Resolves the sources; fetches what neither came along nor is found in a tier of the cache.

    Raises:
        InputFailed, WrongSize, WrongDtype, NotContiguous
    """
    inputs = Inputs()
    views: dict[bytes, list[int]] = {}
    for index in plan.inputs:
        buffer = plan.buffers[index]
        source = sources[buffer.name]
        key = source.key
        if key is None:
            value = _value(plan.task.label, buffer, source)
            view = value if source.offset_bytes is None else View(value, source.offset_bytes)
            inputs.staged.append((index, input_bytes(buffer, view)))
            inputs.resident |= 1 << index
            continue
        found = find(key) or inputs.arriving.get(key)
        if found is None:
            if source.offset_bytes is not None:
                views.setdefault(key, []).append(index)
                continue
            found = inputs.arriving[key] = _fetch(plan.task.label, buffer, source, inputs)
            inputs.replaced.extend(part.entry for part in ranges.parts(key))
        check_fit(buffer, found.nbytes, found.dtype, source.offset_bytes)
        inputs.objects[key] = found.nbytes
        _use(plan, inputs, index, key, source, source.offset_bytes or 0)
    for key, indices in views.items():
        _gather_views(plan, inputs, key, {index: sources[plan.buffers[index].name] for index in indices}, find, ranges)
    return inputs


def gather_whole(sources: Iterable[Source], find: Find, ranges: Ranges) -> Inputs:
    """As above, for objects that nobody reads yet: each of them whole.

    Raises:
        InputFailed, NotContiguous
    """
    inputs = Inputs()
    for source in sources:
        key = source.key
        assert key is not None, "only objects are cached"
        found = find(key) or inputs.arriving.get(key)
        if found is None:
            found = inputs.arriving[key] = _fetch("prefetch", _UNREAD, source, inputs)
            inputs.replaced.extend(part.entry for part in ranges.parts(key))
        inputs.objects[key] = found.nbytes
        if source.constant:
            inputs.constants.add(key)
    return inputs


def _use(plan: Plan, inputs: Inputs, index: int, key: bytes, source: Source, offset_bytes: int) -> None:
    if source.constant:
        inputs.constants.add(key)
    if index in plan.private:
        inputs.copied.append((index, key, offset_bytes))
        inputs.resident |= 1 << index
    else:
        inputs.shared.append((index, key, offset_bytes))


def _gather_views(
    plan: Plan, inputs: Inputs, key: bytes, sources: Mapping[int, Source], find: Find, ranges: Ranges
) -> None:
    """All views of one object that no tier has whole: they share it or, of a large one, the parts that they cover."""
    spans = {
        index: (source.offset_bytes or 0, (source.offset_bytes or 0) + plan.buffers[index].nbytes)
        for index, source in sources.items()
    }
    new: tuple[Part, ...] = ()
    if key not in inputs.arriving and not all(ranges.covering(key, *span) for span in spans.values()):
        new = _fetch_views(plan, inputs, key, sources, spans, ranges)
    for index, source in sources.items():
        start, end = spans[index]
        whole = inputs.arriving.get(key)
        if whole is not None:
            check_fit(plan.buffers[index], whole.nbytes, whole.dtype, start)
            inputs.objects[key] = whole.nbytes
            _use(plan, inputs, index, key, source, start)
            continue
        added = (part for part in new if part.start <= start and end <= part.end)
        covering = next(added, None) or ranges.covering(key, start, end)
        assert covering is not None, "what is not covered is new"
        entry = covering.entry
        found = inputs.arriving.get(entry) or find(entry)
        assert found is not None, "some tier holds each of the ranges"
        inputs.objects[entry] = found.nbytes
        _use(plan, inputs, index, entry, source, start - covering.start)


def _fetch_views(
    plan: Plan,
    inputs: Inputs,
    key: bytes,
    sources: Mapping[int, Source],
    spans: Mapping[int, tuple[int, int]],
    ranges: Ranges,
) -> tuple[Part, ...]:
    """Fetches an object for views of it, and takes it whole or in parts, which it gives."""
    first = next(iter(sources))
    whole = _fetch(plan.task.label, plan.buffers[first], sources[first], inputs)
    for index, source in sources.items():
        check_fit(plan.buffers[index], whole.nbytes, whole.dtype, source.offset_bytes)
    if whole.nbytes <= ranges.whole_bytes:
        inputs.arriving[key] = whole
        return ()
    new, replaced = ranges.cover(key, spans.values(), whole.nbytes)
    inputs.replaced.extend(part.entry for part in replaced)
    for part in new:
        data = whole.data[part.start : part.end]
        inputs.arriving[part.entry] = Arriving(data, len(data), None)
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


def _fetch(label: str, buffer: Buffer, source: Source, inputs: Inputs) -> Arriving:
    began = perf_counter()
    data, dtype = raw_bytes(buffer, _value(label, buffer, source))
    inputs.fetching_s += perf_counter() - began
    return Arriving(data, len(data), dtype)


def _value(label: str, buffer: Buffer, source: Source) -> Any:
    if source.fetch is None:
        return source.value
    try:
        return source.fetch()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputFailed(
            f"kTask {label!r}: input {buffer.name!r} could not be had: {reason}",
            task=label,
            buffer=buffer.name,
            reason=reason,
        ) from error
