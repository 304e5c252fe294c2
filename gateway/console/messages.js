// A table of messages, and the search for messages.

import { get, now } from "./api.js";
import { bulk } from "./bulk.js";
import { field, h, isInHand, notice, show, typed } from "./dom.js";
import { bytes, distance, iso, moment, shownTime, typedTime } from "./format.js";

const PAGE = 50;
const MOST = 1_000;
const LONGEST = 120;
const TIMES = ["begin", "end"];

export const state = (name) => h("span", { class: `state ${name}` }, name);
export const topicPaused = () => h("span", { class: "state aborted" }, "topic paused");

/** The beginning of a text, such as of a thousand keys; the message's own page has all of it. */
const begun = (text) => (text?.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text);

const link = (message) =>
  h("a", { href: `#/message/${message.offsetMsgId}`, class: "mono" }, message.msgId || message.offsetMsgId);

/** Pages of messages, one below the other. */
export class MessageTable {
  #rows = h("tbody");
  #more = h("button", { type: "button", class: "more", hidden: true, onclick: () => this.#next() }, "Show more");
  #empty = h("p", { class: "empty", hidden: true });
  #asked = {};
  #cursor = null;
  #number = 0;
  #wanted = PAGE;

  constructor() {
    const heads = ["due", "", "topic", "id", "tag", "keys", "size", "state"];
    this.element = h(
      "div",
      { class: "table-box" },
      h(
        "table",
        { class: "messages" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            heads.map((name) => h("th", { scope: "col" }, name)),
          ),
        ),
        this.#rows,
      ),
      this.#empty,
      this.#more,
    );
  }

  /** @param isAgain whether this refreshes the same query: then as many messages are shown as before. */
  async load(query, isAgain = false) {
    if (!isAgain) {
      this.#wanted = PAGE;
      this.#more.hidden = true; // what follows is of the query before, as are the rows
      this.#rows.setAttribute("aria-busy", "true");
    }
    this.#asked = query;
    await this.#page(true, isAgain);
  }

  #next() {
    this.#wanted += PAGE;
    this.#page().catch((error) => notice(error.message, "bad"));
  }

  async #page(afresh = false, isAgain = false) {
    const number = ++this.#number;
    let messages = [];
    const paused = new Set();
    // A page may be empty although more pages follow.
    let cursor = afresh ? "" : this.#cursor;
    const most = afresh ? this.#wanted : PAGE;
    for (let tries = 0; cursor !== null && messages.length < most && tries < 20; tries++) {
      const page = await get("/messages", { limit: Math.min(MOST, most - messages.length), ...this.#asked, cursor });
      if (number !== this.#number) return;
      messages = [...messages, ...page.messages];
      for (const one of page.paused) if (!one.resumed) paused.add(one.topic);
      cursor = page.cursor;
    }
    if (isAgain && isInHand(this.#rows)) return;
    this.#cursor = cursor;
    const rows = messages.map((message) => this.#row(message, paused.has(message.topic)));
    if (afresh) {
      show(this.#rows, rows);
      this.#rows.removeAttribute("aria-busy");
    } else this.#rows.append(...rows);
    this.#more.hidden = cursor === null;
    this.#empty.hidden = this.#rows.childElementCount > 0;
    const { state: wanted = "pending", id, key } = this.#asked;
    const none = `No ${wanted === "any" ? "" : `${wanted} `}messages.`;
    // Whoever looks for one message may not know that it has fired.
    const isHidden = wanted === "pending" && (id || key);
    this.#empty.textContent =
      cursor === null
        ? `${none}${isHidden ? " With the state any, those that have fired or were aborted are found too." : ""}`
        : "None so far; the search is not finished.";
  }

  #row(message, isPaused) {
    const cell = (label, ...children) => h("td", { "data-label": label }, children);
    return h(
      "tr",
      {},
      cell(
        "due",
        h(
          "time",
          { datetime: message.dueMs ? iso(message.dueMs) : undefined },
          message.dueMs ? moment(message.dueMs) : "at once",
        ),
      ),
      cell("", h("span", { class: "dim" }, this.#when(message))),
      cell("topic", message.topic),
      cell("id", link(message)),
      cell("tag", begun(message.tags)),
      cell("keys", begun(message.keys)),
      cell("size", bytes(message.bodySize)),
      cell(
        "state",
        state(message.state),
        isPaused && message.state === "pending" && [" ", topicPaused()],
      ),
    );
  }

  /** The time until the message is due, or since it fired, was aborted or, without a delay, entered its queue. */
  #when(message) {
    const time = message.movedMs || message.dueMs;
    return time ? `${message.movedMs && message.dueMs ? `${message.state} ` : ""}${distance(time, now())}` : "";
  }
}

/** The view that searches messages by any field. */
export function search(place, parameters, go) {
  const value = (name) => parameters.get(name) ?? "";
  const input = (name, hint) =>
    h("input", {
      name,
      value: TIMES.includes(name) ? shownTime(value(name)) : value(name),
      placeholder: hint,
      autocomplete: "off",
      list: name === "topic" ? "topics-known" : undefined,
    });
  const states = h(
    "select",
    { name: "state" },
    ["pending", "fired", "aborted", "any"].map((name) =>
      h("option", { selected: name === (value("state") || "pending") }, name),
    ),
  );
  const table = new MessageTable();
  const found = h("section", { class: "panel", hidden: true });
  const times = TIMES.map(() => h("span"));
  const form = h(
    "form",
    {
      class: "search",
      role: "search",
      oninput: nameTimes,
      onsubmit: (event) => {
        event.preventDefault();
        const { begin, end, ...rest } = typed(form);
        // Absolute times, so that a link means the same to users in other time zones.
        go("messages", { ...rest, begin: typedTime(begin), end: typedTime(end) });
      },
    },
    field("Id", input("id", "client or offset id")),
    field("Key", input("key")),
    field("Topic", input("topic")),
    field("Tag", input("tag")),
    field(times[0], input("begin", "+30m, 2030-01-31")),
    field(times[1], input("end", "+2h")),
    field("State", states),
    h("button", { class: "main" }, "Search"),
  );
  nameTimes();
  show(place, h("h1", { class: "unseen" }, "Messages"), h("section", { class: "panel" }, form), found);

  const asked = Object.fromEntries(
    [...parameters]
      .filter(([, text]) => text)
      .map(([name, text]) => [name, TIMES.includes(name) ? typedTime(text) : text]),
  );
  if (Object.keys(asked).length) run();
  else form.elements.id.focus({ preventScroll: true });

  /** Says which times are searched: in a list of what has fired or was aborted, when that happened. */
  function nameTimes() {
    const { id, key, state } = typed(form);
    const name = (!id && !key && { fired: "Fired", aborted: "Aborted" }[state]) || "Due";
    times[0].textContent = `${name} from`;
    times[1].textContent = `${name} before`;
  }

  async function run() {
    const { id, state: wantedState, ...selection } = asked;
    const changes = !id && (wantedState ?? "pending") === "pending" && Object.keys(selection).length > 0;
    show(
      found,
      h(
        "div",
        { class: "chosen" },
        h("h2", {}, "Found"),
        changes &&
          h(
            "button",
            { type: "button", class: "danger", "data-key": "change", onclick: () => bulk(selection, run) },
            "Change all of these…",
          ),
      ),
      table.element,
    );
    found.hidden = false;
    try {
      await table.load(asked);
    } catch (error) {
      show(found, h("p", { class: "bad-text", role: "alert" }, error.message));
    }
  }
}
