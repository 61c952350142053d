// Requests to the server: API key, error messages, event streams. The key stays in this tab.

let key = sessionStorage.getItem("api-key");
let asking = null, askForKey = null;
export const onKeyNeeded = (fn) => { askForKey = fn; };

// Asks the user for the key once, however many requests were rejected.
async function newKey(refused) {
  if (key !== refused) return;
  asking = asking || askForKey(refused !== null).finally(() => { asking = null; });
  const given = await asking;
  if (given === null) throw new Error("the server wants a key");
  if (/[^\x20-\x7e]/.test(given)) throw new Error("a key is of ASCII characters, which a header can carry");
  key = given;
  sessionStorage.setItem("api-key", key);
}

async function send(path, body, signal) {
  for (;;) {
    const used = key, headers = {};
    if (body) headers["Content-Type"] = "application/json";
    if (used !== null) headers.Authorization = `Bearer ${used}`;
    const reply = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
    if (reply.ok) return reply;
    if (reply.status === 401) {
      await newKey(used);
      continue;
    }
    const error = await reply.json().catch(() => null);
    throw new Error((error && error.message) || `${reply.status} ${reply.statusText}`);
  }
}

export const get = async (path) => (await send(path)).json();

// The events of a stream. A stream without its end marker is an error: a partial reply must not pass for a whole one.
export async function* events(path, body, signal) {
  const reader = (await send(path, body, signal)).body.getReader(), decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const blocks = (rest + (done ? decoder.decode() : decoder.decode(value, { stream: true }))).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (!block.startsWith("data: ")) continue; // a comment: keep-alive
      if (block === "data: [DONE]") return;
      const event = JSON.parse(block.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
    if (done) throw new Error("the stream broke off");
  }
}
