# SPDX-License-Identifier: Apache-2.0
"""What `run` and `exec` share: settings, logging, the real clock, and the loop.

It does not know what the daemon does.
"""

from __future__ import annotations

import asyncio
import os
import sys

import click

from spotwatch import logs
from spotwatch.cli._options import Options, load_settings
from spotwatch.config_print import print_config
from spotwatch.errors import ConfigError
from spotwatch.sdnotify import make_notifier


def start(options: Options, *, argv: tuple[str, ...] = (), stays: bool = False) -> None:
    """Run the daemon as the options say, and exit with its code.

    Raises:
        ConfigError: the configuration, or a second daemon on the same directory.
    """
    try:
        _serve(options, argv=argv, stays=stays)
    except ConfigError as error:
        # Kept by systemd until the next start, for `systemctl status` and `spotwatch check`.
        make_notifier(os.environ).status(f"refused: {error}")
        raise


def _serve(options: Options, *, argv: tuple[str, ...], stays: bool) -> None:
    loaded = load_settings(options, has_child=bool(argv))
    if options.print_config:
        click.echo(print_config(loaded), nl=False)
        return
    logs.set_up_logging(format=loaded.settings.log.format, level=loaded.settings.log.level)
    for warning in loaded.warnings:
        logs.get_logger().warning("configuration", problem=warning)
    # Imported late: `--print-config` and a refused configuration need none of it.
    from spotwatch.clock import SystemClock  # noqa: PLC0415
    from spotwatch.daemon import Options as RunOptions  # noqa: PLC0415
    from spotwatch.daemon import serve  # noqa: PLC0415
    from spotwatch.open_files import with_room  # noqa: PLC0415

    run_options = RunOptions(
        is_dry_run=options.dry_run,
        is_once=options.once,
        exits_with_trainer=options.exit_with_trainer,
        command=argv,
        stays=stays,
    )
    sys.exit(asyncio.run(with_room(serve(loaded.settings, run_options, SystemClock()))))
