// Client of the page's API. The one place that knows whether the program answers; an open page resumes when it does again.

let failing = null;
const watchers = [];
export const onFailure = (fn) => watchers.push(fn);

function note(message) {
  if (message === failing) return;
  failing = message;
  for (const fn of watchers) fn(message);
}

// The key for orders, from the address that the run prints. Kept in this tab, not in the address or its history.
const inAddress = /^#key=([0-9a-f]+)$/.exec(location.hash);
if (inAddress) {
  sessionStorage.setItem("key", inAddress[1]);
  history.replaceState(null, "", location.pathname + location.search);
}
export const mayOrder = () => sessionStorage.getItem("key") !== null;
export const order = (word) => get("runs/0/order", undefined, { method: "POST", body: JSON.stringify({ order: word }), headers: { Authorization: `Bearer ${sessionStorage.getItem("key")}` } });

export async function get(path, signal, more) {
  let reply;
  try {
    reply = await fetch("api/" + path, { signal, ...more });
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
