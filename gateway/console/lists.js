// Topics, consumer groups, and the last changes to many messages.

import { get, now, post, remove } from "./api.js";
import { selectionText } from "./bulk.js";
import { h, notice, refresh, show, typed } from "./dom.js";
import { count, duration, moment, short } from "./format.js";
import { MOST, cell, head, line, live, pages } from "./tables.js";

/** Stands above the list: below a thousand rows nobody would learn that the longest lag may be elsewhere. */
const MORE = `Only the first ${count(MOST)} by name are here: type a part of the name to see others.`;

function filterBar(view, parameters, go, ...more) {
  const form = h(
    "form",
    {
      class: "inline",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        go(view, typed(form));
      },
    },
    h("input", {
      name: "contains",
      type: "search",
      placeholder: "name contains",
      "aria-label": "Name contains",
      value: parameters.get("contains") ?? "",
    }),
    more,
    h("button", {}, "Filter"),
  );
  return form;
}

/** Shows whether a topic is paused, and a button to change that; `changed` is called afterwards. */
function firing(one, changed) {
  const order = one.pause && !one.pause.resumed ? "resume" : "pause";
  const change = async () => {
    try {
      await post(`/topics/${encodeURIComponent(one.name)}/${order}`);
      notice(
        order === "pause" ? `${one.name} is paused: nothing in it fires until it is resumed.` : `${one.name} fires again.`,
        "good",
      );
    } catch (error) {
      notice(error.message, "bad");
    }
    changed();
  };
  return [
    one.pause &&
      h(
        "span",
        { class: "state aborted", title: `since ${moment(one.pause.sinceMs)}` },
        `${one.pause.resumed ? "catching up" : "paused"}, ${count(one.pause.waiting)} due`,
      ),
    " ",
    !one.isSystem &&
      h("button", { type: "button", class: "quiet", "data-key": `firing ${one.name}`, onclick: change }, order),
  ];
}

export function topics(place, parameters, go) {
  const rows = h("tbody");
  const system = parameters.get("system") === "on";
  show(
    place,
    h("h1", { class: "unseen" }, "Topics"),
    h(
      "div",
      { class: "bar" },
      filterBar(
        "topics",
        parameters,
        go,
        h(
          "label",
          { class: "check" },
          h("input", { type: "checkbox", name: "system", checked: system }),
          "include system topics",
        ),
      ),
    ),
    h(
      "section",
      { class: "panel table-box" },
      h(
        "table",
        {},
        head("topic", "#pending", "", "#in queues", "#entered since start", "#queues", "may", "firing"),
        rows,
      ),
    ),
  );
  const contains = parameters.get("contains") ?? "";
  const complain = (text) => show(rows, line(text, "bad-text"));
  const view = live(async () => {
    const [all, isMore] = await pages("/topics", "topics", { contains });
    const found = all.filter((one) => system || !one.isSystem);
    const most = Math.max(1, ...found.map((one) => one.held));
    refresh(
      rows,
      isMore && line(MORE, "empty"),
      found.map((one) =>
        h(
          "tr",
          {},
          cell("topic", h("a", { href: `#/timeline?topic=${encodeURIComponent(one.name)}` }, one.name)),
          cell("pending", one.held),
          h(
            "td",
            { class: "meter-cell", "aria-hidden": "true" },
            one.held > 0 && h("meter", { max: most, value: one.held }),
          ),
          cell("in queues", one.stored),
          cell("entered", one.entered),
          cell("queues", one.queues),
          cell("may", [one.perm & 4 && "read", one.perm & 2 && "write"].filter(Boolean).join(", ") || "nothing"),
          cell("firing", firing(one, view.load)),
        ),
      ),
      !found.length &&
        !isMore &&
        line(
          contains
            ? "No topic's name contains this."
            : "No topics, or none that you may see: the first send to a topic makes it.",
          "empty",
        ),
    );
  }, complain);
  return view;
}

