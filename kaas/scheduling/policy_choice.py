"""Finds the policy of a configuration file or a command line: a name, or module:Class of a user's own; makes it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kaas.config import Config, Device, described
from kaas.errors import InvalidConfig, KaasError, PolicyError
from kaas.import_target import check_target, find_target
from kaas.scheduling.checks import CheckedPolicy
from kaas.scheduling.decisions import PolicyFactory
from kaas.scheduling.events import PhysicalDevice
from kaas.scheduling.policies import POLICIES, factory
from kaas.scheduling.process_isolation import isolated
from kaas.scheduling.raised_at import error_text, raised_at


def choose_policy(field: str, given: str | Mapping[str, Any]) -> str | PolicyFactory:
    """Return the policy as `kaas.Config` takes it.

    Args:
        field: the field of the configuration, for errors.
        given: a name of `POLICIES`, "module:Class", or an object with either as `name` and the policy's options.

    Raises:
        InvalidConfig: there is no such policy, or it has no such option. Any error of its module's import.
    """
    options = {} if isinstance(given, str) else {key: value for key, value in given.items() if key != "name"}
    name = given if isinstance(given, str) else given.get("name")
    if not isinstance(name, str):
        raise InvalidConfig(f"{field} is a policy's name, or an object with its name and options", field=field)
    found: str | PolicyFactory = name
    if ":" in name:
        check_target(field, name)
        found = find_target(field, name)
    elif name not in POLICIES:
        message = f"{field}: no policy {name!r}; there are {', '.join(POLICIES)}, and module:Class of your own"
        raise InvalidConfig(message, field=field)
    made = factory(found)
    known = options_of(made)
    for option in options:
        if option not in known:
            message = f"{field}: {name} has no option {option!r}; it has {', '.join(known) or 'none'}"
            raise InvalidConfig(message, field=f"{field}.{option}")
    return partial(made, **options) if options else found


def options_of(made: PolicyFactory) -> list[str]:
    """Return the names of a policy's options; those behind *args and **kwargs are not known."""
    parameters = inspect.signature(made).parameters.values()
    named = [each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return [name for name in named if name != "devices"]


def policy_parts(policy: str | PolicyFactory) -> tuple[str | None, Mapping[str, Any], str]:
    """Return a policy's name, options and "" for a record; for one without a name None, options and module:Class."""
    made, options = _without_options(policy)
    if isinstance(made, str):
        return made, options, ""
    names = [name for name, known in POLICIES.items() if known is made]
    if names:
        return names[0], options, ""
    module, name = getattr(made, "__module__", "__main__"), getattr(made, "__qualname__", "")
    return None, options, "" if module == "__main__" or not name.isidentifier() else f"{module}:{name}"


def policy_text(policy: str | PolicyFactory) -> str:
    """Return a policy as a configuration names it, with its options: "adaptive(T=0.02)"."""
    name, options, own = policy_parts(policy)
    given = ", ".join(f"{option}={value!r}" for option, value in options.items())
    return (name or own or described(_without_options(policy)[0])) + (f"({given})" if given else "")


def _without_options(policy: str | PolicyFactory) -> tuple[str | PolicyFactory, dict[str, Any]]:
    options: dict[str, Any] = {}
    while isinstance(policy, partial) and not policy.args:
        options = policy.keywords | options
        policy = policy.func
    return policy, options


def make_policy(chosen: str | PolicyFactory, devices: Sequence[PhysicalDevice]) -> CheckedPolicy:
    """Return a new policy of a pool with these devices. chosen: as in `kaas.Config`.

    Raises:
        PolicyError: the policy cannot be made.
    """
    name = chosen if isinstance(chosen, str) else getattr(chosen, "__name__", policy_text(chosen))
    try:
        policy = factory(chosen)(devices)
        if not callable(getattr(policy, "handle", None)):
            raise TypeError(f"{described(type(policy))} has no method handle")
    except (Exception, SystemExit) as error:
        where = "" if isinstance(error, KaasError) else f" ({raised_at(error)})"
        message = f"policy {name!r} cannot be made: {error_text(error)}{where}"
        raise PolicyError(message, policy=name) from error
    return CheckedPolicy(isolated(policy, devices), devices, name=name)


CLIENT_EXECUTORS = 4
"""Clients whose executors share a device, if the configuration does not say how many."""


def client_executors(config: Config) -> int | None:
    """Return how many clients may have executors of their own on a device; None: one executor serves all clients."""
    if config.isolation != "process":
        return None
    return config.client_executors or max(CLIENT_EXECUTORS, config.slots)


def physical(config: Config, devices: Sequence[Device]) -> tuple[PhysicalDevice, ...]:
    """Return devices as the policy of a pool gets them."""
    walls = client_executors(config)
    return tuple(
        PhysicalDevice(
            i, each.kind, each.memory_bytes, each.speed, config.etask_workers, config.slots, walls, config.window_s
        )
        for i, each in enumerate(devices)
    )
