// What administrators look after: policies, users with what they may do, and virtual hosts.

import { may } from "./api.js";
import { h } from "./dom.js";
import { button, form } from "./forms.js";
import { pagedList } from "./paged.js";

const text = (value) => (value !== null && typeof value === "object" ? Object.entries(value).map(([name, each]) => `${name} = ${typeof each === "object" ? JSON.stringify(each) : each}`).join(", ") : String(value));
const column = (name, title, more) => ({ title, sort: name, cell: (row) => text(row[name]), ...more });
const [USER, HOST] = [column("user", "User", { name: true }), column("vhost", "Host")];
const PATTERNS = ["configure", "write", "read"].map((name) => column(name, name[0].toUpperCase() + name.slice(1), { wide: true }));
const limits = (found) => found.flatMap(({ value, ...of }) => Object.entries(value).map(([limit, value]) => ({ ...of, limit, value })));
const policies = (title, path, kind, tag) => ({ title, path, needs: [tag], form: `set${kind}`, remove: `delete${kind}`, names: ["vhost", "name"],
  columns: [column("name", "Name", { name: true }), { ...HOST, wide: true }, column("pattern", "Pattern"), column("apply-to", "Apply to", { wide: true }), column("definition", "Settings"), column("priority", "Priority", { wide: true, number: true })] });

// A card for each: `path` of its list, `form` that makes one and changes one, `change` where another does that, `remove`, and the `names` that tell one from
// others. `rows` makes rows of an answer that is no list of them; `given(row)` is what a change keeps.
const PARTS = {
  policies: ["Policies", [
    policies("Policies", "/api/policies", "Policy", "policymaker"),
    policies("Operator policies", "/api/operator-policies", "OperatorPolicy", "administrator"),
  ]],
  users: ["Users", [
    { title: "Users", path: "/api/users", form: "putUser", change: "changeUser", remove: "deleteUser", names: ["user"], isNamed: true, given: ({ password_hash, hashing_algorithm }) => ({ password_hash, hashing_algorithm }),
      columns: [column("name", "User", { name: true }), column("tags", "Tags", { cell: (row) => row.tags.join(", ") })], rows: (found) => found.map((row) => ({ ...row, user: row.name })) },
    { title: "Permissions", path: "/api/permissions", form: "putPermissions", remove: "deletePermissions", names: ["vhost", "user"], columns: [USER, HOST, ...PATTERNS] },
    { title: "Topic permissions", path: "/api/topic-permissions", form: "putTopics", remove: "deleteTopics", names: ["vhost", "user"], columns: [USER, HOST, column("exchange", "Exchange"), ...PATTERNS.slice(1)] },
    { title: "Limits of users", path: "/api/user-limits", form: "putUserLimit", remove: "deleteUserLimit", names: ["user", "limit"], rows: limits, columns: [USER, column("limit", "Limit"), column("value", "Value", { number: true })] },
  ]],
  hosts: ["Virtual hosts", [
    { title: "Virtual hosts", path: "/api/vhosts", form: "putHost", remove: "deleteHost", names: ["vhost"], isNamed: true, isFixed: true, columns: [column("name", "Name", { name: true }), column("messages", "Messages", { number: true, cell: (row) => text(row.messages ?? 0) })],
      rows: (found) => found.map((row) => ({ ...row, vhost: row.name })) },
    { title: "Limits of virtual hosts", path: "/api/vhost-limits", form: "putHostLimit", remove: "deleteHostLimit", names: ["vhost", "limit"], rows: limits, columns: [HOST, column("limit", "Limit"), column("value", "Value", { number: true })] },
  ]],
};

function card(part, changed) {
  const isPaged = part.rows !== limits;
  const named = (row) => Object.fromEntries(part.names.map((name) => [name, row[name]]));
  const label = (row) => Object.values(named(row)).join(" ");
  const deeds = { title: "", cell: (row) => h("span", { class: "deeds" },
    !part.isFixed && button(part.change ?? part.form, "Edit…", { ...named(row), ...part.given?.(row) }, { name: `Edit ${part.title} ${label(row)}`, title: `${part.title}: ${label(row)}`, values: { ...row, tags: row.tags?.join(",") } }),
    button(part.remove, "Delete…", named(row), { name: `Delete ${part.title} ${label(row)}` })) };
  const columns = part.columns.map(({ sort, ...more }) => ({ ...more, sort: isPaged ? sort : null }));
  // A row that has changed is another row: its buttons are made anew, with what it has now.
  const list = pagedList(part.title, part.path, [...columns, deeds], (row) => (part.isFixed ? label(row) : JSON.stringify(row)), changed, Boolean(part.isNamed));
  return {
    node: h("section", { class: "card" }, h("h2", {}, part.title), list.node, form(part.form)),
    look: () => (isPaged ? list.look() : part.path),
    answer(found) {
      if (found.error) return list.answer(found);
      const rows = (part.rows ?? ((each) => each))(isPaged ? found.items : found);
      return list.answer({ page: 1, page_count: 1, filtered_count: rows.length, ...(isPaged ? found : {}), items: rows });
    },
  };
}

export function adminPage([asked], open) {
  const shown = Object.entries(PARTS).map(([name, [title, parts]]) => [name, title, parts.filter((part) => may(part.needs ?? ["administrator"]))]).filter(([, , parts]) => parts.length);
  const [here, title, parts] = shown.find(([name]) => name === asked) ?? shown[0];
  const cards = parts.map((part) => card(part, () => open(looks())));
  const looks = () => cards.map((each) => each.look());
  return {
    title,
    looks: looks(),
    node: h("div", {}, h("h1", {}, title),
      h("nav", { class: "bar", "aria-label": "Parts of Admin" }, shown.map(([name, each]) => h("a", { href: `#/admin/${name}`, "aria-current": name === here ? "page" : null }, each))), cards.map((each) => each.node)),
    answer: (number, found) => cards[number].answer(found),
  };
}
