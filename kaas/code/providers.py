"""Code that a kTask names, and that an installed package provides where it runs: once in each process."""

from __future__ import annotations

import threading
from collections.abc import Container
from importlib.metadata import entry_points
from typing import Any

from kaas.errors import KaasError, MissingProvider, ProviderFailed, Unprovided
from kaas.ktask.images import PROVIDED, Image, Provided
from kaas.ktask.library import Library

GROUP = "kaas.libraries"
"""The group of entry points. Each is a function: (name, version) -> the `kaas.Library` with the code."""

BUILD = "KAAS_BUILD_PROVIDED"
"""Environment variable; "0" in a process in which providers start no compiler, and return only finished code."""

KEPT = 64
"""Provided code that a process keeps; beyond it the oldest is dropped, and requested again if needed."""

_provided: dict[Provided, tuple[Image, ...]] = {}
_providers: dict[str, Any] = {}
_code_locks: dict[Provided, threading.Lock] = {}
_lock = threading.Lock()


def code(image: Image) -> tuple[Image, ...]:
    """Return the image itself, or the code that it names.

    Of the threads that need the same code one calls the provider, and the others wait. A failure is not kept.

    Raises:
        MissingProvider, NotProvided, ProviderFailed
    """
    if image.kind != PROVIDED:
        return (image,)
    named = Provided.of(image)
    with _lock:
        lock = _code_locks.setdefault(named, threading.Lock())
    with lock:
        try:
            images = _provided.get(named)
            if images is None:
                images = _requested(named)
                _keep(named, images)
            return images
        finally:
            with _lock:
                _code_locks.pop(named, None)


def folders(names: Container[str] | None = None) -> tuple[str, ...]:
    """Return the folders of the packages that provide libraries. names: of entry points; None for all."""
    found = (entry for entry in entry_points(group=GROUP) if names is None or entry.name in names)
    return tuple(dict.fromkeys(str(entry.dist.locate_file("")) for entry in found if entry.dist is not None))


def _keep(named: Provided, images: tuple[Image, ...]) -> None:
    with _lock:
        _provided[named] = images
        if len(_provided) > KEPT:
            del _provided[next(iter(_provided))]


def _requested(named: Provided) -> tuple[Image, ...]:
    try:
        library = _provider(named)(named.name, named.version)
    except Unprovided as error:
        for field, value in named._asdict().items():
            if not hasattr(error, field):
                setattr(error, field, value)
        raise
    except KaasError as error:
        raise _failed(named, error.message) from error
    except Exception as error:
        raise _failed(named, f"{type(error).__name__}: {error}") from error
    if not isinstance(library, Library):
        raise _failed(named, f"it gave {type(library).__name__}, not a kaas.Library")
    if any(image.kind == PROVIDED for image in library.images):
        raise _failed(named, "it gave another name, not code")
    return library.images


def _provider(named: Provided) -> Any:
    known = _providers.get(named.provider)
    if known is not None:  # a search of all installed packages takes longer than most code does to load
        return known
    installed = {point.name: point for point in reversed(tuple(entry_points(group=GROUP)))}  # the first of a name
    if named.provider not in installed:
        have = f"those that are: {', '.join(sorted(installed))}" if installed else "none is"
        raise MissingProvider(
            f"no package here provides the library {named.provider!r} that the kTask names; {have}",
            **named._asdict(),
            installed=tuple(sorted(installed)),
        )
    provider = _providers[named.provider] = installed[named.provider].load()
    return provider


def _failed(named: Provided, why: str) -> ProviderFailed:
    return ProviderFailed(
        f"{named.provider} cannot give {named.name!r} of version {named.version}: {why}", **named._asdict()
    )
