"""`kaas code`: which code a server takes from remote clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from kaas import CompiledModel, KTask, Library, model_file
from kaas.images import ELF, FATBIN

app = typer.Typer(no_args_is_help=True, help=__doc__)
console = Console(soft_wrap=True, emoji=False)

SIGNER, SIGNATURES = Path("signer.pem"), Path("signatures.json")
Files = Annotated[
    list[Path],
    typer.Argument(
        exists=True, dir_okay=False, help="code images (.ptx, .cubin, .fatbin), kTasks (.json), models (.kaas)"
    ),
]


@app.command()
def signer(
    file: Annotated[Path, typer.Argument(dir_okay=False, help="of the key, which is to be kept secret")] = SIGNER,
) -> None:
    """Make a key that signs code; servers that trust it take that code from any client."""
    from kaas.remote.signing import new_signer

    public = new_signer(file)
    console.print(f"{escape(str(file))} signs code: keep it")
    console.print("servers that trust it have in their configuration:", highlight=False)
    console.print(f"code: {{signers: [{public.hex()}]}}", highlight=False, markup=False)


@app.command()
def sign(
    files: Files,
    key: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="of the signer")] = SIGNER,
    to: Annotated[Path, typer.Option(dir_okay=False, help="signatures, beside those that are there")] = SIGNATURES,
) -> None:
    """Sign the libraries of these files, for clients to send along."""
    from kaas.remote.signing import sign as signature
    from kaas.remote.signing import signer as opened
    from kaas.remote.signing import write_signatures

    own = opened(key)
    hashes = [library.hash for file in files for library in _libraries(file)]
    write_signatures(to, {library: signature(own, library) for library in hashes})
    console.print(f"{escape(str(to))} has the signatures of {len(set(hashes))} libraries")


@app.command()
def hashes(files: Files) -> None:
    """The hashes of the libraries of these files, for a server's `code: {hashes: [...]}`."""
    for file in files:
        for library in _libraries(file):
            console.print(f"{library.hash}  {file}", highlight=False, markup=False)


def _libraries(file: Path) -> tuple[Library, ...]:
    if model_file.is_model(file):
        variants = CompiledModel.load(file).variants
        return tuple(dict.fromkeys(library for variant in variants for library in variant.task.libraries))
    data = file.read_bytes()
    if data.startswith((ELF, FATBIN)) or not data.lstrip().startswith(b"{"):
        return (Library.from_file(file),)
    return KTask.from_json(data).libraries
