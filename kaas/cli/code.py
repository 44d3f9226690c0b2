"""`kaas code`: the code that a server accepts from remote clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from kaas import CompiledModel, KTask, Library
from kaas.cli.files import writable
from kaas.errors import InvalidRequest
from kaas.ktask.images import ELF, FATBIN
from kaas.models import model_file

app = typer.Typer(no_args_is_help=True, help=__doc__)
console = Console(soft_wrap=True, emoji=False)

SIGNER, SIGNATURES = Path("signer.pem"), Path("signatures.json")
Files = Annotated[
    list[Path],
    typer.Argument(
        exists=True,
        dir_okay=False,
        help="kTasks (.json), models (.kaas); `libraries` takes code images too",
    ),
]


@app.command()
def signer(
    file: Annotated[Path, typer.Argument(dir_okay=False, help="of the key; keep it secret")] = SIGNER,
) -> None:
    """Make a key that signs code. Servers that trust the key accept the signed code from any client."""
    from kaas.wire.signing import new_signer

    public = new_signer(file)
    console.print(f"{escape(str(file))} signs code: keep it")
    console.print("servers that trust it have in their configuration:", highlight=False)
    console.print(f"code: {{signers: [{public.hex()}]}}", highlight=False, markup=False)


@app.command()
def sign(
    files: Files,
    key: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="of the signer")] = SIGNER,
    to: Annotated[
        Path, typer.Option(dir_okay=False, callback=writable, help="file to which the signatures are added")
    ] = SIGNATURES,
) -> None:
    """Sign the kTasks of these files. Clients send the signatures to servers."""
    from kaas.wire.signing import sign as signature
    from kaas.wire.signing import signer as opened
    from kaas.wire.signing import write_signatures

    own = opened(key)
    keys = [task.key for file in files for task in _tasks(file)]
    write_signatures(to, {task_key: signature(own, task_key) for task_key in keys})
    console.print(f"{escape(str(to))} has the signatures of {len(set(keys))} kTasks")


@app.command()
def hashes(files: Files) -> None:
    """Print the keys of the kTasks of these files, for a server's `code: {hashes: [...]}`."""
    for file in files:
        for task in _tasks(file):
            console.print(f"{task.key}  {file}", highlight=False, markup=False)


@app.command()
def libraries(files: Files) -> None:
    """Print the hashes of the libraries of these files, for a server's `code: {libraries: [...]}`.

    Clients then choose the launch parameters of the kernels, and so the memory that the kernels reach.
    """
    for file in files:
        found = [Library.from_file(file)] if _is_image(file) else [each for t in _tasks(file) for each in t.libraries]
        for library in dict.fromkeys(found):
            console.print(f"{library.hash}  {file}", highlight=False, markup=False)


def _is_image(file: Path) -> bool:
    if model_file.is_model(file):
        return False
    data = file.read_bytes()
    return data.startswith((ELF, FATBIN)) or not data.lstrip().startswith(b"{")


def _tasks(file: Path) -> list[KTask]:
    if model_file.is_model(file):
        return [variant.task for variant in CompiledModel.load(file).variants]
    if _is_image(file):
        raise InvalidRequest(
            f"{file} is a code image and no kTask: it has no launch parameters of its kernels. Give the kTask, "
            "as `task.to_json()` writes it, or a model; `kaas code libraries` prints the hash of an image's library"
        )
    return [KTask.from_json(file.read_bytes())]
