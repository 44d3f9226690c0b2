"""Runs bad images in worker processes, and gathers those that end in a crash, a hang or an error without a type."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from softgpu.build import build
from softgpu.tests.compiler.fuzz.mutations import ROOT, image
from tests.timeouts import TIMEOUT_S, readable

RUN_LIMIT_S = 0.2
"""For a kernel: many of them never end."""
OUTCOMES = ("refused", "uncompiled", "ran", "failed", "cancelled")
"""The ways in which an image may end: it is not loaded; no kernel of it is compiled; the kernels run to
their end, or into an error of CUDA, or until they are ended."""


@dataclass(frozen=True)
class Finding:
    seed: int
    number: int
    what: str

    def __str__(self) -> str:
        return f"seed {self.seed}, image {self.number}: {self.what}"


def bring_driver(folder: Path) -> None:
    """The driver that this machine has, into the cache in this folder: to compile it there would take a case's time."""
    built = build().parent
    place = folder / "softgpu" / "driver" / built.name
    place.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        place.symlink_to(built)


class Worker:
    """One process; a new one when it has died or was ended."""

    def __init__(self, folder: Path, run_limit_s: float = RUN_LIMIT_S) -> None:
        self.folder = folder
        self.run_limit_s = run_limit_s
        self.errors = (folder / f"worker-{threading.get_ident()}.log").open("w+b")
        self.start()

    def start(self) -> None:
        bring_driver(self.folder)
        environment = os.environ | {"XDG_CACHE_HOME": str(self.folder), "PYTHONPATH": str(ROOT)}
        command = [
            sys.executable,
            "-m",
            "softgpu.tests.compiler.fuzz.worker",
            str(self.folder / "code"),
            str(self.run_limit_s),
        ]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            bufsize=0,
        )

    def verdict(self, name: str) -> str:
        """Return the outcome for the image of this `seed number` or path: one of OUTCOMES, or the error."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{name}\n".encode())
        if not readable(self.process.stdout):
            self.end()
            self.start()
            return f"no answer within {TIMEOUT_S:.0f} s"
        answer = self.process.stdout.readline().decode()
        if not answer:
            code = self.process.wait()
            self.start()
            return f"the process ended with {code}"
        return answer.rstrip("\n").split("\t", 1)[1]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def campaign(seed: int, count: int, folder: Path, workers: int = 2) -> tuple[list[Finding], Counter[str]]:
    """The findings among images 0 to count - 1 of this seed, and what became of the others. The images that the
    findings are about lie in the folder."""
    numbers, lock = iter(range(count)), threading.Lock()
    findings: list[Finding] = []
    outcomes: Counter[str] = Counter()
    first = Worker(folder)

    def work(worker: Worker) -> None:
        for number in _shared(numbers, lock):
            what = worker.verdict(f"{seed} {number}")
            if what in OUTCOMES:
                outcomes[what] += 1
            else:
                (folder / f"{seed}-{number}.image").write_bytes(image(seed, number))
                findings.append(Finding(seed, number, what))
        worker.end()

    others = [threading.Thread(target=lambda: work(Worker(folder))) for _ in range(workers - 1)]
    for thread in others:
        thread.start()
    work(first)
    for thread in others:
        thread.join()
    return sorted(findings, key=lambda finding: finding.number), outcomes


def _shared(numbers: Iterator[int], lock: threading.Lock) -> Iterator[int]:
    while True:
        with lock:
            number = next(numbers, None)
        if number is None:
            return
        yield number
