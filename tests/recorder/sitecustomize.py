"""Loaded by each Python process whose PYTHONPATH has this folder: writes down which functions of the repository a
process enters while a flag is up. `tests.walks` sets the flag and reads the files.

A profile function for every thread, since calls of C code pass by a debugger's hooks and processes start one another.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from types import FrameType
from typing import Any


def record(folder: str, root: str) -> None:
    """Write each function that is entered while the flag is up to `folder`, in the order of entry."""
    with open(os.path.join(folder, "flag"), "rb") as file:
        flag = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
    output: dict[int, int] = {}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not flag[0] or event != "call" or not code.co_filename.startswith(root):
            return
        process = os.getpid()
        if process not in output:  # a forked child writes a file of its own
            path = os.path.join(folder, f"{process}.walk")
            output[process] = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
            os.write(output[process], (" ".join(sys.orig_argv).replace("\n", " ") + "\n").encode())
        os.write(output[process], f"{code.co_filename[len(root) :]} {code.co_qualname}\n".encode())

    threading.setprofile(profile)
    sys.setprofile(profile)


if "KAAS_WALK_FOLDER" in os.environ:
    record(os.environ["KAAS_WALK_FOLDER"], os.environ["KAAS_WALK_ROOT"])
