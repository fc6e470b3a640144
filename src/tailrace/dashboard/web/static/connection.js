// Talking to the dashboard: JSON with the token, and the stream of server-sent events.
// EventSource cannot send the header that carries the token, so the stream is read with fetch.

const KEY = "tailrace-token";
let token = null;
try {
  token = sessionStorage.getItem(KEY);
} catch {
  // It is asked for again in the next tab.
}

export const hasToken = () => Boolean(token);

export function setToken(value) {
  token = value || null;
  try {
    if (token) sessionStorage.setItem(KEY, token);
    else sessionStorage.removeItem(KEY);
  } catch {
    // It holds until the page is left.
  }
}

const headers = () => (token ? { Authorization: `Bearer ${token}` } : {});

/** An answer that is an error, with its code and hint. */
export class Refused extends Error {
  constructor(status, body) {
    super(body.message || `HTTP ${status}`);
    this.status = status;
    this.hint = body.hint || "";
  }
}

export async function ask(path, body = undefined) {
  const options = { headers: headers(), cache: "no-store" };
  if (body !== undefined) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(path, options);
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, found);
  return found;
}

/** Follow the stream for ever: `on` has a function for each kind of message, and `opened`, `lost` and `refused`. */
export async function follow(on) {
  let pause = 500;
  for (;;) {
    try {
      const answer = await fetch("/api/stream", { headers: headers(), cache: "no-store" });
      if (answer.status === 401) {
        on.refused();
        await on.tokenGiven();
        continue;
      }
      if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => ({})));
      on.opened();
      pause = 500;
      await read(answer.body, on);
    } catch (error) {
      on.lost(error);
    }
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(8000, pause * 2);
  }
}

async function read(body, on) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await withTimeout(reader.read(), 30000);
      if (done) throw new Error("the dashboard ended the connection");
      const messages = (rest + value).split("\n\n");
      rest = messages.pop();
      for (const message of messages) take(message, on);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function take(message, on) {
  const event = /^event: (.*)$/m.exec(message)?.[1];
  const data = /^data: (.*)$/m.exec(message)?.[1];
  if (event && data) on[event]?.(JSON.parse(data));
}

function withTimeout(promise, milliseconds) {
  let timer;
  const late = new Promise((_, fail) => {
    timer = setTimeout(() => fail(new Error("nothing came for 30 s")), milliseconds);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}
