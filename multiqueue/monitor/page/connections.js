// Connections and channels: who is there, how much flows, and closing one.

import { may, path, user } from "./api.js";
import { bytes, count, duration, h, table } from "./dom.js";
import { button } from "./forms.js";
import { paged } from "./paged.js";

const STATES = {
  blocked: "blocked: an alarm is raised, and this client publishes",
  blocking: "an alarm is raised: its next publish blocks it",
  flow: "throttled: a queue has no room for what it publishes",
};
const flow = (row, name) => `${bytes(row[`${name}_details`]?.rate ?? 0)}/s`;

// A button that closes a connection, for its user and for administrators.
const close = (row) => (row.user === user() || may(["administrator"])) && button("closeConnection", "Close…", { name: row.name }, { name: `Close ${row.name}`, title: `Close the connection of ${row.user} at ${row.peer_host}:${row.peer_port}?` });

const product = ({ client_properties: told }) => [told.connection_name, told.product, told.version].filter(Boolean).join(" ");

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
    { title: "", cell: (row) => close(row) || "" },
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
  const bar = h("div", { class: "bar" });

  function connection(found) {
    gone.hidden = !found.error;
    if (found.error) return bar.replaceChildren();
    if (!bar.firstChild) bar.append(close(found) || "");
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
    return facts.replaceChildren(...Object.entries(rows).flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]));
  }

  return {
    title: name,
    looks: [path("connections", name), path("connections", name, "channels")],
    node: h("div", {}, h("h1", {}, name), gone, bar,
      h("section", { class: "card" }, h("h2", {}, "Facts"), facts), h("section", { class: "card" }, h("h2", {}, "Channels"), channels.node)),
    answer: (number, found) => (number === 0 ? connection(found) : channels.show(Array.isArray(found) ? found : [])),
  };
}
