"""The most memory that a server's configuration allows all clients together."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from kaas.server.clients.keys import Keys
from kaas.server.config.serve_config import Settings
from kaas.server.usage.quotas import Quotas

CREDITS = 8
"""A client's credit counts eight times: for open requests, stored outputs, other messages, replies on their way, and
twice each for results on their way and for messages that have arrived and wait to be taken."""
UNFINISHED_EACH = 16
"""The most incomplete messages of one client, in largest frames (`kaas.server.clients.listener`)."""
_LIMIT = Path("/sys/fs/cgroup/memory.max")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """The most memory of all clients together, in bytes.

    Fields:
        clients: number of clients. stored_bytes: named values and constants, in shared memory. library_bytes: functions
            with their code. answers_bytes: replies that are kept for repeats. open_bytes: requests, other messages and
            their replies. unfinished_bytes: incomplete messages.
    """

    clients: int
    stored_bytes: int
    library_bytes: int
    answers_bytes: int
    open_bytes: int
    unfinished_bytes: int

    @property
    def total_bytes(self) -> int:
        """The sum of all parts."""
        parts = self.stored_bytes, self.library_bytes, self.answers_bytes, self.open_bytes, self.unfinished_bytes
        return sum(parts)

    def sentence(self, machine_bytes: int) -> str:
        """Return the sums as a sentence. machine_bytes: the machine's memory."""
        parts = {name.removesuffix("_bytes"): value for name, value in asdict(self).items() if name != "clients"}
        shown = ", ".join(f"{name} {_gib(value)}" for name, value in parts.items())
        whole = f"clients may take {_gib(self.total_bytes)} of memory in all ({self.clients} clients: {shown})"
        machine = _gib(machine_bytes)
        if self.total_bytes <= machine_bytes:
            return f"{whole}; this machine has {machine}"
        return f"{whole}, more than the {machine} that this machine has: lower limits and quotas, or add memory"


def memory_bound(settings: Settings) -> MemoryBound:
    """Return the memory for all clients with a key, or for one client without keys.

    Raises:
        KaasError
    """
    return of_quotas(settings, _quotas(settings))


def of_quotas(settings: Settings, own: Collection[Quotas]) -> MemoryBound:
    """Return the memory for clients. own: the quotas of each client's key."""
    limits, number = settings.limits, len(own)
    granted = [limits.granted(each) for each in own]
    return MemoryBound(
        number,
        sum(each.stored_bytes or 0 for each in granted),
        sum(each.library_bytes or 0 for each in granted),
        number * limits.answers_bytes,
        number * CREDITS * limits.credit_bytes,
        number * UNFINISHED_EACH * limits.frame_bytes,
    )


def _quotas(settings: Settings) -> list[Quotas]:
    if settings.keys is None:
        return [Quotas()]
    keys = Keys(Path(settings.keys))
    known = [keys.named(name) for name in sorted(keys.names())]
    return [key.quotas for key in known if key is not None]


def machine_bytes() -> int:
    """Return the memory of this machine, or of the container around this process, in bytes."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no container, or one without a limit, which says "max"
        found = min(found, int(_LIMIT.read_text()))
    return found


def log_bound(settings: Settings) -> None:
    """Log the memory at a server's start.

    Raises:
        KaasError
    """
    found, machine = memory_bound(settings), machine_bytes()
    level = logging.INFO if found.total_bytes <= machine else logging.WARNING
    fields = {**asdict(found), "total_bytes": found.total_bytes, "machine_bytes": machine}
    _log.log(level, "%s", found.sentence(machine), extra=fields)


def _gib(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):.2f} GiB"
