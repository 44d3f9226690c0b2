"""Profiles for tests: the paper's grid, with throughput that saturates as in its Figure 8."""

from __future__ import annotations

from kaas.scheduling.sharing.scaling import Configuration

SMS = (0.06, 0.12, 0.24, 0.5, 0.6, 0.8, 1.0)
QUOTAS = (0.2, 0.4, 0.6, 0.8, 1.0)

RESNET = [
    Configuration(sms, quota, quota * rate_per_s, 0.2 - 0.1 * quota - 0.05 * min(1, sms / 0.24))
    for sms, rate_per_s in zip(SMS, (20, 40, 70, 70.5, 71, 71.2, 71.37), strict=True)
    for quota in QUOTAS
]
"""71.37 requests a second on a whole device are published; it saturates at 24 % of the SMs. The rest is made up."""
