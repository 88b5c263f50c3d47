# SPDX-License-Identifier: Apache-2.0
"""`spotwatch mail post`: one mail from standard input to a webhook, signed; for a mail server's pipe.

It does not read the mail. A mail server tries again only after exit status 75 (sysexits(3); Postfix,
pipe(8)): so that is what everything gets that an operator or time can mend, and the mail waits in the queue
meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

import click
import requests

from spotwatch.cli._addresses import address_of, checked_url
from spotwatch.cli._options import Options, peek
from spotwatch.clock import SystemClock
from spotwatch.config_layers import DEFAULT_PATH
from spotwatch.config_secrets import locate_secret, read_secret
from spotwatch.errors import ConfigError
from spotwatch.mail.model import MAX_MAIL_BYTES
from spotwatch.masking import escape, mask_url
from spotwatch.webhook_guard import is_loopback
from spotwatch.webhooks import parse_secret, signed_headers

DEFAULT_LISTEN = "127.0.0.1:9476"
PATH = "/webhook/digitalocean/standard"
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 15.0
"""Longer than the listener grants a request."""
_FROM_LINE = b"From "
# For good: nothing that is tried again later makes another mail of it.
_PERMANENT = frozenset({400, 406, 413, 422})
_MEND = {
    401: "the secret is not the receiver's, or the two clocks are more than five minutes apart",
    404: "nobody hears mail there: see webhook.listen and the path",
    413: "the mail is larger than the receiver takes",
}


class _Failed(Exception):
    """The mail was not taken.

    Args:
        status: what the mail server is told, of sysexits(3).
        why: for its log.
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@click.command(name="post")
@click.option(
    "--url",
    metavar="URL",
    help=f"The receiver.  [default: webhook.listen of the configuration, else {DEFAULT_LISTEN}, and {PATH}]",
)
@click.option(
    "--secret-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A whsec_ secret of the receiver.  [default: the configuration's first]",
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Read this TOML file instead of {DEFAULT_PATH}.",
)
@click.pass_context
def command(context: click.Context, url: str | None, secret_file: Path | None, config: Path | None) -> None:
    """Post the mail on standard input, for a mail server's pipe.

    \b
    Postfix, master.cf, one line:
      spotwatch unix - n n - - pipe flags=R user=spotpipe
        argv=/usr/local/bin/spotwatch mail post --secret-file /etc/spotwatch/pipe-secret
    By hand:
      spotwatch mail post --secret-file ./secret --url https://HOST/webhook/digitalocean/standard < a.eml

    Exits 0 when the mail was taken, 75 when it may be tried again (no answer, refused, wrong secret, wrong
    configuration), 65 when no repetition would help: no mail, or larger than the receiver takes.
    """  # noqa: D301 - click wants the character, not the two letters
    try:
        raw = _read_mail()
        target = checked_url(_find_url(config) if url is None else url, f"http://{DEFAULT_LISTEN}{PATH}")
        answer = _post(target, _read_secret(secret_file, config), raw)
    except click.UsageError:
        raise
    except ConfigError as error:
        status, lines = os.EX_TEMPFAIL, list(error.problems)
    except _Failed as failed:
        status, lines = failed.status, [str(failed)]
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - any other exit gives the mail back
        status, lines = os.EX_TEMPFAIL, [f"not posted, {type(error).__name__}: {escape(str(error))}"]
    else:
        _say(f"{mask_url(target)} answers {answer}")
        return
    for line in lines:
        _say(f"spotwatch: {line}", err=True)
    context.exit(status)


def _say(line: str, *, err: bool = False) -> None:
    """Print a line, if anybody takes it: what becomes of the mail does not depend on that."""
    try:
        click.echo(line, err=err)
    except OSError:
        stream = sys.stderr if err else sys.stdout
        with contextlib.suppress(OSError):
            # Else Python tries once more at its end, and exits with 120.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _read_mail() -> bytes:
    """Return the mail on standard input.

    Raises:
        UsageError: a person's keyboard is there instead.
        _Failed: there is none.
    """
    # The type says it is always there; started with a closed one, Python has none.
    if sys.stdin is None:
        raise _Failed(os.EX_TEMPFAIL, "standard input is closed, so there is no mail to post")
    if sys.stdin.isatty():
        raise click.UsageError("there is no mail; give it on standard input: spotwatch mail post < FILE.eml")
    raw = sys.stdin.buffer.read(2 * MAX_MAIL_BYTES)
    while sys.stdin.buffer.read(MAX_MAIL_BYTES):
        # To the end: a mail server may take a pipe that is closed early for a failure.
        pass
    if raw.startswith(_FROM_LINE):
        # The mark between two mails of an mbox, which pipes of procmail and Postfix's flag F keep.
        raw = raw.partition(b"\n")[2]
    if not raw.strip():
        raise _Failed(os.EX_DATAERR, "standard input is empty, so there is no mail to post")
    # One byte more than is read of it, by which the receiver knows that it is cut off: so it flushes.
    return raw[: MAX_MAIL_BYTES + 1]


def _find_url(config: Path | None) -> str:
    """Return the address of the daemon here.

    Raises:
        ConfigError: `webhook.listen` is no address.
    """
    options = Options(config=config)
    # One that is off is as good as none named: a relay with another configuration may be here.
    address = address_of(options, "webhook.listen", DEFAULT_LISTEN) or f"http://{DEFAULT_LISTEN}"
    return f"{address}{PATH}"


def _read_secret(path: Path | None, config: Path | None) -> bytes:
    """Return the key to sign with.

    Raises:
        ConfigError: it is missing, readable by others, or no `whsec_` secret.
    """
    if path is None:
        options = Options(config=config)
        by_value = peek(options, "webhook.secret")
        if by_value:
            return parse_secret(str(by_value))
        named = peek(options, "inbound.standard.secret_files") or peek(options, "webhook.secret_files")
        if not isinstance(named, list | tuple) or not named:
            raise ConfigError("no secret is configured here; name the receiver's with --secret-file")
        path = Path(str(named[0]))
    else:
        path = path.absolute()
    try:
        return parse_secret(read_secret(locate_secret(str(path), os.environ)))
    except ValueError as error:
        raise ConfigError(f"the secret file {error}") from error


def _post(url: str, secret: bytes, raw: bytes) -> int:
    """Send the mail once and return the status of a receiver that took it.

    Raises:
        _Failed: it did not.
    """
    # The same for each attempt with this mail, so that a second one is known for what it is.
    webhook_id = f"mail-{hashlib.sha256(raw).hexdigest()[:32]}"
    headers = signed_headers(secret, webhook_id, int(SystemClock().now().timestamp()), raw)
    with requests.Session() as session:
        host = urlsplit(url).hostname or ""
        # A proxy knows nothing of this machine's loopback.
        session.trust_env = not (host == "localhost" or is_loopback(host))
        try:
            with session.post(
                url,
                data=raw,
                headers={**headers, "content-type": "message/rfc822"},
                timeout=(CONNECT_SECONDS, ANSWER_SECONDS),
                allow_redirects=False,
                stream=True,
            ) as reply:
                status = reply.status_code
        except (requests.RequestException, OSError, UnicodeError) as error:
            raise _Failed(
                os.EX_TEMPFAIL, f"{mask_url(url)} does not answer ({type(error).__name__})"
            ) from error
    if requests.codes.ok <= status < requests.codes.multiple_choices:
        return status
    why = f"{mask_url(url)} answers {status}"
    if status in _MEND:
        why += f": {_MEND[status]}"
    raise _Failed(os.EX_DATAERR if status in _PERMANENT else os.EX_TEMPFAIL, why)
