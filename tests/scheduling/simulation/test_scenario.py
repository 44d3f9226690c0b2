"""Scenarios: the meaning of missing keys, and the paths of mistakes."""

from __future__ import annotations

import copy
import json
import tracemalloc
from typing import Any

import pytest

from kaas.errors import InvalidScenario
from kaas.scheduling.events import WorkerKind
from kaas.scheduling.simulation.scenario import (
    Owner,
    Scenario,
    ScenarioClient,
    ScenarioDevice,
    ScenarioFailure,
    ScenarioFunction,
    ScenarioLink,
    ScenarioRequest,
)
from kaas.scheduling.simulation.scenario_file import parse, read

FULL: dict[str, Any] = {
    "policy": {"name": "fcfs"},
    "seed": 3,
    "devices": [
        {
            "memory_mb": 8,
            "cached": ["A"],
            "busy_until_s": 1.0,
            "owner": "c0",
            "kind": "gpu",
            "slots": 2,
            "speed": 0.5,
            "host_mb": 16,
            "link": "a",
        }
    ],
    "functions": {
        "A": {
            "memory_mb": 4,
            "load_s": 2.0,
            "fetch_s": 3.0,
            "run_s": 1.0,
            "cold_s": 0.5,
            "kind": "etask",
            "client": "c0",
            "weight": 2.0,
        }
    },
    "clients": {"c0": {"weight": 3.0, "runtime_s": 7.0, "affinity": [0], "mean_run_s": 0.1}},
    "requests": [{"at_s": 0.25, "function": "A", "client": "c1", "run_s": None, "deadline_s": 4}],
    "links": {"a": {"mb_s": 12000}},
    "failures": [{"at_s": 1, "device": 0, "down_s": 2}],
}


def test_everything_is_read() -> None:
    scenario = parse(json.dumps(FULL))
    assert scenario.seed == 3
    assert scenario.devices == (ScenarioDevice(8.0, ("A",), 1.0, Owner("c0"), "gpu", 2, 0.5, host_mb=16, link="a"),)
    assert scenario.functions == {"A": ScenarioFunction(4.0, 2.0, 1.0, 0.5, "etask", "c0", 2.0, fetch_s=3.0)}
    assert scenario.links == {"a": ScenarioLink(12000.0)}
    assert scenario.failures == (ScenarioFailure(1.0, 0, 2.0),)
    assert scenario.clients == {"c0": ScenarioClient(3.0, 7.0, (0,), 0.1)}
    assert scenario.requests == (ScenarioRequest("A", 0.25, "c1", None, 4.0),)
    assert scenario.client_of(scenario.requests[0]) == "c1"
    assert scenario.owner_of(0) == ("c0", "A")
    assert scenario.weights() == {"c0": 3.0}


def test_everything_has_a_default() -> None:
    scenario = read({"functions": {"A": {}}, "requests": [{"function": "A"}]})
    assert scenario == Scenario(functions={"A": ScenarioFunction()}, requests=(ScenarioRequest("A"),))
    assert (scenario.policy.name, scenario.seed, scenario.devices) == ("fcfs", 0, (ScenarioDevice(),))
    assert scenario.client_of(scenario.requests[0]) == "default"
    assert scenario.kind_of("A") is WorkerKind.EXECUTOR
    assert read({}) == Scenario()


def test_a_client_that_is_not_listed_has_the_weight_of_its_functions() -> None:
    functions = {"A": {"client": "a", "weight": 2}, "B": {"client": "b", "weight": 4}}
    assert read({"functions": functions, "clients": {"b": {}}}).weights() == {"b": 1.0, "a": 2.0}


def test_the_owner_is_named_by_its_only_function_or_by_both() -> None:
    functions = {name: {"client": client, "kind": "etask"} for name, client in (("A", "a"), ("B", "b"), ("C", "b"))}
    devices = [{"owner": "a"}, {"owner": {"client": "b", "function": "C"}}, {"owner": "d"}, {}]
    scenario = read({"devices": devices, "functions": functions, "requests": [{"function": "B", "client": "d"}]})
    assert [scenario.owner_of(device) for device in range(4)] == [("a", "A"), ("b", "C"), ("d", "B"), None]


