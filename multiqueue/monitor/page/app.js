// The frame of the page: who looks, which page is shown, whether it is live, light or dark.

import { get, keepSession, know, signIn, signOut, user, watch } from "./api.js";
import { adminPage } from "./admin.js";
import { h, say, setText } from "./dom.js";
import { channelsPage, connectionPage, connectionsPage } from "./connections.js";
import { exchangePage, exchangesPage } from "./exchanges.js";
import { lanesPage } from "./lanes.js";
import { overviewPage } from "./overview.js";
import { queuePage, queuesPage } from "./queues.js";

// A page is a function of the parts of its address; it returns {title, looks, node, answer(number, content)},
// where something moves with the time, tick(seconds since 1970), and where something is drawn over time, prime().
const PAGES = {
  "": overviewPage,
  queues: queuesPage,
  queue: queuePage,
  exchanges: exchangesPage,
  exchange: exchangePage,
  connections: connectionsPage,
  connection: connectionPage,
  channels: channelsPage,
  lanes: lanesPage,
  admin: adminPage,
};
const OF_ONE = { queue: 2, exchange: 2, connection: 1 }; // pages of one thing: how many parts name it
const LONGEST = 10; // seconds without an answer: hidden, or out of reach
const main = document.getElementById("main");
const nav = document.getElementById("nav");
const live = document.getElementById("live");
const leave = document.getElementById("leave");
let stop = () => {};
let tick = () => {};
let prime = () => {}; // asks the broker for what was, where the page's charts do not know it
let seen = 0; // seconds since 1970 of the sample that is shown
let names = [];

// The parts of an address; somebody may have written it by hand.
function partsOf(address) {
  try {
    return address.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  } catch {
    return [""];
  }
}

function show(address) {
  stop();
  const parts = partsOf(address);
  const isThere = names.some(([name]) => name === parts[0]) || parts.length > (OF_ONE[parts[0]] ?? Infinity);
  const here = isThere ? parts[0] : names[0][0];
  const open = (looks) => {
    stop();
    stop = watch(looks, (number, content) => page.answer(number, content), state);
  };
  const page = PAGES[here](parts.slice(1), open);
  document.title = `${page.title} · multiqueue`;
  tick = page.tick ?? (() => {});
  prime = page.prime ?? (() => {});
  prime();
  main.replaceChildren(page.node);
  for (const link of nav.children) {
    const isHere = link.dataset.page === here || link.dataset.page === `${here}s`;
    if (isHere) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" }); // the row of links may be wider than a telephone
    } else link.removeAttribute("aria-current");
  }
  open(page.looks);
}

function state(now, at) {
  if (now === "out") {
    signOut();
    return login("You are signed out: the user, or its password, has changed.");
  }
  if (at) {
    if (seen && at - seen > LONGEST) prime();
    seen = at;
    tick(at);
  }
  live.dataset.state = now;
  setText(live, now === "live" ? "live" : `not live, as of ${new Date(seen * 1000).toLocaleTimeString()}`);
  return undefined;
}

// -- signing in

function loginForm(text) {
  const name = h("input", { name: "user", autocomplete: "username", required: true, value: "" });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password" });
  const told = h("p", { class: "bad", role: "alert" }, text ?? "");
  const button = h("button", { class: "first", type: "submit" }, "Sign in");
  const form = h("form", { class: "card login", onsubmit: submit },
    h("h1", {}, "Sign in"), h("label", {}, "User", name), h("label", {}, "Password", password), button, told,
    h("p", { class: "note" }, "Users are those of the broker. “guest” comes in from the broker's machine alone."));

  async function submit(event) {
    event.preventDefault();
    button.disabled = true;
    setText(told, "");
    signIn(name.value, password.value);
    try {
      await enter();
    } catch (error) {
      signOut();
      setText(told, error.status === 401 ? "No such user, or another password." : error.message);
    }
    button.disabled = false;
  }

  setTimeout(() => name.focus());
  return form;
}

function login(text) {
  stop();
  nav.hidden = leave.hidden = true;
  setText(live, "");
  document.title = "Sign in · multiqueue";
  main.replaceChildren(loginForm(text));
}

async function enter() {
  const found = await get("/api/windows");
  keepSession();
  know(found);
  names = found.pages.map((name) => [name === "overview" ? "" : name, name[0].toUpperCase() + name.slice(1)]);
  nav.replaceChildren(...names.map(([name, title]) => h("a", { href: `#/${name}`, "data-page": name }, title)));
  nav.hidden = leave.hidden = false;
  show(location.hash);
}

leave.addEventListener("click", () => {
  signOut();
  login();
});
addEventListener("hashchange", () => {
  if (!user()) return;
  show(location.hash);
  main.focus();
});

// -- light and dark

const THEMES = ["auto", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = document.getElementById("theme");

function paint() {
  const chosen = localStorage.getItem("multiqueue.theme") ?? "auto";
  document.documentElement.dataset.theme = chosen === "auto" ? (dark.matches ? "dark" : "light") : chosen;
  setText(theme, { auto: "◐ auto", light: "☀ light", dark: "☾ dark" }[chosen]);
  theme.setAttribute("aria-label", `Colours: ${chosen}`);
}

theme.addEventListener("click", () => {
  const chosen = localStorage.getItem("multiqueue.theme") ?? "auto";
  localStorage.setItem("multiqueue.theme", THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length]);
  paint();
});
dark.addEventListener("change", paint);
paint();
if (!user()) login();
else enter().catch((error) => (error.status === 401 ? login() : say(error.message, true)));
