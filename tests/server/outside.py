"""A program in another network than the server's, for `tests/server/clients/test_namespace.py`.

    python -m tests.server.outside ADDRESS KEYS FUNCTION INPUTS CONSTANTS OUTPUT

FUNCTION is a model's .kaas file or a kTask's JSON; the others are .npz files.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import kaas


def arrays(path: str) -> dict[str, np.ndarray[Any, Any]]:
    with np.load(path) as stored:
        return dict(stored)


def main() -> None:
    address, keys, function, inputs, constants, output = sys.argv[1:]
    with kaas.Client(address, keys=keys) as client:
        if function.endswith(".kaas"):
            registered = client.register(kaas.load(function), name="model")
        else:
            task = kaas.KTask.from_json(Path(function).read_text())
            registered = client.register(task, arrays(constants), name="task")
        np.savez(output, answer=client.call(registered, arrays(inputs)).result())
    loaded = {name.partition(".")[0] for name in sys.modules}
    assert not loaded & {"ray", "cuda"}, "a client needs neither"


if __name__ == "__main__":
    main()
