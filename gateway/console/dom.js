// Builds elements. Nothing here takes HTML: the contents of messages are always text.

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

/** Identifies an element across redraws, to give the focus back to it. */
const nameOf = (element) => element.dataset.key ?? element.getAttribute("href");

/** Gives the focus to the element in a place that has this `data-key` or link. Returns whether there is one. */
function focusOn(name, place) {
  if (name === null) return false;
  const same = [...place.querySelectorAll("a, button, summary")].find((one) => nameOf(one) === name);
  same?.focus({ preventScroll: true });
  return same !== undefined;
}

/** Replaces the contents of a place. The focus goes to the new element with the same name as the one that had it. If
 * there is none, as for a button of what cannot be done any more, it goes to the view, and not to the page's beginning. */
export function show(place, ...children) {
  const held = document.activeElement;
  const had = held !== place && place.contains(held);
  place.replaceChildren(...children.flat(3).filter(Boolean));
  if (had && !focusOn(nameOf(held), place)) place.closest("main")?.focus({ preventScroll: true });
}

const COPIED = 10_000;
let pressedAt = -COPIED,
  selectedAt = -COPIED;
document.addEventListener("pointerdown", () => (pressedAt = performance.now()), true);
for (const end of ["pointerup", "pointercancel"])
  document.addEventListener(end, () => (pressedAt = -COPIED), true);
document.addEventListener("selectionchange", () => (selectedAt = performance.now()));

/** Whether the user is just now clicking, or has just selected text in a place, probably to copy it. Redrawing the
 * place would undo either. */
export function isInHand(place) {
  const selection = getSelection();
  const since = performance.now() - COPIED;
  return pressedAt > since || (selectedAt > since && !selection.isCollapsed && place.contains(selection.anchorNode));
}

/** Replaces the contents of a list that is shown already, unless the user is about to do something with them: then the
 * next refresh does it. */
export function refresh(place, ...children) {
  if (!isInHand(place)) show(place, ...children);
}

/** Opens a dialog, which is removed when it is closed. Escape closes it. The focus goes back to where it was, even if
 * that element was redrawn. */
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

/** Returns the open dialog, if there is one. */
export const openDialog = () => document.querySelector("dialog[open]");

/** Closes the dialogs of a view that is left. The log-in dialog belongs to no view and stays open. */
export function closeDialogs() {
  for (const box of document.querySelectorAll("dialog[open]:not(.log-in)")) box.close();
}

/** Shows a text in a corner for some seconds. */
export function notice(text, kind = "") {
  const line = h("div", { class: `notice ${kind}` }, text);
  document.getElementById("notices").append(line);
  setTimeout(() => line.remove(), kind === "bad" ? 12_000 : 5_000);
}

/** What was typed into a form for a search, without the blanks that come along when an id or a name is pasted. */
export const typed = (form) =>
  Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));

/** A labelled field. */
export const field = (label, input, hint) =>
  h("label", { class: "field" }, h("span", {}, label), input, hint && h("small", {}, hint));
