"""How much of the machine's memory a server's configuration lets clients take, if all take all that they may."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from kaas.server.config.serve_config import Settings
from kaas.server.peers.keys import Keys
from kaas.server.usage.quotas import Quotas

CREDITS = 4
"""Times that a client's credit counts: for open requests, outputs that are stored, questions, answers not yet taken."""
UNFINISHED_EACH, UNFINISHED_ALL = 16, 64
"""Frames' bytes that may have come of unfinished messages, of one client and of all (`kaas.server.peers.listener`)."""
_LIMIT = Path("/sys/fs/cgroup/memory.max")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Promised:
    """In bytes, of all clients together.

    Fields:
        clients: how many may come. stored_bytes: named values and constants, in shared memory. library_bytes: functions
            with their code. answers_bytes: that are kept for requests that come again. open_bytes: of requests,
            questions and their answers. unfinished_bytes: of messages that have begun to come.
    """

    clients: int
    stored_bytes: int
    library_bytes: int
    answers_bytes: int
    open_bytes: int
    unfinished_bytes: int

    @property
    def total_bytes(self) -> int:
        parts = self.stored_bytes, self.library_bytes, self.answers_bytes, self.open_bytes, self.unfinished_bytes
        return sum(parts)

    def sentence(self, there_bytes: int) -> str:
        """there_bytes: what the machine has."""
        parts = {name.removesuffix("_bytes"): value for name, value in asdict(self).items() if name != "clients"}
        said = ", ".join(f"{name} {_gib(value)}" for name, value in parts.items())
        whole = f"clients may take {_gib(self.total_bytes)} of memory in all ({self.clients} clients: {said})"
        if self.total_bytes <= there_bytes:
            return f"{whole}; this machine has {_gib(there_bytes)}"
        return (
            f"{whole}, more than the {_gib(there_bytes)} that this machine has: lower limits and quotas, or add memory"
        )


def promised(settings: Settings) -> Promised:
    """Without keys there is one client.

    Raises:
        KaasError
    """
    return of_quotas(settings, _quotas(settings))


def of_quotas(settings: Settings, own: Collection[Quotas]) -> Promised:
    """own: of each client's key."""
    limits, number = settings.limits, len(own)
    granted = [limits.granted(each) for each in own]
    unfinished = min(number * UNFINISHED_EACH, UNFINISHED_ALL) * limits.frame_bytes
    return Promised(
        number,
        sum(each.stored_bytes or 0 for each in granted),
        sum(each.library_bytes or 0 for each in granted),
        number * limits.answers_bytes,
        number * CREDITS * limits.credit_bytes,
        unfinished,
    )


def _quotas(settings: Settings) -> list[Quotas]:
    if settings.keys is None:
        return [Quotas()]
    keys = Keys(Path(settings.keys))
    known = [keys.named(name) for name in sorted(keys.names())]
    return [key.quotas for key in known if key is not None]


def there_bytes() -> int:
    """Memory that this machine, or the container around this process, has."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no container, or one without a limit, which says "max"
        found = min(found, int(_LIMIT.read_text()))
    return found


def tell(settings: Settings) -> None:
    """In the log, at a server's start.

    Raises:
        KaasError
    """
    found, there = promised(settings), there_bytes()
    level = logging.INFO if found.total_bytes <= there else logging.WARNING
    fields = {**asdict(found), "total_bytes": found.total_bytes, "machine_bytes": there}
    _log.log(level, "%s", found.sentence(there), extra=fields)


def _gib(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):.2f} GiB"
