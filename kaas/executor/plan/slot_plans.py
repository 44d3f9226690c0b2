"""The plans of one slot, with their graphs and their code."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from threading import Lock

from kaas.executor.device.device import OpenDevice
from kaas.executor.device.windows.window import ClientWindow
from kaas.executor.plan.graph_cache import GraphCache
from kaas.executor.plan.loaded_kernels import LoadedKernels
from kaas.executor.plan.plan import Plan, make_plan
from kaas.ktask.graph import KTask

MAX_PLANS = 256
"""Plans that a slot keeps. Beyond them it drops the least recently used plan, with its graph."""


class SlotPlans:
    """The plans of one slot. Use it inside `device.context`. Any thread may `unload`; one at a time calls the rest.

    Fields:
        kernels: the loaded code. graphs: by the kTask's key, the least recently used first.
        current: the plan of the present request, whose code stays; None: the slot has no request.
    """

    def __init__(self, device: OpenDevice, window: ClientWindow | None) -> None:
        """window: the kernels are confined to it; None: they are not."""
        self._device = device
        self._lock = Lock()
        self.kernels = LoadedKernels(device, window)
        self.graphs: dict[str, GraphCache] = {}
        self.current: Plan | None = None

    def get(self, task: KTask, capacity_bytes: int, client: str | None = None) -> GraphCache:
        """Return the plan of a kTask with its graphs, which the kTask's first request makes. It is the current one.

        Args:
            task: the kTask.
            capacity_bytes: of the device's cache.
            client: the client of the request, if it has one.

        Raises:
            The errors of `make_plan`.
        """
        with self._lock:
            graphs = self._get(task, capacity_bytes)
            if client is not None and graphs.plan.globals:
                stale = {library.name for library in graphs.plan.globals if library.stale(client)}
                if stale:
                    self._drop(stale)
                    graphs = self._get(task, capacity_bytes)
            self.current = graphs.plan
            return graphs

    def unload(self) -> bool:
        """Unload code with variables that the current plan does not use; return False if there is none."""
        with self._lock:
            used = self.current.globals if self.current is not None else ()
            idle = self.kernels.with_globals() - {library.name for library in used}
            self._drop(idle)
            return bool(idle)

    def close(self) -> None:
        """Free the plans and unload their code; the last request must have ended."""
        with self._lock:
            while self.graphs:
                self.graphs.popitem()[1].close()
            self.kernels.close()

    def _get(self, task: KTask, capacity_bytes: int) -> GraphCache:
        graphs = self.graphs.pop(task.key, None)
        if graphs is None:
            device = self._device
            name = device.info().name
            plan = make_plan(task, self.kernels, device.limits, capacity_bytes, name, apart=device.checks)
            graphs = GraphCache(plan, device)
            if len(self.graphs) >= MAX_PLANS:
                self.graphs.pop(next(iter(self.graphs))).close()
                in_use = (graphs, *self.graphs.values())
                self.kernels.keep({library.hash for one in in_use for library in one.plan.task.libraries})
        self.graphs[task.key] = graphs  # the last one is the most recently used
        return graphs

    def _drop(self, libraries: AbstractSet[str]) -> None:
        for key, graphs in list(self.graphs.items()):
            if any(library.name in libraries for library in graphs.plan.globals):
                self.graphs.pop(key).close()
        self.kernels.drop(libraries)
