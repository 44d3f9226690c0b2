"""The place of an experiment: the devices, and the workloads in the form that they have there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import numpy as np

    from kaas.ktask.graph import KTask
    from kaas.papers.workloads import Workload

Step = Callable[[Mapping[str, bytes]], dict[str, Any]]
"""A cTask: it takes what a client or a kTask gives by name, and returns the kTask's inputs or the client's results."""


class Testbed(ABC):
    """Devices, and workloads as kTasks, eTasks and steps.

    A replica of a workload is a client with constants of its own. They depend on the replica's value, a number from
    one on, and so do its results: no replica's fit another's.

    Fields:
        scale: the testbed's name. modelled: False if kernels and copies take the time that they take. devices: their
            number. shrink, slow: what bytes are divided by, and what modelled times are multiplied by. providers: of
            the libraries that the kTasks name.
    """

    __test__ = False
    """It is no test of pytest's."""
    scale: ClassVar[str]
    modelled: ClassVar[bool]
    providers: ClassVar[tuple[str, ...]] = ()
    devices: int
    shrink: int = 1
    slow: float = 1.0

    @abstractmethod
    def task(self, workload: Workload) -> KTask:
        """Return the kTask of a workload."""

    @abstractmethod
    def constants(self, workload: Workload, value: float) -> dict[str, np.ndarray[Any, Any]]:
        """Return the constants of a replica by name.

        No two replicas' have the same contents, since a cache keeps these once.
        """

    @abstractmethod
    def inputs(self, workload: Workload) -> dict[str, np.ndarray[Any, Any]]:
        """Return the inputs of each request by name, as clients send them."""

    @abstractmethod
    def constant_names(self, workload: Workload) -> Collection[str]:
        """Return the names of a kTask's buffers that are constants."""

    def dynamic_bytes(self, workload: Workload) -> int:
        """Return the bytes of a kTask's other buffers."""
        held = self.constant_names(workload)
        return sum(buffer.nbytes for buffer in self.task(workload).buffers if buffer.name not in held)

    @abstractmethod
    def answer(self, workload: Workload, value: float) -> float:
        """Return the first number of a replica's results."""

    @abstractmethod
    def kernels_s(self, workload: Workload, measured_s: float | None = None) -> float:
        """Return the time of a request's kernels on a device: the modelled one, or what was measured, or Table 1's."""

    @abstractmethod
    def etask(self, workload: Workload) -> dict[str, Any]:
        """Return the workload's eTask as a server's configuration has it, without steps."""

    @abstractmethod
    def step(self, workload: Workload, end: str) -> str:
        """Return the path, module:function, of the step "before" or "after" the device's work."""

    @abstractmethod
    def device(self) -> dict[str, Any]:
        """Return each device as a pool's configuration has it."""

    @abstractmethod
    def prepare(self, folder: Path) -> Mapping[str, str]:
        """Write what the server's processes need into a folder, and return variables of their environment."""

    @abstractmethod
    def description(self) -> str:
        """Return the devices, and what is modelled, for the page of the results, Markdown."""
