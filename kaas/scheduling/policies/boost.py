"""Boosts of arrival times (gamma-Boost: Yu, Scully 2024): a request that costs little goes as if it had come earlier.

The boost of a request of cost c is b(c) = -w ln(1 - exp(-c / w)), where w stands for the inverse of the decay rate of
the distribution of response times. w is learned: it is the mean wait of recent dispatches. At low load it is 0, and the
order that of arrival; in a backlog short requests go first. A request is overtaken only by those that come less than
b(c) - b(its own c) later.
"""

from __future__ import annotations

import math

from kaas.scheduling.events import PhysicalDevice
from kaas.scheduling.policies.estimates import Estimates
from kaas.scheduling.policies.state import QueuedRequest

RECENT = 50
"""Waits that the mean is of."""
NO_WAIT = 0.2
"""The part that a wait of 0 counts for."""
STEP = math.log(1.1)
"""Costs in one class differ by less than a tenth."""
LEAST_S = 1e-6
DRIFT = 0.02
"""The part by which w changes before boosts are computed anew."""


class Boost(dict[int, float]):
    """The boosts of classes of cost in seconds, by the waits so far. A boost is computed when it is first looked up."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor
        self._mean_wait_s = 0.0
        self._of_s = 0.0

    def waited(self, seconds: float) -> None:
        """Take in how long a request has waited that is dispatched now."""
        part = (1.0 if seconds > 0 else NO_WAIT) / RECENT
        self._mean_wait_s += part * (seconds - self._mean_wait_s)
        if abs(self._mean_wait_s - self._of_s) > DRIFT * self._of_s:
            self._of_s = self._mean_wait_s
            self.clear()

    def __missing__(self, cost_class: int) -> float:
        w, cost_s = self._of_s, math.exp(cost_class * STEP)
        boost_s = self[cost_class] = -w * math.log(-math.expm1(-cost_s / w)) * self._factor if w > 0 else 0.0
        return boost_s


def cost_class(cost_s: float) -> int:
    """Return the class of a cost in seconds."""
    return round(math.log(max(cost_s, LEAST_S)) / STEP)


class Costs:
    """What requests cost on the fastest device, by which their boosts are found.

    Args:
        estimates: of the functions' times. fastest: the device.
    """

    def __init__(self, estimates: Estimates, fastest: PhysicalDevice) -> None:
        self._estimates, self._fastest = estimates, fastest

    def seconds(self, request: QueuedRequest) -> tuple[float, float]:
        """Return the seconds of a run, and of a run with the load of all its memory."""
        run_s = self._estimates.run_s(request, self._fastest)
        nbytes = request.reads.constants.nbytes
        return run_s, run_s + self._estimates.whole_load_s(request.function, nbytes) if nbytes else run_s

    def classes(self, request: QueuedRequest) -> tuple[int, int]:
        """Return the classes of `seconds`. They are kept with the times of the function until these change."""
        times = self._estimates.functions.get(request.function)
        if times is not None and times.cost_classes is not None:
            return times.cost_classes
        run_s, whole_s = self.seconds(request)
        run = cost_class(run_s)
        classes = run, run if whole_s == run_s else cost_class(whole_s)
        if times is not None and times.runs and (times.loads or not request.reads.constants.nbytes):
            times.cost_classes = classes  # else other functions' times, or the client's, stand for these
        return classes
