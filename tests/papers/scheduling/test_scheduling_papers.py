"""The scheduling papers' outcomes in virtual time, with few seeds and generous bounds; `benchmarks.papers` has ten."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache, partial

import pytest
from typer.testing import CliRunner

from kaas.cli.main import app
from kaas.errors import InvalidRequest
from kaas.papers.scheduling.fast import EIGHT_PODS, FAST, SLO_S, offered, promised, saturated
from kaas.papers.scheduling.functions import LALB_MODELS, MQFQ_FUNCTIONS, zipf
from kaas.papers.scheduling.lalb import LALB
from kaas.papers.scheduling.lalb import scenario as lalb_scenario
from kaas.papers.scheduling.moved_off import FcfsMovedOff
from kaas.papers.scheduling.mqfq import EXPONENT, FUNCTIONS, MQFQ, RATE, UTILISATION, times
from kaas.papers.scheduling.mqfq import scenario as mqfq_scenario
from kaas.papers.scheduling.page import page
from kaas.papers.scheduling.paper import Assumptions, PaperRow, PaperRows, measure_cells, row
from kaas.papers.scheduling.papers import SCHEDULING_PAPERS
from kaas.scheduling.comparing.figures import PolicyFigures, measure
from kaas.scheduling.simulation.scenario import ScenarioShare
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulator import simulate

PART = ScenarioShare(0.12, (0.0, 1.0))


@cache
def lalb(policy: str, models: int) -> PolicyFigures:
    return measure(lalb_scenario({"name": policy}, models, LALB.assumed, 0))


@cache
def mqfq(policy: str, devices: int = 1) -> PolicyFigures:
    return measure(mqfq_scenario(policy, devices, 1, MQFQ.assumed, 0))


@pytest.mark.slow
def test_locality_takes_a_fraction_of_the_latency_and_of_the_misses() -> None:
    lb, by_locality = lalb("lb", 15), lalb("lalb", 15)
    assert by_locality.mean_latency_s < 0.2 * lb.mean_latency_s
    assert by_locality.miss_ratio < 0.2 * lb.miss_ratio
    assert by_locality.duplicates < lb.duplicates


@pytest.mark.slow
def test_later_requests_that_find_their_model_make_no_mean_latency_worse() -> None:
    assert lalb("lalbo3", 35).mean_latency_s < 1.2 * lalb("lalb", 35).mean_latency_s


@pytest.mark.slow
def test_flows_that_stay_where_they_are_warm_are_faster_than_the_order_of_arrival() -> None:
    assert mqfq("mqfq_sticky").mean_latency_s < 0.8 * mqfq("fcfs").mean_latency_s
    assert mqfq("mqfq_sticky", 2).mean_latency_s < mqfq("mqfq_sticky").mean_latency_s


def test_eight_pods_with_an_eighth_of_the_sms_do_four_times_as_much_as_one_that_has_the_device() -> None:
    """ResNet in Figure 10, from what Figure 8 says of it."""
    one, eight = (measure(saturated("ResNet", pods, share, FAST.assumed, 0)) for pods, share in ((1, None), (8, PART)))
    rates = [(1 - each.rejected_ratio) * pods * offered("ResNet") / 10 for each, pods in ((one, 1), (eight, 8))]
    assert rates == pytest.approx([71.37, EIGHT_PODS["ResNet"]], rel=0.01)


@pytest.mark.slow
def test_a_promise_of_latency_is_kept_while_the_load_trebles_at_once() -> None:
    figures = measure(promised(FAST.assumed, 0))
    assert figures.p99_latency_s < SLO_S
    assert figures.rejected_ratio == 0


def test_lalb_has_325_requests_in_each_of_six_minutes_on_12_gpus() -> None:
    made = lalb_scenario({"name": "lalbo3", "limit": 5}, 25, LALB.assumed, 3)
    assert Counter(int(request.at_s // 60) for request in made.requests) == dict.fromkeys(range(6), 325)
    assert (len(made.devices), len(made.functions), made.policy.options) == (12, 25, {"limit": 5})
    sizes = {(each.memory_mb, each.load_s, each.run_s) for each in made.functions.values()}
    assert sizes == set(LALB_MODELS)  # 25 of 22: all of them, three twice
    assert made == lalb_scenario({"name": "lalbo3", "limit": 5}, 25, LALB.assumed, 3)
    assert made.requests != lalb_scenario({"name": "lalbo3", "limit": 5}, 25, LALB.assumed, 4).requests


def test_mqfq_has_the_printed_rate_and_utilisation() -> None:
    parts = zipf(FUNCTIONS, EXPONENT)
    mean_s = sum(part * each[0] for part, each in zip(parts, times(), strict=True)) / sum(parts)
    assert RATE * mean_s == pytest.approx(UTILISATION, rel=1e-3)
    assert {*times()} == {*MQFQ_FUNCTIONS}
    counts = [len(mqfq_scenario("fcfs", 1, 1, MQFQ.assumed, seed).requests) for seed in range(10)]
    assert sum(counts) / len(counts) == pytest.approx(RATE * 600, rel=0.15)


@pytest.mark.parametrize("name", SCHEDULING_PAPERS)
def test_every_figure_of_a_paper_has_its_rows(name: str) -> None:
    """The labels that the published figures ask for are those of the cells, through JSON and on the page."""
    paper = SCHEDULING_PAPERS[name]
    made = measure(paper.cells(paper.assumed)[-1].make(0))
    figures = {figure: (getattr(made, figure), 0.0) for figure in made.__slots__}
    rows = PaperRows(PaperRow(cell.labels, figures) for cell in paper.cells(paper.assumed))
    published = list(paper.published(rows))
    assert published
    text = page({name: [each.as_json() for each in rows.rows]}, 1)
    assert all(f"| {each.what} | {each.published} | {each.here} |" in text for each in published)
    assert [row(each.as_json()) for each in rows.rows] == list(rows.rows)


@pytest.mark.processes
def test_each_cell_has_the_spread_over_its_seeds() -> None:
    cells = MQFQ.cells(Assumptions(zipf=3.0, gpu_mb=16384))[:4:2]
    rows = measure_cells(cells, 2)
    for cell, found in zip(cells, rows.rows, strict=True):
        means = [measure(cell.make(seed)).mean_latency_s for seed in range(2)]
        assert found.labels == cell.labels
        assert found.figures["mean_latency_s"][0] == pytest.approx(sum(means) / 2)
        assert found.figures["mean_latency_s"][1] > 0


def test_a_gpu_without_room_for_a_model_is_refused() -> None:
    cells = LALB.cells(Assumptions(zipf=1.0, gpu_mb=3000))
    with pytest.raises(InvalidRequest, match="gpu_mb is 3000"):
        measure_cells(cells, 1)


@pytest.mark.parametrize("name", ["zipf", "gpu_mb", "overhead_s"])
@pytest.mark.parametrize("number", [-1.0, float("nan"), float("inf")])
def test_assumptions_are_numbers(name: str, number: float) -> None:
    with pytest.raises(InvalidRequest, match=name):
        partial(Assumptions, **({"zipf": 1.0, "gpu_mb": 8192.0} | {name: number}))()


@pytest.mark.slow
@pytest.mark.processes
def test_a_reader_sees_the_papers_figures_beside_ours() -> None:
    ended = CliRunner().invoke(app, ["papers", "hybrid", "--seeds", "1", "--json"], catch_exceptions=False)
    found = json.loads(ended.stdout)
    assert [each["published"] for each in found["published"]] == ["2.03", "3.43", "1.08", "1.00"]
    assert all(policy in found["published"][0]["here"] for policy in ("fcfs", "lalb", "adaptive"))
    assert {row["devices"] for row in found["rows"]} == {"CPU", "1 GPU", "2 GPUs", "CPU + 1 GPU"}
    labels = {"policy", "working_set", "mean_latency_s", "miss_ratio", "false_miss_ratio", "duplicates", "latency_sd"}
    assert all(labels <= row.keys() for row in found["rows"])


def test_the_papers_fcfs_loads_for_each_request() -> None:
    """Its memory leaves the device after each request, and stays in host memory: one fetch, then loads."""
    told = {
        "functions": {"A": {"memory_mb": 1, "load_s": 1, "fetch_s": 5, "run_s": 1}},
        "requests": [{"function": "A"}, {"function": "A"}, {"function": "A", "at_s": 20}],
    }
    result = simulate(read(told), FcfsMovedOff)
    assert [(each.start, each.at_s) for each in result.dispatches] == [("fetch", 0), ("load", 7), ("load", 20)]
