"""The pool's part of a server's configuration: devices with SMs, and clients with shares."""

from __future__ import annotations

from pathlib import Path

import pytest

import kaas
from kaas.errors import InvalidConfig
from kaas.server.config.serve_check import check_sizes
from kaas.server.config.serve_config import parse, read

WITH_SHARES = """
pool:
  window_s: 0.05
  devices: [{kind: software, sms: 128, blocks_per_sm: 2}]
  slots: 4
  clients:
    alice: {share: {sms: 0.24, quota: [0.3, 0.8], memory_bytes: 1048576}}
    bob: {weight: 2.0, share: {quota: [0.1, 1]}}
"""


def test_devices_have_sms_and_clients_have_shares() -> None:
    config = parse(WITH_SHARES.encode()).pool.config(None)
    assert config.devices == (kaas.Device(sms=128, blocks_per_sm=2),)
    assert config.window_s == 0.05
    assert config.clients == {
        "alice": kaas.ClientSettings(share=kaas.Share(sms=0.24, quota=(0.3, 0.8), memory_bytes=1 << 20)),
        "bob": kaas.ClientSettings(weight=2.0, share=kaas.Share(quota=(0.1, 1))),
    }


def test_devices_may_come_with_the_load() -> None:
    text = "pool: {devices: {min: 0, max: 3, idle_s: 5, device: {sms: 128}}}"
    config = parse(text.encode()).pool.config(None)
    assert config.devices == kaas.Scale(0, 3, device=kaas.Device(sms=128), idle_s=5)
    assert parse(b"pool: {devices: {min: 1, max: 2}}").pool.config(None).devices == kaas.Scale(1, 2)
    with pytest.raises(InvalidConfig, match=r"pool\.devices\.device\.memory_bytes is at most"):
        check_sizes(parse(b"pool: {devices: {min: 1, max: 2, device: {memory_bytes: 99999999999999}}}"))


@pytest.mark.parametrize(
    ("devices", "field", "words"),
    [
        ("{min: 3, max: 2}", "pool.devices", "min is at most max"),
        ("{max: 2}", "pool.devices", "missing required field `min`"),
        ("{min: 1, max: 2, device: {sms: -1}}", "pool.devices.device.sms", "sms is a whole number"),
    ],
)
def test_a_mistake_in_a_scale_is_told_by_its_field(tmp_path: Path, devices: str, field: str, words: str) -> None:
    path = tmp_path / "kaas.yaml"
    path.write_text(f"pool:\n  devices: {devices}\n")
    with pytest.raises(InvalidConfig) as caught:
        read(path, insecure=True)
    assert caught.value.field == field
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("before", "after", "line", "field", "words"),
    [
        ("sms: 0.24", "sms: 1.5", 7, "pool.clients.alice.share", "sms is a part from 0.001 to 1, not 1.5"),
        ("sms: 0.24", "sms: many", 7, "pool.clients.alice.share.sms", "Expected `float`, got `str`"),
        ("[0.3, 0.8]", "[0.9, 0.8]", 7, "pool.clients.alice.share", "the least of quota is at most its most"),
        ("[0.3, 0.8]", "[0.3]", 7, "pool.clients.alice.share.quota", "Expected `array` of length 2, got 1"),
        ("[0.1, 1]", "[0.1, 1], sm: 0.2", 8, "pool.clients.bob.share.sm", "did you mean 'sms'?"),
        ("1048576", "-1", 7, "pool.clients.alice.share", "memory_bytes is a whole number of bytes"),
        ("[0.1, 1]", "[0.9, 1]", 8, "pool.clients.bob.share", "client 'alice' has Share"),
        ("0.05", "0", 3, "pool.window_s", "window_s is a number from 0.001 to 60, not 0"),
        ("sms: 128", "sms: -1", 4, "pool.devices[0].sms", "sms is a whole number"),
        ("kind: software", "kind: gpu", 4, "pool.devices[0].sms", "only a software device has sms"),
    ],
)
def test_a_mistake_is_told_by_its_line_and_its_field(
    tmp_path: Path, before: str, after: str, line: int, field: str, words: str
) -> None:
    path = tmp_path / "kaas.yaml"
    path.write_text(WITH_SHARES.replace(before, after))
    with pytest.raises(InvalidConfig) as caught:
        read(path, insecure=True)
    assert caught.value.field == field
    assert words in caught.value.message
    assert f"line {line}: " in caught.value.message
    assert field.rpartition(".sm")[0] in caught.value.message


def test_the_client_of_a_mistake_is_named_also_if_its_name_has_dots(tmp_path: Path) -> None:
    path = tmp_path / "kaas.yaml"
    path.write_text("pool:\n  clients:\n    a: {}\n    a.b:\n      share: {sms: 2}\n    c: {share: {sms: x}}\n")
    with pytest.raises(InvalidConfig, match=r"line 6: .* at `\$\.pool\.clients\.c\.share\.sms`"):
        read(path, insecure=True)
    path.write_text(path.read_text().replace("sms: x", "sms: 1"))
    with pytest.raises(InvalidConfig, match=r"line 5: pool\.clients\.a\.b\.share: sms is a part"):
        read(path, insecure=True)
