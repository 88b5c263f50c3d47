# SPDX-License-Identifier: Apache-2.0
"""S3's requests, answered from one bucket: which deed a request asks for, and how S3 words the answer.

It copies nothing and lists without a delimiter only; a request beyond what is written here gets a 501.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from email.utils import formatdate
from urllib.parse import quote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from _sink_bucket import Blob, Bucket, Item, Refused
from _sink_wire import Request, Wire

_PAGE_KEYS = 1000
_WORDS = ("uploadId", "uploads", "list-type", "delete")
_XML = {"Content-Type": "application/xml"}


class S3:
    """Answers requests.

    Args:
        keep: bulk, so that it can be read back; else only its size is known afterwards.
    """

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._bucket = Bucket()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._deeds: dict[str, Callable[[Wire, Request, Blob], None]] = {
            "PUT bucket": _fine,
            "HEAD bucket": _fine,
            "GET list-type bucket": self._list,
            "GET uploads bucket": self._list_uploads,
            "POST delete bucket": self._delete_many,
            "PUT": self._put,
            "PUT uploadId": self._part,
            "POST uploads": self._begin,
            "POST uploadId": self._complete,
            "DELETE": self._delete,
            "DELETE uploadId": self._abort,
            "HEAD": self._head,
            "GET": self._get,
        }

    def answer(self, wire: Wire, request: Request) -> None:
        """Take the body of `request` and answer it."""
        blob = Blob(request.body_bytes or 0, keep=self._keep)
        # Always taken, also from a request that is then refused: the connection goes on.
        if request.body_bytes is None:
            wire.receive(request, None)
        else:
            blob.receive(wire, request)
        try:
            self._deed(request)(wire, request, blob)
        except Refused as refused:
            text = f"<Error><Code>{refused.code}</Code><Message>{escape(refused.message)}</Message></Error>"
            wire.answer(refused.status, _XML, b"" if request.method == "HEAD" else text.encode())

    def counts(self) -> dict[str, int]:
        """Return how often each deed was asked for."""
        with self._lock:
            return dict(self._counts)

    def latest_put_at(self) -> dict[str, float]:
        """Return when (monotonic seconds) each object named LATEST was put."""
        return {key: item.put_at for key, item in self._bucket.listing("") if key.endswith("/LATEST")}

    def _deed(self, request: Request) -> Callable[[Wire, Request, Blob], None]:
        words = [request.method, *(word for word in _WORDS if word in request.query)]
        deed = " ".join(words if request.key else [*words, "bucket"])
        with self._lock:
            self._counts[deed] += 1
        if request.body_bytes is None:
            raise Refused(411, "MissingContentLength", "say how many bytes the body has")
        if deed not in self._deeds or {"x-amz-copy-source", "?delimiter"} & _marks(request):
            raise Refused(501, "NotImplemented", f"the sink does not know this {deed}")
        return self._deeds[deed]

    def _list(self, wire: Wire, request: Request, _: Blob) -> None:
        query = request.query
        start = query.get("continuation-token") or query.get("start-after", "")
        cut = len(request.bucket) + 1
        found = self._bucket.listing(f"{request.bucket}/{query.get('prefix', '')}")
        rows = [(key[cut:], item) for key, item in found if key[cut:] > start]
        most = min(int(query.get("max-keys", _PAGE_KEYS)), _PAGE_KEYS)
        page, is_cut = rows[:most], len(rows) > most
        as_url = query.get("encoding-type") == "url"
        xml = [f"<Name>{request.bucket}</Name><KeyCount>{len(page)}</KeyCount><MaxKeys>{most}</MaxKeys>"]
        xml += ["<EncodingType>url</EncodingType>"] * as_url
        xml += [f"<IsTruncated>{'true' if is_cut else 'false'}</IsTruncated>"]
        if is_cut:
            xml += [f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>"]
        xml += [
            f"<Contents><Key>{quote(key) if as_url else escape(key)}</Key><Size>{item.size_bytes}</Size>"
            f"<ETag>{escape(item.etag)}</ETag><LastModified>1970-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, item in page
        ]
        _told(wire, "ListBucketResult", "".join(xml))

    def _list_uploads(self, wire: Wire, request: Request, _: Blob) -> None:
        cut = len(request.bucket) + 1
        found = self._bucket.uploads(f"{request.bucket}/{request.query.get('prefix', '')}")
        rows = "".join(
            f"<Upload><Key>{escape(key[cut:])}</Key><UploadId>{number}</UploadId></Upload>"
            for key, number in found
        )
        _told(wire, "ListMultipartUploadsResult", f"<IsTruncated>false</IsTruncated>{rows}")

    def _delete_many(self, wire: Wire, request: Request, blob: Blob) -> None:
        keys = [node.text or "" for node in ET.fromstring(blob.small).iter() if node.tag.endswith("Key")]
        for key in keys:
            self._bucket.delete(f"{request.bucket}/{key}")
        _told(wire, "DeleteResult", "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys))

    def _put(self, wire: Wire, request: Request, blob: Blob) -> None:
        wire.answer(200, {"ETag": self._bucket.put(request.name, [blob], request.headers).etag})

    def _part(self, wire: Wire, request: Request, blob: Blob) -> None:
        number = int(request.query["partNumber"])
        wire.answer(200, {"ETag": self._bucket.part(request.query["uploadId"], number, blob)})

    def _begin(self, wire: Wire, request: Request, _: Blob) -> None:
        number = self._bucket.begin(request.name)
        _told(wire, "InitiateMultipartUploadResult", f"{_which(request)}<UploadId>{number}</UploadId>")

    def _complete(self, wire: Wire, request: Request, blob: Blob) -> None:
        item = self._bucket.complete(request.query["uploadId"], blob.small, request.headers)
        _told(wire, "CompleteMultipartUploadResult", f"{_which(request)}<ETag>{escape(item.etag)}</ETag>")

    def _delete(self, wire: Wire, request: Request, _: Blob) -> None:
        self._bucket.delete(request.name)
        wire.answer(204, {})

    def _abort(self, wire: Wire, request: Request, _: Blob) -> None:
        self._bucket.abort(request.query["uploadId"])
        wire.answer(204, {})

    def _head(self, wire: Wire, request: Request, _: Blob) -> None:
        item = self._bucket.get(request.name)
        wire.answer(200, _known(item), length=item.size_bytes)

    def _get(self, wire: Wire, request: Request, _: Blob) -> None:
        item = self._bucket.get(request.name)
        size = item.size_bytes
        begin, end = 0, size
        if told := request.headers.get("range", ""):
            first, _dash, last = told.removeprefix("bytes=").partition("-")
            begin = int(first) if first else max(size - int(last), 0)
            end = min(int(last) + 1, size) if first and last else size
            if begin >= end:
                raise Refused(416, "InvalidRange", f"no bytes {told} in an object of {size}")
        pieces = list(item.pieces(begin, end))
        part = {"Content-Range": f"bytes {begin}-{end - 1}/{size}"} if told else {}
        wire.answer(206 if told else 200, _known(item) | part, length=end - begin)
        for source, first_byte, end_byte in pieces:
            wire.send(source, first_byte, end_byte)


def _fine(wire: Wire, _: Request, __: Blob) -> None:
    wire.answer(200, {})


def _marks(request: Request) -> set[str]:
    return {*request.headers, *(f"?{name}" for name, value in request.query.items() if value)}


def _which(request: Request) -> str:
    return f"<Bucket>{request.bucket}</Bucket><Key>{escape(request.key)}</Key>"


def _known(item: Item) -> dict[str, str]:
    return {"ETag": item.etag, "Last-Modified": formatdate(0, usegmt=True), "Accept-Ranges": "bytes"}


def _told(wire: Wire, root: str, inside: str) -> None:
    text = f'<?xml version="1.0" encoding="UTF-8"?><{root} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    wire.answer(200, _XML, f"{text}{inside}</{root}>".encode())
