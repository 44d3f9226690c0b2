"""`python -m ...compiler.fuzz [--images 10000] [--seed 0] [--keep FOLDER]`: bad images until all are through."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from softgpu.tests.compiler.fuzz.campaign import campaign


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "softgpu-fuzz")
    chosen = parser.parse_args()
    chosen.keep.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        findings, outcomes = campaign(chosen.seed, chosen.images, Path(folder))
        for finding in findings:
            kept = chosen.keep / f"{finding.seed}-{finding.number}.image"
            kept.write_bytes((Path(folder) / kept.name).read_bytes())
            print(f"{finding}\n  {kept}")
    taken = time.monotonic() - start
    listed = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    print(f"{chosen.images} bad images, seed {chosen.seed}, {taken:.0f} s: {listed}; {len(findings)} findings")
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
