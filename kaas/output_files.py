"""Files that a user names for results: only a regular file is written, through links, and whole."""

from __future__ import annotations

import os
from pathlib import Path
from secrets import token_hex

from kaas.errors import InvalidRequest


def output_file(file: Path) -> Path:
    """Return the file that is written under a name: that of a link is the file to which the link leads.

    Raises:
        InvalidRequest: the name is that of a device, a fifo, a folder, or a link to one.
    """
    real = Path(os.path.realpath(file))
    if (file.exists() and not file.is_file()) or real.is_symlink():  # the second: a link in a loop
        raise InvalidRequest(f"cannot write {file}: it is not a regular file")
    return real


def write_whole(file: Path, data: bytes) -> None:
    """Write a file, or leave it as it was.

    Raises:
        InvalidRequest: it is no file that `output_file` takes.
        OSError, with the file's name
    """
    real = output_file(file)
    beside = real.with_name(f"{real.name}.{token_hex(8)}")
    try:
        beside.write_bytes(data)
        beside.replace(real)
    except OSError as error:
        beside.unlink(missing_ok=True)  # it is this call's own: no file had this name
        raise OSError(error.errno, os.strerror(error.errno or 0), str(file)) from error
