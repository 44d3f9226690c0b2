"""The peers: what each is called, the package that it comes in, and its version here."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from shutil import which


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


def present(peers: Sequence[PeerSystem]) -> tuple[PeerSystem, ...]:
    """Return the installed ones."""
    return tuple(peer for peer in peers if peer.installed)
