// Recurring messages: a list, their next times, and a form that shows these before anything is set.

import { get, now, post, put, remove } from "./api.js";
import { dialog, field, h, notice, openDialog, refresh, show } from "./dom.js";
import { bytes, clockIn, count, distance, moment, typedTime, written } from "./format.js";
import { cell, head, line, live, pages } from "./tables.js";

const TYPED = 250;
const COLUMNS = ["next", "", "topic", "name", "rule", "zone", "missed ones", "fired", "state", ""];

const place = (one) => `/recurring/${encodeURIComponent(one.topic)}/${encodeURIComponent(one.name)}`;
const rule = (one) => one.cron ?? `every ${one.every}`;

/** The zone of a cron expression; the length of a period is the same in all zones. */
const zone = (one) => (one.cron ? one.zone : "");

const COMPRESSED = 1;
const MISSED = {
  SMART: "SMART: as FIRE_ONCE_NOW",
  FIRE_ONCE_NOW: "FIRE_ONCE_NOW: one, at once",
  DO_NOTHING: "DO_NOTHING: none",
  IGNORE_MISFIRE_POLICY: "IGNORE_MISFIRE_POLICY: all of them",
};

/** A body as text, or undefined if it is compressed or not text. */
function textOf(one) {
  if (one.sysFlag & COMPRESSED) return undefined;
  const data = Uint8Array.from(atob(one.body), (letter) => letter.charCodeAt(0));
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data);
  } catch {
    return undefined;
  }
}

const noText = (one) => `${bytes(one.bodySize)} that ${one.sysFlag & COMPRESSED ? "are compressed" : "are no text"}`;

const textOfTime = (ms) => (ms === undefined || ms === null ? undefined : String(written(ms)));

/** A next time, with what the clocks of a cron expression's zone show then if they are not those here. */
function timeOf({ cron, zone }, time) {
  const isHere = zone === Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (!cron || isHere) return moment(time);
  try {
    return `${moment(time)} (${clockIn(time, zone)} in ${zone})`;
  } catch {
    return moment(time); // a zone that only the gateway knows
  }
}

export function recurring(box) {
  const rows = h("tbody");
  show(
    box,
    h("h1", { class: "unseen" }, "Recurring messages"),
    h(
      "div",
      { class: "bar" },
      h("button", { type: "button", class: "main", onclick: () => edit(undefined, view.load) }, "New"),
    ),
    h("section", { class: "panel table-box" }, h("table", {}, head(...COLUMNS), rows)),
  );

  async function act(work) {
    try {
      notice((await work()).outcome, "good");
    } catch (error) {
      notice(error.message, "bad");
    }
    view.load();
  }

  function row(one) {
    const order = one.state === "paused" ? "resume" : "pause";
    return h(
      "tr",
      {},
      cell("next", moment(one.nextMs)),
      cell("", h("span", { class: "dim" }, one.state === "paused" ? "" : distance(one.nextMs, now()))),
      cell("topic", one.topic),
      cell(
        "name",
        h(
          "button",
          { type: "button", class: "link", "data-key": `name ${place(one)}`, onclick: () => look(one, view.load) },
          one.name,
        ),
      ),
      cell("rule", h("span", { class: "mono" }, rule(one))),
      cell("zone", zone(one)),
      cell("missed ones", one.misfire),
      cell("fired", count(one.fired), one.count !== undefined && one.count !== null && ` of ${count(one.count)}`),
      cell("state", h("span", { class: `state ${one.state === "paused" ? "aborted" : "pending"}` }, one.state)),
      cell(
        "",
        h(
          "button",
          {
            type: "button",
            "data-key": `order ${place(one)}`,
            onclick: () => act(() => post(`${place(one)}/${order}`)),
          },
          order,
        ),
      ),
    );
  }

  const complain = (text) => show(rows, line(text, "bad-text", COLUMNS.length));
  const view = live(async () => {
    const [found, isMore] = await pages("/recurring", "recurring");
    refresh(
      rows,
      found.map(row),
      isMore && line("There are more: tidegate recurring list", "empty", COLUMNS.length),
      !found.length && !isMore && line("No recurring messages, or none that you may see.", "empty", COLUMNS.length),
    );
  }, complain);
  return view;
}

async function look(one, changed) {
  let page;
  try {
    page = await get(place(one));
  } catch (error) {
    notice(error.message, "bad");
    return;
  }
  if (openDialog()) return; // from a second click
  const box = dialog(
    `${one.name} in ${one.topic}`,
    h("p", { class: "mono" }, rule(one), " ", zone(one)),
    h("h3", {}, "Next times"),
    h(
      "ol",
      { class: "times" },
      page.times.map((time) => h("li", {}, timeOf(one, time))),
    ),
    h("h3", {}, "Body"),
    h("pre", { class: "body" }, textOf(page.recurring) ?? noText(page.recurring)),
    h(
      "div",
      { class: "actions" },
      h(
        "button",
        {
          type: "button",
          class: "danger",
          onclick: () => {
            box.close();
            erase(one, changed);
          },
        },
        "Delete…",
      ),
      h(
        "button",
        {
          type: "button",
          onclick: () => {
            box.close();
            edit(page.recurring, changed);
          },
        },
        "Change",
      ),
    ),
  );
}

