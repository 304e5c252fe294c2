// Builds elements. Nothing here takes HTML: what messages hold is only ever text.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name in element && typeof value !== "string" && !(element instanceof SVGElement)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** What is drawn again and again knows by this what had the focus. */
const nameOf = (element) => element.dataset.key ?? element.getAttribute("href");

/** Gives the focus to what has the same `data-key`, or leads to the same, in a place. */
function focusOn(name, place) {
  if (name === null) return;
  const same = [...place.querySelectorAll("a, button, summary")].find((one) => nameOf(one) === name);
  same?.focus({ preventScroll: true });
}

/** Shows these in place of what is there. The focus goes on to what is named as what had it. */
export function show(place, ...children) {
  const held = document.activeElement;
  const name = held !== place && place.contains(held) ? nameOf(held) : null;
  place.replaceChildren(...children.flat(3).filter(Boolean));
  focusOn(name, place);
}

/** A dialog that is gone once it is closed; Escape closes it, and focus goes back to where it was, also where that was
 * drawn again. */
export function dialog(title, ...children) {
  const before = document.activeElement;
  const box = h(
    "dialog",
    { "aria-label": title },
    h(
      "header",
      {},
      h("h2", {}, title),
      h("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: () => box.close() }, "✕"),
    ),
    children,
  );
  box.addEventListener("close", () => {
    box.remove();
    if (before?.isConnected) before.focus?.();
    else if (before) focusOn(nameOf(before), document);
  });
  document.body.append(box);
  box.showModal();
  if (!box.querySelector("[autofocus]")) box.querySelector("input, select, textarea")?.focus();
  return box;
}

/** The dialog that is open, if there is one. */
export const openDialog = () => document.querySelector("dialog[open]");

/** Closes the dialogs of a view that is left; the one that asks for credentials is of none. */
export function closeDialogs() {
  for (const box of document.querySelectorAll("dialog[open]:not(.log-in)")) box.close();
}

/** Says something in a corner for a while. */
export function notice(text, kind = "") {
  const line = h("div", { class: `notice ${kind}` }, text);
  document.getElementById("notices").append(line);
  setTimeout(() => line.remove(), kind === "bad" ? 12_000 : 5_000);
}

/** A labelled field. */
export const field = (label, input, hint) =>
  h("label", { class: "field" }, h("span", {}, label), input, hint && h("small", {}, hint));
