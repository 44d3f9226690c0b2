"""`python -m ...compiler.corpus.other_flags.make`: some of the CUDA sources as other compiler flags make them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE.parent / "cuda"
FOLDER = Path(tempfile.gettempdir(), "corpus")  # one name, since debug information contains it
WANTED = {"debug": (["-G"], ["scans", "functions"]), "fast_math": (["--use_fast_math", "-lineinfo"], ["science"])}


def main() -> int:
    FOLDER.mkdir()
    for flags, (options, stems) in WANTED.items():
        for stem in stems:
            shutil.copy(SOURCES / f"{stem}.cu", FOLDER)
            command = ["nvcc", "-ptx", "-arch=sm_80", *options, f"{stem}.cu", "-o", f"{stem}_{flags}.ptx"]
            subprocess.run(command, cwd=FOLDER, check=True)
            made = (FOLDER / f"{stem}_{flags}.ptx").read_text()
            (HERE / f"{stem}_{flags}.ptx").write_text(re.sub(r'(\.file\s+\d+ )"[^"]*/([^/"]+)"', r'\1"\2"', made))
    shutil.rmtree(FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
