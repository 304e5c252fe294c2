// The console: the choice of the view, and the keys that work in every view.

import { get } from "./api.js";
import { closeDialogs, dialog, h, notice, openDialog, show } from "./dom.js";
import { groups, jobs, topics } from "./lists.js";
import { message } from "./message.js";
import { search } from "./messages.js";
import { pulse } from "./pulse.js";
import { recurring } from "./recurring.js";
import { knowTopics, send } from "./send.js";
import { shortcuts, timeline } from "./timeline.js";

const VIEWS = [
  ["timeline", "Timeline", timeline, "t"],
  ["messages", "Messages", search, "m"],
  ["topics", "Topics", topics, "o"],
  ["groups", "Groups", groups, "g"],
  ["recurring", "Recurring", recurring, "r"],
  ["jobs", "Bulk changes", jobs, "b"],
];

const main = document.getElementById("main");
const nav = document.getElementById("nav");
let current;

function go(view, parameters = {}) {
  const given = new URLSearchParams(
    Object.entries(parameters).filter(([, value]) => value !== undefined && value !== ""),
  );
  const next = `#/${view}${given.size ? `?${given}` : ""}`;
  if (next === location.hash) route();
  else location.hash = next;
}

/** Decodes a part of an address, which may have been cut off or typed by hand. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function route() {
  const [path, text] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, argument] = path.split("/").map(decoded);
  current?.leave?.();
  closeDialogs();
  const [name, title, open] =
    VIEWS.find(([one]) => one === view) ?? (view === "message" ? ["messages", "Message", message] : VIEWS[0]);
  for (const link of nav.children)
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  document.title = `${title} · Tidegate`;
  show(main);
  current = open(main, new URLSearchParams(text), go, argument);
}

function help() {
  const rows = [
    ...VIEWS.map(([, title, , key]) => [key, title]),
    ["s", "send a message"],
    ["/", "search"],
    ...shortcuts,
    ["?", "this"],
  ];
  dialog(
    "Keyboard",
    h(
      "dl",
      { class: "keys" },
      rows.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)]),
    ),
  );
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select");
  if (typing || openDialog() || event.ctrlKey || event.metaKey || event.altKey) return;
  const view = VIEWS.find(([, , , key]) => key === event.key);
  if (view) go(view[0]);
  else if (event.key === "s") send();
  else if (event.key === "/") go("messages");
  else if (event.key === "?") help();
  else if (!current?.key?.(event)) return;
  event.preventDefault();
});

async function status() {
  try {
    const one = await get("/status");
    document.querySelector(".brand").title =
      `Tidegate ${one.version}: ${one.broker} at ${one.address}${one.user ? `, as ${one.user}` : ""}`;
    if (!one.clockMoves) notice("This gateway has a manual clock: move it with tidegate clock advance");
  } catch (error) {
    notice(error.message, "bad");
  }
}

show(
  nav,
  VIEWS.map(([name, title, , key]) =>
    h("a", { href: `#/${name}`, "data-view": name, title: `${title} (${key})` }, title),
  ),
);
// As a link it would lead to a view of that name.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.getElementById("send").addEventListener("click", send);
document.getElementById("help").addEventListener("click", help);
window.addEventListener("hashchange", route);
route();
pulse(document.getElementById("pulse"));
status().then(knowTopics);
