// The broker as a whole: what it holds, how fast it goes, what it uses.

import { get, path } from "./api.js";
import { bytes, compact, count, duration, h, rate, setText, table } from "./dom.js";
import { Series, chart } from "./draw.js";

const SPAN = 600; // seconds
const BIGGEST = "/api/queues?page=1&page_size=8&sort=messages&sort_reverse=true&columns=name,vhost,messages,consumers";

export function overviewPage() {
  const depth = { ready: new Series(SPAN), unacked: new Series(SPAN) };
  const rates = { publish: new Series(SPAN), deliver_get: new Series(SPAN), ack: new Series(SPAN) };
  const tiles = h("div", { class: "tiles" });
  const charts = h("div", { class: "two" });
  const node = h("div");
  const alarms = h("p", { class: "bad", role: "alert", hidden: true });
  const biggest = table("The queues with the most messages", [
    { title: "Queue", name: true, cell: (row) => h("a", { href: `#/queue/${encodeURIComponent(row.vhost)}/${encodeURIComponent(row.name)}` }, row.name) },
    { title: "Host", wide: true, cell: (row) => row.vhost },
    { title: "Messages", number: true, cell: (row) => count(row.messages) },
    { title: "Consumers", number: true, cell: (row) => count(row.consumers) },
  ], (row) => `${row.vhost} ${row.name}`);

  get(`/api/overview?lengths_age=${SPAN}&lengths_incr=5&msg_rates_age=${SPAN}&msg_rates_incr=5`).then((found) => {
    depth.ready.prime(found.queue_totals.messages_ready_details?.samples ?? []);
    depth.unacked.prime(found.queue_totals.messages_unacknowledged_details?.samples ?? []);
    for (const [name, series] of Object.entries(rates)) series.primeRates(found.message_stats[`${name}_details`]?.samples ?? []);
  }, () => {});

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

  function overview(found, now) {
    const { queue_totals: totals, message_stats: stats, object_totals: objects } = found;
    const speed = (name) => stats[`${name}_details`]?.rate ?? 0;
    depth.ready.add(now, totals.messages_ready);
    depth.unacked.add(now, totals.messages_unacknowledged);
    for (const [name, series] of Object.entries(rates)) series.add(now, speed(name));
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
    charts.replaceChildren(
      h("section", { class: "card" }, h("h2", {}, "Messages in queues"), chart("Messages in queues", [
        { name: "ready", points: depth.ready.points, unit: count },
        { name: "unacked", points: depth.unacked.points, unit: count },
      ], now, SPAN)),
      h("section", { class: "card" }, h("h2", {}, "Messages per second"), chart("Messages per second", [
        { name: "published", points: rates.publish.points, unit: rate },
        { name: "delivered", points: rates.deliver_get.points, unit: rate },
        { name: "acked", points: rates.ack.points, unit: rate },
      ], now, SPAN)));
  }

  function nodes(found) {
    if (!Array.isArray(found)) return node.replaceChildren(); // it is for users with the tag `monitoring`
    const [it] = found;
    const raised = [it.mem_alarm && "memory", it.disk_free_alarm && "disk"].filter(Boolean);
    alarms.hidden = !raised.length;
    setText(alarms, `Alarm: publishers are blocked until there is more ${raised.join(" and ")}.`);
    const used = it.mem_limit ? h("meter", { min: 0, max: it.mem_limit, value: it.mem_used, "aria-label": "memory used" }) : null;
    return node.replaceChildren(h("section", { class: "card" }, h("h2", {}, "This process"), h("dl", { class: "facts" },
      h("dt", {}, "name"), h("dd", {}, `${it.name}, process ${it.os_pid}`),
      h("dt", {}, "up for"), h("dd", {}, duration(it.uptime / 1000)),
      h("dt", {}, "memory"), h("dd", {}, it.mem_limit ? `${bytes(it.mem_used)} of ${bytes(it.mem_limit)}` : bytes(it.mem_used), used),
      h("dt", {}, "disk free"), h("dd", {}, bytes(it.disk_free)),
      h("dt", {}, "open files"), h("dd", {}, `${count(it.fd_used)} of ${count(it.fd_total)}`))));
  }

  let latest = null;
  return {
    title: "Overview",
    looks: ["/api/overview?columns=queue_totals,message_stats,object_totals", BIGGEST, path("nodes")],
    node: h("div", {}, h("h1", {}, "Overview"), alarms, tiles, charts,
      h("div", { class: "two" }, h("section", { class: "card" }, h("h2", {}, "Most messages"), biggest.node), node)),
    answer(number, found) {
      if (number === 0) latest = found;
      else if (number === 1) biggest.show(found.items ?? []);
      else nodes(found);
    },
    tick: (now) => latest && overview(latest, now),
  };
}
