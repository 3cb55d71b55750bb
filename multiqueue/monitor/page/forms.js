// What can be done from the page: one table, and the one renderer that makes a form, or a button with its question, of a
// row. The fields are those of the API's own description: a form asks for what its request is checked by.

import { get, may, request } from "./api.js";
import { h, say, setText } from "./dom.js";

const QUEUE = "/api/queues/{vhost}/{queue}";
const EXCHANGE = "/api/exchanges/{vhost}/{exchange}";
const TENANT = `${QUEUE}/tenants/{tenant}`;
const BINDING = "/api/bindings/{vhost}/e/{exchange}";
const PERMISSIONS = "/api/permissions/{vhost}/{user}";
const TOPICS = "/api/topic-permissions/{vhost}/{user}";
const POLICY = { values: { "apply-to": "all" }, labels: { name: "Name", pattern: "Pattern of names", definition: "Settings" }, hints: { definition: "message-ttl = 60000\nmax-length = 1000" } };
const USER = { request: "PUT /api/users/{user}", needs: ["administrator"], only: ["password", "tags"], instead: { password: ["password_hash", "hashing_algorithm"] },
  hints: { tags: "monitoring" }, values: { tags: "" }, done: ({ user }) => `User ${user} is saved.` };
const PATTERNS = { hints: { configure: ".*", write: ".*", read: ".*" } };
const NO_NAME = "(no name)"; // the tenant whose name is empty
const count = (number) => `${number} ${number === 1 ? "message" : "messages"}`;

