// Sends requests to the gateway. Credentials are kept for this tab only, and only this page sends them.

import { dialog, field, h } from "./dom.js";

const KEY = "tidegate-credentials";

class Refused extends Error {
  constructor(problem) {
    super(problem.detail ?? problem.title);
    this.status = problem.status;
  }
}

let heardMs = Date.now();

/** The gateway's time in its last answer: a browser's clock may be wrong, and a gateway's may be moved by hand. */
export const now = () => heardMs;

async function request(method, path, body) {
  const headers = { "Tidegate-Console": "1" };
  const credentials = sessionStorage.getItem(KEY);
  if (credentials) headers.Authorization = credentials;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const isChange = method !== "GET" && path !== "/bulk/preview";
  const doubt = isChange ? " Perhaps it did this all the same: look before you try again." : "";
  let answer;
  try {
    answer = await fetch(`api/v1${path}`, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refused({ status: 0, detail: `The gateway does not answer.${doubt}` });
  }
  heardMs = Number(answer.headers.get("Tidegate-Now")) || heardMs;
  if (answer.status === 401) {
    const { detail } = await answer.json().catch(() => ({}));
    // The user has given other credentials while this request was under way.
    if (credentials !== sessionStorage.getItem(KEY)) return request(method, path, body);
    if (await logIn(answer.headers.get("WWW-Authenticate") ?? "", detail)) return request(method, path, body);
    throw new Refused({ status: 401, detail: "You are not logged in: load the page again to do so." });
  }
  const data = await answer.json().catch(() => undefined);
  if (!answer.ok) {
    // By HTTP/2 a status has no words of its own.
    const title = `Status ${answer.status}, which seems to be the answer of a proxy, not of the gateway.${doubt}`;
    throw new Refused({ status: answer.status, title, ...data });
  }
  if (data === undefined) throw new Refused({ status: 0, detail: `The gateway's answer broke off.${doubt}` });
  return data;
}

let asking;

/** Asks for credentials, only once for all requests that wait for them, and returns whether the user gave them. A user
 * who closes the dialog is not asked again.
 *
 * @param why the refusal. It names the worker that refuses credentials that others know. */
function logIn(challenge, why) {
  asking ??= new Promise((resolve) => {
    const byKey = challenge.includes("Basic");
    const name = h("input", { name: "username", autocomplete: "username", required: true });
    const secret = h("input", {
      type: "password",
      name: "password",
      autocomplete: "current-password",
      required: true,
      // A token with other letters is none, and no browser sends it.
      pattern: byKey ? undefined : "[ -~]+",
      title: byKey ? undefined : "letters, digits and signs of ASCII",
    });
    const wrong = sessionStorage.getItem(KEY) !== null;
    let given = false;
    const box = dialog(
      "Who are you?",
      h(
        "form",
        {
          method: "dialog",
          onsubmit: () => {
            const text = byKey
              ? btoa(String.fromCharCode(...new TextEncoder().encode(`${name.value}:${secret.value}`)))
              : secret.value;
            sessionStorage.setItem(KEY, `${byKey ? "Basic" : "Bearer"} ${text}`);
            given = true;
          },
        },
        wrong && h("p", { class: "bad-text", role: "alert" }, `Wrong, or no longer valid: ${why ?? "401"}.`),
        byKey && field("Access key", name),
        field(byKey ? "Secret key" : "Token", secret, byKey ? undefined : "The token in the file that http_token_file names."),
        h("div", { class: "actions" }, h("button", { class: "main" }, "Log in")),
      ),
    );
    box.classList.add("log-in");
    box.addEventListener("close", () => {
      if (given) asking = undefined;
      resolve(given);
    });
  });
  return asking;
}

export function query(fields) {
  const given = Object.entries(fields).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

export const get = (path, fields = {}) => request("GET", path + query(fields));
export const post = (path, body = {}) => request("POST", path, body);
export const put = (path, body) => request("PUT", path, body);
export const remove = (path) => request("DELETE", path);
