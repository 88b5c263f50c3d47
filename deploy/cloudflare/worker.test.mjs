// SPDX-License-Identifier: Apache-2.0
// node --test deploy/cloudflare/worker.test.mjs: what the worker posts, and when it has the sender try again.
// That our own receiver takes it is tested in tests/mail/inbound/test_worker.py.

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { createServer } from "node:http";
import { afterEach, beforeEach, mock, test } from "node:test";

import worker from "./worker.mjs";

const KEY = Buffer.from(Array.from({ length: 32 }, (_, i) => i));
const SECRET = `whsec_${KEY.toString("base64")}`;
const MAIL = Buffer.concat([
  Buffer.from("From: a@example.com\r\nSubject: 8-bit\r\n\r\n"),
  Buffer.from(Array.from({ length: 256 }, (_, i) => i)),
]);

let server, url, heard, status;

beforeEach(async () => {
  heard = [];
  status = 202;
  server = createServer((request, response) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => {
      heard.push({ method: request.method, headers: request.headers, body: Buffer.concat(chunks) });
      response.writeHead(status, status === 307 ? { location: url } : {}).end();
    });
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  url = `http://127.0.0.1:${server.address().port}/webhook/digitalocean/standard`;
  mock.method(console, "error", () => {});
});

afterEach(async () => {
  mock.restoreAll();
  server.closeAllConnections();
  await new Promise((done) => server.close(done));
});

function message(raw, rawSize = raw.length) {
  const refuse = () => assert.fail("nothing is bounced or passed on");
  return { from: "a@x", to: "b@y", raw: new Blob([raw]).stream(), rawSize, setReject: refuse, forward: refuse };
}

const send = (raw = MAIL, env = {}) => worker.email(message(raw), { URL: url, SECRET, ...env });

test("a mail is posted byte for byte, and signed", async () => {
  await send();
  const [{ method, headers, body }] = heard;
  assert.equal(method, "POST");
  assert.deepEqual(body, MAIL);
  assert.equal(headers["content-type"], "message/rfc822");
  const signed = Buffer.concat([Buffer.from(`${headers["webhook-id"]}.${headers["webhook-timestamp"]}.`), MAIL]);
  assert.equal(headers["webhook-signature"], `v1,${createHmac("sha256", KEY).update(signed).digest("base64")}`);
  assert.ok(Math.abs(headers["webhook-timestamp"] - Date.now() / 1000) < 60);
});

test("a line end after the secret does not change it", async () => {
  await send(MAIL, { SECRET: `${SECRET}\n` });
  await send(MAIL);
  assert.equal(heard.length, 2);
});

test("a second attempt has the id of the first, another mail another", async () => {
  await send();
  await send();
  await send(Buffer.concat([MAIL, Buffer.from("x")]));
  const [first, second, third] = heard.map((h) => h.headers["webhook-id"]);
  assert.equal(first, second);
  assert.notEqual(first, third);
});

for (const code of [307, 401, 404, 408, 409, 429, 500, 503]) {
  test(`${code} has the sender try again`, async () => {
    status = code;
    await assert.rejects(send(), new RegExp(`answers ${code}`));
    assert.equal(heard.length, 1, "nothing is followed or repeated here");
  });
}

for (const code of [200, 202, 400, 406, 413, 422]) {
  test(`${code} is final`, async () => {
    status = code;
    await send();
    assert.equal(heard.length, 1);
  });
}

test("nobody there has the sender try again", async () => {
  await assert.rejects(send(MAIL, { URL: "http://127.0.0.1:1/" }));
});

test("a secret that is none has the sender try again", async () => {
  await assert.rejects(send(MAIL, { SECRET: "whsec_!" }));
  await assert.rejects(worker.email(message(MAIL), { URL: url }));
  assert.equal(heard.length, 0);
});

test("of a mail that is too large the beginning is posted, and one byte that says so", async () => {
  await send(Buffer.concat([MAIL, Buffer.alloc(3 * 256 * 1024, "x")]));
  assert.equal(heard[0].body.length, 256 * 1024 + 1);
  assert.deepEqual(heard[0].body.subarray(0, MAIL.length), MAIL);
});
