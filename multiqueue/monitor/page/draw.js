// Small drawings as SVG: a sparkline, and lines over time with a legend.

import { compact, count, h, rate, s } from "./dom.js";

const nice = (value, isWhole) => {
  if (value <= 0) return isWhole ? 2 : 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((step) => step * power).find((top) => top >= value * 0.999999 && !(isWhole && top < 2));
};

// A scale's label: whole numbers as they are, parts with the digits that tell them apart.
const label = (value) => (Number.isInteger(value) || value >= 10 ? compact(value) : String(Number(value.toPrecision(2))));

// Points that are further apart than this, in seconds, have a gap between them: nobody knows what was there.
const LEAST_GAP = 15;
const gapOf = (points) => {
  const steps = points.slice(1).map(([at], place) => at - points[place][0]).sort((one, other) => one - other);
  return Math.max(LEAST_GAP, 3 * (steps[steps.length >> 1] ?? 0));
};

// `points` are [seconds, value], the oldest first; a level lasts until the next point, and no longer than a gap. The runs
// without a gap, from `now - span` to `now`, each a list of "x y".
function runs(points, now, span, top, width, height) {
  const x = (at) => Math.max(0, ((at - (now - span)) / span) * width).toFixed(1);
  const y = (value) => (height - 1 - (value / top) * (height - 2)).toFixed(1);
  const gap = gapOf(points);
  const found = [];
  let last = null;
  for (const [place, [at, value]] of points.entries()) {
    const until = points[place + 1]?.[0] ?? now;
    if (until <= now - span || (at < now - span && until - at > gap)) continue;
    if (last === null || at - last > gap) found.push([]);
    found.at(-1).push(`${x(at)} ${y(value)}`);
    last = at;
  }
  if (last !== null && now - last <= gap) found.at(-1).push(`${width} ${y(points.at(-1)[1])}`);
  return found;
}

const line = (run) => `M${run.join("L")}${run.length > 1 ? "" : "h2"}`; // a point alone is a dot

export function spark(points, now, span, text) {
  const top = Math.max(1, ...points.map(([, value]) => value));
  const found = runs(points, now, span, top, 100, 24);
  const edge = (step) => step.split(" ")[0];
  return s("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": text },
    found.length > 0 && s("path", { class: "fill", d: found.map((run) => `M${edge(run[0])} 24L${run.join("L")}L${edge(run.at(-1))} 24Z`).join("") }),
    found.length > 0 && s("path", { class: "line s0", d: found.map(line).join("") }));
}

// `series`: {name, points, unit(value) -> text}. `title` says what is drawn; the legend has the latest values.
export function chart(title, series, now, longest) {
  const first = Math.min(now, ...series.filter(({ points }) => points.length).map(({ points }) => points[0][0]));
  const span = [60, 120, 300].find((each) => each >= now - first && each < longest) ?? longest;
  const top = nice(Math.max(0, ...series.flatMap(({ points }) => points.filter(([at]) => at >= now - span).map(([, value]) => value))), series.every(({ unit }) => unit === count));
  const [width, height, left] = [innerWidth <= 640 ? 270 : 510, 130, 44];
  const lines = [0, 0.5, 1].map((share) => {
    const y = height - 1 - share * (height - 2) + 8;
    return [
      s("line", { class: "grid", x1: left, x2: left + width, y1: y, y2: y }),
      s("text", { class: "tick", x: left - 6, y: y + 4, "text-anchor": "end" }, label(top * share)),
    ];
  });
  const drawn = series.map(({ points }, number) =>
    s("path", { class: `line s${number}`, d: runs(points, now, span, top, width, height).map(line).join(""), transform: `translate(${left} 8)` }));
  const minutes = [1, 0.5, 0].map((share) =>
    s("text", { class: "tick", x: left + width * (1 - share), y: height + 24, "text-anchor": share === 1 ? "start" : share ? "middle" : "end" },
      share ? `−${span * share > 90 ? `${(span * share) / 60} min` : `${span * share} s`}` : "now"));
  const said = series.map(({ name, points, unit }) => `${name} ${points.length ? unit(points.at(-1)[1]) : "unknown"}`).join(", ");
  return h("figure", {},
    s("svg", { class: "chart", viewBox: `0 0 ${left + width + 4} ${height + 30}`, role: "img", "aria-label": `${title}: ${said}` }, lines, drawn, minutes),
    h("ul", { class: "legend", "aria-hidden": "true" }, series.map(({ name, points, unit }, number) =>
      h("li", {}, s("svg", { viewBox: "0 0 26 11" }, s("path", { class: `line s${number}`, d: "M0 6H26" })),
        `${name} `, h("b", {}, points.length ? unit(points.at(-1)[1]) : "–")))));
}

