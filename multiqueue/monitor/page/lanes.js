// Lanes: a row for each, a bar for each job. Waits are hollow, runs solid, retries hatched, failures red with a cross.

import { get, path } from "./api.js";
import { count, duration, h, s, setText } from "./dom.js";

const SPANS = [[60, "1 minute"], [300, "5 minutes"], [900, "15 minutes"], [3600, "1 hour"]];
const TRACK = 12; // units of height for each job that runs beside others
const TRACKS = 6;
const [NUMBER, NAME, SUBMITTED, BEGAN, ENDED, STATE, RETRIES] = [0, 1, 2, 3, 4, 5, 6];
const HATCH = "hatch";

export function lanesPage(parts, open) {
  let span = 300;
  let latest = null;
  let chosen = null; // {executor, lane, number}
  const select = h("select", { "aria-label": "How far back", onchange: () => {
    span = Number(select.value);
    latest = null;
    open(looks());
  } }, SPANS.map(([seconds, text]) => h("option", { value: seconds, selected: seconds === span }, text)));
  const filter = h("input", { type: "search", class: "grow", placeholder: "part of a lane's name", "aria-label": "Lanes whose name has", oninput: () => latest && show(latest) });
  const body = h("div");
  const detail = h("section", { class: "card", hidden: true, "aria-live": "polite" });
  const rows = new Map(); // "executor lane" -> its row

  const looks = () => [`/api/lanes?seconds=${span}`];

  // -- one job

  async function choose(executor, lane, job) {
    chosen = { executor, lane, number: job[NUMBER] };
    let found;
    try {
      found = await get(path("lanes", executor, job[NUMBER]));
    } catch {
      found = { name: job[NAME], state: "forgotten: the lane keeps its latest jobs alone", spark: [], retries: [] };
    }
    const clock = (at) => (at ? new Date(at * 1000).toLocaleTimeString() : "–");
    const rows = [
      ["lane", lane],
      ["state", found.state],
      ["submitted", clock(found.submitted)],
      ["began", found.began ? `${clock(found.began)}, after ${duration(found.began - found.submitted)}` : "not yet"],
      ["ended", found.ended && found.began ? `${clock(found.ended)}, after ${duration(found.ended - found.began)}` : clock(found.ended)],
      found.retries.length && ["retries", found.retries.map(clock).join(", ")],
      found.spark.length && ["Spark jobs", h("span", {}, found.spark.map(({ job: id, url }) =>
        [url ? h("a", { href: url, target: "_blank", rel: "noopener" }, `job ${id}`) : `job ${id}`, " "]))],
      found.error && ["error", h("pre", { class: "bad" }, found.error)],
    ].filter(Boolean);
    detail.replaceChildren(h("h2", {}, found.name), h("dl", { class: "facts" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
    detail.hidden = false;
    if (latest) show(latest);
  }

  // Arrow keys go from job to job, Home and End to the first and last; the chosen one is told below.
  function keys(event, executor, lane) {
    const jobs = lane.jobs;
    if (!jobs.length) return;
    const here = chosen?.lane === lane.name && chosen?.executor === executor ? jobs.findIndex((job) => job[NUMBER] === chosen.number) : -1;
    const next = { ArrowRight: here + 1, ArrowLeft: here < 0 ? jobs.length - 1 : here - 1, Home: 0, End: jobs.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    choose(executor, lane.name, jobs[Math.max(0, Math.min(jobs.length - 1, next))]);
  }

  // -- drawing

  function timeline(executor, lane, now) {
    const [width, from] = [innerWidth <= 640 ? 340 : 800, now - span];
    const edge = width - 66; // the place of now; right of it stand jobs that wait
    const x = (at) => Math.max(0, Math.min(edge, ((at - from) / span) * edge));
    const free = []; // for each track, when it is free again
    const bars = [];
    for (const job of lane.jobs) {
      if (job[BEGAN] === null) continue;
      const ended = job[ENDED] ?? now;
      if (ended < from) continue;
      let track = free.findIndex((at) => at <= job[BEGAN]);
      if (track < 0) track = free.length < TRACKS ? free.length : free.indexOf(Math.min(...free));
      const y = track * TRACK + 1.5;
      const waited = x(Math.max(job[SUBMITTED], free[track] ?? 0));
      free[track] = ended;
      const [begin, end] = [x(job[BEGAN]), x(ended)];
      const wide = Math.max(1.5, end - begin);
      const isChosen = chosen?.executor === executor && chosen?.lane === lane.name && chosen?.number === job[NUMBER];
      const kind = { done: "run", running: "running", failed: "failed", cancelled: "cancelled" }[job[STATE]];
      const group = s("g", { class: isChosen ? "chosen" : null, onclick: () => choose(executor, lane.name, job) },
        s("title", {}, `${job[NAME]}: ${job[STATE]}, waited ${duration(job[BEGAN] - job[SUBMITTED])}, ran ${duration(ended - job[BEGAN])}`));
      if (begin - waited > 1) group.append(s("rect", { class: "job wait", x: waited, y: y + 2.5, width: begin - waited, height: TRACK - 8 }));
      group.append(s("rect", { class: `job ${kind}${isChosen ? " chosen" : ""}`, x: begin, y, width: wide, height: TRACK - 3 }));
      const retry = job[RETRIES].length ? x(job[RETRIES][0]) : end;
      if (end - retry > 1) group.append(s("rect", { class: "job retry", fill: `url(#${HATCH})`, x: retry, y, width: end - retry, height: TRACK - 3 }));
      if (job[STATE] === "failed") {
        const [cx, cy] = [begin + wide / 2, y + (TRACK - 3) / 2];
        group.append(s("path", { class: "cross", d: `M${cx - 2.5} ${cy - 2.5}l5 5m0 -5l-5 5` }));
      }
      bars.push(group);
    }
    const height = Math.max(1, free.length) * TRACK + 2;
    const waits = Array.from({ length: Math.min(5, lane.waiting) }, (_, place) =>
      s("rect", { class: "job wait", x: edge + 5 + place * 7, y: 2, width: 4.5, height: TRACK - 4 }));
    const said = `${lane.name}: ${lane.running} running, ${lane.waiting} waiting, ${lane.done} done, ${lane.failed} failed. Arrow keys choose a job.`;
    return s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": said },
      bars, s("line", { class: "now", x1: edge + 1, x2: edge + 1, y1: 0, y2: height }), waits,
      lane.waiting > 5 ? s("text", { class: "tick", x: edge + 42, y: TRACK - 1 }, `+${lane.waiting - 5}`) : null);
  }

  function row(executor, lane, now) {
    const name = `${executor} ${lane.name}`;
    let its = rows.get(name);
    if (!its) {
      const figures = h("p");
      const drawing = h("div", { tabindex: "0", role: "group", "aria-label": `Jobs of ${lane.name}` });
      its = { node: h("div", { class: "lane" }, h("div", {}, h("h3", {}, lane.name), figures), drawing), figures, drawing, lane };
      drawing.addEventListener("keydown", (event) => keys(event, executor, its.lane));
      rows.set(name, its);
    }
    its.lane = lane;
    const items = lane.items && { done: lane.items.done, total: Object.values(lane.items).reduce((sum, each) => sum + each, 0) };
    const parts = [
      items ? `${count(items.done)}/${count(items.total)} items` : `${count(lane.done)} done`,
      lane.failed ? `${count(lane.failed)} failed` : null,
      `${count(lane.running)}${lane.max_in_flight ? `/${lane.max_in_flight}` : ""} running`,
      `${count(lane.waiting)} waiting`,
      lane.wait_p95 !== null && `waits p95 ${duration(lane.wait_p95)}`,
      lane.weight > 1 && `weight ${lane.weight}`,
      lane.priority && `priority ${lane.priority}`,
      lane.is_paused && "paused",
    ];
    setText(its.figures, parts.filter(Boolean).join(" · "));
    its.drawing.replaceChildren(timeline(executor, lane, now));
    return its.node;
  }

  let now = 0;

  function show(found) {
    if (found.error) {
      body.replaceChildren(h("p", { class: "bad", role: "alert" }, found.reason));
      return;
    }
    const word = filter.value.toLowerCase();
    const seen = new Set();
    const sections = found.executors.map((each) => {
      const shown = each.lanes.filter((lane) => lane.name.toLowerCase().includes(word));
      for (const lane of shown) seen.add(`${each.name} ${lane.name}`);
      const left = each.lanes_in_all - each.lanes.length;
      const head = h("p", { class: "note" }, each.is_over ? "ended" : `${count(each.running)} of ${count(each.workers)} at work, ${count(each.waiting)} waiting`,
        each.ui && [" · ", h("a", { href: each.ui, target: "_blank", rel: "noopener" }, "Spark's UI")]);
      return { name: each.name, kind: each.kind, head, left, lanes: shown.map((lane) => row(each.name, lane, now)) };
    });
    for (const name of rows.keys()) if (!seen.has(name)) rows.delete(name);
    place(sections);
  }

  // Rows stay in the document while their drawings change: one that has the focus keeps it.
  function place(sections) {
    const names = sections.map((each) => each.name).join("\n");
    if (body.dataset.names !== names) {
      body.dataset.names = names;
      body.replaceChildren(...sections.map((each) => h("section", { class: "card" }, h("h2", {}, each.name, h("span", { class: "tag" }, each.kind)), h("div"), h("div"), h("p", { class: "note" }))));
    }
    if (!sections.length) body.replaceChildren(h("p", { class: "empty" }, "No executor is watched yet."));
    sections.forEach((each, number) => {
      const [, head, list, foot] = body.children[number].children;
      if (!head.firstChild?.isEqualNode(each.head)) head.replaceChildren(each.head);
      const same = list.children.length === each.lanes.length && each.lanes.every((lane, at) => list.children[at] === lane);
      if (!same) list.replaceChildren(...each.lanes);
      setText(foot, each.left > 0 ? `and ${count(each.left)} lanes more` : each.lanes.length ? "" : "No lane.");
    });
  }

  const sample = (kind, text) => h("li", {}, s("svg", { viewBox: "0 0 26 11" },
    s("rect", { class: `job ${kind}`, fill: kind === "retry" ? `url(#${HATCH})` : null, x: 1, y: 1, width: 22, height: 9 }),
    kind === "failed" && s("path", { class: "cross", d: "M9.5 3l5 5m0 -5l-5 5" })), text);
  return {
    title: "Lanes",
    looks: looks(),
    node: h("div", {}, h("h1", {}, "Lanes"), h("div", { class: "bar" }, filter, select),
      s("svg", { width: 0, height: 0, "aria-hidden": "true" }, s("defs", {}, s("pattern", { id: HATCH, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
        s("rect", { class: "hatch-paper", width: 5, height: 5 }), s("line", { class: "hatch", x1: 0, y1: 0, x2: 0, y2: 5 })))),
      h("ul", { class: "legend", "aria-label": "What the bars mean" }, sample("wait", "waits"), sample("run", "ran"), sample("running", "runs"), sample("retry", "retry"), sample("failed", "failed"), sample("cancelled", "cancelled")),
      body, detail),
    answer: (number, found) => (latest = found),
    tick(at) {
      now = at;
      if (latest) show(latest);
    },
  };
}
