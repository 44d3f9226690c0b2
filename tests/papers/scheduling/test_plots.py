"""Plots of policies' figures have a bar or a line for each row, named by the labels that tell it from others."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("matplotlib")

from kaas.papers.scheduling.plots import PANELS, figure_of


def row(mean: float, **labels: Any) -> dict[str, Any]:
    return labels | dict.fromkeys(PANELS, (mean, 0.1))


def test_each_row_has_a_bar_with_its_name_and_value() -> None:
    orders = [row(mean, policy="mqfq_sticky", order=order) for mean, order in ((2.0, "paper"), (3.0, "longest"))]
    figure = figure_of([row(1.0, policy="fcfs"), *orders])
    for axes in figure.axes:
        assert [bar.get_width() for bar in axes.patches] == [1.0, 2.0, 3.0]
        assert len({bar.get_y() for bar in axes.patches}) == 3
        assert [text.get_text() for text in axes.texts] == ["1", "2", "3"]
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["fcfs", "mqfq_sticky, order=paper", "mqfq_sticky, order=longest"]


def test_a_figure_that_is_0_in_all_rows_has_no_panel() -> None:
    figure = figure_of([row(2.0, policy=name) | {"rejected_ratio": (0.0, 0.0)} for name in ("fcfs", "lalb")])
    assert [axes.get_title() for axes in figure.axes] == [
        title for name, title in PANELS.items() if name != "rejected_ratio"
    ]
    assert len(figure_of([row(0.0, policy="fcfs")]).axes) == len(PANELS)


def test_labels_that_are_the_same_in_all_rows_are_left_out() -> None:
    rows = [row(1.0, policy="fcfs", working_set=24, devices=devices) for devices in ("CPU", "1 GPU")]
    names = [label.get_text() for label in figure_of(rows).axes[0].get_yticklabels()]
    assert names == ["fcfs, devices=CPU", "fcfs, devices=1 GPU"]


def test_each_combination_of_the_other_labels_has_a_line_of_its_own() -> None:
    swept = [row(10.0 * devices + d, policy="batch", devices=devices, D=d) for devices in (1, 2) for d in (1, 2, 3)]
    figure = figure_of([*swept, row(5.0, policy="fcfs", devices=1)], along="D")
    lines = {container.get_label(): container[0] for container in figure.axes[0].containers}
    assert {name: list(line.get_ydata()) for name, line in lines.items()} == {
        "batch, devices=1": [11.0, 12.0, 13.0],
        "batch, devices=2": [21.0, 22.0, 23.0],
    }
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {*lines, "fcfs, devices=1"}


def test_a_level_line_has_a_colour_of_its_own() -> None:
    swept = [row(2.0, policy="lalbo3", limit=limit) for limit in (0, 1)]
    figure = figure_of([row(1.0, policy="fcfs"), *swept], along="limit")
    (level,) = [line for line in figure.axes[0].lines if line.get_label() == "fcfs"]
    (line,) = figure.axes[0].containers
    assert level.get_color() != line[0].get_color()


@pytest.mark.parametrize(("means", "scale"), [((1.0, 9.0), "linear"), ((1.0, 11.0), "log"), ((0.0, 11.0), "linear")])
def test_an_axis_is_logarithmic_where_values_span_more_than_a_decade(means: tuple[float, ...], scale: str) -> None:
    rows = [row(mean, policy=f"p{mean}", T=number) for number, mean in enumerate(means)]
    assert figure_of(rows).axes[0].get_xscale() == scale
    assert figure_of(rows, along="T").axes[0].get_yscale() == scale
