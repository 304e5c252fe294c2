// A form that sends a test message.

import { get, post } from "./api.js";
import { dialog, field, h, notice } from "./dom.js";
import { WHEN, typedTime } from "./format.js";

export function send() {
  const text = (name, more) => h("input", { name, autocomplete: "off", ...more });
  const form = h(
    "form",
    {
      onsubmit: async (event) => {
        event.preventDefault();
        const fields = Object.fromEntries([...new FormData(form)].filter(([, value]) => value));
        if (fields.at) fields.at = typedTime(fields.at);
        button.disabled = true; // a second click would send a second message
        try {
          const sent = await post("/messages", fields);
          notice(`Sent to ${fields.topic}`, "good");
          if (!box.open) return; // closed meanwhile, for something else
          box.close();
          location.hash = `#/message/${sent.offsetMsgId}`;
        } catch (error) {
          problem.textContent = error.message;
          problem.hidden = false;
          button.disabled = false;
        }
      },
    },
    field("Topic", text("topic", { required: true, list: "topics-known", maxlength: "127" })),
    field("When", text("at", { value: "+30s" }), WHEN),
    field("Tag", text("tags")),
    field("Keys", text("keys"), "separated by spaces"),
    field("Body", h("textarea", { name: "body", rows: "5", required: true }, "hello")),
  );
  const problem = h("p", { class: "bad-text", role: "alert", hidden: true });
  const button = h("button", { class: "main" }, "Send");
  form.append(problem, h("div", { class: "actions" }, button));
  const box = dialog("Send a message", form);
}

/** Loads the names of topics as suggestions for inputs. */
export async function knowTopics() {
  const list = h("datalist", { id: "topics-known" });
  document.body.append(list);
  try {
    const { topics } = await get("/topics", { limit: 1000 });
    list.append(...topics.filter((one) => !one.isSystem).map((one) => h("option", { value: one.name })));
  } catch {
    // Suggestions are optional.
  }
}
