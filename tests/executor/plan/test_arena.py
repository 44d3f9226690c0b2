"""The arena's layout: buffers that may be in use at the same time do not overlap, and memory is reused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kaas.executor.plan.arena import ALIGNMENT_BYTES, GAP_BYTES, ArenaBuffer, HappensBefore, Layout, lay_apart, lay_out

Edges = frozenset[tuple[int, int]]


def buffer(index: int, *kernels: int, nbytes: int = 256, from_start: bool = False, to_end: bool = False) -> ArenaBuffer:
    return ArenaBuffer(index, nbytes, frozenset(kernels), from_start, to_end)


def test_a_chain_alternates_between_two_places() -> None:
    chain = [buffer(k, k, k + 1) for k in range(6)]
    layout = lay_out(chain, HappensBefore(7, [(k, k + 1) for k in range(6)]))
    assert layout.nbytes == 2 * 256
    assert [layout.offsets[k] for k in range(6)] == [0, 256] * 3


def test_branches_without_an_edge_share_nothing() -> None:
    layout = lay_out([buffer(0, 0), buffer(1, 1)], HappensBefore(2, []))
    assert layout == Layout({0: 0, 1: 256}, 512)


def test_a_buffer_with_a_content_from_the_start_follows_no_other() -> None:
    order = HappensBefore(2, [(0, 1)])
    assert lay_out([buffer(0, 0), buffer(1, 1)], order).nbytes == 256
    assert lay_out([buffer(0, 0), buffer(1, 1, from_start=True)], order).nbytes == 512
    assert lay_out([buffer(0, 0, from_start=True), buffer(1, 1)], order).nbytes == 256
    assert lay_out([buffer(0, 0, to_end=True), buffer(1, 1)], order).nbytes == 512


def test_offsets_are_aligned_and_empty_buffers_fit() -> None:
    layout = lay_out([buffer(0, 0, nbytes=1), buffer(1, 0, nbytes=300), buffer(2, 0, nbytes=0)], HappensBefore(1, []))
    assert all(offset % ALIGNMENT_BYTES == 0 for offset in layout.offsets.values())
    assert layout.nbytes == 512 + 256


def test_buffers_apart_share_nothing_and_have_gaps_after_them() -> None:
    layout = lay_apart([buffer(0, 0, nbytes=300), buffer(1, 1), buffer(2, 2, nbytes=0)])
    assert layout.offsets == {0: 0, 1: 512 + GAP_BYTES, 2: 768 + 2 * GAP_BYTES}
    assert layout.nbytes == 768 + 3 * GAP_BYTES


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, Edges, list[ArenaBuffer]]:
    kernels = draw(st.integers(1, 8))
    pairs = [(a, b) for b in range(kernels) for a in range(b)]
    edges = frozenset(draw(st.sets(st.sampled_from(pairs)))) if pairs else frozenset()
    users = st.frozensets(st.integers(0, kernels - 1), min_size=1)
    buffers = draw(
        st.lists(
            st.builds(ArenaBuffer, st.just(0), st.integers(0, 2000), users, st.booleans(), st.booleans()), max_size=10
        )
    )
    numbered = [
        ArenaBuffer(index, t.nbytes, t.kernels, t.from_start, t.to_end) for index, t in enumerate(buffers)
    ]  # fmt: skip
    return kernels, edges, numbered


def reachable(kernels: int, edges: Edges) -> set[tuple[int, int]]:
    """Return all pairs (earlier, later) with a path, by Warshall's algorithm; -1 is the start, `kernels` the end."""
    known = set(edges) | {(-1, k) for k in range(kernels)} | {(k, kernels) for k in range(kernels)} | {(-1, kernels)}
    for middle in range(kernels):
        known |= {(a, c) for a, b in known if b == middle for b2, c in known if b2 == middle}
    return known


@given(graphs())
def test_no_two_live_at_once_overlap(graph: tuple[int, Edges, list[ArenaBuffer]]) -> None:
    kernels, edges, buffers = graph
    layout = lay_out(buffers, HappensBefore(kernels, edges))
    paths = reachable(kernels, edges)

    def users(t: ArenaBuffer) -> set[int]:
        return set(t.kernels) | ({-1} if t.from_start else set()) | ({kernels} if t.to_end else set())

    def before(a: ArenaBuffer, b: ArenaBuffer) -> bool:
        return all((x, y) in paths for x in users(a) for y in users(b))

    for a in buffers:
        assert layout.offsets[a.index] + a.nbytes <= layout.nbytes
        for b in buffers:
            if a.index < b.index and not before(a, b) and not before(b, a):
                start_a, start_b = layout.offsets[a.index], layout.offsets[b.index]
                assert start_a + a.nbytes <= start_b or start_b + b.nbytes <= start_a
