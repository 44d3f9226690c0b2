"""A kTask as a picture: SVG for notebooks, text for terminals."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Protocol

from kaas.ktask.arguments import Buffer, Scalar
from kaas.ktask.library import Kernel

_BOX_WIDTH, _BOX_HEIGHT, _GAP_X, _GAP_Y = 170, 44, 24, 46


class Drawable(Protocol):
    """A KTask as this module reads it: `graph` imports this module."""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The launches."""

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs of launches, the earlier one first."""

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """Its inputs."""

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """Its outputs."""

    @property
    def temporaries(self) -> tuple[Buffer, ...]:
        """Its other buffers."""

    @property
    def scalars(self) -> Mapping[str, str]:
        """Kinds of its scalars, by name."""

    @property
    def iterations(self) -> int | Scalar:
        """The number of times that the kernels run."""

    @property
    def label(self) -> str:
        """Its name for people."""

    @property
    def key(self) -> str:
        """Its content hash."""


def layers(task: Drawable) -> list[list[int]]:
    """Return kernel indices by their longest path from a kernel without predecessors.

    The kernels of one layer are independent.
    """
    depth = [0] * len(task.kernels)
    for earlier, later in task.edges:  # sorted by the earlier kernel and leading forward only: one pass is enough
        depth[later] = max(depth[later], depth[earlier] + 1)
    return [[i for i, d in enumerate(depth) if d == level] for level in range(max(depth) + 1)]


def text(task: Drawable) -> str:
    """Return a line for each kernel, with the buffers that it reads and writes, and the list of buffers below."""
    lines = [f"kTask {task.label}  {task.key[:16]}  iterations {task.iterations}"]
    for index, kernel in enumerate(task.kernels):
        after = [earlier for earlier, later in task.edges if later == index]
        waits = f"  after {', '.join(map(str, after))}" if after else ""
        lines.append(f"  {index:>3}  {_signature(kernel)}  <<<{dims(kernel.grid)}, {dims(kernel.block)}>>>{waits}")
    roles = {"inputs": task.inputs, "outputs": task.outputs, "temporaries": task.temporaries}
    for role, buffers in roles.items():
        for buffer in buffers:
            shape = "×".join(map(str, buffer.shape)) or "scalar"
            lines.append(f"  {role:<11} {buffer.name:<16} {shape:>16} {buffer.dtype:<10} {buffer.nbytes:>12,} bytes")
    lines += [f"  {'scalar':<11} {name:<16} {kind:>16}" for name, kind in task.scalars.items()]
    return "\n".join(map(printable, lines))


def html(task: Drawable) -> str:
    """Return the graph as inline SVG: a box a kernel, an arrow a dependency, independent kernels side by side."""
    place: dict[int, tuple[int, int]] = {}
    rows = layers(task)
    for row, members in enumerate(rows):
        for column, index in enumerate(members):
            place[index] = (column * (_BOX_WIDTH + _GAP_X) + 8, row * (_BOX_HEIGHT + _GAP_Y) + 30)
    width = max(len(members) for members in rows) * (_BOX_WIDTH + _GAP_X) + 16
    height = len(rows) * (_BOX_HEIGHT + _GAP_Y) + 16
    arrows = "".join(_arrow(place[a], place[b]) for a, b in task.edges)
    boxes = "".join(_box(task.kernels[index], *at) for index, at in place.items())
    title = f"{_escape(task.label)} · {len(task.kernels)} kernels · iterations {_escape(str(task.iterations))}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11"><defs><marker id="kaas-arrow" markerWidth="8" markerHeight="8" '
        'refX="7" refY="4" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#666"/></marker></defs>'
        f'<text x="8" y="16" font-weight="bold" fill="currentColor">{title}</text>{arrows}{boxes}</svg>'
    )


def _signature(kernel: Kernel) -> str:
    reads = ", ".join(buffer.name for buffer in kernel.reads)
    writes = ", ".join(buffer.name for buffer in kernel.writes)
    return f"{kernel.symbol}({reads}) → {writes}"


def dims(extent: tuple[int, int, int]) -> str:
    """Return a grid or a block as text, as `4×32`."""
    return "×".join(str(n) for n in extent if n > 1) or "1"


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1, x2, y2 = start[0] + _BOX_WIDTH // 2, start[1] + _BOX_HEIGHT, end[0] + _BOX_WIDTH // 2, end[1]
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#666" marker-end="url(#kaas-arrow)"/>'


def _box(kernel: Kernel, x: int, y: int) -> str:
    detail = f"{_signature(kernel)} grid {dims(kernel.grid)} block {dims(kernel.block)}"
    reads = ", ".join(buffer.name for buffer in kernel.reads)
    writes = ", ".join(buffer.name for buffer in kernel.writes)
    return (
        f'<g><title>{_escape(detail)}</title><rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6" '
        f'fill="#eef3fb" stroke="#4a6fa5"/><text x="{x + 8}" y="{y + 18}" font-weight="bold" fill="#223">'
        f'{_escape(_short(kernel.symbol, 24))}</text><text x="{x + 8}" y="{y + 34}" fill="#223">'
        f"{_escape(_short(f'{reads} → {writes}', 28))}</text></g>"
    )


def printable(label: str) -> str:
    """Return a text without control characters: XML forbids them, and terminals obey them."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in label)


def _escape(label: str) -> str:
    return escape(printable(label))


def _short(label: str, length: int) -> str:
    return label if len(label) <= length else label[: length - 1] + "…"