def test_an_owner_whose_function_is_a_ktask_holds_nothing() -> None:
    assert read({"devices": [{"owner": "a"}], "functions": {"A": {"client": "a"}}}).owner_of(0) is None


DEVICE, FUNCTION, CLIENT, REQUEST = ("devices", 0), ("functions", "A"), ("clients", "c0"), ("requests", 0)

WRONG: list[tuple[tuple[Any, ...], Any, str]] = [
    (("polcy",), {}, "polcy"),
    (("policy",), "fcfs", "policy"),
    (("policy", "name"), "nothing", "policy.name"),
    (("policy", "speed"), 1, "policy.speed"),
    (("policy", "devices"), 1, "policy.devices"),
    (("seed",), -1, "seed"),
    (("seed",), True, "seed"),
    (("devices",), [], "devices"),
    (("devices",), 7, "devices"),
    ((*DEVICE, "memory"), 1, "devices[0].memory"),
    ((*DEVICE, "memory_mb"), 0, "devices[0].memory_mb"),
    ((*DEVICE, "cached"), ["A", "B"], "devices[0].cached[1]"),
    ((*DEVICE, "cached"), ["A", "A"], "devices[0].cached[1]"),
    ((*DEVICE, "cached"), "A", "devices[0].cached"),
    ((*DEVICE, "memory_mb"), 3, "devices[0].cached"),
    ((*DEVICE, "busy_until_s"), -1, "devices[0].busy_until_s"),
    ((*DEVICE, "owner"), "c7", "devices[0].owner"),
    ((*DEVICE, "owner"), 7, "devices[0].owner"),
    ((*DEVICE, "owner"), {"client": "c0"}, "devices[0].owner.function"),
    ((*DEVICE, "owner"), {"client": "c0", "function": "B"}, "devices[0].owner.function"),
    ((*DEVICE, "owner"), {"client": "c0", "func": "A"}, "devices[0].owner.func"),
    ((*DEVICE, "kind"), "tpu", "devices[0].kind"),
    ((*DEVICE, "slots"), 0, "devices[0].slots"),
    ((*DEVICE, "slots"), 1.5, "devices[0].slots"),
    ((*DEVICE, "slots"), 10**9, "devices[0].slots"),
    ((*DEVICE, "speed"), 0, "devices[0].speed"),
    ((*DEVICE, "speed"), 1e-300, "devices[0].speed"),
    ((*DEVICE, "host_mb"), -1, "devices[0].host_mb"),
    ((*DEVICE, "host_mb"), float("nan"), "devices[0].host_mb"),
    ((*DEVICE, "link"), "b", "devices[0].link"),
    ((*DEVICE, "link"), "", "devices[0].link"),
    (("links",), {}, "devices[0].link"),
    (("links", "a"), {}, "links.a.mb_s"),
    (("links", "a", "mb_s"), 0, "links.a.mb_s"),
    (("links", "a", "mb_s"), float("nan"), "links.a.mb_s"),
    (("links", "a", "gb_s"), 1, "links.a.gb_s"),
    (("failures", 0, "at_s"), -1, "failures[0].at_s"),
    (("failures", 0, "at_s"), float("nan"), "failures[0].at_s"),
    (("failures", 0, "down_s"), -1, "failures[0].down_s"),
    (("failures", 0, "device"), 1, "failures[0].device"),
    (("failures", 0), {"at_s": 1}, "failures[0].device"),
    (("failures", 0), {"device": 0}, "failures[0].at_s"),
    ((*FUNCTION, "fetch_s"), -1, "functions.A.fetch_s"),
    ((*FUNCTION, "memroy_mb"), 4, "functions.A.memroy_mb"),
    ((*FUNCTION, "memory_mb"), "4", "functions.A.memory_mb"),
    ((*FUNCTION, "load_s"), True, "functions.A.load_s"),
    ((*FUNCTION, "run_s"), None, "functions.A.run_s"),
    ((*FUNCTION, "cold_s"), -0.5, "functions.A.cold_s"),
    ((*FUNCTION, "kind"), "task", "functions.A.kind"),
    ((*FUNCTION, "client"), None, "functions.A.client"),
    ((*FUNCTION, "client"), "", "functions.A.client"),
    (("functions", ""), {}, "functions"),
    ((*FUNCTION, "weight"), 0, "functions.A.weight"),
    ((*CLIENT, "wieght"), 1, "clients.c0.wieght"),
    ((*CLIENT, "weight"), 0, "clients.c0.weight"),
    ((*CLIENT, "affinity"), [1], "clients.c0.affinity[0]"),
    ((*CLIENT, "affinity"), [0.5], "clients.c0.affinity[0]"),
    ((*CLIENT, "mean_run_s"), -1, "clients.c0.mean_run_s"),
    ((*REQUEST, "at"), 1, "requests[0].at"),
    ((*REQUEST, "at_s"), -1, "requests[0].at_s"),
    ((*REQUEST, "at_s"), 1e300, "requests[0].at_s"),
    ((*REQUEST, "at_s"), 10**400, "requests[0].at_s"),
    ((*REQUEST, "function"), "B", "requests[0].function"),
    ((*REQUEST, "client"), 1, "requests[0].client"),
    ((*REQUEST, "client"), "", "requests[0].client"),
    ((*REQUEST, "run_s"), -1, "requests[0].run_s"),
    ((*REQUEST, "deadline_s"), "soon", "requests[0].deadline_s"),
]


