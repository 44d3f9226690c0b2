"""A request is promised to the busy worker where it ends first, as a look at all workers finds it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kaas.scheduling.events import PhysicalDevice
from kaas.scheduling.policies.fair_share import NO_CLIENT
from kaas.scheduling.policies.local_queues import LocalQueues
from kaas.scheduling.policies.orders import PriorityOrder
from kaas.scheduling.policies.state import SHARED, QueuedRequest, WorkerGroup, WorkerState, partition

NOW_S, RUN_S = 10.0, 1.0
Ends = list[list[float]]
"""The expected ends of each worker's running requests."""


def working(ends_s: Ends, overrun: float) -> tuple[LocalQueues, list[WorkerState], WorkerGroup]:
    """Return busy workers with a full set of running requests each, and their local queues."""
    where = partition([PhysicalDevice(index, "gpu", None) for index in range(len(ends_s))])
    group = WorkerGroup(SHARED, where, (0, 0), PriorityOrder(lambda _: None))
    group.slots = group.most_slots = max(map(len, ends_s))
    local, workers = LocalQueues(lambda _, __: RUN_S, overrun=overrun), []
    for device, running in zip(where.devices, ends_s, strict=True):
        worker = WorkerState(device.index, device, group, starting=False)
        for number, end_s in enumerate(running):
            worker.running[number] = QueuedRequest(number, NO_CLIENT, group, worker=worker, ends_s=end_s)
        group.workers[worker.id] = device.workers[worker.id] = worker
        where.alive += 1
        local.update(worker)
        workers.append(worker)
    return local, workers, group


def ends_s(slots: int) -> st.SearchStrategy[Ends]:
    one = st.lists(st.floats(1.0, 20.0), min_size=slots, max_size=slots)
    return st.lists(one, min_size=1, max_size=6)


@given(st.sampled_from([1, 2, 3]).flatmap(ends_s), st.sampled_from([0.0, 1.0, 2.0]), st.data())
def test_the_soonest_is_that_of_a_look_at_all_workers(running: Ends, overrun: float, data: st.DataObject) -> None:
    local, workers, group = working(running, overrun)
    devices = dict.fromkeys(data.draw(st.lists(st.sampled_from(range(len(running))), unique=True)))
    before_s = data.draw(st.floats(NOW_S, 40.0))
    request = QueuedRequest(99, NO_CLIENT, group)
    ends = [(local.ends_s(request, worker, NOW_S), worker.device.index) for worker in workers]
    wanted = min((end for end in ends if end[1] in devices and end[0] < before_s), default=None)
    found = local.soonest(request, devices, NOW_S, least_s=RUN_S, before_s=before_s)
    assert (None if found is None else found.device.index) == (None if wanted is None else wanted[1])


def test_a_late_run_hides_no_slot_that_is_free_sooner() -> None:
    local, workers, group = working([[5.0, 12.0], [13.5, 14.0]], overrun=1.0)
    request = QueuedRequest(99, NO_CLIENT, group)
    found = local.soonest(request, {0: None, 1: None}, NOW_S, least_s=RUN_S, before_s=15.0)
    assert found is workers[0]


def test_a_run_that_began_or_ended_since_the_last_look_counts() -> None:
    local, (first, second), group = working([[12.0], [13.0]], overrun=0.0)
    assert local.next_free() is first
    first.running = {7: QueuedRequest(7, NO_CLIENT, group, worker=first, ends_s=14.0)}
    local.update(first)
    assert local.next_free() is second
    second.running, second.free = {}, [(1, 0)]
    local.update(second)
    assert local.next_free() is first
    assert local.on({0: None, 1: None}) == [first]
    assert not local.lost(first)
    assert local.next_free() is None
