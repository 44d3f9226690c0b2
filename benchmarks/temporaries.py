"""The cost of a temporary for others: hot constants that are copied again after one request with a large temporary.

    python -m benchmarks.temporaries [--json]

There is one software device of 64 MB. Two functions with a constant of 20 MB each are called in turns, then another
client calls a kTask with a temporary of 40 MB once, then the two functions are called again 100 times each. reloads
counts their misses after that: the temporary has to displace constants once, and not again.
"""

from __future__ import annotations

from typing import Any

import kaas
from benchmarks.report import parser, report
from benchmarks.tenants import X, check, device_misses, holder, pool, spender

DEVICE = kaas.Device("software", 64 << 20)
CONSTANT_BYTES, TEMPORARY_BYTES = 20 << 20, 40 << 20
VALUES = (1.0, 2.0)
TURNS = 100


def measure(
    device: kaas.Device = DEVICE, constant_bytes: int = CONSTANT_BYTES, temporary_bytes: int = TEMPORARY_BYTES,
    slots: int = 1, turns: int = TURNS,
) -> int:  # fmt: skip
    """Return the misses of two functions after the one request of another client."""
    with pool("temporaries", [device], "cfs_affinity", slots=slots):
        functions = [holder(constant_bytes, value, client="hot") for value in VALUES]

        def turn() -> None:
            for function, value in zip(functions, VALUES, strict=True):
                check(function.call(x=X).result(), value)

        for _ in range(3):
            turn()
        y = kaas.call(spender(temporary_bytes), {"x": X}, client="other").result()
        if abs(y[0] - 1.75) > 1e-3:
            raise SystemExit(f"the request with the temporary gave {y[0]}: this measured something else")
        kaas.stats(reset=True)
        for _ in range(turns):
            turn()
        return device_misses()


def main() -> None:
    options = parser(__doc__.partition("\n")[0] if __doc__ else "").parse_args()
    reloads = {slots: measure(slots=slots) for slots in (1, 2)}
    detail: dict[str, Any] = {"constant_mb": CONSTANT_BYTES >> 20, "temporary_mb": TEMPORARY_BYTES >> 20}
    detail |= {f"slots_{slots}_reloads": count for slots, count in reloads.items()}
    bars = {"reloads": (max(reloads.values()), "<=", 2)}
    report("temporaries", bars, detail | {"requests_after_it": 2 * TURNS}, options.json)


if __name__ == "__main__":
    main()
