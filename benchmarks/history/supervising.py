"""The programs and the servers of a history: each is started again when it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from benchmarks.history import nemesis
from benchmarks.history.events import Program, Recorder, Served, now_s
from benchmarks.served import Server, children, runs

START_S, END_S = 120.0, 90.0
"""The time for a first start, and for the end."""
WORDS = 2000
"""The letters of a failure that are kept."""


WORKERS = {"an executor": "kaas.worker.executor_process", "a step's process": "kaas.server.steps.step_process"}
"""The server's processes: the module that each kind runs."""


class Programs:
    """The programs of one client, one after the other."""

    def __init__(self, client: str, command: Sequence[str], errors: Path, history: Recorder, paths: Path) -> None:
        self.client, self._command, self._errors, self._history = client, command, errors, history
        found = [str(paths), os.environ.get("PYTHONPATH", "")]
        self._environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, found))}
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = False
        self._thread = threading.Thread(target=self._supervise, daemon=True)

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    def start(self) -> None:
        """Start a first program, and later ones when one has ended."""
        self._launch()
        self._thread.start()

    def _launch(self) -> None:
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stderr=errors, env=self._environment)
        self._note("started")

    def _note(self, what: str, status: int | None = None, words: str = "") -> None:
        self._history.add(Program(at_s=now_s(), client=self.client, what=what, status=status, words=words))

    def _supervise(self) -> None:
        while True:
            assert self._process is not None
            status = self._process.wait()
            if status == -signal.SIGKILL:
                self._note("killed")
            else:
                self._note("ended", status, self._errors.read_text()[-WORDS:] if status else "")
                if self._ending:
                    return
            self._launch()
            if self._ending:
                self._close()

    def _close(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self) -> None:
        """Have the program end after its operations."""
        self._ending = True
        self._close()

    def join(self) -> None:
        """Wait for the program's end; kill it if it does not come."""
        self._thread.join(END_S)
        if self._thread.is_alive():
            self._note("did not end")
            nemesis.kill(self.pid)


class Servers:
    """The servers, one after the other."""

    def __init__(self, server: Server, history: Recorder) -> None:
        self.server, self._history = server, history
        self._ending = False
        self.ready = threading.Event()
        self._thread = threading.Thread(target=self._supervise, daemon=True)

    def start(self) -> None:
        """Start a first server, and others when one has ended; return when the first is ready."""
        self._thread.start()
        if not self.ready.wait(START_S):
            raise SystemExit("the server did not start")

    def _note(self, what: str, words: str = "") -> None:
        self._history.add(Served(at_s=now_s(), what=what, words=words))

    def _supervise(self) -> None:
        while True:
            failure = ""
            try:
                self.server.start()
                self._note("ready")
                self.ready.set()
            except SystemExit as error:
                failure = str(error)
            status = self.server.wait()
            if status == -signal.SIGKILL:
                self._note("killed")
            elif failure:
                self._note("did not start", failure[-WORDS:])
                threading.Event().wait(1.0)
            elif self._ending and status == 0:
                return
            else:
                self._note("ended", f"status {status}: {self.server.log.read_text()[-WORDS:]}")

    def look_for_strays(self) -> None:
        """Note the processes that earlier servers have left: they are children of the first one of the namespace."""
        for module in WORKERS.values():
            strays = [pid for pid in children(os.getpid()) if runs(pid, module)]
            if strays:
                self._note("left processes", f"{module}: {strays}")

    def abort(self) -> None:
        """End a server that answers nobody. Its log then has the stacks of its threads."""
        self._note("answers nobody")
        os.kill(self.server.pid, signal.SIGABRT)

    def end(self) -> None:
        """End the server, as a service manager does."""
        self._ending = True
        os.kill(self.server.pid, signal.SIGTERM)
        self._thread.join(END_S)
        if self._thread.is_alive():
            self._note("did not end")
