"""Checks of a server's configuration before its start: the policy is made with the devices of the configuration."""

from __future__ import annotations

import pytest

from kaas.errors import InvalidConfig
from kaas.scheduling.events import Event
from kaas.server.config.serve_check import check_policy
from kaas.server.config.serve_config import parse


class WithoutHandle:
    def __init__(self, devices: object) -> None:
        pass


class WithoutDevices:
    """A policy whose class takes no devices."""

    def handle(self, event: Event) -> list[object]:  # noqa: ARG002
        return []


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        ("policy: {name: mqfq_sticky, D: 4}", "D is 4, but a device has 1 slots"),
        ("policy: {name: mqfq_sticky, D: 4}, slots: 2, devices: [{kind: gpu}]", "but a device has 2 slots"),
        ('policy: {name: adaptive, T: "10"}', "T is a number from 0 on, not '10'"),
        (f'policy: "{__name__}:WithoutDevices"', "takes no arguments"),
        (f'policy: "{__name__}:WithoutHandle"', "WithoutHandle has no method handle"),
        ("policy: {name: static, shares: {ada: [3]}}, devices: [{}, {}]", "there is no device 3"),
    ],
)
def test_a_policy_that_cannot_be_made_is_an_error_of_its_field(pool: str, words: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"^pool\.policy: policy .* cannot be made: .*{words}") as caught:
        check_policy(parse(f"pool: {{{pool}}}".encode()).pool.config(None))
    assert caught.value.field == "pool.policy"


@pytest.mark.parametrize(
    "pool", ["policy: {name: mqfq_sticky, D: 4}, slots: 4", "policy: {name: static, shares: {ada: [3]}}", "slots: 2"]
)
def test_devices_without_names_refuse_no_policy_that_some_machine_can_have(pool: str) -> None:
    check_policy(parse(f"pool: {{{pool}}}".encode()).pool.config(None))
