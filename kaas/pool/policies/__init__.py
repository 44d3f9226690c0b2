"""Scheduling policies by name."""

from __future__ import annotations

from kaas.errors import InvalidConfig
from kaas.pool.events import PolicyFactory
from kaas.pool.policies.fcfs import FirstComeFirstServed

POLICIES: dict[str, PolicyFactory] = {"fcfs": FirstComeFirstServed}


def factory(policy: str | PolicyFactory) -> PolicyFactory:
    """What makes a policy, given its name or the thing itself.

    Raises:
        InvalidConfig: no such name.
    """
    if callable(policy):
        return policy
    if policy not in POLICIES:
        raise InvalidConfig(f"no policy {policy!r}; there are {', '.join(POLICIES)}", field="policy")
    return POLICIES[policy]
