// SPDX-License-Identifier: Apache-2.0
// Posts each mail to spotwatch as it came, signed after Standard Webhooks 1.0.0. It reads, keeps and bounces none.

const MAX_BYTES = 256 * 1024; // what a receiver reads of a mail at most
const FINAL = [400, 406, 413, 422]; // no repetition makes another mail of it
const encoder = new TextEncoder();

async function sign(secret, id, at, body) {
  const bytes = Uint8Array.from(atob(secret.trim().replace(/^whsec_/, "")), (c) => c.charCodeAt(0));
  const key = await crypto.subtle.importKey("raw", bytes, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  const signed = new Uint8Array(await new Blob([encoder.encode(`${id}.${at}.`), body]).arrayBuffer());
  const signature = new Uint8Array(await crypto.subtle.sign("HMAC", key, signed));
  return "v1," + btoa(String.fromCharCode(...signature));
}

export default {
  // Whatever is thrown here is a temporary failure to the sender's mail server, which tries again.
  async email(message, env) {
    const raw = await new Response(message.raw).arrayBuffer();
    const body = raw.slice(0, MAX_BYTES + 1); // one byte more, by which the receiver knows that it is cut off
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", body)).slice(0, 16);
    const id = "mail-" + Array.from(digest, (b) => b.toString(16).padStart(2, "0")).join(""); // as each time
    const at = String(Math.floor(Date.now() / 1000));
    const reply = await fetch(env.URL, {
      method: "POST",
      body,
      redirect: "manual",
      signal: AbortSignal.timeout(15_000),
      headers: {
        "content-type": "message/rfc822",
        "webhook-id": id,
        "webhook-timestamp": at,
        "webhook-signature": await sign(env.SECRET, id, at, body),
      },
    });
    if (FINAL.includes(reply.status)) return console.error(`${reply.status}: not taken, for good`);
    if (!reply.ok) throw new Error(`spotwatch answers ${reply.status}`);
  },
};
