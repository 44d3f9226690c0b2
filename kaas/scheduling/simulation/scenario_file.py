"""Reads a scenario for the simulator from JSON; an error names the path of the mistake."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from kaas.config import DEVICE_KINDS, LARGEST, SMALLEST
from kaas.errors import InvalidScenario
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.repeated_names import repeated_name
from kaas.scheduling.simulation.scenario import (
    AzureTrace,
    Owner,
    PolicyChoice,
    RecordedWorkload,
    Scenario,
    ScenarioClient,
    ScenarioDevice,
    ScenarioFailure,
    ScenarioFunction,
    ScenarioLink,
    ScenarioRequest,
    ScenarioScale,
    ScenarioShare,
    ScenarioWorkload,
    SyntheticWorkload,
)
from kaas.share import MOST_DEVICES

FILE_BYTES = 256 << 20
"""The longest file of a scenario."""
CHUNK_BYTES = 1 << 20
MOST_SLOTS = MOST_SMS = 1 << 16
MOST_FUNCTIONS = 1_000_000
"""Of a synthetic workload."""


def read_file(path: Path) -> Scenario:
    """Return the scenario of a file.

    Raises:
        OSError: the file cannot be read. InvalidScenario: it is too long, or as `parse`.
    """
    text = bytearray()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            text += chunk
            if len(text) > FILE_BYTES:
                raise InvalidScenario(f"{path} is longer than the {FILE_BYTES:,} bytes of a scenario", path="")
    return parse(bytes(text))


def parse(text: bytes | str) -> Scenario:
    """Return a scenario from its JSON text.

    Raises:
        InvalidScenario: no JSON, an unknown key or a value that cannot be, with its path.
    """
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:  # msgspec.DecodeError is a ValueError
        raise InvalidScenario(f"a scenario is JSON: {error}", path="") from error
    scenario = read(value)
    if (path := repeated_name(text)) is not None:  # after the checks: what they refuse need not be read again
        raise _wrong(path, "the name stands there twice")
    return scenario


def read(value: Any) -> Scenario:
    """Return a scenario from its decoded JSON; raise as `parse` does."""
    fields = _object("", value, _SCENARIO)
    scenario = Scenario(**fields | fields.get("devices", {}))
    _check_names(scenario)
    return scenario


Reader = Callable[[str, Any], Any]
"""(path, JSON value there) -> the scenario's value."""


def _wrong(path: str, message: str) -> InvalidScenario:
    return InvalidScenario(f"{path or 'the scenario'}: {message}", path=path)


