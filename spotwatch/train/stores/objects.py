# SPDX-License-Identifier: Apache-2.0
"""Google Cloud Storage (gs://) and Azure Blob Storage (az://) as checkpoint stores, wholly through obstore.

Credentials are found by obstore in the environment or from the machine (`GOOGLE_APPLICATION_CREDENTIALS`,
`AZURE_STORAGE_ACCOUNT_NAME` with a key, a token or a managed identity) and never logged. What was run: az://
on Azurite 3 (2026-11-29), gs:// on a stand-in of its XML interface; neither on the clouds themselves.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import SplitResult

from spotwatch.errors import CheckpointCorrupt, ConfigError, StoreConflict, StoreError, StoreMissing
from spotwatch.train import attendance
from spotwatch.train.parts import Body
from spotwatch.train.store import Entry, OnPart
from spotwatch.train.stores import object_moves
from spotwatch.train.stores.acked import Acked
from spotwatch.train.stores.pacing import Pace
from spotwatch.train.stores.probe import NotConditional, probe

_REQUEST_SECONDS = 180
_AZURE_NAMES = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR")


def open_object(parts: SplitResult, run_id: str, environ: Mapping[str, str], pace: Pace) -> ObjectStore:
    """Return the store of one run below a gs:// or az:// URL.

    Args:
        parts: of the URL: the scheme, the bucket or container, the prefix.
        run_id: becomes the last part of the root.
        environ: read for what is missing; obstore itself reads the environment of the process.
        pace: of all uploads.

    Raises:
        ConfigError: a variable is missing, or one that obstore read is of no use.
    """
    if parts.scheme == "az" and not any(environ.get(name) for name in _AZURE_NAMES):
        raise ConfigError(f"{_AZURE_NAMES[0]} is not set; az:// needs it")
    prefix = "/".join(part for part in (parts.path.strip("/"), run_id) if part)
    make = partial(_opened, parts.scheme, parts.netloc, environ, _REQUEST_SECONDS)
    sender = partial(_opened, parts.scheme, parts.netloc, environ, object_moves.PART_SECONDS)
    return ObjectStore(make, prefix, f"{parts.scheme}://{parts.netloc}", pace, make_sender=sender)


def _opened(scheme: str, bucket: str, environ: Mapping[str, str], request_seconds: float) -> Any:
    from obstore.store import AzureStore, GCSStore  # noqa: PLC0415 - an extra

    endpoint = environ.get("GOOGLE_BASE_URL" if scheme == "gs" else "AZURE_STORAGE_ENDPOINT", "")
    options: Any = {
        "client_options": {
            "connect_timeout": timedelta(seconds=5),
            "timeout": timedelta(seconds=request_seconds),
            # An emulator has no TLS; no cloud is without.
            "allow_http": endpoint.startswith("http:"),
        },
        "retry_config": {"max_retries": 8, "retry_timeout": timedelta(seconds=request_seconds)},
    }
    try:
        return GCSStore(bucket, **options) if scheme == "gs" else AzureStore(bucket, **options)
    except Exception as error:
        text = object_moves.first_line(error)
        raise ConfigError(f"{scheme}://{bucket}: {text}; check the credentials") from error


class ObjectStore:
    """Keeps each object under `prefix` in one of obstore's stores.

    Args:
        make: makes one of obstore's stores; called at once, and again after `close`.
        prefix: without slashes at its ends.
        place: how the URL shown to people begins.
        pace: of uploads; None: no limit.
        make_sender: makes one for uploads, with time for a part on a slow link; None: the same one serves.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        prefix: str,
        place: str,
        pace: Pace | None = None,
        *,
        make_sender: Callable[[], Any] | None = None,
    ) -> None:
        self._make = make
        self._made: Any = make()
        self._make_sender = make_sender or (lambda: self._store)
        self._sender: tuple[Any, Acked] | None = None
        self._prefix = prefix
        self._place = place
        self._pace = pace or Pace(None)
        self._lock = threading.Lock()
        self._is_conditional: bool | None = None

    @property
    def url(self) -> str:
        """Return the root, as given."""
        return f"{self._place}/{self._prefix}"

    @property
    def is_conditional(self) -> bool:
        """Tell whether the store enforces `put_if`."""
        with self._lock:
            if self._is_conditional is None:
                self._is_conditional = probe(self)
            return self._is_conditional

    def put(self, key: str, body: bytes) -> None:
        """Store `body`."""
        self._put(key, body, "overwrite")

    def put_if(self, key: str, body: bytes, version: str | None) -> str:
        """Store `body` if the object is still that version, and return the new one."""
        import obstore  # noqa: PLC0415 - an extra

        refused = obstore.exceptions
        try:
            return _version(self._put(key, body, "create" if version is None else json.loads(version)))
        except StoreError as error:
            if isinstance(error.__cause__, refused.NotSupportedError | NotImplementedError):
                raise NotConditional(str(error)) from error
            conflicts = (refused.AlreadyExistsError, refused.PreconditionError)
            if not isinstance(error, StoreMissing) and not isinstance(error.__cause__, conflicts):
                raise
            # It may be our own earlier try, whose answer was lost, that now stands in the way.
            found = self._found(key, len(body))
            if found is not None and found[0] == body:
                return found[1]
            raise StoreConflict(f"{self._at(key)} was written by another") from error

    def get(self, key: str, *, most_bytes: int) -> bytes:
        """Return the whole object."""
        return self.read(key, most_bytes=most_bytes)[0]

    def read(self, key: str, *, most_bytes: int) -> tuple[bytes, str]:
        """Return the whole object and its version."""
        import obstore  # noqa: PLC0415 - an extra

        try:
            answer = obstore.get(self._store, self._key(key))
            meta = answer.meta
            if meta["size"] > most_bytes:
                raise CheckpointCorrupt(f"{self._at(key)} has more than {most_bytes} bytes")
            return bytes(answer.bytes()), _version(meta)
        except StoreError:
            raise
        except Exception as error:
            raise object_moves.told(error, "read", self._at(key)) from error

    def prepare(self, size_bytes: int) -> None:
        """Do nothing: obstore is there within milliseconds."""

    def upload(self, key: str, body: Body, on_part: OnPart) -> tuple[str, ...]:
        """Store a large body in parts and compare the size that the store reports."""
        place = self._at(key)
        full = self._key(key)
        # Counted from before its first connection.
        self._sender = sender, acked = self._sender or (self._make_sender(), Acked())
        crcs = object_moves.send(sender, full, body, on_part, self._pace, place, acked)
        size = self.size_bytes(key)
        if size != body.size_bytes:
            self.delete(key)
            raise StoreError(
                f"{place} has {size} bytes after {body.size_bytes} were sent; it is removed, save again"
            )
        return crcs

    def read_into(self, key: str, begin: int, target: memoryview) -> None:
        """Fill `target` by a Range request."""
        object_moves.read_into(self._store, self._key(key), begin, target, self._at(key))

    def size_bytes(self, key: str) -> int:
        """Return the size that the store reports."""
        import obstore  # noqa: PLC0415 - an extra

        try:
            return int(obstore.head(self._store, self._key(key))["size"])
        except Exception as error:
            raise object_moves.told(error, "read", self._at(key)) from error

    def list(self) -> Iterator[Entry]:
        """Yield every object below the root, page by page."""
        import obstore  # noqa: PLC0415 - an extra

        root = self._key("")
        try:
            for page in obstore.list(self._store, prefix=self._prefix):
                for meta in page:
                    yield Entry(meta["path"].removeprefix(root), int(meta["size"]))
        except GeneratorExit:
            raise
        except Exception as error:
            raise object_moves.told(error, "list", self.url) from error

    def delete(self, key: str) -> None:
        """Remove the object."""
        import obstore  # noqa: PLC0415 - an extra

        try:
            obstore.delete(self._store, self._key(key))
        except FileNotFoundError:
            return
        except Exception as error:
            raise object_moves.told(error, "delete", self._at(key)) from error

    def abort_uploads(self) -> int:
        """Remove nothing and return 0: obstore lists no broken uploads.

        Azure drops blocks that were never committed after a week; for gs:// a lifecycle rule
        (AbortIncompleteMultipartUpload) does.
        """
        return 0

    def close(self) -> None:
        """Let the connections go; obstore's two threads serve the whole process, and stay."""
        self._made = self._sender = None

    @property
    def _store(self) -> Any:
        # Two threads may both make one: the second serves as well.
        store = self._made
        if store is None:
            store = self._made = self._make()
        return store

    def _found(self, key: str, size_bytes: int) -> tuple[bytes, str] | None:
        try:
            return self.read(key, most_bytes=size_bytes)
        except (StoreMissing, CheckpointCorrupt):
            return None

    def _put(self, key: str, body: bytes, mode: Any) -> Any:
        import obstore  # noqa: PLC0415 - an extra

        try:
            return obstore.put(self._store, self._key(key), body, mode=mode, use_multipart=False)
        except Exception as error:
            raise object_moves.told(error, "write", self._at(key)) from error

    def _key(self, key: str) -> str:
        attendance.expect_wanted()  # each request begins with it
        if not object_moves.is_usable():
            raise StoreError(
                f"{self.url}: obstore was used before this process was forked, and would hang; "
                "start processes by spawn or forkserver"
            )
        return f"{self._prefix}/{key}"

    def _at(self, key: str) -> str:
        return f"{self.url}/{key}"


def _version(meta: Mapping[str, Any]) -> str:
    # obstore wants both back: Azure compares the tag, Google the generation.
    return json.dumps({name: meta[name] for name in ("e_tag", "version") if meta.get(name)})
