// One message: its data, its body, and its history.

import { get, now, post } from "./api.js";
import { dialog, field, h, notice, show } from "./dom.js";
import { WHEN, bytes, distance, iso, moment, typedTime } from "./format.js";
import { state, topicPaused } from "./messages.js";

const REFRESH = 3_000;

const HAPPENED = {
  born: "sent by its client",
  accepted: "accepted, to wait for its time",
  stored: "stored in its queue",
  due: "due",
  fired: "entered its queue",
  aborted: "aborted",
  rescheduled: "rescheduled",
};

/** Hex as lines of 16 bytes: offset, hex, and printable characters. */
function hexLines(text) {
  const lines = [];
  for (let place = 0; place < text.length; place += 32) {
    const pairs = text.slice(place, place + 32).match(/../g);
    const letters = pairs.map((pair) => {
      const code = parseInt(pair, 16);
      return code > 31 && code < 127 ? String.fromCharCode(code) : "·";
    });
    lines.push(`${(place / 2).toString(16).padStart(6, "0")}  ${pairs.join(" ").padEnd(48)} ${letters.join("")}`);
  }
  return lines.join("\n");
}

const toHex = (text) => [...new TextEncoder().encode(text)].map((byte) => byte.toString(16).padStart(2, "0")).join("");

const DEEPEST = 100;

/** Indents JSON. Its tokens stay as they are: a parser would round long numbers and drop repeated names. */
function pretty(text) {
  try {
    JSON.parse(text);
  } catch {
    return undefined;
  }
  const words = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g);
  const opens = (word) => word === "{" || word === "[";
  let depth = 0,
    lines = "";
  for (const [place, word] of words.entries()) {
    const closes = word === "}" || word === "]";
    if (closes) depth--;
    if (depth > DEEPEST) return undefined;
    const before = words[place - 1];
    if (before === "," || (opens(before) && !closes) || (closes && !opens(before))) lines += `\n${"  ".repeat(depth)}`;
    lines += word === ":" ? ": " : word;
    if (opens(word)) depth++;
  }
  return lines;
}

function bodyOf(body) {
  const json = body.encoding === "utf-8" && body.isWhole ? pretty(body.text) : undefined;
  const ways = {
    ...(json !== undefined && { JSON: json }),
    ...(body.encoding === "utf-8" && { Text: body.text }),
    Hex: hexLines(body.encoding === "hex" ? body.text : toHex(body.text)),
  };
  const shown = h("pre", { class: "body", tabindex: "0", "aria-label": "Body" });
  const choices = h(
    "div",
    { class: "presets", role: "group", "aria-label": "Show as" },
    Object.keys(ways).map((name) => h("button", { type: "button", onclick: () => choose(name) }, name)),
  );
  const choose = (name) => {
    shown.textContent = ways[name];
    for (const button of choices.children) button.setAttribute("aria-pressed", String(button.textContent === name));
  };
  choose(Object.keys(ways)[0]);
  return [
    h(
      "div",
      { class: "chosen" },
      h("h2", {}, "Body"),
      choices,
      h(
        "span",
        { class: "dim" },
        bytes(body.size),
        body.isCompressed && " compressed",
        !body.isWhole && ` · the first ${bytes(body.shown)} are shown`,
      ),
    ),
    shown,
  ];
}

const facts = (pairs) =>
  h(
    "dl",
    { class: "facts" },
    pairs
      .filter(([, value]) => value !== undefined && value !== null && value !== "")
      .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );

