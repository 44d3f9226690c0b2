"""`kaas keys`: the clients that a server accepts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from kaas.wire.key_files import OwnKeys

app = typer.Typer(no_args_is_help=True, help=__doc__)
console = Console(soft_wrap=True, emoji=False)

FOLDER = Path("keys")

Name = Annotated[str, typer.Argument(help="of the client")]
KnownFolder = Annotated[Path, typer.Option(exists=True, file_okay=False, help="of the server's keys")]
Secret = Annotated[Path | None, typer.Option(dir_okay=False, help="the client's own file; else NAME.toml")]


@app.command()
def new(
    name: Name,
    folder: Annotated[Path, typer.Option(file_okay=False, help="of the server's keys; made if need be")] = FOLDER,
    to: Secret = None,
) -> None:
    """Add a client: write its public key to the server's folder, and its secret key to a file for the client.

    A running server accepts the client within a second.
    """
    from kaas.server.clients.keys import new_client

    secret_file = to or Path(f"{name}.toml")
    _print_secret(secret_file, new_client(folder, name, secret_file))


def _print_secret(secret_file: Path, own: OwnKeys) -> None:
    console.print(f"{escape(str(secret_file))} is for {escape(own.name)} only")
    console.print(f"the server's public key, which it has in it: {own.server_key}", highlight=False, markup=False)


@app.command("list")
def list_(
    folder: KnownFolder = FOLDER, json: Annotated[bool, typer.Option("--json", help="everything, for programs")] = False
) -> None:
    """Show the clients that a server accepts, the revoked clients, and files that are not valid keys."""
    import msgspec

    from kaas.server.clients.revoking import keys_of_folder

    clients, wrong, revoked = keys_of_folder(folder)
    if json:
        listing = {"clients": clients, "revoked": revoked, "wrong": [error.message for error in wrong]}
        print(msgspec.json.encode(listing).decode())
        return
    table = Table("client", "public key", "administrator", "quotas", "revoked")
    for client in clients:
        quotas = {name: value for name, value in msgspec.structs.asdict(client.quotas).items() if value is not None}
        limits = ", ".join(f"{name} {value:g}" for name, value in quotas.items())
        table.add_row(escape(client.name), escape(client.public_key), "yes" if client.administrator else "", limits, "")
    for each in revoked:
        revoked_at = f"{each.revoked}, purged" if each.purge else each.revoked
        table.add_row(escape(each.name), escape(each.public_key), "", "", revoked_at)
    Console(width=max(console.width, 140), emoji=False).print(table)
    for error in wrong:
        console.print(f"[red]lets no client in:[/] {escape(error.message)}")


@app.command()
def revoke(
    name: Name,
    folder: KnownFolder = FOLDER,
    purge: Annotated[bool, typer.Option("--purge", help="also remove the client's data at the server")] = False,
) -> None:
    """Revoke a client. A running server disconnects it within a second."""
    from kaas.server.clients.revoking import revoke as revoked

    revoked(folder, name, purge=purge)
    left = "is removed, by the server that runs or when it starts" if purge else "stays until the name is given again"
    console.print(f"{escape(name)} is let in no more; what it has at the server {left}")


@app.command()
def rotate(name: Name, folder: KnownFolder = FOLDER, to: Secret = None) -> None:
    """Give a client a new pair of keys. It keeps its data at the server, and its old key is refused."""
    from kaas.server.clients.revoking import rotate as rotated

    secret_file = to or Path(f"{name}.toml")
    _print_secret(secret_file, rotated(folder, name, secret_file))
