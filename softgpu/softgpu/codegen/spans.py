"""Accesses of a group of lanes that lie close together: whole vectors of memory, and permutations of their elements.

Examples are float4 loads of neighbouring threads, rows that several threads share, every second element. The compiler
knows the elements of each lane, so that a few vector loads and permutations replace a gather.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from softgpu.analysis.shapes import WARP, Affine
from softgpu.codegen.addresses import Access, can_mask
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.values import SCALAR, Value

_CHUNK_BYTES = 64
_MOST_CHUNKS = 8
_MOST_SHARING = 4

Source = tuple[int, int]  # (number of the vector, number of its element)


@dataclass(frozen=True, slots=True)
class Span:
    """Memory as equal chunks of `width` elements that begin at `starts`; the last chunk may overlap the one before.

    where[i][lane]: the place of the lane's element i, counted in elements from the first chunk's start, which is `low`
    bytes from the base.
    """

    low: int
    width: int
    starts: tuple[int, ...]
    where: tuple[tuple[int, ...], ...]

    def source(self, element: int) -> Source:
        """Return the chunk that holds an element of memory, and the element's place in it."""
        chunk = min(element // self.width, len(self.starts) - 1)
        return chunk, element - self.starts[chunk]

    @property
    def users(self) -> dict[int, list[Source]]:
        """Return, for each element of memory, the (element, lane) pairs that access it."""
        found: dict[int, list[Source]] = {}
        for index, lanes in enumerate(self.where):
            for lane, element in enumerate(lanes):
                found.setdefault(element, []).append((index, lane))
        return found

    @property
    def sharing(self) -> int:
        """Return the largest number of accesses to one element."""
        return max(len(sharers) for sharers in self.users.values())


def _span(e: Emitter, offsets: tuple[int, ...], access: Access) -> Span | None:
    """Return the span; None if the lanes are too far from each other, or their elements are not aligned."""
    size, count = access.size, access.count
    if not can_mask(e, access) or any(offset % size for offset in offsets):
        return None
    low = min(offsets)
    length = (max(offsets) - low) // size + count
    width = _CHUNK_BYTES // size
    while width > length:
        width //= 2
    starts = (*range(0, length - width, width), length - width)
    if len(starts) > _MOST_CHUNKS:
        return None
    where = tuple(tuple((offset - low) // size + index for offset in offsets) for index in range(count))
    return Span(low, width, starts, where)


def load_span(e: Emitter, shape: Affine, pointers: list[str], access: Access) -> list[str] | None:
    """Load the elements of the lanes of the groups at these pointers, as vectors of 32; None: a span does not fit."""
    span = _span(e, shape.offsets, access)
    if span is None or (access.lanes and span.sharing > _MOST_SHARING):
        return None
    kind = f"<{span.width} x {access.element}>"
    name = f"llvm.masked.load.v{span.width}{SCALAR.name(access.element)}.p0"
    groups = []
    for group, pointer in enumerate(pointers):
        chunks = []
        for start in span.starts:
            place = _chunk_place(e, pointer, span, start, access)
            mask = _mask(e, span, start, group * shape.segment, access) if access.lanes else ""
            if mask:
                e.declared.add(f"declare {kind} @{name}(ptr, <{span.width} x i1>, {kind})")
                arguments = f"ptr align {access.size} {place}, <{span.width} x i1> {mask}, {kind} zeroinitializer"
                chunks.append(e.new(f"call {kind} @{name}({arguments})"))
            else:
                chunks.append(e.new(f"load {kind}, ptr {place}, align {access.size}"))
        groups.append([_pick(e, access.element, span, chunks, lanes) for lanes in span.where])
    return [concatenate(e, access.element, list(parts), shape.segment) for parts in zip(*groups, strict=True)]


def store_span(e: Emitter, shape: Affine, pointers: list[str], values: list[Value], access: Access) -> bool:
    """Store the values, and return True; return False if a span does not fit. No two lanes may write one element."""
    span = _span(e, shape.offsets, access)
    if span is None or span.sharing > 1:
        return False
    users = span.users
    masked = access.lanes or len(users) < span.starts[-1] + span.width
    kind = f"<{span.width} x {access.element}>"
    name = f"llvm.masked.store.v{span.width}{SCALAR.name(access.element)}.p0"
    vectors = [e.vector(value) for value in values]
    for group, pointer in enumerate(pointers):
        first = group * shape.segment
        for start in span.starts:
            if users.keys().isdisjoint(range(start, start + span.width)):
                continue  # no lane stores here
            wanted = [users[x][0] if x in users else (-1, 0) for x in range(start, start + span.width)]
            chunk = _fold(e, access.element, WARP, vectors, [(index, first + lane) for index, lane in wanted])
            place = _chunk_place(e, pointer, span, start, access)
            if masked:
                mask = _mask(e, span, start, first, access)
                e.declared.add(f"declare void @{name}({kind}, ptr, <{span.width} x i1>)")
                arguments = f"{kind} {chunk}, ptr align {access.size} {place}, <{span.width} x i1> {mask}"
                e.put(f"call void @{name}({arguments})")
            else:
                e.put(f"store {kind} {chunk}, ptr {place}, align {access.size}")
    return True


def concatenate(e: Emitter, element: str, parts: list[str], width: int) -> str:
    """Return one vector from vectors of equal width; their number is a power of two."""
    while len(parts) > 1:
        kind = f"<{width} x {element}>"
        width *= 2
        order = ", ".join(f"i32 {lane}" for lane in range(width))
        parts = [
            e.new(f"shufflevector {kind} {a}, {kind} {b}, <{width} x i32> <{order}>")
            for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
    return parts[0]


def _chunk_place(e: Emitter, pointer: str, span: Span, start: int, access: Access) -> str:
    offset = span.low + start * access.size
    return e.new(f"getelementptr i8, ptr {pointer}, i64 {offset}") if offset else pointer


def _mask(e: Emitter, span: Span, start: int, first: int, access: Access) -> str:
    """Return the mask of the chunk's elements that running lanes access. first: the first lane of the group."""
    users = span.users
    wanted = [users.get(x, []) for x in range(start, start + span.width)]
    if not access.lanes:
        return "<" + ", ".join(f"i1 {'true' if sharers else 'false'}" for sharers in wanted) + ">"

    def make() -> str:
        result = ""
        for turn in range(span.sharing):
            order = ", ".join(f"i32 {first + lanes[turn][1] if len(lanes) > turn else 0}" for lanes in wanted)
            running = f"<{WARP} x i1> {access.lanes}, <{WARP} x i1> poison"
            one = e.new(f"shufflevector {running}, <{span.width} x i32> <{order}>")
            # Not zeros from the shuffle's other operand: LLVM 22 takes <4, 5, 6, 7, and four zeros> for a shift.
            some = ", ".join(f"i1 {'true' if len(lanes) > turn else 'false'}" for lanes in wanted)
            one = e.new(f"and <{span.width} x i1> {one}, <{some}>")
            result = e.new(f"or <{span.width} x i1> {result}, {one}") if result else one
        return result

    return e.once(("span", access.lanes, span, start, first), make)


def _pick(e: Emitter, element: str, span: Span, chunks: list[str], lanes: tuple[int, ...]) -> str:
    """Return a vector of these elements for the lanes of a group, made in pieces; lanes that share a row share one."""
    size = min(span.width, len(lanes))
    pieces: dict[tuple[int, ...], str] = {}
    parts = []
    for start in range(0, len(lanes), size):
        piece = lanes[start : start + size]
        if piece not in pieces:
            pieces[piece] = _fold(e, element, span.width, chunks, [span.source(x) for x in piece])
        parts.append(pieces[piece])
    return concatenate(e, element, parts, size)


def _fold(e: Emitter, element: str, width: int, vectors: Sequence[str], wanted: Sequence[Source]) -> str:
    """Return a vector of the wanted elements of vectors of `width`; an element of vector -1 may have any value."""
    count = len(wanted)
    used = sorted({vector for vector, _ in wanted if vector >= 0})
    kind = f"<{width} x {element}>"

    def shuffle(a: str, b: str, choose: Callable[[int, Source], int | None]) -> str:
        chosen = [choose(place, source) for place, source in enumerate(wanted)]
        order = ", ".join("i32 poison" if one is None else f"i32 {one}" for one in chosen)
        return e.new(f"shufflevector {kind} {a}, {kind} {b}, <{count} x i32> <{order}>")

    def of_pair(pair: list[int]) -> str:
        other = vectors[pair[1]] if len(pair) > 1 else "poison"
        return shuffle(vectors[pair[0]], other, lambda _, s: pair.index(s[0]) * width + s[1] if s[0] in pair else None)

    pairs = [used[index : index + 2] for index in range(0, len(used), 2)]
    result = of_pair(pairs[0])
    for pair in pairs[1:]:
        more = of_pair(pair)
        order = ", ".join(f"i32 {place + count if s[0] in pair else place}" for place, s in enumerate(wanted))
        few = f"<{count} x {element}>"
        result = e.new(f"shufflevector {few} {result}, {few} {more}, <{count} x i32> <{order}>")
    return result