export function message(place, parameters, go, id) {
  let open = true,
    asked = 0,
    timer,
    shown,
    body,
    told = [];
  const head = h("div", { class: "headline" }),
    about = h("section", { class: "panel" }),
    past = h("section", { class: "panel" }),
    properties = h("section", { class: "panel" });
  const drawn = new Map();

  async function load() {
    clearTimeout(timer);
    const number = ++asked;
    try {
      if (!shown || !document.hidden) {
        const page = await get(`/messages/${encodeURIComponent(id)}`);
        if (!open || number !== asked) return;
        draw(page);
      }
    } catch (error) {
      if (!open || number !== asked) return;
      shown = undefined;
      show(place, h("section", { class: "panel" }, h("p", { class: "bad-text", role: "alert" }, error.message)));
      if (error.status >= 400 && error.status < 500) return;
    }
    timer = setTimeout(load, REFRESH);
  }

  /** An element whose text is computed again at each refresh, such as the time until a message is due. */
  function telling(attributes, text) {
    const element = h("span", attributes);
    told.push(() => {
      element.textContent = text();
    });
    return element;
  }

  /** Redraws the page only if it has changed, so that a selection in it is kept. */
  function draw(page) {
    const text = JSON.stringify(page);
    if (text !== shown) {
      shown = text;
      told = [];
      drawAnew(page);
    }
    for (const tell of told) tell();
  }

  /** Redraws a part only if what it shows has changed: of a message in its queue only its groups move on. */
  function drawPart(part, data, build) {
    const text = JSON.stringify(data);
    if (drawn.get(part) !== text) show(part, build());
    drawn.set(part, text);
  }

  function drawAnew(page) {
    const one = page.message;
    body ??= h("section", { class: "panel" }, bodyOf(page.body));
    if (!place.contains(head)) show(place, head, h("div", { class: "columns" }, about, past), body, properties);
    const topic = h("a", { href: `#/messages?topic=${encodeURIComponent(one.topic)}` }, one.topic);
    show(
      head,
      h("h1", { class: "mono" }, one.msgId || one.offsetMsgId),
      state(one.state),
      one.state === "pending" && page.isPaused && topicPaused(),
      one.state === "pending" && telling({ class: "dim" }, () => `due ${distance(one.dueMs, now())}`),
      h("span", { class: "spring" }),
      one.state === "pending" && h("button", { type: "button", "data-key": "reschedule", onclick: reschedule }, "Reschedule…"),
      one.state === "pending" &&
        h("button", { type: "button", class: "danger", "data-key": "abort", onclick: abort }, "Abort…"),
    );
    drawPart(about, [one, page.reconsumeTimes], () => [
      h("h2", {}, "Message"),
      facts([
        ["Topic", topic],
        ["Queue", `${one.queueId}${one.queueOffset >= 0 ? `, offset ${one.queueOffset}` : ""}`],
        ["Tag", one.tags],
        [
          "Keys",
          one.keys
            ?.split(" ")
            .filter(Boolean)
            .map((key) => [
              h("a", { href: `#/messages?${new URLSearchParams({ key, topic: one.topic, state: "any" })}` }, key),
              " ",
            ]),
        ],
        ["Offset id", h("span", { class: "mono" }, one.offsetMsgId)],
        ["Sent from", one.bornHost],
        ["Deliveries before", page.reconsumeTimes || undefined],
        ["Recall handle", one.recallHandle && h("span", { class: "mono wrap" }, one.recallHandle)],
      ]),
    ]);
    show(
      past,
      h("h2", {}, "History"),
      h(
        "ol",
        { class: "history" },
        page.history.map((event) =>
          h(
            "li",
            { class: event.kind },
            h("time", { datetime: iso(event.atMs) }, moment(event.atMs)),
            " ",
            event.kind === "due" && one.state === "pending"
              ? telling({}, () => (event.atMs > now() ? `will be due, ${distance(event.atMs, now())}` : HAPPENED.due))
              : (HAPPENED[event.kind] ?? event.kind),
            event.kind === "rescheduled" && `; it was due ${moment(one.dueBeforeMs)}`,
          ),
        ),
      ),
      page.receivers.length > 0 && [
        h("h3", {}, "Consumer groups"),
        h(
          "ul",
          { class: "receivers" },
          page.receivers.map((group) =>
            h(
              "li",
              {},
              h("span", { class: `state ${group.isPast ? "fired" : "pending"}` }, group.isPast ? "past it" : "not yet"),
              " ",
              h("a", { href: `#/groups?contains=${encodeURIComponent(group.group)}` }, group.group),
              h("span", { class: "dim" }, ` at offset ${group.offset}`),
            ),
          ),
        ),
      ],
    );
    drawPart(properties, page.properties, () => [
      h("h2", {}, "Properties"),
      facts(Object.entries(page.properties).map(([name, value]) => [name, h("span", { class: "wrap" }, value)])),
    ]);

    /** Changes the message, and shows the outcome. */
    async function change(path, body, wanted) {
      try {
        const { results } = await post(`/messages/${id}/${path}`, body);
        notice(
          results.map((result) => result.outcome).join(", "),
          results.some((result) => result.outcome === wanted) ? "good" : "bad",
        );
      } catch (error) {
        notice(error.message, "bad");
      }
      load();
    }

    function reschedule() {
      const at = h("input", { value: "+10m", required: true, autocomplete: "off" });
      const box = dialog(
        "Another time for this message",
        h(
          "form",
          {
            onsubmit: (event) => {
              event.preventDefault();
              box.close();
              change("reschedule", { at: typedTime(at.value) }, "rescheduled");
            },
          },
          h("p", {}, `It is due ${moment(one.dueMs)}.`),
          field("New time", at, WHEN),
          h("div", { class: "actions" }, h("button", { class: "main" }, "Reschedule")),
        ),
      );
      at.select();
    }

    function abort() {
      const box = dialog(
        "Abort this message?",
        h("p", {}, "It will never be delivered. This cannot be undone."),
        h("p", { class: "mono wrap" }, one.msgId),
        h("p", {}, one.topic, ", due ", moment(one.dueMs)),
        h(
          "div",
          { class: "actions" },
          h("button", { type: "button", onclick: () => box.close() }, "Keep it"),
          h(
            "button",
            {
              type: "button",
              class: "danger",
              autofocus: true,
              onclick: () => {
                box.close();
                change("abort", {}, "aborted");
              },
            },
            "Abort it",
          ),
        ),
      );
    }
  }

  load();
  return {
    leave: () => {
      open = false;
      clearTimeout(timer);
    },
  };
}
