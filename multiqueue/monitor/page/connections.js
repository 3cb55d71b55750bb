// Connections and channels: who is there, how much flows, and closing one.

import { path, request } from "./api.js";
import { bytes, count, duration, h, question, say, setText, table } from "./dom.js";

const PAGE = 100;
const STATES = {
  blocked: "blocked: an alarm is raised, and this client publishes",
  blocking: "an alarm is raised: its next publish blocks it",
  flow: "throttled: a queue has no room for what it publishes",
};
const flow = (row, name) => `${bytes(row[`${name}_details`]?.rate ?? 0)}/s`;

async function close(row) {
  const sure = await question("Close the connection?", `${row.user} at ${row.peer_host}:${row.peer_port}. Its channels end; messages that it holds go back to their queues.`, "Close it");
  if (!sure) return;
  try {
    await request("DELETE", path("connections", row.name));
    say("The connection is closed.");
  } catch (error) {
    say(error.message, true);
  }
}

const product = ({ client_properties: told }) => [told.connection_name, told.product, told.version].filter(Boolean).join(" ");

// A table of pages that the API makes: filter, sort, turn over.
function paged(title, base, columns, key, open) {
  const asked = { page: 1, name: "", sort: "name", reverse: false };
  const list = table(title, columns, key, {
    sort: () => asked.sort,
    reverse: () => asked.reverse,
    choose(sort) {
      asked.reverse = asked.sort === sort && !asked.reverse;
      asked.sort = sort;
      again(1);
    },
  });
  const where = h("span", { class: "note" });
  const back = h("button", { type: "button", onclick: () => again(asked.page - 1), "aria-label": "Previous page" }, "‹");
  const next = h("button", { type: "button", onclick: () => again(asked.page + 1), "aria-label": "Next page" }, "›");
  const filter = h("input", { type: "search", class: "grow", placeholder: "part of a name", "aria-label": `${title} whose name has`, onchange: () => {
    asked.name = filter.value;
    again(1);
  } });
  const looks = () => [`${base}?${new URLSearchParams({ page: asked.page, page_size: PAGE, name: asked.name, use_regex: false, sort: asked.sort, sort_reverse: asked.reverse })}`];

  function again(page) {
    asked.page = page;
    open(looks());
  }

  return {
    title,
    looks: looks(),
    node: h("div", {}, h("h1", {}, title), h("div", { class: "bar" }, filter, back, where, next), h("section", { class: "card" }, list.node)),
    answer(number, found) {
      if (found.error) return found.error === "page_out_of_range" ? again(1) : say(found.reason, true);
      list.show(found.items);
      setText(where, `${count(found.filtered_count)} in all`);
      back.disabled = found.page <= 1;
      next.disabled = found.page >= found.page_count;
      return undefined;
    },
  };
}

export function connectionsPage(parts, open) {
  return paged("Connections", "/api/connections", [
    { title: "Name", name: true, sort: "name", cell: (row) => h("span", {}, h("a", { href: `#/connection/${encodeURIComponent(row.name)}` }, row.name),
      row.user_provided_name && h("span", { class: "tag narrow" }, row.user_provided_name),
      row.state !== "running" && h("span", { class: "tag warn narrow" }, row.state)) },
    { title: "User", sort: "user", cell: (row) => row.user },
    { title: "Client", wide: true, cell: product },
    { title: "State", wide: true, sort: "state", cell: (row) => row.state },
    { title: "Channels", number: true, wide: true, sort: "channels", cell: (row) => count(row.channels) },
    { title: "In", number: true, wide: true, sort: "recv_oct_details.rate", cell: (row) => flow(row, "recv_oct") },
    { title: "Out", number: true, wide: true, sort: "send_oct_details.rate", cell: (row) => flow(row, "send_oct") },
    { title: "", cell: (row) => h("button", { type: "button", class: "danger", "data-act": "", "aria-label": `Close ${row.name}`, onclick: () => close(row) }, "Close…") },
  ], (row) => row.name, open);
}

const channelColumns = [
  { title: "Name", name: true, sort: "name", cell: (row) => h("a", { href: `#/connection/${encodeURIComponent(row.connection_details.name)}` }, row.name) },
  { title: "User", wide: true, sort: "user", cell: (row) => row.user },
  { title: "Mode", wide: true, cell: (row) => (row.transactional ? "transactions" : row.confirm ? "confirms" : "plain") },
  { title: "Consumers", number: true, wide: true, sort: "consumer_count", cell: (row) => count(row.consumer_count) },
  { title: "Prefetch", number: true, wide: true, sort: "prefetch_count", cell: (row) => row.prefetch_count || "none" },
  { title: "Unacked", number: true, sort: "messages_unacknowledged", cell: (row) => count(row.messages_unacknowledged) },
  { title: "Unconfirmed", number: true, wide: true, sort: "messages_unconfirmed", cell: (row) => count(row.messages_unconfirmed) },
  { title: "Delivered", number: true, cell: (row) => `${count(row.message_stats.deliver_get_details.rate)}/s` },
];

export const channelsPage = (parts, open) => paged("Channels", "/api/channels", channelColumns, (row) => row.name, open);

export function connectionPage([name]) {
  const facts = h("dl", { class: "facts" });
  const gone = h("p", { class: "bad", role: "alert", hidden: true }, "This connection has ended.");
  const channels = table("Channels of the connection", channelColumns.map(({ sort, ...column }) => column), (row) => row.name);
  let latest = null;
  const button = h("button", { type: "button", class: "danger", onclick: () => latest && close(latest) }, "Close…");

  function connection(found) {
    gone.hidden = !found.error;
    button.disabled = Boolean(found.error);
    if (found.error) return;
    latest = found;
    const rows = {
      client: product(found) || "unknown",
      user: `${found.user}, virtual host ${found.vhost}`,
      from: `${found.peer_host}:${found.peer_port}, ${found.ssl ? "TLS" : "no TLS"}, ${found.auth_mechanism}`,
      state: STATES[found.state] ?? found.state,
      "longest without an ack": found.oldest_unacknowledged_since ? duration(Math.max(0, Date.now() - found.oldest_unacknowledged_since) / 1000) : "none",
      "connected for": duration(Date.now() / 1000 - found.connected_at / 1000),
      received: `${bytes(found.recv_oct)}, ${flow(found, "recv_oct")}`,
      sent: `${bytes(found.send_oct)}, ${flow(found, "send_oct")}`,
      heartbeat: `${found.timeout} s`,
    };
    facts.replaceChildren(...Object.entries(rows).flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]));
  }

  return {
    title: name,
    looks: [path("connections", name), path("connections", name, "channels")],
    node: h("div", {}, h("h1", {}, name), gone, h("div", { class: "bar" }, button),
      h("section", { class: "card" }, h("h2", {}, "Facts"), facts), h("section", { class: "card" }, h("h2", {}, "Channels"), channels.node)),
    answer: (number, found) => (number === 0 ? connection(found) : channels.show(Array.isArray(found) ? found : [])),
  };
}
