"""The error of the software GPU."""

from __future__ import annotations


class SoftgpuError(Exception):
    """The software GPU cannot do the request: no C compiler, other devices are loaded, no such device."""
