"""`python -m tests.gpu.faults KIND SYMBOL`: a kernel fails, and this process loses the device."""

from __future__ import annotations

import sys
from pathlib import Path

import kaas
from kaas.config import Device
from kaas.errors import DeviceLost
from kaas.executor.local import executor_for, run_local

SYMBOLS = {
    "checked": "CUDA_ERROR_ASSERT",
    "stray": "CUDA_ERROR_ILLEGAL_ADDRESS",
    "trapped": "CUDA_ERROR_LAUNCH_FAILED",
}


def task(symbol: str) -> kaas.KTask:
    """Return a kTask: x[0] = value. The kernel fails for a negative value."""
    library = kaas.Library.from_file(Path(__file__).parent / "kernels" / "faults.ptx")
    x = kaas.Buffer("x", 1, "int32")
    return kaas.KTask([kaas.Kernel(library, symbol, 1, 1, [kaas.Out(x), kaas.Scalar("value", "i32")])], [x])


def main() -> int:
    """Print the results of a good, a bad and a good request."""
    device, failing = Device(sys.argv[1]), task(sys.argv[2])
    for value in (7, -1, 7):
        try:
            print(int(run_local(failing, scalars={"value": value}, device=device)["x"][0]))
        except DeviceLost as error:
            print(error.code_name)
    return 0 if executor_for(device).lost is not None else 1


if __name__ == "__main__":
    sys.exit(main())
