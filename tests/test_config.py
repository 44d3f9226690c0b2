"""Configurations: refused values, resolved devices, and differences between two."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

import softgpu
from kaas.config import SOFTWARE_GPUS, ClientSettings, Config, Device
from kaas.errors import InvalidConfig
from kaas.executor.device import software
from kaas.scheduling.policies import POLICIES, factory
from kaas.scheduling.policies.fcfs import FirstComeFirstServed


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Device("tpu"), "kind"),
        (lambda: Device("gpu", 0), "memory_bytes"),
        (lambda: Device("gpu", 1.5), "memory_bytes"),  # type: ignore[arg-type]
        (lambda: Device("gpu", model=softgpu.Model()), "model"),
        (lambda: Device("gpu", faults=(softgpu.Fault("ecc"),)), "faults"),
        (lambda: Device("gpu", strict=0), "strict"),
        (lambda: Device("gpu", memcheck=False), "memcheck"),
        (lambda: Device("gpu", sms=132), "sms"),
        (lambda: Device(sms=0), "sms"),
        (lambda: Device(blocks_per_sm=1.5), "blocks_per_sm"),  # type: ignore[arg-type]
        (lambda: software.check(Device(sms=513)), "sms"),
        (lambda: Device(strict=-1), "strict"),
        (lambda: Device(strict=True), "strict"),
        (lambda: Device(memcheck=1), "memcheck"),  # type: ignore[arg-type]
        (lambda: Device(faults=3), "faults"),  # type: ignore[arg-type]
        (lambda: software.check(Device(model=2e9)), "model"),  # type: ignore[arg-type]
        (lambda: software.check(Device(faults=("ecc",))), "faults"),  # type: ignore[arg-type]
        (lambda: Config(devices=()), "devices"),
        (lambda: Config(devices=("gpu",)), "devices"),  # type: ignore[arg-type]
        (lambda: Config(policy=3), "policy"),  # type: ignore[arg-type]
        (lambda: Config(run_limit_s=0), "run_limit_s"),
        (lambda: Config(run_limit_s=float("nan")), "run_limit_s"),
        (lambda: Config(run_limit_s=None), "run_limit_s"),  # type: ignore[arg-type]
        (lambda: Config(start_limit_s=True), "start_limit_s"),
        (lambda: Device(speed=float("inf")), "speed"),
        (lambda: ClientSettings(weight=float("inf")), "weight"),
        (lambda: ClientSettings(weight=10**400), "weight"),
        (lambda: ClientSettings(weight=5e-324), "weight"),
        (lambda: Config(clients={"": ClientSettings()}), "clients"),
        (lambda: Config(slots=0), "slots"),
        (lambda: Config(slots=1.5), "slots"),  # type: ignore[arg-type]
        (lambda: Config(slots=None), "slots"),  # type: ignore[arg-type]
        (lambda: Config(cache_bytes=-1), "cache_bytes"),
        (lambda: Config(host_cache_bytes=-1), "host_cache_bytes"),
        (lambda: Config(whole_object_bytes=0), "whole_object_bytes"),
        (lambda: Config(host_cache_bytes=False), "host_cache_bytes"),
        (lambda: Config(faults_allowed=False), "faults_allowed"),
        (lambda: Config(client_faults_allowed=-1), "client_faults_allowed"),
        (lambda: ClientSettings(max_share=1.1), "max_share"),
    ],
)
def test_refused(make: Any, field: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        make()
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Config, ("slots", "queue_limit", "cache_bytes", "host_cache_bytes", "faults_allowed")),
        (ClientSettings, ("max_running", "max_queued", "priority")),
        (Device, ("memory_bytes",)),
    ],
)
def test_whole_numbers_that_no_message_holds_are_refused(kind: Any, names: tuple[str, ...]) -> None:
    for name in names:
        with pytest.raises(InvalidConfig, match=rf"{name} is a whole number from .* to 1\.15292e"):
            kind(**{name: 1 << 70})


def test_a_policy_in_the_form_of_a_server_s_file_is_refused_with_the_form_of_a_program() -> None:
    with pytest.raises(InvalidConfig, match=r"functools\.partial\(Class, option=value\), not {'name': 'mqfq_sticky'"):
        Config(policy={"name": "mqfq_sticky", "T": 5})  # type: ignore[arg-type]


def test_devices_by_default_are_the_gpus_or_else_software() -> None:
    assert Config().resolved(gpus=3).devices == (Device("gpu"),) * 3
    software = Config().resolved(gpus=0).devices
    assert software is not None
    assert [device.kind for device in software] == ["software"] * SOFTWARE_GPUS
    assert Config(devices=(Device("gpu"),)).resolved(gpus=3).devices == (Device("gpu"),)


@pytest.mark.parametrize("ray", [False, True])
def test_fences_are_for_all_devices_and_the_default_of_none_but_software_ones(ray: bool) -> None:
    gpu = (Device("gpu"), Device("software"))
    assert Config(devices=gpu, isolation="fence").resolved(1, ray=ray).isolation == "fence"
    assert Config(isolation="fence").resolved(1, ray=ray).isolation == "fence"
    assert Config(devices=gpu, isolation="auto").resolved(1, ray=ray).isolation == ("none" if ray else "process")
    assert Config(isolation="auto").resolved(0, ray=ray).isolation == "fence"


def test_a_described_device_travels_and_counts() -> None:
    model = softgpu.Model(copy_bytes_per_s=2e9, kernels={"scale": softgpu.Takes(0.005, 0.5)})
    device = Device("software", 1 << 20, model, [softgpu.Fault("ecc", at=3)], 7, True)  # type: ignore[arg-type]
    config = Config(devices=(device, Device()))
    running = pickle.loads(pickle.dumps(config.resolved(0)))
    assert running.devices[0] == device
    assert device.faults == (softgpu.Fault("ecc", at=3),)
    assert config.differences(running) == ()
    for other in (
        replace(device, model=softgpu.Model(copy_bytes_per_s=2e9)),
        replace(device, faults=()),
        replace(device, strict=8),
        replace(device, memcheck=None),
        replace(device, sms=132),
    ):
        assert Config(devices=(other, Device())).differences(running) == ("devices",)


def test_differences_are_named() -> None:
    running = Config(run_limit_s=5).resolved(gpus=0)
    assert Config(run_limit_s=5).differences(running) == ()
    assert Config(cache_bytes=1, devices=(Device(),)).differences(running) == ("devices", "run_limit_s", "cache_bytes")
    assert Config(run_limit_s=5, slots=2).differences(running) == ("slots",)
    assert Config(policy=FirstComeFirstServed, run_limit_s=5).differences(running) == ("policy",)


def test_policies_by_name_or_as_they_are() -> None:
    assert factory("fcfs") is POLICIES["fcfs"] is FirstComeFirstServed
    assert factory(FirstComeFirstServed) is FirstComeFirstServed
    with pytest.raises(InvalidConfig, match="fcfs"):
        factory("lottery")
