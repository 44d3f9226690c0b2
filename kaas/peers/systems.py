"""The peers: what each is called, the package that it comes in, and its version here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from shutil import which
from textwrap import shorten

from kaas.ktask.draw import printable

REASON = 300
"""The most characters of a reason why a peer failed."""


class PeerSystem(Enum):
    """A system that a user could take instead: its name, its distribution, a module and a program that it needs."""

    KAAS = ("KaaS", "kaas-gpu", "kaas")
    ACTOR = ("Ray actor", "ray", "ray")
    COMPILED = ("Ray compiled graph", "ray", "ray.dag")
    SERVE = ("Ray Serve", "ray", "starlette")
    ONNXRUNTIME = ("ONNX Runtime", "onnxruntime", "onnxruntime")
    IREE = ("IREE", "iree-base-runtime", "iree.compiler")
    TORCH = ("PyTorch", "torch", "torch")
    AOTINDUCTOR = ("AOTInductor", "torch", "torch", "g++")
    TRITON = ("Triton's interpreter", "triton", "triton")
    NUMBA = ("numba's simulator", "numba-cuda", "numba_cuda")

    def __init__(self, title: str, distribution: str, module: str, program: str = "") -> None:
        self.title, self.distribution, self.module, self.program = title, distribution, module, program

    @property
    def version(self) -> str:
        """The version of the distribution, or "" if it is not installed."""
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            return ""

    @property
    def installed(self) -> bool:
        """True if all that the peer needs is here."""
        if self.program and which(self.program) is None:
            return False
        try:
            return bool(self.version) and find_spec(self.module) is not None
        except ModuleNotFoundError:  # of the package that the module is in
            return False


class PeerFailed(Exception):
    """A peer failed. The run goes on without the peer."""

    def __init__(self, peer: PeerSystem, reason: str) -> None:
        super().__init__(peer, reason)
        self.peer, self.reason = peer, reason


@contextmanager
def part_of(peer: PeerSystem) -> Iterator[None]:
    """Run a part of a measurement that is a peer's alone. An error of KaaS's own part stays as it is.

    Raises:
        PeerFailed: the part raised an error.
    """
    try:
        yield
    except Exception as error:
        if peer is PeerSystem.KAAS:
            raise
        cause = getattr(error, "cause", error)  # Ray's error has the actor's error, and its own text is a page
        kind = "" if isinstance(cause, ChildProcessError) else f"{type(cause).__name__}: "
        raise PeerFailed(peer, printable(shorten(f"{kind}{cause}", REASON))) from error


def present(peers: Sequence[PeerSystem]) -> tuple[PeerSystem, ...]:
    """Return the installed ones.

    Raises:
        PeerFailed: the package of a peer's module cannot be imported.
    """
    found: list[PeerSystem] = []
    for peer in peers:
        with part_of(peer):
            found += [peer] if peer.installed else []
    return tuple(found)
