// The timeline view: the chart, the ways to move in it, and the messages of the selection.

import { get, now } from "./api.js";
import { bulk } from "./bulk.js";
import { COLOURS, Chart } from "./chart.js";
import { h, show, typed } from "./dom.js";
import { DAY, HOUR, MINUTE, count, distance, duration, inputTime, moment, written } from "./format.js";
import { MessageTable } from "./messages.js";
import { Span } from "./span.js";

const SPANS = [
  ["1m", MINUTE],
  ["10m", 10 * MINUTE],
  ["1h", HOUR],
  ["6h", 6 * HOUR],
  ["1d", DAY],
  ["7d", 7 * DAY],
  ["30d", 30 * DAY],
  ["1y", 365 * DAY],
];
const REFRESH = 3_000;

export const shortcuts = [
  ["← →", "move in time"],
  ["+ −", "zoom in, out"],
  ["Enter", "zoom to what is selected"],
  ["n", "from now on"],
  ["0", "all that is pending"],
  ["Esc", "select nothing"],
];

export function timeline(place, parameters, go) {
  const topic = parameters.get("topic") ?? "";
  const tag = parameters.get("tag") ?? "";
  const wanted = [parameters.get("from") || NaN, parameters.get("to") || NaN].map(Number); // 0 is a time too
  let selection,
    data,
    timer,
    isTyped = false,
    asked = 0;
  let follows = wanted.some(Number.isNaN);
  let span = follows ? fromNow(Number(parameters.get("length")) || HOUR) : new Span(...wanted);

  const chart = new Chart({
    moved: (next) => move(next),
    selected: (next) => select(next),
  });
  const caption = h("p", { class: "caption", "aria-live": "polite" });
  const legend = h("ul", { class: "legend", "aria-label": "Topics" });
  const chosen = h("div", { class: "chosen" });
  const table = new MessageTable();
  const from = h("input", { type: "datetime-local", step: "1", "aria-label": "From" });
  const to = h("input", { type: "datetime-local", step: "1", "aria-label": "To" });
  const presets = h(
    "div",
    { class: "presets", role: "group", "aria-label": "Length" },
    SPANS.map(([name, length]) => h("button", { type: "button", onclick: () => follow(length) }, name)),
    h("button", { type: "button", title: "All that is pending (0)", onclick: all }, "all"),
  );
  const filter = h(
    "form",
    {
      class: "inline",
      onsubmit: (event) => {
        event.preventDefault();
        go("timeline", { ...address(), ...typed(filter) });
      },
    },
    h("input", {
      name: "topic",
      placeholder: "topic",
      value: topic,
      "aria-label": "Topic",
      list: "topics-known",
      autocomplete: "off",
    }),
    h("input", { name: "tag", placeholder: "tag", value: tag, "aria-label": "Tag" }),
    h("button", {}, "Filter"),
  );

  show(
    place,
    h("h1", { class: "unseen" }, "Timeline"),
    h(
      "div",
      { class: "bar" },
      presets,
      h(
        "div",
        { class: "presets", role: "group", "aria-label": "Move" },
        h(
          "button",
          { type: "button", "aria-label": "Earlier", title: "Earlier (←)", onclick: () => move(span.moved(-0.5)) },
          "←",
        ),
        h(
          "button",
          { type: "button", "aria-label": "Later", title: "Later (→)", onclick: () => move(span.moved(0.5)) },
          "→",
        ),
        h(
          "button",
          { type: "button", "aria-label": "Zoom in", title: "Zoom in (+)", onclick: () => move(span.zoomed(0.5)) },
          "+",
        ),
        h(
          "button",
          { type: "button", "aria-label": "Zoom out", title: "Zoom out (−)", onclick: () => move(span.zoomed(2)) },
          "−",
        ),
        h("button", { type: "button", title: "From now on (n)", onclick: () => follow(span.length) }, "now"),
      ),
      h(
        "form",
        {
          class: "inline range",
          oninput: () => {
            isTyped = true;
            to.setCustomValidity("");
          },
          onsubmit: (event) => {
            event.preventDefault();
            const begin = new Date(from.value).getTime(),
              end = new Date(to.value).getTime();
            if (end > begin) move(new Span(begin, end));
            else {
              to.setCustomValidity("The end must be after the beginning.");
              to.reportValidity();
            }
          },
        },
        from,
        h("span", { "aria-hidden": "true" }, "–"),
        to,
        h("button", {}, "Show"),
      ),
    ),
    h("section", { class: "panel" }, h("div", { class: "caption-row" }, caption, filter), chart.element, legend),
    h("section", { class: "panel" }, chosen, table.element),
  );

  function fromNow(length) {
    return new Span(now(), now() + length);
  }

  function address() {
    return follows ? { length: span.length } : { from: span.begin, to: span.end };
  }

  function note() {
    const fields = new URLSearchParams(Object.entries({ ...address(), topic, tag }).filter(([, value]) => value !== ""));
    history.replaceState(null, "", `#/timeline?${fields}`);
  }

  function follow(length) {
    follows = true;
    isTyped = false;
    selection = undefined;
    span = fromNow(length);
    caption.setAttribute("aria-busy", "true");
    note();
    load();
  }

  function move(next) {
    follows = false;
    isTyped = false;
    span = next;
    caption.setAttribute("aria-busy", "true"); // it tells of the span before
    chart.update(span, data, selection);
    note();
    clearTimeout(timer);
    asked++; // an answer that is under way is about the span before
    timer = setTimeout(load, 120);
  }

  function all() {
    if (!data?.firstDueMs) return;
    const length = Math.max(MINUTE, data.lastDueMs - data.firstDueMs);
    move(new Span(data.firstDueMs - length * 0.02, data.lastDueMs + length * 0.02));
  }

  function select(next) {
    selection = next;
    chart.update(span, data, selection);
    list().catch(complain);
  }

  function complain(error) {
    caption.removeAttribute("aria-busy");
    show(caption, h("span", { class: "bad-text" }, error.message));
  }

  /** @param isAgain whether this refreshes the same view. */
  async function load(isAgain = false) {
    clearTimeout(timer);
    const number = ++asked;
    const fromNowOn = () => follows && !selection;
    const isFromNow = fromNowOn();
    try {
      const columns = Math.max(30, Math.min(240, Math.floor(chart.element.clientWidth / 7)));
      const times = isFromNow
        ? { begin: "now", end: `+${span.length}ms` }
        : { begin: written(span.begin), end: written(span.end) };
      const answer = await get("/timeline", { ...times, columns, topic, tag });
      if (number !== asked || !place.contains(chart.element)) return;
      data = answer;
      if (isFromNow && fromNowOn()) span = new Span(data.nowMs, data.nowMs + span.length);
      describe();
      chart.update(span, data, selection);
      await list(isAgain);
    } catch (error) {
      if (number === asked) complain(error);
    }
    if (number === asked && place.contains(chart.element)) timer = setTimeout(again, REFRESH);
  }

  function again() {
    if (document.hidden) {
      timer = setTimeout(again, REFRESH);
      return;
    }
    load(true);
  }

  function describe() {
    caption.removeAttribute("aria-busy");
    // While it follows the clock it changes at each refresh, and would be read out each time.
    caption.setAttribute("aria-live", follows ? "off" : "polite");
    const held = data.isWhole ? count(data.total) : `at least ${count(data.total)}`;
    show(
      caption,
      h("strong", {}, `${held} due`),
      ` in ${duration(span.length)} from ${moment(span.begin)}`,
      h(
        "span",
        { class: "dim" },
        follows ? " · follows the clock" : ` (${distance(span.begin, data.nowMs)})`,
        ` · counted in whole columns of ${duration(data.widthMs)}`,
      ),
      !data.total &&
        data.firstDueMs &&
        h("button", { type: "button", class: "link", "data-key": "all", onclick: all }, "show all that is pending"),
    );
    if (!isTyped) {
      from.value = inputTime(span.begin);
      to.value = inputTime(span.end);
    }
    for (const [place, button] of [...presets.children].entries())
      button.setAttribute("aria-pressed", String(follows && SPANS[place]?.[1] === span.length));
    const others = data.others?.reduce((sum, number) => sum + number, 0);
    show(
      legend,
      data.topics.map((one, place) =>
        h(
          "li",
          {},
          h(
            "button",
            {
              type: "button",
              class: "link",
              "data-key": `topic ${one.topic}`,
              title: topic ? "Show all topics" : `Show ${one.topic} alone`,
              onclick: () => go("timeline", { ...address(), topic: topic ? "" : one.topic, tag }),
            },
            h("i", { class: `dot t${Math.min(place, COLOURS)}` }),
            one.topic,
            h("b", {}, count(one.total)),
            topic && " ✕",
          ),
        ),
      ),
      others && h("li", {}, h("i", { class: `dot t${COLOURS}` }), "other topics ", h("b", {}, count(others))),
    );
  }

  async function list(isAgain = false) {
    const [begin, end] = selection ?? [span.begin, span.end];
    const what = { topic, tag, begin: written(Math.max(0, Math.floor(begin))), end: written(Math.ceil(end)) };
    show(
      chosen,
      h("h2", {}, selection ? `Selected: ${duration(end - begin)} from ${moment(begin)}` : "Next of these"),
      selection &&
        h("button", { type: "button", "data-key": "zoom", onclick: () => chart.zoomToSelection() }, "Zoom in"),
      selection &&
        h("button", { type: "button", class: "quiet", "data-key": "clear", onclick: () => select() }, "Clear"),
      h(
        "button",
        {
          type: "button",
          class: "danger",
          "data-key": "change",
          disabled: !data?.total,
          onclick: () => bulk(what, () => load()),
        },
        "Change all of these…",
      ),
    );
    await table.load(what, isAgain);
  }

  function key(event) {
    const keys = {
      ArrowLeft: () => move(span.moved(-0.25)),
      ArrowRight: () => move(span.moved(0.25)),
      "+": () => move(span.zoomed(0.5)),
      "=": () => move(span.zoomed(0.5)),
      "-": () => move(span.zoomed(2)),
      n: () => follow(span.length),
      0: all,
      Escape: () => select(),
      Enter: () => chart.zoomToSelection(),
    };
    // If a button or link has the focus, Enter belongs to it.
    if (!keys[event.key] || (event.key === "Enter" && document.activeElement !== chart.picture)) return false;
    keys[event.key]();
    return true;
  }

  load();
  return {
    key,
    leave: () => {
      asked++;
      clearTimeout(timer);
    },
  };
}