/** The details of a group. They are built only for opened groups, since of a thousand most are closed. */
const contents = (group) =>
  h(
    "div",
    {},
    group.members.length > 0 && h("p", { class: "mono dim wrap" }, group.members.join("  ")),
    group.topics.length > 0 &&
      h(
        "div",
        { class: "table-box" },
        h(
          "table",
          {},
          head("topic", "#behind", "oldest waits", "a second", "queues: behind"),
          h(
            "tbody",
            {},
            group.topics.map((one) =>
              h(
                "tr",
                {},
                cell(
                  "topic",
                  h(
                    "a",
                    {
                      href: `#/timeline?topic=${encodeURIComponent(one.topic)}`,
                      "data-key": `topic ${one.topic} of ${group.name}`, // other groups may have the same link
                    },
                    one.topic,
                  ),
                ),
                cell("behind", one.lag),
                cell("oldest waits", one.waitingSinceMs ? duration(now() - one.waitingSinceMs) : "–"),
                cell("a second", short(one.perSecond)),
                cell(
                  "queues",
                  h(
                    "span",
                    { class: "mono dim" },
                    queueLags(one.queues),
                  ),
                ),
              ),
            ),
          ),
        ),
      ),
  );

/** Returns the lag of each queue; of several workers, with the name of each before its queues. */
function queueLags(queues) {
  const isOne = queues.every(({ broker }) => broker === queues[0].broker);
  const name = (queue, before) => (isOne || queue.broker === before?.broker ? "" : `${queue.broker} `);
  return queues.map((queue, at) => `${name(queue, queues[at - 1])}${queue.queue}: ${count(queue.lag)}`).join(" · ");
}

export function groups(place, parameters, go) {
  const list = h("div");
  const opened = new Set();
  let isFirst = true;
  show(
    place,
    h("h1", { class: "unseen" }, "Groups"),
    h("div", { class: "bar" }, filterBar("groups", parameters, go)),
    list,
  );
  const contains = parameters.get("contains") ?? "";
  const complain = (text) => show(list, h("p", { class: "bad-text", role: "alert" }, text));
  return live(async () => {
    const [found, isMore] = await pages("/groups", "groups", { contains });
    // Groups with the largest lag first, then those with most members.
    found.sort((one, other) => other.lag - one.lag || other.members.length - one.members.length);
    if (isFirst && found.length === 1) opened.add(found[0].name);
    isFirst = false;
    refresh(
      list,
      isMore && h("p", { class: "empty" }, MORE),
      found.map((group) => {
        const key = group.name;
        return h(
          "details",
          {
            class: "panel group",
            open: opened.has(key),
            ontoggle: ({ target }) => {
              if (target.open) opened.add(key);
              else opened.delete(key);
              if (target.open && target.childElementCount === 1) target.append(contents(group));
            },
          },
          h(
            "summary",
            { "data-key": `group ${key}` },
            h("strong", {}, group.name),
            h(
              "span",
              { class: `state ${group.members.length ? "fired" : ""}` },
              group.members.length ? `${group.members.length} online` : "offline",
            ),
            h("span", { class: group.lag ? "lag" : "dim" }, `${count(group.lag)} behind`),
          ),
          opened.has(key) && contents(group),
        );
      }),
      !found.length &&
        h(
          "p",
          { class: "empty" },
          contains ? "No consumer group's name contains this." : "No consumer groups, or none that you may see.",
        ),
    );
  }, complain);
}

export function jobs(place) {
  const rows = h("tbody");
  show(
    place,
    h("h1", { class: "unseen" }, "Bulk changes"),
    h(
      "section",
      { class: "panel table-box" },
      h("table", {}, head("started", "change", "#messages", "#done", "#missed", "state", "by", ""), rows),
    ),
  );
  const complain = (text) => show(rows, line(text, "bad-text"));
  return live(async () => {
    const { jobs: found } = await get("/bulk");
    refresh(
      rows,
      found.map((job) =>
        h(
          "tr",
          {},
          cell("started", moment(job.startedMs)),
          cell("change", `${job.action}: `, selectionText(job.selection)),
          cell("messages", job.expected),
          cell("done", job.done),
          cell("missed", job.missed),
          cell(
            "state",
            h("span", { class: `state ${{ done: "fired", running: "pending" }[job.state] ?? "aborted"}` }, job.state),
            job.error && ` ${job.error}`,
          ),
          cell("by", job.user ?? "–"),
          cell(
            "",
            job.state === "running" &&
              h(
                "button",
                {
                  type: "button",
                  "data-key": `stop ${job.id}`,
                  onclick: () => remove(`/bulk/${job.id}`).catch((error) => notice(error.message, "bad")),
                },
                "Stop",
              ),
          ),
        ),
      ),
      !found.length && line("None since the gateway started. Start one in Timeline or Messages.", "empty"),
    );
  }, complain);
}
