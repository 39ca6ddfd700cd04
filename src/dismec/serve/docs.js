
"use strict";

const secret = document.getElementById("token");
try { if (secret) secret.value = sessionStorage.getItem("dismec-token") ?? ""; } catch { /* it has to be entered again */ }

const SAMPLE = '"What is this about?"';  /* placeholder in the examples until /example returns a text */

function authorised(headers = {}) {
  if (secret?.value) headers.Authorization = "Bearer " + String.fromCharCode(...new TextEncoder().encode(secret.value.trim()));
  return headers;
}

async function fillExamples() {
  if (![...document.querySelectorAll("textarea")].some(body => body.value.includes(SAMPLE))) return;
  if (secret && !secret.value) return;
  try {
    const response = await fetch("example", {headers: authorised()});
    if (!response.ok) return;
    const text = JSON.stringify((await response.json()).text);
    for (const place of document.querySelectorAll("textarea, option")) place.value = place.value.replaceAll(SAMPLE, () => text);
  } catch { /* the sample stays */ }
}

for (const form of document.querySelectorAll("form[data-path]")) {
  const body = form.querySelector("textarea"), choice = form.querySelector("select");
  const state = form.querySelector(".state"), answer = form.querySelector("pre");
  choice?.addEventListener("change", () => { body.value = choice.value; });
  form.addEventListener("submit", async event => {
    event.preventDefault();
    const query = new URLSearchParams([...form.querySelectorAll(".query input")].map(input => [input.name, input.value]));
    const headers = authorised(body ? {"Content-Type": "application/json"} : {});
    const address = form.dataset.path + (query.size ? `?${query}` : "");
    const begin = performance.now();
    state.textContent = "Sent …";
    try {
      const response = await fetch(address, {method: form.dataset.method, headers, body: body?.value});
      const text = await response.text();
      state.textContent = `${response.status} ${response.statusText} · ${Math.round(performance.now() - begin)} ms`;
      answer.textContent = response.headers.get("Content-Type") === "application/json" ? readable(JSON.parse(text)) : text;
    } catch {
      state.textContent = "The server does not respond.";
      answer.textContent = "";
    }
    answer.hidden = !answer.textContent;
  });
}

/* Format JSON with short lists and objects on one line. */
function readable(value, indent = "") {
  const line = JSON.stringify(value, null, 1)?.replace(/\n\s*/g, " ") ?? "null";
  if (value === null || typeof value !== "object" || line.length + indent.length <= 76) return line;
  const inner = indent + "  ";
  const parts = Array.isArray(value)
    ? value.map(one => inner + readable(one, inner))
    : Object.entries(value).map(([key, one]) => `${inner}${JSON.stringify(key)}: ${readable(one, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return `${open}\n${parts.join(",\n")}\n${indent}${close}`;
}
fillExamples();
