"""`python -m tests.gpu.expected` stores every case with the software GPU's outputs."""

from __future__ import annotations

import sys

from kaas.config import Device
from kaas.executor.local import run_local
from tests.gpu import stored
from tests.gpu.cases import CASES


def main() -> int:
    stored.FOLDER.mkdir(exist_ok=True)
    for path in stored.FOLDER.glob("*.npz"):
        path.unlink()
    for name, make in CASES.items():
        case = make()
        outputs = run_local(case.task, case.inputs, scalars=case.scalars, device=Device("software"))
        size = stored.save(name, stored.Stored(case.task, case.inputs, dict(case.scalars), outputs, case.rtol))
        print(f"{name:<24} {size:>8,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
