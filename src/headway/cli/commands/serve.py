"""``headway serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.command_groups import CommandGroup

GROUP = CommandGroup.DEPLOY


def serve(
    models: Annotated[list[Path] | None, typer.Argument(metavar="{MODEL}", help="Model folders, or hf:NAME.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="<path>", help="A serve.toml file with models, limits and keys.")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            help="Address to listen on; may be repeated. '*' and '::': all addresses, of IPv4 and IPv6; unix:PATH: a "
            "Unix socket. Default: 127.0.0.1, which only this machine can reach.",
        ),
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port. Default: 5000.")] = None,
    unix_mode: Annotated[
        str | None,
        typer.Option("--unix-mode", help="Permissions of a Unix socket, in octal. Default: 600 (only this user)."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Worker processes. Default: one for each core.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="Device to compute on; only cpu is supported.")] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Only check the configuration and everything else that the service needs to start."
        ),
    ] = False,
) -> None:
    """Serve models over HTTP: translation for many users at once.

    Requests of all users share batches. LibreTranslate clients work unchanged; the service's own API is /api/v1.
    SIGTERM or Ctrl-C ends the service after all accepted requests have been answered. SIGHUP reloads the models without
    losing a request.
    """
    from headway.serve.config import ServeConfig, read_config

    given_models = [{"path": str(path)} for path in models or ()]

    def read() -> ServeConfig:
        overrides = {"host": host, "port": port, "unix_mode": unix_mode, "workers": workers, "device": device}
        return read_config(config, {"models": given_models, **overrides})

    settings = read()
    if check:
        from headway.serve.check import check_configuration

        notes = check_configuration(settings)
        print(f"{config or 'the options'}: correct; {len(settings.models)} models")
        for note in notes:
            print(note)
        return
    from headway.serve.run import run

    run(settings, config, read)
