// The strip below the header: how fast messages arrive and leave, and how punctually. It refreshes by itself.

import { get } from "./api.js";
import { h, show, svg } from "./dom.js";
import { bytes, count, duration, quantile, short } from "./format.js";

const LOOK = 2_000;
const PATIENCE = 10_000;
const KEPT = 60;
const FEWEST = 5;
const MINUTE_OF_LOOKS = 30;

function spark(values) {
  if (values.length < FEWEST) return null;
  const most = Math.max(1, ...values);
  const points = values.map(
    (value, place) => `${((KEPT - values.length + place) / (KEPT - 1)) * 100},${24 - (value / most) * 22}`,
  );
  return svg(
    "svg",
    { class: "spark", viewBox: "0 0 100 25", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("polyline", { points: points.join(" ") }),
  );
}

function seconds(value) {
  if (value === undefined) return "–";
  return value === Infinity ? "over 1h" : `≤ ${duration(value * 1000)}`;
}

/** Whether a process was started again meanwhile, perhaps one of several: of some count there is less. */
function beganAnew(before, now) {
  const counts = (rates) => [
    ...["accepted", "fired", "handedOut"].map((name) => rates[name].total),
    ...["firingError", "commit"].flatMap((name) => rates[name].counts),
  ];
  const later = counts(now);
  return counts(before).some((count, place) => later[place] < count);
}

export function pulse(place) {
  const seen = [];
  const told = (text) => h("span", { class: "bad-text" }, text);
  const notReady = (reasons) => reasons.length > 0 && told(`Not ready: ${reasons.join("; ")}`);
  const complain = (text, reasons = []) => show(place, notReady(reasons), told(text));

  async function look() {
    if (!document.hidden) {
      // Until a connection that has gone dead is given up, which takes minutes, old numbers would pass for the present ones.
      const late = setTimeout(
        () => complain("The gateway has not answered for 10 s: what this page shows may be old."),
        PATIENCE,
      );
      const status = get("/status");
      try {
        const [rates, { reasons }] = await Promise.all([get("/rates"), status]);
        if (seen.length && beganAnew(seen.at(-1), rates)) seen.length = 0;
        // By this page's own time: the gateway's may stand still, or be set.
        seen.push({ ...rates, heardMs: performance.now() });
        if (seen.length > KEPT + 1) seen.shift();
        draw(rates, reasons);
      } catch (error) {
        // Who may not see the rates still learns why the gateway is not ready.
        complain(error.message, (await status.catch(() => undefined))?.reasons);
      }
      clearTimeout(late);
    }
    setTimeout(look, LOOK);
  }

  const perSecond = (name) =>
    seen
      .slice(1)
      .map((rates, number) =>
        Math.max(
          0,
          (rates[name].total - seen[number][name].total) /
            Math.max(0.001, (rates.heardMs - seen[number].heardMs) / 1000),
        ),
      );

  /** The counts of the last minute. */
  function lately(name) {
    const now = seen.at(-1)[name],
      then = seen.at(-1 - MINUTE_OF_LOOKS)?.[name] ?? seen[0][name];
    const change = now.counts.map((number, place) => number - then.counts[place]);
    return change.some(Boolean) ? { bounds: now.bounds, counts: change } : now;
  }

  const tile = (name, value, hint, line, bad) =>
    h("div", { class: `tile${bad ? " bad" : ""}`, title: hint }, h("span", {}, name), h("b", {}, value), line);

  /** @param reasons why the gateway is not ready. */
  function draw(rates, reasons) {
    const speed = (name, label, hint) => {
      const values = perSecond(name);
      return tile(label, short(values.at(-1) ?? rates[name].tenSeconds), hint, spark(values));
    };
    const late = lately("firingError"),
      commit = lately("commit");
    show(
      place,
      notReady(reasons),
      tile("pending", count(rates.held), "Messages that have not fired yet"),
      speed("accepted", "accepted /s", "Messages accepted per second, with or without a delay"),
      speed("fired", "fired /s", "Delayed messages fired per second"),
      speed("handedOut", "delivered /s", "Messages delivered to consumers per second"),
      tile(
        "late p99",
        seconds(quantile(late.bounds, late.counts, 0.99)),
        "Firing error, 99th percentile: of the last minute, if anything fired",
      ),
      tile(
        "commit p99",
        seconds(quantile(commit.bounds, commit.counts, 0.99)),
        "Time of a commit, 99th percentile; mostly the disk's sync",
      ),
      tile(
        "overdue",
        rates.overdueMs > 1000 ? duration(rates.overdueMs) : "no",
        "How late the earliest pending message is",
        null,
        rates.overdueMs > 5000,
      ),
      tile("connections", count(rates.connections), `${count(rates.parkedPulls)} long polls waiting`),
      tile(
        "data",
        bytes(rates.sizeBytes),
        `${bytes(rates.freeBytes)} of it are free pages, to be reused; the disk has ${bytes(rates.diskFreeBytes)} free`,
      ),
      rates.refusedBatches > 0 &&
        tile("refused", count(rates.refusedBatches), "Batches that could not be stored, since the start", null, true),
    );
  }

  look();
}
