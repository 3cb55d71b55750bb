// Small drawings as SVG: a sparkline, and lines over time with a legend.

import { compact, h, s } from "./dom.js";

const nice = (value) => {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].find((step) => step * power >= value * 0.999999) * power;
};

// `points` are [seconds, value], the oldest first; a level lasts until the next point. Drawn from `now - span` to `now`.
function path(points, now, span, top, width, height) {
  const x = (at) => Math.max(0, ((at - (now - span)) / span) * width);
  const y = (value) => height - 1 - (value / top) * (height - 2);
  const seen = points.filter(([at], place) => at >= now - span || (points[place + 1]?.[0] ?? now) > now - span);
  if (!seen.length) return "";
  const steps = seen.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`);
  steps.push(`${width} ${y(seen.at(-1)[1]).toFixed(1)}`);
  return `M${steps.join("L")}`;
}

export function spark(points, now, span, label) {
  const top = Math.max(1, ...points.map(([, value]) => value));
  const line = path(points, now, span, top, 100, 24);
  const edge = line && line.slice(1).split(" ")[0];
  return s("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": label },
    line && s("path", { class: "fill", d: `${line}L100 24L${edge} 24Z` }),
    line && s("path", { class: "line s0", d: line }));
}

// `series`: {name, points, unit(value) -> text}. `label` says what is drawn; the legend has the latest values.
export function chart(label, series, now, longest) {
  const first = Math.min(now, ...series.filter(({ points }) => points.length).map(({ points }) => points[0][0]));
  const span = [60, 120, 300].find((each) => each >= now - first && each < longest) ?? longest;
  const top = nice(Math.max(0, ...series.flatMap(({ points }) => points.filter(([at]) => at >= now - span).map(([, value]) => value))));
  const [width, height, left] = [innerWidth <= 640 ? 270 : 510, 130, 44];
  const lines = [0, 0.5, 1].map((share) => {
    const y = height - 1 - share * (height - 2) + 8;
    return [
      s("line", { class: "grid", x1: left, x2: left + width, y1: y, y2: y }),
      s("text", { class: "tick", x: left - 6, y: y + 4, "text-anchor": "end" }, compact(top * share)),
    ];
  });
  const drawn = series.map(({ points }, number) =>
    s("path", { class: `line s${number}`, d: path(points, now, span, top, width, height), transform: `translate(${left} 8)` }));
  const minutes = [1, 0.5, 0].map((share) =>
    s("text", { class: "tick", x: left + width * (1 - share), y: height + 24, "text-anchor": share === 1 ? "start" : share ? "middle" : "end" },
      share ? `−${span * share > 90 ? `${(span * share) / 60} min` : `${span * share} s`}` : "now"));
  const said = series.map(({ name, points, unit }) => `${name} ${points.length ? unit(points.at(-1)[1]) : "unknown"}`).join(", ");
  return h("figure", {},
    s("svg", { class: "chart", viewBox: `0 0 ${left + width + 4} ${height + 30}`, role: "img", "aria-label": `${label}: ${said}` }, lines, drawn, minutes),
    h("ul", { class: "legend", "aria-hidden": "true" }, series.map(({ name, points, unit }, number) =>
      h("li", {}, s("svg", { viewBox: "0 0 26 11" }, s("path", { class: `line s${number}`, d: "M0 6H26" })),
        `${name} `, h("b", {}, points.length ? unit(points.at(-1)[1]) : "–")))));
}

// The values of one figure over time, bounded: what is older than `span` is forgotten.
export class Series {
  constructor(span) {
    this.span = span;
    this.points = [];
  }

  prime(samples, read = (sample) => sample.sample) {
    const older = samples.map((sample) => [sample.timestamp / 1000, read(sample)]).reverse();
    const first = this.points[0]?.[0] ?? Infinity;
    this.points.unshift(...older.filter(([at]) => at < first));
  }

  // RabbitMQ's samples of a counter, the newest first, as rates.
  primeRates(samples) {
    this.prime(samples.slice(0, -1).map(({ sample, timestamp }, place) => {
      const before = samples[place + 1];
      return { timestamp, sample: Math.max(0, ((sample - before.sample) * 1000) / (timestamp - before.timestamp)) };
    }));
  }

  add(at, value) {
    if (this.points.length && at <= this.points.at(-1)[0]) this.points.pop();
    this.points.push([at, value ?? 0]);
    while (this.points.length > 2 && this.points[1][0] < at - this.span) this.points.shift();
  }
}
