// The list of queues, and one queue: figures, consumers, bindings, a look at its messages, and what can be done to it.

import { get, may, path } from "./api.js";
import { bytes, compact, count, duration, h, rate, say, setText, table } from "./dom.js";
import { FLOW_SAMPLES, Series, flow, spark } from "./draw.js";
import { ask, button, form } from "./forms.js";
import { tenantsCard } from "./tenants.js";

const PAGE = 50;
const OLD = 60; // seconds that a consumer may have a message before anybody is told
const SPAN = 120; // seconds of a sparkline
const COLUMNS = "name,vhost,type,arguments.x-queue-kind,state,durable,redelivering_since,oldest_unacknowledged_since,messages_ready,messages_unacknowledged,messages,consumers,"
  + "message_stats.publish_details.rate,message_stats.deliver_get_details.rate";
const link = (row) => `#/queue/${encodeURIComponent(row.vhost)}/${encodeURIComponent(row.name)}`;
const exchangeLink = (row) => `#/exchange/${encodeURIComponent(row.vhost)}/${encodeURIComponent(row.source || "amq.default")}`;
const speed = (row, name) => row.message_stats?.[`${name}_details`]?.rate ?? 0;

// What is wrong with a queue, in a few words each.
export function troubles(row, now) {
  const since = (at) => duration(Math.max(0, now - at / 1000));
  return [
    row.state === "flow" && "throttled",
    row.redelivering_since && `redelivers, ${since(row.redelivering_since)}`,
    row.oldest_unacknowledged_since && now - row.oldest_unacknowledged_since / 1000 >= OLD && `no ack, ${since(row.oldest_unacknowledged_since)}`,
  ].filter(Boolean);
}

function consumerState(row) {
  if (row.activity_status !== "up") return row.activity_status;
  return row.prefetch_count && row.messages_unacknowledged >= row.prefetch_count ? "at its prefetch" : "takes";
}

