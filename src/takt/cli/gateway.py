"""`takt gateway` and `takt dlq`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from takt.cli.help import App
from takt.cli.options import with_options
from takt.errors import ConfigError
from takt.gateway.options import GatewayOptions, default_store_url

StoreOption = Annotated[
    str | None, typer.Option(help="Store of the gateway; its default if not given.")
]
VolatileOption = Annotated[
    bool, typer.Option("--store-volatile", help="Accept a Redis that may forget.")
]
KeyFileOption = Annotated[
    str | None, typer.Option(help="File of the keys that bodies were encrypted with.")
]
LettersArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="LETTER", show_default=False, help="Digest, or its beginning."),
]


def register(app: typer.Typer) -> None:
    """Adds the gateway's commands to `takt`."""
    app.command(name="gateway")(_gateway)
    dlq = App(help="Requests that the gateway gave up.")
    dlq.command(name="list")(_list)
    dlq.command(name="show")(_show)
    dlq.command(name="replay")(_replay)
    dlq.command(name="purge")(_purge)
    app.add_typer(dlq, name="dlq")


@with_options((GatewayOptions,))
def _gateway(**options: Any) -> None:
    """Stand before OpenAI-compatible servers and make retries safe."""
    from takt.gateway.serve import serve

    raise typer.Exit(serve(_options(options)))


def _list(
    store: StoreOption = None,
    store_volatile: VolatileOption = False,
    service: Annotated[str | None, typer.Option(help="Of this service only.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most letters to list.")] = 100,
) -> None:
    """List dead letters, the oldest first."""
    from takt.gateway.dead_letters import list_letters

    typer.echo(list_letters(store or default_store_url(), store_volatile, limit, service), nl=False)


def _show(
    letter: Annotated[str, typer.Argument(metavar="LETTER", help="Digest, or its beginning.")],
    store: StoreOption = None,
    store_volatile: VolatileOption = False,
    encryption_key_file: KeyFileOption = None,
    body: Annotated[bool, typer.Option("--body", help="Show the request's body too.")] = False,
) -> None:
    """Show a dead letter: cause, history and request."""
    from takt.gateway.dead_letters import show_letter

    url = store or default_store_url()
    typer.echo(show_letter(url, store_volatile, letter, encryption_key_file, body), nl=False)


@with_options((GatewayOptions,))
def _replay(
    letters: LettersArgument = None,
    all_letters: Annotated[
        bool, typer.Option("--all", help="Replay every dead letter, the oldest first.")
    ] = False,
    authorization_env: Annotated[
        str | None,
        typer.Option(help="Environment variable with the Authorization header to send."),
    ] = None,
    **options: Any,
) -> None:
    """Send dead letters again, under the gateway's own policy and store."""
    from takt.gateway.dead_letters import replay_letters

    if bool(letters) == all_letters:
        raise ConfigError("name the letters to replay, or pass --all")
    num_failed = replay_letters(_options(options), letters or [], authorization_env, typer.echo)
    raise typer.Exit(1 if num_failed else 0)


def _purge(
    letters: LettersArgument = None,
    all_letters: Annotated[bool, typer.Option("--all", help="Purge every dead letter.")] = False,
    store: StoreOption = None,
    store_volatile: VolatileOption = False,
) -> None:
    """Delete dead letters; their keys may be used anew."""
    from takt.gateway.dead_letters import purge_letters

    if bool(letters) == all_letters:
        raise ConfigError("name the letters to purge, or pass --all")
    num = purge_letters(store or default_store_url(), store_volatile, letters or [])
    typer.echo(f"purged {num}")


def _options(values: dict[str, Any]) -> GatewayOptions:
    read: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    return GatewayOptions(**read)
