"""What a slot does for a request that has its memory: copies in, launches, copies out."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

import msgspec

from kaas.errors import WrongScalar
from kaas.executor.admission import Admitted
from kaas.executor.cache.tiers import TierUse
from kaas.executor.device.device_to_host import Bytes
from kaas.executor.inputs import check_scalars
from kaas.executor.plan.graph_cache import GraphCache, LaunchValues
from kaas.executor.plan.plan import Plan
from kaas.executor.profile import KernelTime
from kaas.executor.run import RunRequest
from kaas.executor.slots import Slot
from kaas.ktask.request import check_names, iterations_of


class ChosenValues(msgspec.Struct, frozen=True):
    """What a request chooses beside its inputs: the scalars in the plan's order, and how often the kernels run."""

    scalars: list[bytes]
    iterations: int


def check(plan: Plan, request: RunRequest) -> ChosenValues:
    """Checks that a request names exactly what its kTask takes.

    Raises:
        MissingInput, UnexpectedInput, MissingScalar, WrongScalar
    """
    if request.inputs.keys() != plan.input_names:
        check_names(plan.task, request.inputs)
    scalars = check_scalars(plan, request.scalars)
    iterations = iterations_of(plan.task, request.scalars)
    if iterations < 1:
        label = plan.task.label
        raise WrongScalar(f"kTask {label!r}: the number of iterations is at least 1, not {iterations}", task=label)
    return ChosenValues(scalars, iterations)


class SlotWork(msgspec.Struct, frozen=True):
    """What a slot has done for a request.

    Fields:
        copied_at_s: when all copies to the device had been submitted, by `perf_counter`.
        kernels_s, travel_s: seconds of the device for its kernels, and for the objects that it brought.
        kernels: what each kernel took, if that was asked for.
    """

    outputs: dict[str, Bytes]
    copied_at_s: float
    kernels_s: float
    kernels: tuple[KernelTime, ...]
    tiers: dict[str, TierUse]
    travel_s: float


def work(
    slot: Slot,
    replay: GraphCache,
    request: RunRequest,
    admitted: Admitted,
    given: ChosenValues,
    kept: Mapping[int, bytes],
) -> SlotWork:
    """Copies in, launches, copies out."""
    plan, inputs = replay.plan, admitted.inputs
    slot.enter(request.client, plan)
    placement = replay.place(inputs.resident, slot.arena.address, inputs.kept_mask)
    addresses = slot.copy_in(plan, placement, inputs, admitted.lease)
    values = LaunchValues(placement, addresses, given.scalars)
    launches = None if request.profile else replay.bind(values, given.iterations)
    copied = perf_counter()

    kernels: tuple[KernelTime, ...] = ()
    if launches is None:
        kernels = slot.profile(replay, values, given.iterations)
    else:
        slot.launch(launches)
    outputs = slot.copy_out(plan, addresses, () if request.copy_kept else kept)
    return SlotWork(outputs, copied, slot.stream.kernels.seconds(), kernels, *tiers_of(admitted))


def occupied(admitted: Admitted, done: SlotWork, planning_s: float, ended_s: float) -> float:
    """Seconds for which a request kept its place on the device from others; ended_s: by `perf_counter`.

    What others bring for their own requests is waited for, and theirs: then only this one's parts count.
    """
    seconds = ended_s - admitted.at_s
    if admitted.lease.awaited:
        seconds = min(seconds, done.kernels_s + done.travel_s + admitted.lease.hosting_s)
    return planning_s + admitted.own_s + seconds


def tiers_of(admitted: Admitted) -> tuple[dict[str, TierUse], float]:
    """What was done in each tier, and the seconds that copies to the device took, once they have ended."""
    lease = admitted.lease
    tiers = lease.tiers
    if not lease.loaded:
        return tiers, 0.0
    arriving_s = sum(arrival.watch.seconds() for arrival in lease.arrivals.values())
    seconds = {"device": arriving_s, "host": lease.hosting_s, "store": admitted.store_s}
    return {tier: use._replace(seconds=seconds[tier]) for tier, use in tiers.items()}, arriving_s
