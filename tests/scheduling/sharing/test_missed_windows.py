"""Windows that a share has missed: a promise that was broken, and is not made good."""

from __future__ import annotations

from kaas.scheduling.sharing.rectangles import DeviceExtent
from kaas.scheduling.sharing.tokens import OTHERS, Tokens, TokenScheduler

WINDOW_S = 0.1


def scheduler(**leasts: float) -> TokenScheduler:
    made = TokenScheduler(DeviceExtent(8), WINDOW_S)
    for share, least in leasts.items():
        made.give(share, 1.0, least, 1.0)
    return made


def alternate(
    shares: TokenScheduler, waiting: tuple[str, ...], run_s: float, until_s: float, at_s: float = 0.0
) -> None:
    """Let shares that always have two requests run them one after the other."""
    number, wanted = 0, dict.fromkeys(waiting, run_s)
    while at_s < until_s:
        grant = shares.next(wanted, at_s)
        assert grant is not None
        shares.begin(number, grant, at_s, run_s)
        shares.next(wanted, at_s)
        at_s += run_s
        shares.end(number, at_s)
        number += 1
    shares.next(wanted, at_s)


def test_shares_that_have_their_least_miss_no_window() -> None:
    shares = scheduler(f=0.3, g=0.7)
    alternate(shares, ("f", "g", OTHERS), 0.004, 10.0)
    assert not shares.missed


def test_a_share_beside_requests_as_long_as_a_window_gets_what_it_lacks_in_the_next_ones() -> None:
    shares = scheduler(f=0.2, g=0.7)
    alternate(shares, ("f", "g"), 0.09, 10.0)
    assert not shares.missed


def test_a_share_misses_each_window_but_one_in_which_its_device_runs_nothing() -> None:
    shares = scheduler(f=0.5)
    shares.next({"f": 0.01}, 0.0)
    shares.next({"f": 0.01}, 1.0)
    assert shares.missed == {"f": 9}


def test_a_share_gets_back_the_time_of_a_long_request_of_others() -> None:
    shares = scheduler(f=0.5)
    shares.next({"f": 0.01, OTHERS: 1.0}, 0.0)
    shares.begin(0, Tokens(OTHERS, 8), 0.0, 1.0)
    shares.next({"f": 0.01}, 0.0)
    shares.end(0, 1.0)
    shares.next({"f": 0.01}, 1.0)
    assert not shares.missed
    assert shares.used_s("f", 1.0) == -0.5


def test_leasts_beyond_a_device_are_missed() -> None:
    shares = scheduler(f=0.9, g=0.9)
    alternate(shares, ("f", "g"), 0.01, 10.0)
    assert min(shares.missed["f"], shares.missed["g"]) > 80


def test_a_share_without_requests_misses_nothing_and_is_owed_nothing() -> None:
    shares = scheduler(f=0.5, g=0.5)
    for number, at_s in enumerate((0.0, 5.0, 10.03)):
        grant = shares.next({"f": 0.01}, at_s)
        assert grant == Tokens("f", 8)
        shares.begin(number, grant, at_s, 0.01)
        shares.end(number, at_s + 0.01)  # nothing waits, and nothing is asked
    assert not shares.missed
    assert shares.used_s("f", 10.05) >= 0
