"""The use of idle devices: as many functions as devices, each with constants that fill most of a device.

    python -m benchmarks.placement [--json]

There are four software devices of 64 MB, and four functions of one client with a constant of 40 MB each. They are
called one after the other, so that all devices are idle whenever a call is placed. After the first round each function
should have its own device: misses_after_first_round counts the constants that were copied again in three further
rounds, of the worst policy.
"""

from __future__ import annotations

from typing import Any

import kaas
from benchmarks.report import parser, report
from benchmarks.tenants import X, check, device_misses, holder, pool
from kaas.scheduling.policies import POLICIES

DEVICES = 4
DEVICE = kaas.Device("software", 64 << 20)
CONSTANT_BYTES = 40 << 20
ROUNDS = 3


def measure(policy: str, devices: int = DEVICES, device: kaas.Device = DEVICE, nbytes: int = CONSTANT_BYTES) -> int:
    """Return the misses after the first round under a policy."""
    with pool("placement", [device] * devices, policy):
        values = [float(number + 1) for number in range(devices)]
        functions = [holder(nbytes, value, client="one") for value in values]
        for number in range(1 + ROUNDS):
            for function, value in zip(functions, values, strict=True):
                check(function.call(x=X).result(), value)
            if not number:
                kaas.stats(reset=True)
        return device_misses()


def main() -> None:
    options = parser(__doc__.partition("\n")[0] if __doc__ else "").parse_args()
    misses = {policy: measure(policy) for policy in POLICIES}
    bars = {"misses_after_first_round": (max(misses.values()), "<=", 0)}
    detail: dict[str, Any] = {"devices": DEVICES, "functions": DEVICES, "constant_mb": CONSTANT_BYTES >> 20}
    detail |= {f"{policy}_misses": count for policy, count in misses.items()}
    report("placement", bars, detail | {"requests_after_first_round": DEVICES * ROUNDS}, options.json)


if __name__ == "__main__":
    main()
