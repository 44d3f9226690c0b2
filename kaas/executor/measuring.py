"""The measurements of a request, from what admission and its slot have noted."""

from __future__ import annotations

from kaas.executor.admission import Admitted
from kaas.executor.cache.lease import MemoryLease
from kaas.executor.cache.tiered_memory import TieredMemory
from kaas.executor.cache.tiers import TierUse
from kaas.executor.run_stats import RunStats
from kaas.executor.slots import SlotWork


def measured(
    admitted: Admitted,
    done: SlotWork,
    memory: TieredMemory,
    cached_bytes: tuple[int, int],
    started_s: float,
    planned_s: float,
    ended_s: float,
) -> RunStats:
    """Return the measurements of a request that succeeded.

    `cached_bytes` is as in RunStats. The times are of `perf_counter`; admission begins at `planned_s`.
    """
    lease = admitted.lease
    waited_s = ended_s - done.copied_at_s - done.kernels_s
    stages = {  # copies that were still on their way when the launch was queued count as copying in
        "plan": planned_s - started_s,
        "fetch": admitted.at_s - planned_s - admitted.memory_s,
        "memory": admitted.memory_s,
        "copy_in": done.copied_at_s - admitted.at_s + min(waited_s, done.travel_s),
        "kernels": done.kernels_s,
        "copy_out": max(0.0, waited_s - done.travel_s),
        "total": ended_s - started_s,
    }
    return RunStats(
        stages,
        done.tiers,
        _loaded(lease, memory),
        lease.left,
        done.kernels_s,
        done.kernels,
        cached_bytes,
        _occupied_s(admitted, done, planned_s - started_s, ended_s),
        admitted.own_s + done.travel_s,
        _hosted(lease, memory),
    )


def of_load(
    lease: MemoryLease,
    memory: TieredMemory,
    cached_bytes: tuple[int, int],
    tiers: dict[str, TierUse],
    load_s: float,
) -> RunStats:
    """Return the measurements of a load without a request. `load_s`: device seconds of its copies."""
    new, gone = _loaded(lease, memory), _hosted(lease, memory)
    return RunStats({}, tiers, new, lease.left, 0.0, (), cached_bytes, None, load_s, gone)


def _loaded(lease: MemoryLease, memory: TieredMemory) -> tuple[bytes, ...]:
    """Return the objects of which at least a part came to the device for a lease."""
    new = (*lease.loaded, *lease.made)
    return tuple(dict.fromkeys(map(memory.object_of, new))) if new else ()


def _hosted(lease: MemoryLease, memory: TieredMemory) -> tuple[bytes, ...]:
    """Return the objects that left the device for a lease and of which page-locked memory has at least a part."""
    return tuple(key for key in lease.left if memory.is_hosted(key)) if lease.left else ()


def _occupied_s(admitted: Admitted, done: SlotWork, planning_s: float, ended_s: float) -> float:
    """Return the seconds for which a request occupied the device.

    Copies of other requests' objects count for those requests: if this one waited for them, only its own parts count.
    """
    seconds = ended_s - admitted.at_s
    if admitted.lease.awaited:
        seconds = min(seconds, done.kernels_s + done.travel_s + admitted.lease.hosting_s)
    return planning_s + admitted.own_s + seconds
