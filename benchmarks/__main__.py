"""`python -m benchmarks`: runs every benchmark in its own process, shows all bars, and writes their page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.report import Bar, parser, print_table

_NOT_BENCHMARKS = {
    "__init__",
    "__main__",
    "attack",
    "heavy_attacks",
    "page",
    "policy_plots",
    "queueing",
    "remote_load",
    "report",
    "served",
    "slo_trace",
    "station",
    "taps",
    "tenants",
    "trends",
    "workloads",
}


def names(prefix: str = "") -> list[str]:
    """Return the benchmarks of this folder, files and packages with a main module.

    Those named gpu_* need a GPU and are listed only for that prefix.
    """
    here = Path(__file__).parent
    found = [path.stem for path in here.glob("*.py")] + [path.parent.name for path in here.glob("*/__main__.py")]
    stems = sorted(stem for stem in found if stem not in _NOT_BENCHMARKS)
    return [stem for stem in stems if stem.startswith(prefix or "gpu_") is bool(prefix)]


def run(name: str) -> dict[str, Any] | str:
    """Return a benchmark's report, or the reason why it reported nothing."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        last = (ended.stderr.strip() or ended.stdout.strip() or "no output").splitlines()[-1]
        return f"exit status {ended.returncode}: {last}"
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


def main() -> int:
    """Return exit status 1 if a benchmark failed to run; a missed bar is shown and does not change the status."""
    options = parser("Run every benchmark.")
    options.add_argument("names", nargs="*", help="run only these")
    given = options.parse_args()
    chosen = given.names or names()
    rows: list[tuple[str, str, Bar]] = []
    failures: dict[str, str] = {}
    for name in chosen:
        print(f"running {name} ...", file=sys.stderr, flush=True)
        where = page.machine()
        result = run(name)
        if isinstance(result, str):
            failures[name] = result
            continue
        page.keep(result, where)
        rows += [(name, bar, (value[0], value[1], value[2])) for bar, value in result["bars"].items()]
        if given.json:
            print(json.dumps(result), flush=True)
    page.main()
    if not given.json:
        print_table("benchmarks", rows)
    for name, reason in failures.items():
        print(f"{name} did not run: {reason}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
