// The list of exchanges, and one exchange: where a message goes from it, its bindings, and what can be done to it.

import { get, may, path } from "./api.js";
import { count, h, rate, say, setText, table } from "./dom.js";
import { button, form } from "./forms.js";
import { paged } from "./paged.js";

const MOST = 50; // bindings of one exchange that are drawn
const EXCHANGES = 20; // exchanges that are asked for one picture
const DEFAULT = "amq.default"; // what the default exchange, which has no name, is called in paths
const title = (name) => name || "(default exchange)";
const href = (kind, vhost, name) => `#/${kind}/${encodeURIComponent(vhost)}/${encodeURIComponent(name || DEFAULT)}`;
const speed = (row, name) => rate(row.message_stats?.[`${name}_details`]?.rate ?? 0);
const kinds = (row) => [row.durable ? "durable" : "transient", row.auto_delete && "auto-delete", row.internal && "internal"].filter(Boolean).join(", ");
const told = (found) => Object.entries(found).map(([key, value]) => `${key} = ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");

export const exchangesPage = (parts, open) => paged("Exchanges", "/api/exchanges", [
  { title: "Name", name: true, sort: "name", cell: (row) => h("span", {}, h("a", { href: href("exchange", row.vhost, row.name) }, title(row.name)), h("span", { class: "tag" }, row.type)) },
  { title: "Host", wide: true, sort: "vhost", cell: (row) => row.vhost },
  { title: "Kind", wide: true, cell: kinds },
  { title: "Policy", wide: true, cell: (row) => row.policy ?? "" },
  { title: "In", number: true, sort: "message_stats.publish_in_details.rate", cell: (row) => speed(row, "publish_in") },
  { title: "Out", number: true, sort: "message_stats.publish_out_details.rate", cell: (row) => speed(row, "publish_out") },
], (row) => `${row.vhost} ${row.name}`, open, form("declareExchange"));

export function exchangePage([vhost, name]) {
  const here = path("exchanges", vhost, name);
  const isDefault = name === DEFAULT;
  const mine = { vhost, exchange: name };
  const facts = h("dl", { class: "facts" });
  const picture = h("div");
  const gone = h("p", { class: "bad", role: "alert", hidden: true }, "There is no such exchange any more.");
  let drawn = 0; // pictures that were begun: an older one is not shown

  const unbind = (row) => (row.destination_type === "queue"
    ? button("unbindQueue", "Unbind…", { vhost, exchange: row.source, queue: row.destination, props: row.properties_key }, { name: `Unbind ${row.destination} ${row.routing_key}` })
    : button("unbindExchange", "Unbind…", { vhost, exchange: row.source, destination: row.destination, props: row.properties_key }, { name: `Unbind ${row.destination} ${row.routing_key}` }));
  const bindings = (label, end) => table(label, [
    { title: end === "source" ? "From" : "To", name: true, cell: (row) => (end === "source" ? box("exchange", row.source) : box(row.destination_type, row.destination)) },
    { title: "Key", cell: (row) => row.routing_key },
    { title: "Arguments", wide: true, cell: (row) => told(row.arguments) },
    { title: "", cell: (row) => (row.source && unbind(row)) || "" },
  ], (row) => JSON.stringify(row));
  const box = (kind, to) => h("a", { class: kind, href: href(kind, vhost, to) }, title(to));
  const from = bindings("Bindings from here", "destination");
  const to = bindings("Bindings to here", "source");

  // -- the picture: a branch for each binding; an exchange that a branch leads to has its own

  async function branches(exchange, path_, left) {
    if (left.count-- <= 0) return [h("li", {}, "…")];
    const base = path("exchanges", vhost, exchange || DEFAULT);
    const [found, bound] = await Promise.all([get(base), get(`${base}/bindings/source?page=1&page_size=${MOST}`)]);
    const rows = bound.items.map((row) => ({ kind: row.destination_type, to: row.destination, key: [row.routing_key, told(row.arguments)].filter(Boolean).join(" · ") }));
    const other = found.arguments["alternate-exchange"];
    if (other !== undefined) rows.push({ kind: "exchange", to: other, key: "where nothing else fits" });
    const drawn = [];
    for (const row of rows) {
      const inner = row.kind !== "exchange" ? null : path_.includes(row.to) ? [h("li", {}, "as above")] : await branches(row.to, [...path_, row.to], left).catch(() => [h("li", { class: "bad" }, "no such exchange")]);
      drawn.push(h("li", {}, h("span", { class: "key" }, row.key || "every key"), " ", box(row.kind, row.to), inner && h("ul", {}, inner)));
    }
    const more = bound.filtered_count - bound.items.length;
    if (more > 0) drawn.push(h("li", {}, `and ${count(more)} more bindings`));
    if (!drawn.length) drawn.push(h("li", {}, "nowhere: nothing is bound"));
    return drawn;
  }

  async function draw() {
    const mine_ = ++drawn;
    if (isDefault) return picture.replaceChildren(h("p", {}, "To the queue whose name is the routing key: every queue is bound here by its name."));
    try {
      const tree = await branches(name, [name], { count: EXCHANGES });
      if (mine_ === drawn) picture.replaceChildren(h("ul", { class: "tree", "aria-label": "Where a message goes" }, h("li", {}, box("exchange", name), h("ul", {}, tree))));
    } catch (error) {
      say(error.message, true);
    }
    return undefined;
  }

  function exchange(found) {
    gone.hidden = !found.error;
    if (found.error) return;
    const rows = { type: found.type, kind: kinds(found), arguments: told(found.arguments) || "none", policy: found.policy ?? "none", in: speed(found, "publish_in"), out: speed(found, "publish_out") };
    facts.replaceChildren(...Object.entries(rows).flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]));
  }

  const isOurs = isDefault || name.startsWith("amq."); // the broker's own
  return {
    title: title(isDefault ? "" : name),
    looks: [here, `${here}/bindings/source?page=1&page_size=100`, `${here}/bindings/destination?page=1&page_size=100`],
    node: h("div", {},
      h("h1", {}, title(isDefault ? "" : name), h("span", { class: "tag" }, vhost)), gone,
      !isOurs && h("div", { class: "bar" }, button("deleteExchange", "Delete…", mine, { then: () => (location.hash = "#/exchanges") })),
      form("publish", mine),
      h("section", { class: "card" }, h("h2", {}, "Where a message goes"), picture),
      h("section", { class: "card" }, h("h2", {}, "Facts"), facts),
      !isDefault && h("section", { class: "card" }, h("h2", {}, "Bindings from here"), from.node, form("bindQueue", mine), form("bindExchange", mine)),
      !isDefault && h("section", { class: "card" }, h("h2", {}, "Bindings to here"), to.node)),
    answer(number, found) {
      if (number === 0) return exchange(found);
      (number === 1 ? from : to).show(found.items ?? []);
      return number === 1 && found.items ? draw() : undefined; // one that is gone is not asked for
    },
  };
}
