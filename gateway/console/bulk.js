// A change to many messages: the preview, the confirmation, and the progress.

import { get, now, post, remove } from "./api.js";
import { dialog, h, show } from "./dom.js";
import { count, moment, typedTime } from "./format.js";

const LOOK = 400;

const NAMES = { topic: "topic", key: "key", tag: "tag", begin: "due from", end: "due before" };

/** Tells a selection. A key or tag that is written from right to left would turn the words behind it around, too. */
export const selectionText = (selection) =>
  Object.entries(selection)
    .filter(([, value]) => value !== undefined && value !== "")
    .map(([name, value], place) => [
      `${place ? ", " : ""}${NAMES[name] ?? name} `,
      h("bdi", {}, (name === "begin" || name === "end") && typeof value === "number" ? moment(value) : value),
    ]);

const DONE = { abort: "aborted", reschedule: "rescheduled" };

/** @param selection as in the API; `changed` is called when messages have changed. */
export function bulk(selection, changed) {
  const given = Object.fromEntries(
    Object.entries(selection).filter(([, value]) => value !== undefined && value !== ""),
  );
  const body = h("div");
  const problem = h("p", { class: "bad-text", role: "alert" });
  const box = dialog("Change many messages", body, problem);
  let asked = 0;
  choose();

  /** Shows an error in the dialog: the page behind it is dimmed, and screen readers skip it. */
  function tell(error) {
    problem.textContent = error.message;
  }

  function choose() {
    const to = h("input", { value: "+10m", required: true, autocomplete: "off", "aria-label": "New time" });
    const how = h(
      "select",
      { "aria-label": "At or by" },
      h("option", { value: "at" }, "to fire at"),
      h("option", { value: "shift" }, "to fire later by"),
    );
    how.addEventListener("change", () => {
      to.value = how.value === "at" ? "+10m" : "10m";
    });
    show(
      body,
      h("p", {}, "All pending messages with ", selectionText(given), ":"),
      h(
        "div",
        { class: "choices" },
        h("button", { type: "button", class: "danger", onclick: () => look("abort") }, "Abort them…"),
        h(
          "form",
          {
            class: "inline",
            onsubmit: (event) => {
              event.preventDefault();
              look("reschedule", how.value === "at" ? { at: typedTime(to.value) } : { shift: to.value });
            },
          },
          how,
          to,
          h("button", {}, "Reschedule them…"),
        ),
      ),
      h(
        "p",
        { class: "dim" },
        "You see how many messages match before anything is changed.",
        !given.topic && " Consumers' retries (%RETRY%…) and topics that you may not send to are left alone.",
      ),
    );
  }

  /** Shows the preview of the last request, even if an earlier one is answered later. */
  async function look(action, to) {
    const number = ++asked;
    problem.textContent = "";
    try {
      const preview = await post("/bulk/preview", { action, selection: given, to });
      if (number === asked) confirm(action, to, preview);
    } catch (error) {
      if (number === asked) tell(error);
    }
  }

  function confirm(action, to, preview) {
    const number = `${preview.isExact ? "" : "at least "}${count(preview.count)} message${preview.count === 1 ? "" : "s"}`;
    const what =
      action === "abort"
        ? "will never be delivered. This cannot be undone."
        : `will fire ${to.shift ? `later by ${to.shift}` : `at ${typeof to.at === "number" ? moment(to.at) : to.at}`}.`;
    const isRelative = [given.begin, given.end, to?.at].some((time) => /^\s*([+-]|now)/.test(time));
    const since = isRelative ? ` Relative times count from ${moment(now())}.` : "";
    const word = action === "abort" ? "Abort" : "Reschedule";
    const button = h(
      "button",
      { type: "button", class: "danger", disabled: true, onclick: () => start(action, preview.token, button) },
      `${word} ${number}`,
    );
    const typed = h("input", {
      "aria-label": "Number of messages",
      autocomplete: "off",
      inputmode: "numeric",
      oninput: () => {
        button.disabled = typed.value.trim() !== String(preview.count);
      },
    });
    show(
      body,
      preview.count > 0
        ? h(
            "p",
            {},
            h("strong", {}, number),
            " with ",
            selectionText(given),
            ` ${what} Messages that arrive from now on are not changed.${since}`,
          )
        : h("p", {}, "There is no message to change with ", selectionText(given), "."),
      preview.sample.length > 0 &&
        h(
          "table",
          { class: "sample" },
          h(
            "tbody",
            {},
            preview.sample.map((one) =>
              h(
                "tr",
                {},
                h("td", {}, moment(one.dueMs)),
                h("td", {}, one.topic),
                h("td", { class: "mono" }, one.msgId),
              ),
            ),
            preview.count > preview.sample.length &&
              h(
                "tr",
                {},
                h("td", { colspan: "3", class: "dim" }, `and ${count(preview.count - preview.sample.length)} more`),
              ),
          ),
        ),
      preview.count > 0 && h("label", { class: "field" }, h("span", {}, `To confirm, type ${preview.count}`), typed),
      h(
        "div",
        { class: "actions" },
        h("button", { type: "button", onclick: () => box.close() }, "Change nothing"),
        preview.count > 0 && button,
      ),
    );
    if (preview.count > 0) typed.focus();
  }

  async function start(action, token, button) {
    problem.textContent = "";
    button.disabled = true;
    try {
      follow(action, await post("/bulk", { token }));
    } catch (error) {
      tell(error);
      button.disabled = false;
    }
  }

  async function follow(action, job) {
    const bar = h("progress", { "aria-label": "Progress", max: Math.max(1, job.expected), value: 0 });
    const text = h("p", { role: "status" });
    const end = h(
      "button",
      { type: "button", onclick: () => remove(`/bulk/${job.id}`).catch(tell) },
      "Stop",
    );
    show(body, bar, text, h("div", { class: "actions" }, end));
    for (;;) {
      bar.value = job.done + job.missed;
      const missed = job.missed ? `, ${count(job.missed)} unchanged: already fired or aborted` : "";
      const ended = job.state === "cancelled" ? "; then it was stopped" : "";
      text.textContent = `${count(job.done)} ${DONE[action]}${missed}${ended}`;
      if (job.state !== "running") break;
      await new Promise((resolve) => setTimeout(resolve, LOOK));
      try {
        job = await get(`/bulk/${job.id}`);
        problem.textContent = "";
      } catch (error) {
        tell(error);
        if (error.status) {
          // Without a status the gateway did not answer: then try again. With one, as of a gateway that was started
          // again and does not know the job, the number is old.
          text.textContent += ", when it was last heard of. The audit log has all that it changed.";
          break;
        }
      }
    }
    if (job.state === "failed") text.append(h("span", { class: "bad-text" }, ` ${job.error}`));
    const close = h("button", { type: "button", class: "main", onclick: () => box.close() }, "Close");
    show(end.parentElement, close);
    close.focus();
    changed?.();
  }
}