// `request`: method and path. `needs`: rights in the virtual host, or a tag; somebody who may `read` alone looks, and sees
// no form, though the API lets it take and purge. `only`: the fields of the body where those are not all. `labels`,
// `kinds`, `hints`, `choices`, `values`: of fields by name, where the description does not suffice. `text`: what a
// question says. `instead`: what is not sent where a field is filled. `done`: the sentence afterwards, of the values and the answer.
export const FORMS = {
  declareQueue: { title: () => "Declare a queue", deed: "Declare", request: `PUT ${QUEUE}`, needs: ["configure"],
    hints: { arguments: "x-queue-type = quorum\nx-message-ttl = 60000" }, values: { durable: true }, done: ({ queue }) => `Queue ${queue} is declared.` },
  deleteQueue: { title: ({ queue }) => `Delete ${queue}?`, text: "The queue, its messages and its bindings are deleted.", deed: "Delete", request: `DELETE ${QUEUE}`, needs: ["configure"],
    done: ({ queue }) => `Queue ${queue} is deleted.` },
  purgeQueue: { title: ({ queue }) => `Purge ${queue}?`, text: "All messages that are ready are deleted. Those that consumers hold stay.", deed: "Purge", request: `DELETE ${QUEUE}/contents`, needs: ["read", "write"],
    done: () => "The queue is purged." },
  moveMessages: { title: ({ queue }) => `Move messages of ${queue}`, text: "Messages that are ready go to the end of another queue, in their order.", deed: "Move", request: `POST ${QUEUE}/move`, needs: ["read", "write"],
    labels: { to: "To the queue", count: "How many (empty: all)" }, done: ({ to }, { moved }) => `${count(moved)} moved to ${to}.` },
  getMessages: { title: () => "Get messages", deed: "Get", request: `POST ${QUEUE}/get`, needs: ["read", "write"],
    labels: { count: "How many", ackmode: "What becomes of them", encoding: "Payloads as", truncate: "Bytes of each (empty: all)" },
    choices: { ackmode: { ack_requeue_true: "put back", ack_requeue_false: "taken", reject_requeue_true: "rejected, and put back", reject_requeue_false: "rejected: dead letters" } },
    values: { count: 1 }, done: (values, found) => (found.length ? `${count(found.length)} below.` : "No message is ready.") },
  pauseTenant: { title: ({ tenant }) => `Pause ${tenant || NO_NAME}?`, deed: "Set", request: `PUT ${TENANT}`, needs: ["configure"], only: ["paused"], kinds: { paused: "boolean" },
    done: ({ tenant, paused }) => `${tenant || NO_NAME} ${paused ? "is paused" : "goes on"}.` },
  weighTenant: { title: ({ tenant }) => `Weight of ${tenant || NO_NAME}`, text: "Its share beside others: with 2 it is served twice as much as a tenant with 1.", deed: "Set", request: `PUT ${TENANT}`, needs: ["configure"],
    only: ["weight"], kinds: { weight: "number" }, done: ({ tenant, weight }) => `${tenant || NO_NAME} has the weight ${weight}.` },
  declareExchange: { title: () => "Declare an exchange", deed: "Declare", request: `PUT ${EXCHANGE}`, needs: ["configure"],
    hints: { arguments: "alternate-exchange = unrouted" }, values: { durable: true }, done: ({ exchange }) => `Exchange ${exchange} is declared.` },
  deleteExchange: { title: ({ exchange }) => `Delete ${exchange}?`, text: "The exchange and its bindings are deleted.", deed: "Delete", request: `DELETE ${EXCHANGE}`, needs: ["configure"],
    done: ({ exchange }) => `Exchange ${exchange} is deleted.` },
  publish: { title: () => "Publish a message", deed: "Publish", request: `POST ${EXCHANGE}/publish`, needs: ["write"],
    labels: { payload_encoding: "Payload is" }, choices: { payload_encoding: { string: "text", base64: "Base64" } }, kinds: { payload: "lines" }, hints: { properties: "content_type = text/plain\nheaders = {\"tenant\": \"acme\"}" },
    done: (values, { routed }) => (routed ? "The message is in a queue." : "No queue took the message.") },
  bindQueue: { title: () => "Bind a queue", deed: "Bind", request: `POST ${BINDING}/q/{queue}`, needs: ["write", "read"], labels: { exchange: "From the exchange" },
    done: ({ exchange, queue }) => `${exchange} leads to the queue ${queue}.` },
  bindExchange: { title: () => "Bind an exchange", deed: "Bind", request: `POST ${BINDING}/e/{destination}`, needs: ["write", "read"], labels: { destination: "To the exchange" },
    done: ({ exchange, destination }) => `${exchange} leads to the exchange ${destination}.` },
  unbindQueue: { title: ({ exchange, queue }) => `Unbind ${queue} from ${exchange}?`, text: "Messages take this way no more.", deed: "Unbind", request: `DELETE ${BINDING}/q/{queue}/{props}`, needs: ["write", "read"],
    done: () => "The binding is removed." },
  unbindExchange: { title: ({ exchange, destination }) => `Unbind ${destination} from ${exchange}?`, text: "Messages take this way no more.", deed: "Unbind", request: `DELETE ${BINDING}/e/{destination}/{props}`, needs: ["write", "read"],
    done: () => "The binding is removed." },
  closeConnection: { title: () => "Close the connection?", text: "Its channels end; messages that it holds go back to their queues.", deed: "Close it", request: "DELETE /api/connections/{name}", needs: [],
    done: () => "The connection is closed." },
  setPolicy: { title: () => "Set a policy", deed: "Set", request: "PUT /api/policies/{vhost}/{name}", needs: ["policymaker"], ...POLICY, done: ({ name }) => `Policy ${name} is set.` },
  deletePolicy: { title: ({ name }) => `Delete the policy ${name}?`, text: "Queues and exchanges that it governs follow the next one, or none.", deed: "Delete", request: "DELETE /api/policies/{vhost}/{name}", needs: ["policymaker"],
    done: ({ name }) => `Policy ${name} is deleted.` },
  setOperatorPolicy: { title: () => "Set an operator policy", deed: "Set", request: "PUT /api/operator-policies/{vhost}/{name}", needs: ["administrator"], ...POLICY, done: ({ name }) => `Operator policy ${name} is set.` },
  deleteOperatorPolicy: { title: ({ name }) => `Delete the operator policy ${name}?`, text: "Its bounds hold no more.", deed: "Delete", request: "DELETE /api/operator-policies/{vhost}/{name}", needs: ["administrator"],
    done: ({ name }) => `Operator policy ${name} is deleted.` },
  putUser: { title: () => "Add a user", text: "It takes the place of a user of this name.", deed: "Save", ...USER,
    labels: { password: "Password (empty: none)", tags: "Tags, with commas" } },
  changeUser: { title: ({ user }) => `Change the user ${user}`, deed: "Save", ...USER,
    labels: { password: "New password (empty: as before)", tags: "Tags, with commas" } },
  deleteUser: { title: ({ user }) => `Delete the user ${user}?`, text: "Connections that are open stay open.", deed: "Delete", request: "DELETE /api/users/{user}", needs: ["administrator"],
    done: ({ user }) => `User ${user} is deleted.` },
  putPermissions: { title: () => "Permit a user something", deed: "Permit", request: `PUT ${PERMISSIONS}`, needs: ["administrator"], ...PATTERNS, done: ({ user, vhost }) => `${user} has permissions in ${vhost}.` },
  deletePermissions: { title: ({ user, vhost }) => `Take the permissions of ${user} in ${vhost}?`, text: "The user can do nothing there.", deed: "Take", request: `DELETE ${PERMISSIONS}`, needs: ["administrator"],
    done: ({ user, vhost }) => `${user} has no permissions in ${vhost}.` },
  putTopics: { title: () => "Permit routing keys", deed: "Permit", request: `PUT ${TOPICS}`, needs: ["administrator"], ...PATTERNS, done: ({ user, exchange }) => `The routing keys of ${user} at ${exchange} are set.` },
  deleteTopics: { title: ({ user, vhost }) => `Take the topic permissions of ${user} in ${vhost}?`, text: "At all exchanges there; every routing key is then permitted.", deed: "Take", request: `DELETE ${TOPICS}`, needs: ["administrator"],
    done: ({ user, vhost }) => `${user} has no topic permissions in ${vhost}.` },
  putUserLimit: { title: () => "Limit a user", deed: "Set", request: "PUT /api/user-limits/{user}/{limit}", needs: ["administrator"], kinds: { value: "number" }, choices: { limit: ["max-connections", "max-channels"] },
    done: ({ user, limit, value }) => `${limit} of ${user} is ${value}.` },
  deleteUserLimit: { title: ({ user, limit }) => `Remove ${limit} of ${user}?`, text: "The user has this limit no more.", deed: "Remove", request: "DELETE /api/user-limits/{user}/{limit}", needs: ["administrator"],
    done: () => "The limit is removed." },
  putHost: { title: () => "Make a virtual host", deed: "Make", request: "PUT /api/vhosts/{vhost}", needs: ["administrator"], kinds: { vhost: "text" }, done: ({ vhost }) => `Virtual host ${vhost} is there.` },
  deleteHost: { title: ({ vhost }) => `Delete the virtual host ${vhost}?`, text: "All queues, exchanges and messages in it are deleted, and its connections are closed.", deed: "Delete", request: "DELETE /api/vhosts/{vhost}", needs: ["administrator"],
    done: ({ vhost }) => `Virtual host ${vhost} is deleted.` },
  putHostLimit: { title: () => "Limit a virtual host", deed: "Set", request: "PUT /api/vhost-limits/{vhost}/{limit}", needs: ["administrator"], kinds: { value: "number" }, choices: { limit: ["max-queues", "max-connections"] },
    done: ({ vhost, limit, value }) => `${limit} of ${vhost} is ${value}.` },
  deleteHostLimit: { title: ({ vhost, limit }) => `Remove ${limit} of ${vhost}?`, text: "The virtual host has this limit no more.", deed: "Remove", request: "DELETE /api/vhost-limits/{vhost}/{limit}", needs: ["administrator"],
    done: () => "The limit is removed." },
};

