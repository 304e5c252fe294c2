// Tables that refresh themselves: their parts, and the pages of their data.

import { get } from "./api.js";
import { h } from "./dom.js";
import { count } from "./format.js";

const REFRESH = 3_000;

/** The most rows that a table shows. */
export const MOST = 1_000;

/** Draws a list at once and then repeatedly while the view is open, and calls `complain` when that fails. The `load` of
 * what it returns draws it again now. */
export function live(draw, complain) {
  let timer,
    open = true;
  async function load() {
    clearTimeout(timer);
    try {
      if (!document.hidden) await draw();
    } catch (error) {
      complain(error.message);
    }
    clearTimeout(timer); // another one may have ended meanwhile
    if (open) timer = setTimeout(load, REFRESH);
  }
  load();
  return {
    load,
    leave: () => {
      open = false;
      clearTimeout(timer);
    },
  };
}

/** The head of a table; a # before a name marks a column of numbers. */
export const head = (...names) =>
  h(
    "thead",
    {},
    h(
      "tr",
      {},
      names.map((name) =>
        h("th", { scope: "col", class: name.startsWith("#") ? "number" : undefined }, name.replace("#", "")),
      ),
    ),
  );

export const cell = (label, ...children) =>
  h(
    "td",
    { "data-label": label, class: typeof children[0] === "number" ? "number" : undefined },
    children.map((one) => (typeof one === "number" ? count(one) : one)),
  );

/** A row with a text in place of data. */
export const line = (text, kind, columns = 8) => h("tr", {}, h("td", { colspan: String(columns), class: kind }, text));

/** Returns the first rows of a list, and whether there are more. */
export async function pages(path, name, fields = {}) {
  const rows = [];
  let cursor = "";
  while (cursor !== null && rows.length < MOST) {
    const page = await get(path, { ...fields, cursor, limit: MOST });
    rows.push(...page[name]);
    cursor = page.cursor;
  }
  return [rows, cursor !== null];
}
