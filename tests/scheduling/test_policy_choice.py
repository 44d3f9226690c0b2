"""A policy can be given as text: by a name, as module:Class of a user's own, and with options."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from kaas.errors import InvalidConfig, PolicyError
from kaas.scheduling.events import PhysicalDevice
from kaas.scheduling.policies.cfs_affinity import CfsAffinity
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.scheduling.policy_choice import choose_policy, make_policy, policy_text

DEVICES = [PhysicalDevice(0, "software", None)]


class Mine(FirstComeFirstServed):
    """A policy of a user's own."""

    def __init__(self, devices: list[PhysicalDevice], *, patience_s: float = 1.0) -> None:
        super().__init__(devices)
        self.patience_s = patience_s


def test_a_name_stays_a_name() -> None:
    assert choose_policy("policy", "exclusive") == "exclusive"
    assert choose_policy("policy", {"name": "exclusive"}) == "exclusive"


def test_a_policy_of_ones_own_is_named_by_its_module() -> None:
    assert choose_policy("policy", f"{__name__}:Mine") is Mine
    made = choose_policy("policy", {"name": f"{__name__}:Mine", "patience_s": 2.5})
    assert isinstance(made, partial)
    assert made(DEVICES).patience_s == 2.5


class Patient(Mine):
    """A policy that passes on whatever it gets."""

    def __init__(self, *devices: Any, patience_s: float = 2.0, **others: Any) -> None:
        super().__init__(*devices, patience_s=patience_s, **others)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("exclusive", "exclusive"),
        ({"name": "adaptive", "T": 0.02}, "adaptive(T=0.02)"),
        ({"name": "cfs_affinity", "affinity": "last", "penalty": 5.0}, "cfs_affinity(affinity='last', penalty=5.0)"),
        (f"{__name__}:Mine", f"{__name__}:Mine"),
        ({"name": f"{__name__}:Mine", "patience_s": 2.5}, f"{__name__}:Mine(patience_s=2.5)"),
    ],
)
def test_a_policy_is_shown_as_its_user_names_it(said: Any, shown: str) -> None:
    assert policy_text(choose_policy("policy", said)) == shown


class Wrong:
    """A policy that cannot be made."""

    def __init__(self, devices: list[PhysicalDevice]) -> None:
        self.first = devices[9]


def test_a_policy_that_cannot_be_made_is_named_by_its_line() -> None:
    line = Wrong.__init__.__code__.co_firstlineno + 1
    with pytest.raises(PolicyError, match=rf"IndexError: .* \(test_policy_choice\.py:{line}, in __init__\)"):
        make_policy(Wrong, DEVICES)  # type: ignore[arg-type]  # it has no handle
    with pytest.raises(PolicyError, match=r"not 7$"):
        make_policy(choose_policy("policy", {"name": "static", "shares": 7}), DEVICES)


def test_options_are_the_policy_s_own() -> None:
    made = choose_policy("policy", {"name": "cfs_affinity", "penalty": 5.0})
    assert isinstance(made, partial)
    assert made.func is CfsAffinity
    assert isinstance(made(DEVICES), CfsAffinity)


@pytest.mark.parametrize(
    ("said", "field", "words"),
    [
        ("fair", "pool.policy", "no policy 'fair'; there are fcfs, cfs_affinity"),
        ({"penalty": 5}, "pool.policy", "its name"),
        ({"name": "fcfs", "penalty": 5}, "pool.policy.penalty", "fcfs has no option 'penalty'; it has none"),
        ("nowhere_at_all:Mine", "pool.policy", "nowhere_at_all"),
        (f"{__name__}:Yours", "pool.policy", "no function or class 'Yours'"),
        ({"name": f"{__name__}:Mine", "patients_s": 1}, "pool.policy.patients_s", "it has patience_s$"),
        ({"name": f"{__name__}:Patient", "patience": 1}, "pool.policy.patience", "it has patience_s$"),
        (f"{__name__}:", "pool.policy", "module:function"),
    ],
)
def test_an_invalid_policy_is_refused_with_its_field(said: str, field: str, words: str) -> None:
    with pytest.raises(InvalidConfig, match=words) as caught:
        choose_policy("pool.policy", said)
    assert caught.value.field == field
