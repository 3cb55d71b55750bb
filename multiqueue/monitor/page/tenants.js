// The tenants of a fair queue: who waits, who is served beside whose weight, and who is passed over; pause and weight.

import { may, path } from "./api.js";
import { compact, count, duration, h, s, setText, table } from "./dom.js";
import { act, ask } from "./forms.js";

const MOST = 50; // those with the most waiting
const WHY = { paused: "paused", max_in_flight: "at its cap", rate: "at its rate" };
const percent = (share) => `${Math.round(share * 100)} %`;
const named = (row) => row.name || "(no name)";

// A bar for the share, and a stroke where the weight would have it.
const shares = (row) => h("span", { class: "share" },
  s("svg", { viewBox: "0 0 100 12", preserveAspectRatio: "none", "aria-hidden": "true" },
    s("rect", { x: 0, y: 2, width: 100 * row.share, height: 8 }), s("path", { d: `M${100 * row.fair_share} 0v12` })),
  `${percent(row.share)} of ${percent(row.fair_share)}`);

export function tenantsCard(vhost, queue) {
  const look = `${path("queues", vhost, queue)}/tenants?count=${MOST}`;
  const order = { by: "waiting", isReversed: true };
  const told = h("p", { class: "note" });
  let latest = [];
  const now = (name) => latest.find((row) => row.name === name); // a button stays while its row changes

  const pause = (tenant) => act("pauseTenant", { vhost, queue, tenant, paused: !now(tenant)?.options.paused });
  const weigh = (tenant) => ask("weighTenant", { vhost, queue, tenant }, { values: { weight: now(tenant)?.options.weight ?? 1 } });
  const button = (row, text, label, deed, key) => (may(["configure"], vhost)
    ? h("button", { type: "button", "data-act": "", "data-deed": key, "aria-label": `${label} ${named(row)}`, onclick: () => deed(row.name) }, text)
    : text);

  const list = table("Tenants", [
    { title: "Tenant", name: true, sort: "name", cell: (row) => h("span", {}, named(row),
      h("span", { class: "tag narrow" }, `waits ${duration(row.longest_wait)}`),
      h("span", { class: "tag narrow" }, `${Math.round(row.share * 100)} of ${percent(row.fair_share)}`),
      row.passed_over && h("span", { class: "tag warn" }, WHY[row.passed_over] ?? row.passed_over)) },
    { title: "Waiting", number: true, sort: "waiting", cell: (row) => compact(row.waiting) },
    { title: "In flight", number: true, wide: true, sort: "in_flight", cell: (row) => count(row.in_flight) },
    { title: "Served", number: true, wide: true, sort: "served", cell: (row) => compact(row.served) },
    { title: "Longest wait", number: true, wide: true, sort: "longest_wait", cell: (row) => duration(row.longest_wait) },
    { title: "Share, by weight", number: true, wide: true, sort: "share", cell: shares },
    { title: "Weight", number: true, cell: (row) => button(row, String(row.options.weight ?? 1), `Weight ${row.options.weight ?? 1} of`, weigh, "weighTenant") },
    { title: "", cell: (row) => button(row, row.options.paused ? "Resume" : "Pause", row.options.paused ? "Resume" : "Pause", pause, "pauseTenant") },
  ], (row) => row.name, {
    sort: () => order.by,
    reverse: () => order.isReversed,
    choose(by) {
      order.isReversed = order.by === by ? !order.isReversed : by !== "name";
      order.by = by;
      draw();
    },
  });

  function draw() {
    const sign = order.isReversed ? -1 : 1;
    list.show(latest.toSorted((one, other) => sign * (one[order.by] < other[order.by] ? -1 : one[order.by] > other[order.by] ? 1 : 0)));
  }

  return {
    look,
    node: h("section", { class: "card", hidden: true }, h("h2", {}, "Tenants"), told, list.node),
    show(found) {
      this.node.hidden = !found.largest; // a queue that is not fair has none
      latest = found.largest ?? [];
      const some = found.tenants > latest.length ? `, here the ${latest.length} with the most waiting` : "";
      const jain = typeof found.jain === "number" ? `; Jain’s index over the last minute ${found.jain.toFixed(3)}` : "";
      setText(told, `${count(found.tenants)} with messages${some}${jain}. Share is that of what was served lately, beside that of the weight.`);
      draw();
    },
  };
}
