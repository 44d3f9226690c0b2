"""KaaS beside the systems that a user could take instead: `kaas bench peers`, kept as a benchmark's result.

    python -m benchmarks.peers [--json]

`make peers` installs the peers and runs this. Peers that are not installed are left out, and named.
"""

from __future__ import annotations

import sys

from kaas.cli.main import app

if __name__ == "__main__":
    app(["bench", "peers", *sys.argv[1:]])
