"""The work of a slot for an admitted request: copy in, launch, copy out."""

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
    """The values that a request chooses besides its inputs: scalars in the plan's order, and the iterations."""

    scalars: list[bytes]
    iterations: int


def check(plan: Plan, request: RunRequest) -> ChosenValues:
    """Check that a request names exactly the inputs and scalars of its kTask.

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
    """The result of a slot's work.

    Fields:
        copied_at_s: the time at which all copies to the device were submitted, by `perf_counter`.
        kernels_s, travel_s: device seconds of the kernels, and of the copies of objects that the request loaded.
        kernels: the time of each kernel, if the request asked for it.
    """

    outputs: dict[str, Bytes]
    copied_at_s: float
    kernels_s: float
    kernels: tuple[KernelTime, ...]
    tiers: dict[str, TierUse]
    travel_s: float


def work(
    slot: Slot,
    graphs: GraphCache,
    request: RunRequest,
    admitted: Admitted,
    given: ChosenValues,
    kept: Mapping[int, bytes],
) -> SlotWork:
    """Copy in, launch, copy out."""
    plan, inputs = graphs.plan, admitted.inputs
    slot.enter(request.client, plan)
    placement = graphs.place(inputs.resident, slot.arena.address, inputs.kept_mask)
    addresses = slot.copy_in(plan, placement, inputs, admitted.lease)
    values = LaunchValues(placement, addresses, given.scalars)
    launches = None if request.profile else graphs.bind(values, given.iterations)
    copied = perf_counter()

    kernels: tuple[KernelTime, ...] = ()
    if launches is None:
        kernels = slot.profile(graphs, values, given.iterations)
    else:
        slot.launch(launches)
    outputs = slot.copy_out(plan, addresses, () if request.copy_kept else kept)
    return SlotWork(outputs, copied, slot.stream.kernels.seconds(), kernels, *tiers_of(admitted))


def occupied(admitted: Admitted, done: SlotWork, planning_s: float, ended_s: float) -> float:
    """Return the seconds for which a request occupied the device. `ended_s` is a time of `perf_counter`.

    Copies of other requests' objects count for those requests: if this one waited for them, only its own parts count.
    """
    seconds = ended_s - admitted.at_s
    if admitted.lease.awaited:
        seconds = min(seconds, done.kernels_s + done.travel_s + admitted.lease.hosting_s)
    return planning_s + admitted.own_s + seconds


def tiers_of(admitted: Admitted) -> tuple[dict[str, TierUse], float]:
    """Return the use of each tier, and the seconds of copies to the device, which must have ended."""
    lease = admitted.lease
    tiers = lease.tiers
    if not lease.loaded:
        return tiers, 0.0
    arriving_s = sum(copy.events.seconds() for copy in lease.copies.values())
    seconds = {"device": arriving_s, "host": lease.hosting_s, "store": admitted.store_s}
    return {tier: use._replace(seconds=seconds[tier]) for tier, use in tiers.items()}, arriving_s