const SPAN = 600; // seconds
// What has the broker send its samples of these charts.
export const FLOW_SAMPLES = `lengths_age=${SPAN}&lengths_incr=5&msg_rates_age=${SPAN}&msg_rates_incr=5`;

// Two charts: the messages that there are, and the messages per second. `words` name publish, deliver_get and ack.
export function flow(title, words) {
  const depth = { ready: new Series(SPAN), unacked: new Series(SPAN) };
  const rates = { publish: new Series(SPAN), deliver_get: new Series(SPAN), ack: new Series(SPAN) };
  const node = h("div", { class: "two" });
  const card = (name, series, names, unit, now) => h("section", { class: "card" }, h("h2", {}, name),
    chart(name, Object.values(series).map(({ points }, place) => ({ name: names[place], points, unit })), now, SPAN));
  return {
    node,
    prime(totals, stats) {
      depth.ready.prime(totals.messages_ready_details?.samples ?? []);
      depth.unacked.prime(totals.messages_unacknowledged_details?.samples ?? []);
      for (const [name, series] of Object.entries(rates)) series.primeRates(stats?.[`${name}_details`]?.samples ?? []);
    },
    show(now, totals, stats) {
      depth.ready.add(now, totals.messages_ready);
      depth.unacked.add(now, totals.messages_unacknowledged);
      for (const [name, series] of Object.entries(rates)) series.add(now, stats?.[`${name}_details`]?.rate ?? 0);
      node.replaceChildren(card(title, depth, Object.keys(depth), count, now), card("Messages per second", rates, words, rate, now));
    },
  };
}

// The values of one figure over time, bounded: what is older than `span` is forgotten.
export class Series {
  constructor(span) {
    this.span = span;
    this.points = [];
  }

  // Fill what is not known here with what the broker knows: the time before, and that in which nobody looked.
  prime(samples, read = (sample) => sample.sample) {
    const known = this.points.map(([at]) => at);
    const isKnown = (at) => known.some((each, place) => Math.abs(each - at) < 1 || (each < at && known[place + 1] > at && known[place + 1] - each <= LEAST_GAP));
    const found = samples.map((sample) => [sample.timestamp / 1000, read(sample)]).filter(([at]) => !isKnown(at));
    this.points = [...found, ...this.points].sort(([one], [other]) => one - other);
  }

  // RabbitMQ's samples of a counter, the newest first, as rates.
  primeRates(samples) {
    this.prime(samples.slice(0, -1).map(({ sample, timestamp }, place) => {
      const before = samples[place + 1];
      const seconds = (timestamp - before.timestamp) / 1000;
      return { timestamp, sample: seconds > LEAST_GAP ? null : Math.max(0, (sample - before.sample) / seconds) };
    }).filter(({ sample }) => sample !== null));
  }

  add(at, value) {
    if (this.points.length && at <= this.points.at(-1)[0]) this.points.pop();
    this.points.push([at, value ?? 0]);
    while (this.points.length > 2 && this.points[1][0] < at - this.span) this.points.shift();
  }
}
