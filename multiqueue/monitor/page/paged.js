// A list in pages that the API makes: filter, sort, turn over.

import { count, h, say, setText, table } from "./dom.js";

const PAGE = 100;

// `changed()` is called when `look()` is another. The list has no filter where `isNamed` is false.
export function pagedList(title, base, columns, key, changed, isNamed = true) {
  const asked = { page: 1, name: "", sort: "", reverse: false };
  const list = table(title, columns, key, {
    sort: () => asked.sort,
    reverse: () => asked.reverse,
    choose(sort) {
      asked.reverse = asked.sort === sort && !asked.reverse;
      asked.sort = sort;
      again(1);
    },
  });
  const where = h("span", { class: "note" });
  const back = h("button", { type: "button", onclick: () => again(asked.page - 1), "aria-label": `Previous page of ${title}` }, "‹");
  const next = h("button", { type: "button", onclick: () => again(asked.page + 1), "aria-label": `Next page of ${title}` }, "›");
  const filter = h("input", { type: "search", class: "grow", placeholder: "part of a name", "aria-label": `${title} whose name has`, onchange: () => {
    asked.name = filter.value;
    again(1);
  } });

  function again(page) {
    asked.page = page;
    changed();
  }

  return {
    node: h("div", {}, h("div", { class: "bar" }, isNamed && filter, back, where, next), list.node),
    look: () => `${base}?${new URLSearchParams({ page: asked.page, page_size: PAGE, name: asked.name, use_regex: false, sort: asked.sort, sort_reverse: asked.reverse })}`,
    answer(found) {
      if (found.error) return found.error === "page_out_of_range" ? again(1) : say(found.reason, true);
      list.show(found.items);
      setText(where, `${count(found.filtered_count)} in all`);
      back.hidden = next.hidden = found.page_count < 2;
      back.disabled = found.page <= 1;
      next.disabled = found.page >= found.page_count;
      return undefined;
    },
  };
}

// A page that is such a list, with something above it.
export function paged(title, base, columns, key, open, above = null) {
  const list = pagedList(title, base, columns, key, () => open([list.look()]));
  return { title, looks: [list.look()], node: h("div", {}, h("h1", {}, title), above, h("section", { class: "card" }, list.node)), answer: (number, found) => list.answer(found) };
}
