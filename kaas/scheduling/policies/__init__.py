"""Scheduling policies by name."""

from __future__ import annotations

from kaas.errors import InvalidConfig
from kaas.scheduling.decisions import PolicyFactory
from kaas.scheduling.policies.adaptive import Adaptive
from kaas.scheduling.policies.batch import Batch
from kaas.scheduling.policies.cfs_affinity import CfsAffinity
from kaas.scheduling.policies.edf import EarliestDeadlineFirst
from kaas.scheduling.policies.exclusive import Exclusive
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.scheduling.policies.lalb import Lalb, Lalbo3
from kaas.scheduling.policies.lb import LoadBalancing
from kaas.scheduling.policies.mqfq_sticky import MqfqSticky
from kaas.scheduling.policies.sjf import ShortestJobFirst
from kaas.scheduling.policies.static import Static

POLICIES: dict[str, PolicyFactory] = {
    "fcfs": FirstComeFirstServed,
    "cfs_affinity": CfsAffinity,
    "exclusive": Exclusive,
    "static": Static,
    "lb": LoadBalancing,
    "lalb": Lalb,
    "lalbo3": Lalbo3,
    "mqfq_sticky": MqfqSticky,
    "batch": Batch,
    "sjf": ShortestJobFirst,
    "edf": EarliestDeadlineFirst,
    "adaptive": Adaptive,
}


def factory(policy: str | PolicyFactory) -> PolicyFactory:
    """Return the factory of a policy, which is given by its name or itself.

    Raises:
        InvalidConfig: no such name.
    """
    if callable(policy):
        return policy
    if policy not in POLICIES:
        there = f"there are {', '.join(POLICIES)}, and your own: the class itself, in a file module:Class"
        raise InvalidConfig(f"no policy {policy!r}; {there}", field="policy")
    return POLICIES[policy]