def _object(path: str, value: Any, readers: Mapping[str, Reader]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(path, f"an object with {', '.join(readers)}, not {value!r}")
    prefix = f"{path}." if path else ""
    for key in value:
        if key not in readers:
            raise _wrong(prefix + key, f"no such key; there are {', '.join(readers)}")
    return {key: readers[key](prefix + key, given) for key, given in value.items()}


def _number(path: str, value: Any, *, least: float = 0.0, most: float = LARGEST) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most:
        raise _wrong(path, f"a number from {least:g} to {most:g}, not {value!r}")
    return float(value)


_positive = partial(_number, least=SMALLEST)


def _whole(path: str, value: Any, *, least: int = 0, most: int | None = None) -> int:
    if type(value) is not int or value < least or (most is not None and value > most):
        high = "on" if most is None else f"to {most}"
        raise _wrong(path, f"a whole number from {least} {high}, not {value!r}")
    return value


def _name(path: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(path, f"a name, not {value!r}")
    return value


def _text(path: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(path, f"a text, not {value!r}")
    return value


def _seconds_by_kind(path: str, value: Any) -> float | dict[str, float]:
    """Return seconds on all kinds of devices, or on each."""
    return (
        _object(path, value, dict.fromkeys(DEVICE_KINDS, _number)) if isinstance(value, dict) else _number(path, value)
    )


def _flag(path: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(path, f"true or false, not {value!r}")
    return value


def _profiles(path: str, value: Any) -> bool | float:
    return value if isinstance(value, bool) else _positive(path, value)


def _one_of(*words: str) -> Reader:
    def read(path: str, value: Any) -> str:
        if value not in words:
            raise _wrong(path, f"one of {', '.join(words)}, not {value!r}")
        return str(value)

    return read


def _or_null(reader: Reader) -> Reader:
    return lambda path, value: None if value is None else reader(path, value)


def _list(reader: Reader) -> Reader:
    def read(path: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _wrong(path, f"a list, not {value!r}")
        return tuple(reader(f"{path}[{index}]", each) for index, each in enumerate(value))

    return read


def _named(reader: Reader) -> Reader:
    def read(path: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(path, f"an object with names as keys, not {value!r}")
        return {_name(path, name): reader(f"{path}.{name}", each) for name, each in value.items()}

    return read


def _record(kind: Callable[..., Any], readers: Mapping[str, Reader], *required: str) -> Reader:
    def read(path: str, value: Any) -> Any:
        fields = _object(path, value, readers)
        for key in required:
            if key not in fields:
                raise _wrong(f"{path}.{key}", "is missing")
        return kind(**fields)

    return read


def _owner(path: str, value: Any) -> Owner:
    if isinstance(value, str):
        return Owner(_name(path, value))
    readers: dict[str, Reader] = {"client": _name, "function": _name}
    fields = _object(path, value, readers)
    for key in readers:
        if key not in fields:
            raise _wrong(f"{path}.{key}", "is missing")
    return Owner(**fields)


def _policy(path: str, value: Any) -> PolicyChoice:
    if not isinstance(value, dict):
        raise _wrong(path, f"an object with the policy's name and options, not {value!r}")
    name = _one_of(*POLICIES)(f"{path}.name", value.get("name", PolicyChoice().name))
    known = [key for key in inspect.signature(POLICIES[name]).parameters if key != "devices"]
    options = {key: option for key, option in value.items() if key != "name"}
    for key in options:
        if key not in known:
            raise _wrong(f"{path}.{key}", f"no such option of {name}; there are {', '.join(['name', *known])}")
    return PolicyChoice(name, options)


def _devices(path: str, value: Any) -> dict[str, Any]:
    """Return the devices, and their scale if an object says how many there are at least and at most."""
    if not isinstance(value, dict):
        return {"devices": _list(_record(ScenarioDevice, _DEVICE))(path, value)}
    fields = {"device": ScenarioDevice()} | _record(dict, _SCALE, "min", "max")(path, value)
    device, scale = fields.pop("device"), ScenarioScale(**fields)
    if scale.min > scale.max:
        raise _wrong(f"{path}.min", f"at most max, which is {scale.max}")
    return {"devices": (device,) * scale.max, "scale": scale}


def _quota(path: str, value: Any) -> tuple[float, float]:
    found = _list(partial(_number, most=1.0))(path, value)
    if len(found) != 2 or not found[0] <= found[1] or not found[1] > 0:
        raise _wrong(path, f"the least and the most part of the time, not {value!r}")
    return found[0], found[1]


def _minutes(path: str, value: Any) -> tuple[int, int]:
    found = _list(_whole)(path, value)
    if len(found) != 2 or found[0] >= found[1]:
        raise _wrong(path, f"the first minute and the one after the last, not {value!r}")
    return found[0], found[1]


def _workload(path: str, value: Any) -> ScenarioWorkload:
    """Return a workload: an object with the key of its kind."""
    kinds = ("azure2019", "synthetic", "record")
    named = [kind for kind in kinds if isinstance(value, dict) and kind in value]
    if len(named) != 1:
        raise _wrong(path, f"an object with one of {', '.join(kinds)}, not {value!r}")
    match named[0]:
        case "azure2019":
            return AzureTrace(**_object(path, value, _AZURE))
        case "synthetic":
            fields = _object(path, value, {"synthetic": lambda path, value: _object(path, value, _SYNTHETIC)})
            return SyntheticWorkload(**fields["synthetic"])
        case _:
            return RecordedWorkload(**_object(path, value, {"record": _name}))


_AZURE: dict[str, Reader] = {"azure2019": _name, "minutes": _minutes, "load_mb_s": _positive}
_SYNTHETIC: dict[str, Reader] = {
    "functions": partial(_whole, least=1, most=MOST_FUNCTIONS),
    "zipf": partial(_number, most=10.0),
    "rate": partial(_number, least=1e-9, most=1e9),
    "burst": partial(_number, most=100.0),
    "diurnal": partial(_number, most=1.0),
    "minutes": _positive,
    "load_mb_s": _positive,
}
_part = partial(_number, least=0.001, most=1.0)
_SHARE: dict[str, Reader] = {"sms": _part, "quota": _quota, "memory_mb": _or_null(_number)}
_share = _or_null(_record(ScenarioShare, _SHARE))
_DEVICE: dict[str, Reader] = {
    "memory_mb": _positive,
    "cached": _list(_name),
    "busy_until_s": _number,
    "owner": _or_null(_owner),
    "kind": _one_of(*DEVICE_KINDS),
    "slots": partial(_whole, least=1, most=MOST_SLOTS),
    "speed": _positive,
    "interference": _number,
    "host_mb": _or_null(_number),
    "link": _or_null(_name),
    "sms": partial(_whole, least=1, most=MOST_SMS),
    "sm_step": partial(_whole, least=1, most=MOST_SMS),
}
_SCALE: dict[str, Reader] = {
    "min": partial(_whole, most=MOST_DEVICES),
    "max": partial(_whole, least=1, most=MOST_DEVICES),
    "start_s": _number,
    "idle_s": _number,
    "device": _record(ScenarioDevice, _DEVICE),
}
_FUNCTION: dict[str, Reader] = {
    "memory_mb": _number,
    "load_s": _number,
    "fetch_s": _number,
    "run_s": _seconds_by_kind,
    "run_cv": _number,
    "family": _text,
    "batch": _number,
    "cold_s": _number,
    "kind": _one_of("ktask", "etask"),
    "client": _name,
    "weight": _positive,
    "fills": _part,
    "share": _share,
    "slo_s": _or_null(_positive),
    "best_effort": _flag,
}
_CLIENT: dict[str, Reader] = {
    "weight": _positive,
    "runtime_s": _number,
    "affinity": _list(_whole),
    "mean_run_s": _or_null(_number),
    "share": _share,
}
_REQUEST: dict[str, Reader] = {
    "at_s": _number,
    "function": _name,
    "client": _or_null(_name),
    "run_s": _or_null(_number),
    "deadline_s": _or_null(_number),
}
_LINK: dict[str, Reader] = {"mb_s": _positive}
_FAILURE: dict[str, Reader] = {"at_s": _number, "device": _whole, "down_s": _number}
_SCENARIO: dict[str, Reader] = {
    "policy": _policy,
    "seed": _whole,
    "devices": _devices,
    "functions": _named(_record(ScenarioFunction, _FUNCTION)),
    "clients": _named(_record(ScenarioClient, _CLIENT)),
    "requests": _list(_record(ScenarioRequest, _REQUEST, "function")),
    "profiles": _profiles,
    "worker_start_s": _number,
    "links": _named(_record(ScenarioLink, _LINK, "mb_s")),
    "failures": _list(_record(ScenarioFailure, _FAILURE, "at_s", "device")),
    "workload": _or_null(_workload),
    "window_s": partial(_number, least=0.001, most=60.0),
}


# --- names that must exist


def _check_names(scenario: Scenario) -> None:
    if not scenario.devices:
        raise _wrong("devices", "at least one")
    if scenario.workload is not None and scenario.requests:
        raise _wrong("workload", "there are requests already: a scenario has one of the two")
    for index, device in enumerate(scenario.devices):
        _check_device(scenario, f"devices[{index}]", device)
    for name, client in scenario.clients.items():
        for place, index in enumerate(client.affinity):
            if index >= len(scenario.devices):
                raise _wrong(f"clients.{name}.affinity[{place}]", f"no device {index}")
    for index, failure in enumerate(scenario.failures):
        if failure.device >= len(scenario.devices):
            raise _wrong(f"failures[{index}].device", f"no device {failure.device}")
    for index, request in enumerate(scenario.requests):
        if request.function not in scenario.functions:
            raise _wrong(f"requests[{index}].function", f"no function {request.function!r}")
    kinds = {device.kind for device in scenario.devices}
    for name, function in scenario.functions.items():
        if isinstance(function.run_s, dict) and (missing := sorted(kinds - function.run_s.keys())):
            raise _wrong(f"functions.{name}.run_s.{missing[0]}", "is missing: the scenario has such a device")
    weights = scenario.weights()
    for name, function in scenario.functions.items():
        if function.client not in scenario.clients and function.weight != weights[function.client]:
            raise _wrong(f"functions.{name}.weight", f"another function of client {function.client!r} has another")


def _check_device(scenario: Scenario, path: str, device: ScenarioDevice) -> None:
    for place, name in enumerate(device.cached):
        if name not in scenario.functions:
            raise _wrong(f"{path}.cached[{place}]", f"no function {name!r}")
        if name in device.cached[:place]:
            raise _wrong(f"{path}.cached[{place}]", f"{name!r} a second time")
    if sum(scenario.functions[name].memory_mb for name in device.cached) > device.memory_mb:
        raise _wrong(f"{path}.cached", f"more than the device's {device.memory_mb:g} MB")
    if device.sm_step > device.sms:
        raise _wrong(f"{path}.sm_step", f"at most the device's {device.sms} SMs")
    if device.link is not None and device.link not in scenario.links:
        raise _wrong(f"{path}.link", f"no link {device.link!r}")
    owner = device.owner
    if owner is None:
        return
    if owner.function is not None and owner.function not in scenario.functions:
        raise _wrong(f"{path}.owner.function", f"no function {owner.function!r}")
    if owner.function is None:
        own = scenario.functions_of(owner.client)
        if len(own) != 1:
            found = ", ".join(own) or "none"
            raise _wrong(f"{path}.owner", f"client {owner.client!r} has not one function but {found}: name it")
