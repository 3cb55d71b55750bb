// Who asks, one request, and the stream of answers. The password goes along in a header that only this page's own script
// sets, and the browser is told to send nothing by itself: another site's page can cause no request of the user's.

const KEY = "multiqueue.session";
let session = JSON.parse(sessionStorage.getItem(KEY) ?? "null"); // ends with the tab

export class Failed extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

export const user = () => session?.user ?? null;

let known = { tags: [], rights: {} };

// What the broker says of the user: its tags, and what it may do in each virtual host.
export function know(found) {
  known = found;
}

// Whether the user has all of these tags and rights: rights in the virtual host, or in some.
export function may(needs, vhost) {
  const has = (need) => known.tags.includes(need) || (need === "policymaker" && known.tags.includes("administrator"));
  const rights = needs.filter((need) => ["configure", "write", "read"].includes(need));
  const hosts = vhost === undefined ? Object.keys(known.rights) : [vhost];
  if (!needs.every((need) => rights.includes(need) || has(need))) return false;
  return !rights.length || hosts.some((host) => rights.every((right) => known.rights[host]?.includes(right)));
}

export function signIn(name, password) {
  const bytes = new TextEncoder().encode(`${name}:${password}`);
  session = { user: name, authorization: `Basic ${btoa(String.fromCharCode(...bytes))}` };
}

export function keepSession() {
  sessionStorage.setItem(KEY, JSON.stringify(session));
}

export function signOut() {
  session = null;
  sessionStorage.removeItem(KEY);
}

function ask(path, options = {}) {
  const headers = { ...options.headers, authorization: session?.authorization ?? "" };
  return fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
}

// An error of the API as people read it: `403 ACCESS_REFUSED - access to ...`, `vhost_or_user_not_found`.
function sentence(reason) {
  const text = String(reason).replace(/^(\d{3} )?[A-Z_]+ - /, "");
  const words = /^[a-z]+(_[a-z]+)+$/.test(text) ? text.replaceAll("_", " ") : text;
  return words[0].toUpperCase() + words.slice(1) + (/[.!?]$/.test(words) ? "" : ".");
}

export async function request(method, path, body) {
  const options = { method };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "content-type": "application/json" };
  }
  let reply;
  try {
    reply = await ask(path, options);
  } catch {
    throw new Failed(0, "The broker does not answer.");
  }
  const text = await reply.text();
  const content = text && reply.headers.get("content-type")?.startsWith("application/json") ? JSON.parse(text) : null;
  if (!reply.ok) throw new Failed(reply.status, sentence(content?.reason || `${reply.status} ${reply.statusText}`));
  return content;
}

export const get = (path) => request("GET", path);

// A path of the API from its parts; each is one segment, whatever signs stand in it.
export const path = (...parts) => `/api/${parts.map(encodeURIComponent).join("/")}`;

// Look at paths until the function that is returned is called: `answer(number, content)` when the answer to a look has
// changed, `state("live" | "lost" | "out")`. A hidden page does not look.
export function watch(looks, answer, state) {
  let stopped = false;
  let controller = null;
  let wake = () => {};

  async function once() {
    controller = new AbortController();
    const query = looks.map((look) => `look=${encodeURIComponent(look)}`).join("&");
    const reply = await ask(`/api/events?${query}`, { signal: controller.signal });
    if (reply.status === 401) return "out";
    if (!reply.ok) throw new Failed(reply.status, reply.statusText);
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return "lost";
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const [, name, data] = /^event: (.*)\ndata: ([^]*)$/.exec(event) ?? [];
        if (stopped) return "stopped";
        if (name === "end") return "out";
        if (name === "tick") state("live", JSON.parse(data).at);
        else if (name !== undefined) answer(Number(name), JSON.parse(data));
      }
    }
  }

  async function run() {
    let pause = 500;
    while (!stopped) {
      let end = "lost";
      const began = Date.now();
      if (!document.hidden) {
        try {
          end = await once();
        } catch {
          end = "lost";
        }
        if (stopped) return;
        if (end === "out") return state("out");
        if (!document.hidden) state("lost");
      }
      pause = Date.now() - began > 5000 ? 500 : Math.min(pause * 2, 10000);
      await new Promise((resolve) => {
        wake = resolve;
        if (!document.hidden) setTimeout(resolve, pause);
      });
    }
  }

  function visibility() {
    if (document.hidden) controller?.abort();
    else wake();
  }

  document.addEventListener("visibilitychange", visibility);
  run();
  return () => {
    stopped = true;
    document.removeEventListener("visibilitychange", visibility);
    controller?.abort();
    wake();
  };
}