@pytest.mark.parametrize(("place", "value", "path"), WRONG, ids=lambda part: str(part))
def test_a_mistake_is_named_by_its_path(place: tuple[Any, ...], value: Any, path: str) -> None:
    told = copy.deepcopy(FULL)
    inside = told
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    with pytest.raises(InvalidScenario) as caught:
        read(told)
    assert caught.value.path == path
    assert caught.value.message.startswith(f"{path}: ")


def test_a_request_names_its_function() -> None:
    with pytest.raises(InvalidScenario) as caught:
        read({"requests": [{}]})
    assert caught.value.path == "requests[0].function"


def test_functions_of_a_client_that_is_not_listed_agree_about_its_weight() -> None:
    with pytest.raises(InvalidScenario) as caught:
        read({"functions": {"A": {"client": "a", "weight": 2}, "B": {"client": "a"}}})
    assert caught.value.path == "functions.B.weight"


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, '{"seed": 1e999}', '{"requests": [{"at_s": NaN}]}'])
def test_a_malformed_scenario_is_refused(text: str) -> None:
    with pytest.raises(InvalidScenario):
        parse(text)


@pytest.mark.parametrize(
    ("told", "path"),
    [
        ({"functions": {"A": {"run_s": {"gpu": 1, "tpu": 2}}}}, "functions.A.run_s.tpu"),
        ({"functions": {"A": {"run_s": {"software": 1}}}}, "functions.A.run_s.gpu"),
        ({"functions": {"A": {"run_cv": -1}}}, "functions.A.run_cv"),
        ({"profiles": 0}, "profiles"),
        ({"profiles": "no"}, "profiles"),
        ({"devices": [{"interference": True}]}, "devices[0].interference"),
        ({"worker_start_s": -1}, "worker_start_s"),
    ],
)
def test_wrong_times_are_named(told: dict[str, object], path: str) -> None:
    with pytest.raises(InvalidScenario) as caught:
        read(told)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"functions": {"A": {"run_s": 1}, "A": {"run_s": 2}}}', "functions.A"),
        ('{"seed": 1, "seed": 1}', "seed"),
        ('{"functions": {"A": {}, "B": {"run_s": 1, "run_s": 1}}}', "functions.B.run_s"),
        (
            '{"functions": {"A": {}}, "requests": [{"function": "A"}, {"at_s": 1, "at_s": 2, "function": "A"}]}',
            "requests[1].at_s",
        ),
    ],
)
def test_a_name_that_stands_twice_is_refused(text: str, path: str) -> None:
    with pytest.raises(InvalidScenario, match="twice") as caught:
        parse(text)
    assert caught.value.path == path


def test_a_wrong_scenario_takes_little_more_memory_than_its_values() -> None:
    text = b'{"requests":[' + b",".join([b"[]"] * 100_000) + b"]}"
    tracemalloc.start()
    try:
        with pytest.raises(InvalidScenario, match=r"requests\[0\]: an object"):
            parse(text)
        assert tracemalloc.get_traced_memory()[1] < 100_000 * 100
    finally:
        tracemalloc.stop()
