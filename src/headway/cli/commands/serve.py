"""``headway serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.command_groups import CommandGroup

GROUP = CommandGroup.DEPLOY


def serve(
    models: Annotated[list[Path] | None, typer.Argument(metavar="{MODEL}", help="Model folders.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="<path>", help="A serve.toml with models, limits and keys.")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            help="Address to listen on; may be repeated. '*' and '::': all addresses, of IPv4 and IPv6; unix:PATH: a "
            "Unix socket. Default: 127.0.0.1, which only this machine reaches.",
        ),
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port. Default: 5000.")] = None,
    unix_mode: Annotated[
        str | None,
        typer.Option("--unix-mode", help="Permissions of a Unix socket, in octal. Default: 600, only this user."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Worker processes. Default: one for each core.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="Device to compute on; the only choice is cpu.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only check the configuration.")] = False,
) -> None:
    """Serve models over HTTP: translation for many users at once.

    Requests of all users share batches. Clients of LibreTranslate work unchanged; the service's own API is
    /api/v1. SIGTERM or Ctrl-C ends the service when its accepted requests are answered, and SIGHUP loads the models
    again, without losing a request.
    """
    from headway import kernels
    from headway.errors import ConfigError
    from headway.serve.config import ServeConfig, model_name, read_config

    given = [{"path": str(path)} for path in models or ()]

    def read() -> ServeConfig:
        overrides = {"host": host, "port": port, "unix_mode": unix_mode, "workers": workers, "device": device}
        return read_config(config, {"models": given, **overrides})

    settings = read()
    if check:
        origin, reason = config or "the options", kernels.unavailable_reason()
        in_int8 = [model_name(model) for model in settings.models if model.precision == "int8"]
        if reason is not None and in_int8:
            raise ConfigError(
                f"{origin}: precision int8 of {', '.join(in_int8)} cannot run: {reason}; use 'auto', 'bfloat16' or "
                "'float32'"
            )
        print(f"{origin}: correct; {len(settings.models)} models")
        if reason is not None and any(model.precision == "auto" for model in settings.models):
            print(f"models compute in bfloat16 or float32 ({reason})")
        return
    from headway.serve.run import run

    run(settings, config, read)
