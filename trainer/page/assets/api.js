// Asking the program. One place knows whether it answers; a page that was left open goes on when it does again.

let failing = null;
const watchers = [];
export const onFailure = (fn) => watchers.push(fn);

function note(message) {
  if (message === failing) return;
  failing = message;
  for (const fn of watchers) fn(message);
}

export async function get(path, signal) {
  let reply;
  try {
    reply = await fetch("api/" + path, { signal });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    note("The program does not answer. This page shows what it last read and goes on when the program is back.");
    throw new Error("no answer");
  }
  note(null);
  const body = await reply.json().catch(() => null);
  if (!reply.ok) throw new Error((body && body.message) || `${reply.status} ${reply.statusText}`);
  return body;
}

export function query(params) {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(params)) if (v !== "" && v !== null && v !== undefined) q.set(k, v);
  const s = q.toString();
  return s ? "?" + s : "";
}