function erase(one, changed) {
  const box = dialog(
    `Delete ${one.name} in ${one.topic}?`,
    h("p", {}, "It will not fire again. This cannot be undone."),
    h(
      "div",
      { class: "actions" },
      h("button", { type: "button", autofocus: true, onclick: () => box.close() }, "Keep it"),
      h(
        "button",
        {
          type: "button",
          class: "danger",
          onclick: async () => {
            box.close();
            try {
              notice((await remove(place(one))).outcome, "good");
            } catch (error) {
              notice(error.message, "bad");
            }
            changed();
          },
        },
        "Delete it",
      ),
    ),
  );
}

function edit(one, changed) {
  const input = (name, more) => h("input", { name, autocomplete: "off", value: one?.[name] ?? "", ...more });
  const times = h("p", { class: "dim", role: "status" });
  const problem = h("p", { class: "bad-text", role: "alert", hidden: true });
  const bounds = { start: one?.startMs, end: one?.endMs };
  const bound = (name) =>
    input(name, { value: textOfTime(bounds[name]) ? moment(bounds[name]) : "", placeholder: "+1d, 2030-01-31" });
  const misfire = h(
    "select",
    { name: "misfire" },
    Object.entries(MISSED).map(([name, says]) => h("option", { value: name, selected: name === one?.misfire }, says)),
  );
  const text = one ? textOf(one) : "hello";
  const body = h("textarea", { name: "body", rows: "4", required: true, disabled: text === undefined }, text);
  const before = body.value;
  let typed,
    asked = 0;
  const form = h(
    "form",
    {
      oninput: () => {
        clearTimeout(typed);
        typed = setTimeout(tell, TYPED);
      },
      onsubmit: async (event) => {
        event.preventDefault();
        const { topic, name, ...fields } = given();
        try {
          notice((await put(place({ topic, name }), fields)).outcome, "good");
          box.close();
          changed();
        } catch (error) {
          problem.textContent = error.message;
          problem.hidden = false;
        }
      },
    },
    field("Topic", input("topic", { required: true, list: "topics-known", readOnly: Boolean(one) })),
    field("Name", input("name", { required: true, readOnly: Boolean(one) })),
    h(
      "div",
      { class: "pair" },
      field("Cron", input("cron", { placeholder: "0 5 * * MON-FRI" })),
      field("or every", input("every", { placeholder: "2m" })),
    ),
    h(
      "div",
      { class: "pair" },
      field("Time zone", input("zone", { placeholder: "UTC" })),
      field(
        "At most",
        input("count", { inputmode: "numeric", placeholder: "times", pattern: "\\s*[0-9]+\\s*", title: "a whole number" }),
      ),
    ),
    h("div", { class: "pair" }, field("Not before", bound("start")), field("Not after", bound("end"))),
    field("What fires of those that were missed", misfire),
    times,
    h("div", { class: "pair" }, field("Tag", input("tags")), field("Keys", input("keys"))),
    field("Body", body, text === undefined && `stays as it is: ${noText(one)}`),
    problem,
    h("div", { class: "actions" }, h("button", { class: "main" }, one ? "Replace" : "Set")),
  );
  const box = dialog(one ? `Change ${one.name}` : "A recurring message", form);

  function given() {
    const fields = Object.fromEntries([...new FormData(form)].filter(([, value]) => value.trim()));
    if (fields.count) fields.count = Number(fields.count);
    for (const name of ["start", "end"]) {
      const isKept = fields[name] === moment(bounds[name]);
      if (fields[name]) fields[name] = isKept ? textOfTime(bounds[name]) : typedTime(fields[name]);
    }
    if (!one) return fields;
    // Keep all that the form does not show, and keep a body that the user has not edited to the byte.
    Object.assign(fields, {
      queue: one.queueId,
      flag: one.flag,
      properties: Object.fromEntries(
        Object.entries(one.properties).filter(([name]) => !["KEYS", "TAGS", "UNIQ_KEY"].includes(name)),
      ),
    });
    if (body.value === before) Object.assign(fields, { body: one.body, encoding: "base64", sysFlag: one.sysFlag });
    return fields;
  }

  function ruleOf() {
    const { cron, every, zone, start, end, count } = given();
    return { cron, every, zone, start, end, count };
  }

  async function tell() {
    const rule = ruleOf();
    const { cron, every, zone, start, end } = rule;
    const number = ++asked;
    if (!cron && !every) {
      times.textContent = "";
      return;
    }
    try {
      // With the same rule the times go on; those of another one begin when it is set.
      const isSame = one && JSON.stringify(rule) === ruleBefore;
      const next = await (isSame ? get(place(one)) : get("/recurring-times", { cron, every, zone, start, end }));
      if (number !== asked) return;
      const shown = next.times.slice(0, 3).map((time) => timeOf({ cron, zone: zone ?? "UTC" }, time));
      times.textContent = `Next: ${shown.join(", ")}`;
    } catch (error) {
      if (number === asked) times.textContent = error.message;
    }
  }

  const ruleBefore = JSON.stringify(ruleOf());
  tell();
}
