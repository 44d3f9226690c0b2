"""W3C trace context: the caller's trace that a request belongs to, and the request's own span in it."""

from __future__ import annotations

import re
from secrets import token_hex
from typing import NamedTuple

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_KNOWN_FLAGS = 0x03
"""Sampled, and random: other flags are not passed on."""


class TraceContext(NamedTuple):
    """A span of a trace, here a request.

    Fields:
        trace_id, span_id: hex, 32 and 16 digits. parent_id: the caller's span, "" if this begins the trace.
    """

    trace_id: str
    span_id: str
    parent_id: str
    flags: int

    @property
    def traceparent(self) -> str:
        """Return the header for requests that this request sends, and for the caller."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def continued(traceparent: str) -> TraceContext:
    """Return a new span of the caller's trace, or of a new one if that is malformed (W3C Trace Context, 3.2.2.3)."""
    found = _PARENT.fullmatch(traceparent)
    if found is not None:
        version, trace_id, parent_id, flags, more = found.groups()
        valid = version != "ff" and (version != "00" or more is None)
        if valid and trace_id.strip("0") and parent_id.strip("0"):
            return TraceContext(trace_id, token_hex(8), parent_id, int(flags, 16) & _KNOWN_FLAGS)
    return TraceContext(token_hex(16), token_hex(8), "", 0x01)