// -- a value of a field, from text and back

function read(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

const isPlain = (text) => read(text) === text && text.trim() === text && !text.includes("\n");
const shown = (value) => (typeof value === "string" && isPlain(value) ? value : JSON.stringify(value));
const pairs = (choices) => (Array.isArray(choices) ? choices.map((each) => [each, each]) : Object.entries(choices));

function settings(text, label) {
  const pairs = text.split("\n").filter((line) => line.trim()).map((line) => {
    const [, name, value] = /^\s*([^=]*[^=\s])\s*=\s*(.*?)\s*$/.exec(line) ?? [];
    if (name === undefined) throw new Error(`${label}: “${line.trim()}” is not “name = value”.`);
    return [name, read(value)];
  });
  return Object.fromEntries(pairs);
}

const KINDS = {
  text: (value, hint) => h("input", { value: value ?? "", placeholder: hint }),
  password: (value) => h("input", { type: "password", autocomplete: "new-password", value: value ?? "" }),
  number: (value) => h("input", { type: "number", step: "any", value: value ?? "" }),
  integer: (value, hint, { minimum, maximum }) => h("input", { type: "number", min: minimum, max: maximum < Number.MAX_SAFE_INTEGER ? maximum : null, value: value ?? "" }),
  boolean: (value) => h("input", { type: "checkbox", checked: value === true }),
  lines: (value, hint) => h("textarea", { rows: 3, placeholder: hint }, value ?? ""),
  object: (value, hint) => h("textarea", { rows: 2, placeholder: hint, spellcheck: "false" }, Object.entries(value ?? {}).map(([name, each]) => `${name} = ${shown(each)}`).join("\n")),
  choice: (value, hint, { choices }) => h("select", {}, pairs(choices).map(([name, text]) => h("option", { value: name, selected: name === value }, text))),
};

function kindOf(name, schema, row) {
  if (row.kinds?.[name]) return row.kinds[name];
  if (schema.choices) return "choice";
  if (schema.format === "password") return "password";
  return schema.type in KINDS ? schema.type : "text";
}

function valueOf(input, kind, label, isRequired) {
  if (kind === "boolean") return input.checked;
  if (kind === "object") return settings(input.value, label);
  if (!input.value && !isRequired) return undefined;
  return kind === "number" || kind === "integer" ? Number(input.value) : input.value;
}

// -- the fields of a row

const named = (name) => (name === "vhost" ? "Virtual host" : name[0].toUpperCase() + name.slice(1).replaceAll(/[_-]/g, " "));
let described = null;
const variables = (path) => [...path.matchAll(/{(\w+)}/g)].map(([, name]) => name);

// The controls for what is not `given`; `values` stand in them at the start.
async function controlsOf(row, given, values) {
  described ??= get("/api/openapi.json");
  const api = await described.catch((error) => ((described = null), Promise.reject(error)));
  const [method, path] = row.request.split(" ");
  const body = api.paths[path][method.toLowerCase()].requestBody?.content["application/json"].schema ?? { properties: {}, required: [] };
  const hosts = "vhost" in given || row.kinds?.vhost ? [] : (await get("/api/vhosts?columns=name")).map((each) => each.name).filter((host) => may(row.needs, host));
  const asked = [
    ...variables(path).map((name) => [name, name === "vhost" && hosts.length ? { choices: hosts } : { maxLength: 255 }, true]),
    ...Object.entries(body.properties).filter(([name]) => row.only?.includes(name) ?? true).map(([name, schema]) => [name, schema, body.required.includes(name)]),
  ];
  return asked.filter(([name]) => !(name in given)).map(([name, schema, isRequired]) => {
    const label = row.labels?.[name] ?? named(name);
    const known = { ...schema, choices: row.choices?.[name] ?? schema.choices ?? schema.enum ?? schema.examples };
    const kind = kindOf(name, known, row);
    const input = KINDS[kind](values[name] ?? row.values?.[name], row.hints?.[name], known);
    const hint = kind === "object" ? " (name = value, one in a line)" : "";
    const isNeeded = isRequired && (variables(path).includes(name) || ["number", "integer"].includes(kind));
    for (const [attribute, value] of Object.entries({ name, "aria-label": label + hint, autocomplete: "off", required: isNeeded })) {
      if (value !== false && !input.hasAttribute(attribute)) input.setAttribute(attribute, value === true ? "" : value);
    }
    return { name, node: h("label", { class: kind === "boolean" ? "check" : kind }, h("span", {}, label, h("small", {}, hint)), input), value: () => valueOf(input, kind, label, isRequired), isOfBody: !variables(path).includes(name) };
  });
}

async function send(row, given, controls) {
  const [method, path] = row.request.split(" ");
  const values = { ...given };
  for (const each of controls) values[each.name] = each.value();
  for (const [name, others] of Object.entries(row.instead ?? {})) {
    if (values[name]) for (const each of others) delete values[each];
  }
  const to = path.replaceAll(/{(\w+)}/g, (_, name) => {
    if (values[name] === "." || values[name] === "..") throw new Error(`A browser cannot ask for the name “${values[name]}”: use the API.`);
    return encodeURIComponent(values[name]);
  });
  const body = Object.entries(values).filter(([name, value]) => value !== undefined && !variables(path).includes(name));
  const answer = await request(method, to, method === "DELETE" ? undefined : Object.fromEntries(body));
  return [values, answer];
}

// -- a form, a button

function formOf(key, given, controls, buttons, then) {
  const row = FORMS[key];
  const told = h("p", { class: "bad", role: "alert" });
  let isBusy = false;
  const isOf = given.user !== undefined && controls.some((each) => each.name === "password"); // so browsers know whose it is
  return h("form", { "data-form": key, onsubmit: async (event) => {
    event.preventDefault();
    if (isBusy) return;
    const form = event.currentTarget;
    setText(told, "");
    isBusy = true;
    try {
      const [values, answer] = await send(row, given, controls);
      form.reset();
      await then?.(values, answer);
      say(row.done(values, answer));
    } catch (error) {
      setText(told, error.message);
    }
    isBusy = false;
  } }, row.text && h("p", {}, row.text), isOf && h("input", { hidden: true, autocomplete: "username", value: given.user }), controls.map((each) => each.node), told, h("div", { class: "bar" }, buttons));
}

// A form that stands in the page, closed until somebody wants it; nothing where the user may not.
export function form(key, given = {}, then = null) {
  const row = FORMS[key];
  if (!may(row.needs, given.vhost)) return null;
  const content = h("div");
  return h("details", { class: "form", "data-deed": key, ontoggle: async (event) => {
    if (!event.currentTarget.open || content.firstChild) return;
    try {
      content.replaceChildren(formOf(key, given, await controlsOf(row, given, {}), h("button", { type: "submit", class: "first" }, row.deed), then));
      content.querySelector("input, select, textarea")?.focus();
    } catch (error) {
      say(error.message, true);
    }
  } }, h("summary", {}, row.title(given)), content);
}

// Do it at once, and say how it went.
export async function act(key, given, then = null) {
  try {
    const [values, answer] = await send(FORMS[key], given, []);
    await then?.(values, answer);
    say(FORMS[key].done(values, answer));
  } catch (error) {
    say(error.message, true);
  }
}

// Ask, with the fields that are not given, and do it when the answer is yes.
export async function ask(key, given, { values = {}, then = null, title = null, text = null } = {}) {
  const row = FORMS[key];
  const isDangerous = row.request.startsWith("DELETE");
  let controls;
  try {
    controls = isDangerous ? [] : await controlsOf(row, given, values);
  } catch (error) {
    return say(error.message, true);
  }
  const before = document.activeElement;
  const dialog = h("dialog", { "aria-labelledby": "asked", onclose: () => {
    dialog.remove();
    (before?.isConnected ? before : document.getElementById("main")).focus();
  } }, h("h2", { id: "asked" }, title ?? row.title(given)), text && h("p", {}, text), formOf(key, given, controls, [
    h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
    h("button", { type: "submit", class: isDangerous ? "danger" : "first" }, row.deed),
  ], async (...found) => (dialog.close(), then?.(...found))));
  document.body.append(dialog);
  dialog.showModal();
  return undefined;
}

// A button that asks; nothing where the user may not.
export function button(key, label, given, { name = null, ...more } = {}) {
  const row = FORMS[key];
  if (!may(row.needs, given.vhost)) return null;
  const isDangerous = row.request.startsWith("DELETE");
  return h("button", { type: "button", class: isDangerous ? "danger" : null, "data-act": "", "data-deed": key, "aria-label": name, onclick: () => ask(key, given, more) }, label);
}
