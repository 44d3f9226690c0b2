"""A worker as `CheckedPolicy` knows it: what a policy may let it do."""

from __future__ import annotations

from dataclasses import dataclass, field

from kaas.scheduling.events import WorkerKind


@dataclass(slots=True, eq=False)
class CheckedWorker:
    """A worker from StartWorker, or its adoption, to WorkerGone."""

    kind: WorkerKind
    device: int
    client: str
    function: str
    walls: int | None = None  # not None: it serves no other client than that of its first request
    slots: int = 0  # until it is ready
    stopping: bool = False
    free: set[int] = field(default_factory=set)
    alone: bool = False  # it runs a request that must run alone
    orders: list[int] = field(default_factory=list)  # numbers of the Prefetches and Evicts that are not answered yet

    @property
    def busy(self) -> bool:
        """True if a slot is taken."""
        return len(self.free) < self.slots

    def serves(self, kind: WorkerKind, client: str, function: str) -> bool:
        """Return True if the worker takes requests of this kind, client and function."""
        return (
            self.kind is kind
            and (not self.client or self.client == client)
            and (not self.function or self.function == function)
        )