export function queuesPage(parts, open) {
  const asked = { page: 1, name: "", vhost: "", sort: "name", reverse: false };
  let depths = new Map(); // the series of the rows that are shown, no others
  let hosts = [];
  let latest = null;
  let now = 0; // by the broker's clock

  const order = {
    sort: () => asked.sort,
    reverse: () => asked.reverse,
    choose(sort) {
      asked.reverse = asked.sort === sort ? !asked.reverse : sort !== "name" && sort !== "vhost";
      asked.sort = sort;
      again(1);
    },
  };
  const list = table("Queues", [
    { title: "Name", name: true, sort: "name", cell: (row) => h("span", {}, h("a", { href: link(row) }, row.name),
      row.type !== "classic" && h("span", { class: "tag" }, row.type),
      row.arguments?.["x-queue-kind"] && h("span", { class: "tag" }, row.arguments["x-queue-kind"]), troubles(row, now).map((text) => h("span", { class: "tag warn" }, text))) },
    { title: "Host", wide: true, sort: "vhost", cell: (row) => row.vhost },
    { title: "Ready", number: true, sort: "messages_ready", cell: (row) => compact(row.messages_ready) },
    { title: "Unacked", number: true, wide: true, sort: "messages_unacknowledged", cell: (row) => compact(row.messages_unacknowledged) },
    { title: "In", number: true, wide: true, sort: "message_stats.publish_details.rate", cell: (row) => rate(speed(row, "publish")) },
    { title: "Out", number: true, sort: "message_stats.deliver_get_details.rate", cell: (row) => rate(speed(row, "deliver_get")) },
    { title: "Consumers", number: true, wide: true, sort: "consumers", cell: (row) => count(row.consumers) },
    { title: "2 min", number: true, cell: (row) => spark(depth(row).points, now, SPAN, `${count(row.messages)} messages now`) },
  ], (row) => `${row.vhost} ${row.name}`, order);

  const filter = h("input", { type: "search", class: "grow", placeholder: "part of a name", "aria-label": "Queues whose name has", oninput: later() });
  const host = h("select", { "aria-label": "Virtual host", onchange: () => { asked.vhost = host.value; again(1); } });
  const back = h("button", { type: "button", onclick: () => again(asked.page - 1), "aria-label": "Previous page" }, "‹");
  const next = h("button", { type: "button", onclick: () => again(asked.page + 1), "aria-label": "Next page" }, "›");
  const where = h("span", { class: "note" });

  const depth = (row) => {
    const name = `${row.vhost} ${row.name}`;
    if (!depths.has(name)) depths.set(name, new Series(SPAN));
    return depths.get(name);
  };

  function later() {
    let timer = 0;
    return () => {
      clearTimeout(timer);
      timer = setTimeout(() => { asked.name = filter.value; again(1); }, 200);
    };
  }

  const query = (columns, more = "") => {
    const words = new URLSearchParams({ page: asked.page, page_size: PAGE, name: asked.name, use_regex: false, sort: asked.sort, sort_reverse: asked.reverse, columns });
    return `${asked.vhost ? path("queues", asked.vhost) : path("queues")}?${words}${more}`;
  };

  async function prime() {
    const found = await get(query("name,vhost,messages_details", `&lengths_age=${SPAN}&lengths_incr=2`)).catch(() => null);
    for (const row of found?.items ?? []) depth(row).prime(row.messages_details?.samples ?? []);
  }

  const looks = () => [query(COLUMNS), "/api/vhosts?columns=name"];

  function again(page) {
    asked.page = page;
    depths = new Map();
    latest = null;
    prime();
    open(looks());
  }

  function show(found) {
    if (found.error) {
      latest = null;
      if (found.error === "page_out_of_range") again(1);
      else say(found.reason, true);
      return;
    }
    const shown = new Set();
    for (const row of found.items) {
      depth(row).add(now, row.messages);
      shown.add(`${row.vhost} ${row.name}`);
    }
    for (const name of depths.keys()) if (!shown.has(name)) depths.delete(name);
    list.show(found.items);
    const first = (found.page - 1) * PAGE + 1;
    setText(where, found.filtered_count ? `${count(first)} to ${count(first + found.item_count - 1)} of ${count(found.filtered_count)}` : "none");
    back.disabled = found.page <= 1;
    next.disabled = found.page >= found.page_count;
  }

  function showHosts(found) {
    const names = Array.isArray(found) ? found.map((each) => each.name) : [];
    if (names.join() === hosts.join()) return;
    hosts = names;
    host.replaceChildren(h("option", { value: "" }, "all hosts"), ...names.map((name) => h("option", { value: name }, name)));
    host.value = asked.vhost;
    host.hidden = names.length < 2;
  }

  return {
    title: "Queues",
    looks: looks(),
    node: h("div", {}, h("h1", {}, "Queues"), h("div", { class: "bar" }, filter, host, back, where, next),
      form("declareQueue"), h("section", { class: "card" }, list.node)),
    answer(number, found) {
      if (number === 0) latest = found;
      else showHosts(found);
    },
    tick(at) {
      now = at;
      if (latest) show(latest);
    },
    prime,
  };
}

