// Elements, tables whose rows stay where they are while their numbers change, and numbers as text. `filled` alone puts text
// into the page: as text nodes and attributes, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, properties, ...children) => filled(document.createElement(tag), properties, children);
export const s = (tag, properties, ...children) => filled(document.createElementNS(SVG, tag), properties, children);

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// -- numbers

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (value === undefined || value === null ? "–" : whole.format(Math.round(value)));
export const compact = (value) => (Math.abs(value) < 10000 ? whole.format(Math.round(value)) : short.format(value));

export function rate(value) {
  if (value === undefined || value === null) return "–";
  return `${value !== 0 && Math.abs(value) < 10 ? value.toFixed(1) : compact(value)}/s`;
}

export function bytes(value) {
  if (value === undefined || value === null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  for (; value >= 1024 && place < units.length - 1; place += 1) value /= 1024;
  return `${place && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[place]}`;
}

export function duration(seconds) {
  if (seconds === undefined || seconds === null) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

// -- saying something

let silence = 0;

export function say(text, isBad = false) {
  const place = document.getElementById("said");
  place.className = isBad ? "said bad" : "said";
  place.textContent = text;
  clearTimeout(silence);
  silence = setTimeout(() => (place.textContent = ""), 8000);
}

// -- a table

// `columns`: {title, cell(row) -> text or node, number, wide, name, sort}; `key(row)` tells rows apart. With `order`,
// {sort, reverse, choose(sort)}, titles that sort are buttons.
export function table(label, columns, key, order) {
  const body = h("tbody");
  const empty = h("p", { class: "empty", hidden: true }, "None.");
  const kind = (column) => [column.number && "number", column.wide && "wide", column.name && "name"].filter(Boolean).join(" ");
  const heads = columns.map((column) => {
    const head = h("th", { scope: "col", class: kind(column) });
    if (!order || !column.sort) head.append(column.title);
    else head.append(h("button", { type: "button", onclick: () => order.choose(column.sort) }, column.title));
    return head;
  });
  const rows = new Map();

  function show(values) {
    const wanted = new Set();
    let place = body.firstChild;
    for (const value of values) {
      const name = key(value);
      wanted.add(name);
      let row = rows.get(name);
      if (!row) {
        row = h("tr", {}, columns.map((column) => h("td", { class: kind(column) })));
        rows.set(name, row);
      }
      columns.forEach((column, number) => fill(row.children[number], column.cell(value)));
      if (row === place) place = place.nextSibling;
      else body.insertBefore(row, place);
    }
    for (const [name, row] of rows) {
      if (!wanted.has(name)) {
        row.remove();
        rows.delete(name);
      }
    }
    empty.hidden = values.length > 0;
    columns.forEach((column, number) => {
      if (!order || !column.sort) return;
      const isSorted = order.sort() === column.sort;
      heads[number].setAttribute("aria-sort", isSorted ? (order.reverse() ? "descending" : "ascending") : "none");
      setText(heads[number].firstChild, column.title + (isSorted ? (order.reverse() ? " ↓" : " ↑") : ""));
    });
  }

  const whole = h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, heads)), body);
  return { node: h("div", {}, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, whole), empty), show };
}

// A cell keeps the node it has when the new one says the same: a link that has the focus keeps it.
function fill(cell, content) {
  if (!(content instanceof Node)) return setText(cell, String(content));
  const old = cell.firstChild;
  if (old?.isEqualNode?.(content) && !content.matches?.("[data-act]")) return undefined;
  if (old?.matches?.("[data-act]") && content.matches?.("[data-act]")) { // its deed is that of its row
    if (old.ariaLabel !== content.ariaLabel) old.ariaLabel = content.ariaLabel;
    return setText(old, content.textContent);
  }
  return cell.replaceChildren(content);
}
