
"use strict";

const secret = document.getElementById("token");
try { secret.value = sessionStorage.getItem("dismec-token") ?? ""; } catch { /* it has to be entered again */ }

const SAMPLE = '"What is this about?"';  /* placeholder in the examples until /example returns a text */

function authorised(headers = {}) {
  if (secret.value) headers.Authorization = "Bearer " + String.fromCharCode(...new TextEncoder().encode(secret.value.trim()));
  return headers;
}

async function fillExamples() {
  if (![...document.querySelectorAll("textarea")].some(body => body.value.includes(SAMPLE))) return;
  if (!document.getElementById("access").hidden && !secret.value) return;
  try {
    const response = await fetch("example", {headers: authorised()});
    if (!response.ok) return;
    const text = JSON.stringify((await response.json()).text);
    for (const place of document.querySelectorAll("textarea, option")) place.value = place.value.replaceAll(SAMPLE, () => text);
  } catch { /* the sample stays */ }
}

/* Make an element; children are elements or texts. */
function made(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function queryFields(parameters) {
  return made("div", {class: "query"}, ...parameters.map(one => made("label", {},
    one.name, made("input", {name: one.name, value: one.example}), made("small", {}, one.schema.description))));
}

function bodyFields(path, body) {
  const examples = Object.entries(body.content["application/json"].examples).map(([name, one]) => [name, JSON.stringify(one.value)]);
  const id = `body-${path}`;
  return [
    made("label", {for: id}, "Body"),
    made("select", {"aria-label": "Example body"}, ...examples.map(([name, value]) => made("option", {value}, name))),
    made("textarea", {id, class: "body", spellcheck: "false"}, examples[0][1]),
  ];
}

/* Return a request: its purpose, an example to send, and possible answers. */
function article(path, method, operation) {
  const form = made("form", {},
    ...operation.parameters ? [queryFields(operation.parameters)] : [],
    ...operation.requestBody ? bodyFields(path, operation.requestBody) : [],
    made("div", {class: "row"}, made("button", {class: "main"}, "Send"), made("span", {class: "state", role: "status"})),
    made("pre", {tabindex: 0, "aria-label": "Answer", hidden: ""}));
  sends(form, path, method);
  const answers = Object.entries(operation.responses).map(([status, response]) =>
    made("tr", {}, made("th", {scope: "row"}, status), made("td", {}, response.description)));
  const lock = operation.security ? [made("small", {class: "lock"}, "requires the token")] : [];
  return made("article", {id: path},
    made("h2", {}, made("small", {}, method), `/${path}`, ...lock),
    made("p", {}, operation.summary), form,
    made("details", {}, made("summary", {}, "Answers"), made("table", {}, ...answers)));
}

async function show() {
  const {info, paths, components} = await (await fetch("openapi.json")).json();
  document.getElementById("version").append(info.version);
  document.getElementById("about").append(info.description);
  document.getElementById("access").hidden = !components.securitySchemes;
  for (const [address, methods] of Object.entries(paths)) {
    const path = address.slice(1);
    document.querySelector("nav").append(made("a", {href: `#${path}`}, address), " ");
    for (const [method, operation] of Object.entries(methods)) document.querySelector("main").append(article(path, method.toUpperCase(), operation));
  }
  for (const [name, schema] of Object.entries(components.schemas))
    document.getElementById("schemas").append(made("details", {}, made("summary", {}, name), made("pre", {}, JSON.stringify(schema, null, 1))));
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  fillExamples();
}

function sends(form, path, method) {
  const body = form.querySelector("textarea"), choice = form.querySelector("select");
  const state = form.querySelector(".state"), answer = form.querySelector("pre");
  choice?.addEventListener("change", () => { body.value = choice.value; });
  form.addEventListener("submit", async event => {
    event.preventDefault();
    const query = new URLSearchParams([...form.querySelectorAll(".query input")].map(input => [input.name, input.value]));
    const headers = authorised(body ? {"Content-Type": "application/json"} : {});
    const address = path + (query.size ? `?${query}` : "");
    const begin = performance.now();
    state.textContent = "Sent …";
    try {
      const response = await fetch(address, {method, headers, body: body?.value});
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
show();