export function queuePage([vhost, name]) {
  const here = path("queues", vhost, name);
  const charts = flow("Messages", ["in", "out", "acked"]);
  const facts = h("dl", { class: "facts" });
  const gone = h("p", { class: "bad", role: "alert", hidden: true }, "There is no such queue any more.");
  const messages = h("div", { class: "messages" });
  let latest = null;
  let origin = ""; // where the first message that was looked at came from, if it is a dead letter

  const prime = () => get(`${here}?${FLOW_SAMPLES}`).then((found) => charts.prime(found, found.message_stats), () => {});

  const consumers = table("Consumers", [
    { title: "Tag", name: true, cell: (row) => row.consumer_tag },
    { title: "Channel", wide: true, cell: (row) => row.channel_details.user_provided_name ?? row.channel_details.name },
    { title: "Prefetch", number: true, cell: (row) => row.prefetch_count || "no limit" },
    { title: "Unacked", number: true, cell: (row) => count(row.messages_unacknowledged) },
    { title: "Acks", wide: true, cell: (row) => (row.ack_required ? "by hand" : "automatic") },
    { title: "State", cell: consumerState },
  ], (row) => `${row.channel_details.name} ${row.consumer_tag}`);
  const bindings = table("Bindings", [
    { title: "From", name: true, cell: (row) => h("a", { href: exchangeLink(row) }, row.source || "(default exchange)") },
    { title: "Key", cell: (row) => row.routing_key },
    { title: "Arguments", wide: true, cell: (row) => (Object.keys(row.arguments).length ? JSON.stringify(row.arguments) : "") },
    { title: "", cell: (row) => (row.source && button("unbindQueue", "Unbind…", { vhost, exchange: row.source, queue: name, props: row.properties_key }, { name: `Unbind ${row.source} ${row.routing_key}` })) || "" },
  ], (row) => `${row.source} ${row.properties_key}`);

  // -- deeds

  const mine = { vhost, queue: name };
  const tenants = tenantsCard(vhost, name);
  const amount = h("input", { type: "number", min: 1, max: 200, value: 10, "aria-label": "How many messages" });

  function show(found) {
    origin = found[0]?.properties.headers?.["x-first-death-queue"] ?? "";
    requeue.hidden = !origin;
    messages.replaceChildren(...found.map((each, place) => message(each, place)));
  }

  const peek = () => get(`${here}/messages?count=${Number(amount.value) || 10}&truncate=4000`).then((found) => {
    show(found);
    say(found.length ? `${found.length} messages shown; none was taken.` : "No message is ready.");
  }).catch((error) => say(error.message, true));

  const requeue = h("button", { type: "button", hidden: true, onclick: () => ask("moveMessages", mine, { values: { to: origin }, title: `Requeue dead letters of ${name}`,
    text: `The first message died in “${origin}”. Change the name to have them at the end of another queue.` }) }, "Requeue…");

  function message(found, place) {
    const { headers, ...properties } = found.properties;
    const told = { ...properties, ...headers };
    return h("article", { class: "message", "aria-label": `message ${place + 1}` },
      h("p", { class: "note" }, `${place + 1}. ${bytes(found.payload_bytes)} · key ${found.routing_key || "(none)"} · `,
        found.exchange ? `exchange ${found.exchange}` : "default exchange", found.redelivered && h("span", { class: "tag warn" }, "redelivered")),
      Object.keys(told).length ? h("details", {}, h("summary", {}, "properties and headers"), h("pre", {}, JSON.stringify(found.properties, null, 2))) : null,
      h("pre", { tabindex: "0", "aria-label": "payload" }, found.payload_encoding === "base64" ? `(Base64) ${found.payload}` : found.payload));
  }

  function queue(found, now) {
    gone.hidden = !found.error;
    if (found.error) return;
    charts.show(now, found, found.message_stats);
    const kinds = [found.arguments["x-queue-kind"], found.type, found.durable ? "durable" : "transient", found.exclusive && "exclusive", found.auto_delete && "auto-delete"];
    const rows = {
      kind: kinds.filter(Boolean).join(", "),
      state: troubles(found, now).join(", ") || found.state,
      "delivered again": `${count(found.message_stats?.redeliver)}, ${rate(speed(found, "redeliver"))}`,
      "size of messages": bytes(found.message_bytes),
      "consumers that can take": found.consumers ? `${Math.round(found.consumer_capacity * found.consumers)} of ${count(found.consumers)}` : "none",
      policy: [found.policy, found.operator_policy].filter(Boolean).join(", ") || "none",
      arguments: Object.entries(found.arguments).map(([key, value]) => `${key} = ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ") || "none",
    };
    const text = Object.entries(rows).flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]);
    facts.replaceChildren(...text);
    consumers.show(found.consumer_details ?? []);
  }

  return {
    title: name,
    looks: [here, `${here}/bindings`, tenants.look],
    node: h("div", {},
      h("h1", {}, name, h("span", { class: "tag" }, vhost)), gone,
      h("div", { class: "bar" }, button("moveMessages", "Move…", mine), button("purgeQueue", "Purge…", mine),
        button("deleteQueue", "Delete…", mine, { then: () => (location.hash = "#/queues") })),
      charts.node, tenants.node,
      h("section", { class: "card" }, h("h2", {}, "Consumers"), consumers.node),
      h("section", { class: "card" }, h("h2", {}, "A look at the messages"),
        h("div", { class: "bar" }, amount, h("button", { type: "button", class: "first", onclick: peek }, "Look"), may(["read", "write"], vhost) && requeue),
        h("p", { class: "note" }, "A look takes nothing: the messages stay where they are, unflagged."), form("getMessages", mine, (values, found) => show(found)),
        form("publish", { vhost, exchange: "amq.default", routing_key: name }), messages),
      h("div", { class: "two" }, h("section", { class: "card" }, h("h2", {}, "Facts"), facts),
        h("section", { class: "card" }, h("h2", {}, "Bindings"), bindings.node, form("bindQueue", mine)))),
    answer(number, found) {
      if (number === 0) latest = found;
      else if (number === 2) tenants.show(found);
      else bindings.show(Array.isArray(found) ? found : []);
    },
    tick: (now) => latest && queue(latest, now),
    prime,
  };
}
