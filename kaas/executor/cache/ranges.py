"""The parts of large objects that are cached. Several views of an object share one copy of the bytes that they cover.

Objects up to a size are cached whole. Of a larger object only the ranges that requests read are cached. Ranges that
overlap become one, since a view needs its bytes in one piece. Values in, values out, as in `cache.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kaas.executor.cache.tiers import GRANULE_BYTES

WHOLE_OBJECT_BYTES = 64 << 20
"""Objects up to this many bytes are cached whole by default."""


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes of an object from start to end, cached under a key of their own, `entry`."""

    key: bytes
    start: int
    end: int

    @property
    def entry(self) -> bytes:
        """The key of the cache for this part."""
        return b"%b[%d:%d" % (self.key, self.start, self.end)


class Ranges:
    """The parts that a tier holds. whole_bytes: objects up to this size are cached whole."""

    def __init__(self, whole_bytes: int = WHOLE_OBJECT_BYTES) -> None:
        self.whole_bytes = whole_bytes
        self._entries: dict[bytes, Part] = {}
        self._objects: dict[bytes, list[Part]] = {}

    def parts(self, key: bytes) -> Sequence[Part]:
        """Return the parts of one object."""
        return self._objects.get(key, ())

    def part(self, entry: bytes) -> Part | None:
        """Return the part with this key of the cache; None if no part has it."""
        return self._entries.get(entry)

    def covering(self, key: bytes, start: int, end: int) -> Part | None:
        """Return a part that holds a whole range; None if there is none."""
        return next((part for part in self.parts(key) if part.start <= start and end <= part.end), None)

    def cover(
        self, key: bytes, wanted: Iterable[tuple[int, int]], nbytes: int
    ) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
        """Return parts to add and parts that these replace.

        Each wanted range of the object, which has nbytes bytes, then lies in one part. Parts begin at multiples of
        GRANULE_BYTES, so that a view is aligned as in the whole object.
        """
        spans = [(part.start, part.end, part) for part in self.parts(key)]
        for start, end in wanted:
            if self.covering(key, start, end) is None:
                low = start // GRANULE_BYTES * GRANULE_BYTES
                high = min(-(-max(end, 1) // GRANULE_BYTES) * GRANULE_BYTES, nbytes)
                spans.append((low, high, Part(key, low, high)))
        new: list[Part] = []
        replaced: list[Part] = []
        for group in _overlapping(spans):
            old = [part for part in group if part.entry in self._entries]
            if len(old) < len(group):
                new.append(Part(key, min(part.start for part in group), max(part.end for part in group)))
                replaced += old
        return tuple(new), tuple(replaced)

    def add(self, part: Part) -> None:
        """Add a part, which a tier holds now."""
        if part.entry not in self._entries:
            self._entries[part.entry] = part
            self._objects.setdefault(part.key, []).append(part)

    def remove(self, entry: bytes) -> None:
        """Remove a part that no tier holds any more. Keys of whole objects are ignored."""
        part = self._entries.pop(entry, None)
        if part is not None:
            rest = self._objects[part.key]
            rest.remove(part)
            if not rest:
                del self._objects[part.key]


def _overlapping(spans: Iterable[tuple[int, int, Part]]) -> list[list[Part]]:
    """Return groups of spans that are connected by shared bytes."""
    groups: list[list[Part]] = []
    reach = -1
    for start, end, part in sorted(spans, key=lambda span: span[:2]):
        if groups and start < reach:
            groups[-1].append(part)
        else:
            groups.append([part])
            reach = end
        reach = max(reach, end)
    return groups
