// The broker as a whole: what it holds, how fast it goes, what it uses.

import { get, path } from "./api.js";
import { bytes, compact, count, duration, h, rate, s, setText, table } from "./dom.js";
import { FLOW_SAMPLES, flow } from "./draw.js";

const OLD = 60; // seconds that a consumer may have a message before anybody is told
const BIGGEST = "/api/queues?page=1&page_size=8&sort=messages&sort_reverse=true&columns=name,vhost,messages,consumers";

// How much of a limit is used: red above it, and while its alarm is raised.
function meter(used, limit, isAlarmed) {
  const share = used / limit;
  const kind = share > 1 || isAlarmed ? "over" : share > 0.8 ? "near" : "";
  const text = `${Math.round(share * 100)} % of what it may use`;
  return h("div", { class: `meter ${kind}`, role: "meter", "aria-label": "memory used", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(Math.min(1, share) * 100), "aria-valuetext": text, title: text },
    s("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none" }, s("rect", { width: Math.min(100, share * 100), height: 10 })));
}

export function overviewPage() {
  const charts = flow("Messages in queues", ["published", "delivered", "acked"]);
  const tiles = h("div", { class: "tiles" });
  const node = h("div");
  const troubles = h("ul", { class: "card troubles", role: "alert", hidden: true });
  const biggest = table("The queues with the most messages", [
    { title: "Queue", name: true, cell: (row) => h("a", { href: `#/queue/${encodeURIComponent(row.vhost)}/${encodeURIComponent(row.name)}` }, row.name) },
    { title: "Host", wide: true, cell: (row) => row.vhost },
    { title: "Messages", number: true, cell: (row) => count(row.messages) },
    { title: "Consumers", number: true, cell: (row) => count(row.consumers) },
  ], (row) => `${row.vhost} ${row.name}`);

  const prime = () => get(`/api/overview?${FLOW_SAMPLES}`).then((found) => charts.prime(found.queue_totals, found.message_stats), () => {});

  const boxes = new Map();
  function tile(name, value, href) {
    let box = boxes.get(name);
    if (!box) {
      box = h(href ? "a" : "div", { class: "tile", href }, h("b"), h("span", {}, name));
      boxes.set(name, box);
      tiles.append(box);
    }
    setText(box.firstChild, value);
  }

  function tell(found, now) {
    const since = (at) => duration(Math.max(0, now - at / 1000));
    const queue = ({ vhost, queue: name }) => h("a", { href: `#/queue/${encodeURIComponent(vhost)}/${encodeURIComponent(name)}` }, name);
    const oldest = found.oldest_unacknowledged;
    const more = found.queues_redelivering - found.redelivering.length;
    const told = [
      ...Object.entries(found.virtual_hosts_down).map(([name, why]) => h("li", { class: "bad" }, h("b", {}, `vhost ${name} is down`), `: ${why}`)),
      found.alarms.length && h("li", { class: "bad" }, h("b", {}, "Alarm"), `: publishers are blocked until there is more ${found.alarms.join(" and ")}.`),
      found.connections_blocked && h("li", {}, h("a", { href: "#/connections" }, found.connections_blocked === 1 ? "1 connection" : `${count(found.connections_blocked)} connections`), " blocked."),
      ...found.redelivering.map((each) => h("li", {}, queue(each), ` redelivers the same messages for ${since(each.since)}.`)),
      more > 0 && h("li", {}, `${count(more)} more queues do so.`),
      oldest && now - oldest.since / 1000 >= OLD && h("li", {}, `A consumer of `, queue(oldest), ` has had a message without an ack for ${since(oldest.since)}.`),
    ].filter(Boolean);
    troubles.hidden = !told.length;
    const whole = h("ul", {}, told);
    if (troubles.innerHTML !== whole.innerHTML) troubles.replaceChildren(...told);
  }

  function overview(found, now) {
    tell(found.troubles, now);
    const { queue_totals: totals, message_stats: stats, object_totals: objects } = found;
    const speed = (name) => stats[`${name}_details`]?.rate ?? 0;
    charts.show(now, totals, stats);
    tile("ready", compact(totals.messages_ready ?? 0));
    tile("unacked", compact(totals.messages_unacknowledged ?? 0));
    tile("published", rate(speed("publish")));
    tile("delivered", rate(speed("deliver_get")));
    tile("unroutable", rate(speed("return_unroutable") + speed("drop_unroutable")));
    tile("redelivered", rate(speed("redeliver")));
    tile("queues", count(objects.queues), "#/queues");
    tile("connections", count(objects.connections), "#/connections");
    tile("channels", count(objects.channels), "#/channels");
    tile("consumers", count(objects.consumers));
  }

  function nodes(found) {
    if (!Array.isArray(found)) return node.replaceChildren(); // it is for users with the tag `monitoring`
    const [it] = found;
    const used = it.mem_limit ? meter(it.mem_used, it.mem_limit, it.mem_alarm) : null;
    return node.replaceChildren(h("section", { class: "card" }, h("h2", {}, "This process"), h("dl", { class: "facts" },
      h("dt", {}, "name"), h("dd", {}, `${it.name}, process ${it.os_pid}`),
      h("dt", {}, "up for"), h("dd", {}, duration(it.uptime / 1000)),
      h("dt", {}, "memory"), h("dd", {}, it.mem_limit ? `${bytes(it.mem_used)} of ${bytes(it.mem_limit)}` : bytes(it.mem_used), used),
      h("dt", {}, "disk free"), h("dd", { class: it.disk_free_alarm ? "bad" : null }, it.disk_free_limit ? `${bytes(it.disk_free)}; publishers are blocked below ${bytes(it.disk_free_limit)}` : bytes(it.disk_free)),
      h("dt", {}, "open files"), h("dd", {}, `${count(it.fd_used)} of ${count(it.fd_total)}`))));
  }

  let latest = null;
  return {
    title: "Overview",
    looks: ["/api/overview?columns=queue_totals,message_stats,object_totals,troubles", BIGGEST, path("nodes")],
    node: h("div", {}, h("h1", {}, "Overview"), troubles, tiles, charts.node,
      h("div", { class: "two" }, h("section", { class: "card" }, h("h2", {}, "Most messages"), biggest.node), node)),
    answer(number, found) {
      if (number === 0) latest = found;
      else if (number === 1) biggest.show(found.items ?? []);
      else nodes(found);
    },
    tick: (now) => latest && overview(latest, now),
    prime,
  };
}
