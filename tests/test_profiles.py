"""Files of profiles: what `kaas.init` and `kaas serve` read, and what they refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kaas
from kaas.config import Config, FunctionProfile
from kaas.errors import InvalidConfig
from kaas.profiles import keep_profile, read_profiles, with_profiles
from kaas.server.config.serve_config import read_file
from kaas.share import ProfilePoint

RESNET: dict[str, Any] = {
    "function": "resnet",
    "kind": "gpu",
    "run_s": 0.5,
    "load_s": 0.25,
    "nbytes": 1000,
    "observations": 7,
}


POINT: dict[str, Any] = {"sms": 0.25, "quota": 0.5, "rate_per_s": 40.0, "p99_s": 0.1}


def written(folder: Path, content: Any) -> str:
    path = folder / "profiles.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_a_file_becomes_values_of_the_configuration(tmp_path: Path) -> None:
    more = {**RESNET, "kind": "software", "family": "resnet", "batch": 8}
    config = with_profiles(Config(profiles=written(tmp_path, [RESNET, more])))
    first = FunctionProfile("resnet", "gpu", 0.5, 0.25, 1000, 7)
    assert config.profiles == (first, FunctionProfile("resnet", "software", 0.5, 0.25, 1000, 7, "resnet", 8))
    assert with_profiles(config) is config


def test_a_server_reads_the_file_beside_its_own(tmp_path: Path) -> None:
    written(tmp_path, [RESNET])
    (tmp_path / "kaas.yaml").write_text("pool: {profiles: profiles.json}\n")
    assert read_file(tmp_path / "kaas.yaml").pool.config(None).profiles == (FunctionProfile(**RESNET),)


def test_profiles_may_stand_on_one_line_each_and_have_points(tmp_path: Path) -> None:
    more = {**RESNET, "kind": "software", "points": [POINT, {**POINT, "batch": 4}]}
    path = written(tmp_path, f"{json.dumps(RESNET)}\n\n{json.dumps(more)}\n")
    config = with_profiles(Config(profiles=path))
    points = (ProfilePoint(0.25, 0.5, 40.0, 0.1), ProfilePoint(0.25, 0.5, 40.0, 0.1, 4))
    assert config.profiles == (
        FunctionProfile(**RESNET),
        replace(FunctionProfile(**RESNET), kind="software", points=points),
    )


@pytest.mark.parametrize("name", ["profiles.jsonl", "profiles.json"])
def test_a_profile_that_is_kept_takes_the_place_of_its_own_only(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    one, other = FunctionProfile(**RESNET), FunctionProfile("f", "gpu", 1.0)
    again = FunctionProfile("f", "gpu", 2.0, points=(ProfilePoint(0.25, 0.5, 40.0, 0.1),))
    for each in (one, other, again):
        keep_profile(path, each)
    assert read_profiles(path) == (one, again)
    assert path.read_text().startswith("[") is (name == "profiles.json")
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_no_profile_is_kept_in_a_file_that_holds_something_else(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("buy milk\n")
    with pytest.raises(InvalidConfig, match="notes"):
        keep_profile(path, FunctionProfile("f", "gpu", 1.0))
    assert path.read_text() == "buy milk\n"


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("[", "profiles"),
        ("{}", "profiles[0].function"),
        ("a line", "profiles"),
        ([{**RESNET, "points": 1}], "profiles[0].points"),
        ([{**RESNET, "points": [1]}], "profiles[0].points"),
        ([{**RESNET, "points": {**POINT}}], "profiles[0].points"),
        ([{**RESNET, "points": [{**POINT, "rate": 1}]}], "profiles[0].points"),
        ([{**RESNET, "points": [{**POINT, "sms": 0}]}], "profiles[0].points"),
        ([{**RESNET, "points": [{**POINT, "quota": 1.1}]}], "profiles[0].points"),
        ([{**RESNET, "points": [{**POINT, "rate_per_s": 0}]}], "profiles[0].points"),
        ([{**RESNET, "points": [{**POINT, "batch": 1.5}]}], "profiles[0].points"),
        ([{**RESNET, "points": [POINT, {**POINT, "rate_per_s": 8}]}], "profiles[0].points"),
        ([{**RESNET, "points": [{**POINT, "batch": n + 1} for n in range(4097)]}], "profiles[0].points"),
        ("[1]", "profiles"),
        ("[]", "profiles"),
        ([RESNET, RESNET], "profiles"),
        ([{}], "profiles[0].function"),
        ([{"function": "f", "kind": "gpu"}], "profiles[0].run_s"),
        ([RESNET, {**RESNET, "function": ""}], "profiles[1].function"),
        ([{**RESNET, "function": 3}], "profiles[0].function"),
        ([{**RESNET, "kind": "tpu"}], "profiles[0].kind"),
        ([{**RESNET, "kind": ["gpu"]}], "profiles[0].kind"),
        ([{**RESNET, "run": 1}], "profiles[0].run"),
        ([{**RESNET, "run_s": -1}], "profiles[0].run_s"),
        ([{**RESNET, "run_s": None}], "profiles[0].run_s"),
        ([{**RESNET, "run_s": True}], "profiles[0].run_s"),
        ([{**RESNET, "load_s": "1"}], "profiles[0].load_s"),
        ([{**RESNET, "nbytes": 0}], "profiles[0].nbytes"),
        ([{**RESNET, "nbytes": 1.5}], "profiles[0].nbytes"),
        ([{**RESNET, "observations": 0}], "profiles[0].observations"),
        ([{**RESNET, "observations": 1.5}], "profiles[0].observations"),
        ([{**RESNET, "family": 1}], "profiles[0].family"),
        ([{**RESNET, "batch": -1}], "profiles[0].batch"),
        ([{**RESNET, "run_s": 1e308}], "profiles[0].run_s"),
        ([{**RESNET, "load_s": 1e308}], "profiles[0].load_s"),
        ([{**RESNET, "nbytes": 1 << 63}], "profiles[0].nbytes"),
        ([{**RESNET, "observations": 1 << 63}], "profiles[0].observations"),
        ([{**RESNET, "batch": 1e13}], "profiles[0].batch"),
        ('[{"function": "f", "kind": "gpu", "run_s": 1' + "0" * 400 + "}]", "profiles[0].run_s"),
        ('[{"function": "f", "kind": "gpu", "run_s": NaN}]', "profiles"),
    ],
)
def test_refused_files(tmp_path: Path, content: Any, field: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InvalidConfig, match=r"profiles.json") as caught:
        with_profiles(Config(profiles=path))
    assert caught.value.field == field


def test_a_program_hears_of_a_missing_file_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"none.json cannot be read"):
        kaas.init(ray=False, config=Config(profiles=str(tmp_path / "none.json")))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_refused_values(number: float) -> None:
    with pytest.raises(InvalidConfig, match=r"run_s is a number from 0 to 1e\+12"):
        FunctionProfile("f", "gpu", number)
    with pytest.raises(InvalidConfig, match="FunctionProfiles, not 3"):
        Config(profiles=3)  # type: ignore[arg-type]
