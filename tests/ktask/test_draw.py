"""A kTask draws itself: well-formed SVG for notebooks, text for terminals."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given

import kaas
from kaas.ktask import draw
from tests.ktask.strategies import PTX, ktasks

SVG = "{http://www.w3.org/2000/svg}"


def diamond() -> kaas.KTask:
    library = kaas.Library.from_ptx(PTX)
    a, b, c, d = (kaas.Buffer(name, 4, "float32") for name in ("a", "b", "c", "<d>"))

    def kernel(symbol: str, *args: kaas.In | kaas.Out) -> kaas.Kernel:
        return kaas.Kernel(library, symbol, (2, 3), 32, args)

    kernels = [
        kernel("top", kaas.Out(a)),
        kernel("left", kaas.In(a), kaas.Out(b)),
        kernel("right", kaas.In(a), kaas.Out(c)),
        kernel("bottom", kaas.In(b), kaas.In(c), kaas.Out(d)),
    ]
    return kaas.KTask(kernels, [d], name="diamond & co")


def test_independent_kernels_stand_side_by_side() -> None:
    assert draw.layers(diamond()) == [[0], [1, 2], [3]]


def test_svg_has_a_box_a_kernel_and_an_arrow_an_edge() -> None:
    svg = ElementTree.fromstring(diamond()._repr_html_())
    assert len(svg.findall(f"{SVG}g")) == 4
    assert len(svg.findall(f"{SVG}line")) == 4
    assert "diamond & co" in "".join(svg.itertext())


def test_text_names_kernels_and_buffers() -> None:
    lines = draw.text(diamond()).splitlines()
    assert "diamond & co" in lines[0]
    assert "bottom(b, c) → <d>  <<<2×3, 32>>>  after 1, 2" in lines[4]
    assert sum("temporaries" in line for line in lines) == 3


@given(task=ktasks())
def test_every_task_can_be_drawn(task: kaas.KTask) -> None:
    assert all(char.isprintable() or char == "\n" for char in draw.text(task))
    assert sum(map(len, draw.layers(task))) == len(task.kernels)
    try:
        ElementTree.fromstring(task._repr_html_())
    except ElementTree.ParseError as error:
        raise AssertionError(task.label) from error
