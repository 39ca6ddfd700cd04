
"use strict";

const SEARCH_PAUSE = 150;    // ms after the last keystroke before labels are searched
const MATCHES = 10;
const SEARCHED = 5;            // maximum number of searched labels in the list

const search = at("search"), matches = at("matches");
let searching = null;        // AbortController of a search
let searchPause = 0;
let active = -1;             // index of the match that Enter selects
let matched = "";            // the search that the matches belong to

async function findMatches() {
  clearTimeout(searchPause);
  searching?.abort();
  const part = search.value.trim();
  if (!part) return closeMatches();
  const controller = searching = new AbortController();
  try {
    await loadModel();
    const answer = await ask(`labels?limit=${MATCHES}&search=${encodeURIComponent(part)}`, null, controller.signal);
    if (controller.signal.aborted) return;
    matched = part;
    showMatches(answer);
  } catch (error) {
    if (controller.signal.aborted) return;
    closeMatches();
    if (error.status === 401) askForToken();
    else showNotice(sentence(error.message), findMatches);
  }
}

function showMatches({labels, more}) {
  matches.replaceChildren(...labels.map(match));
  if (!labels.length) matches.append(make("p", {textContent: "No label name contains this."}));
  if (more) matches.append(make("p", {textContent: "There are more: keep typing."}));
  matches.hidden = false;
  search.setAttribute("aria-expanded", "true");
  at("status").textContent = more ? `${labels.length} or more labels found.` : `${count(labels.length, "label")} found.`;
  activate(labels.length ? 0 : -1);
}

function match({label, name, rows}, i) {
  const shown = name ?? `Label ${label}`;
  const element = make("li", {id: `match-${i}`},
    make("span", {dir: "auto", textContent: shown}),
    make("small", {textContent: rows ? count(rows, "training row") : "no training rows"}));
  element.setAttribute("role", "option");
  element.addEventListener("mousedown", event => event.preventDefault());  // keep the focus in the field
  element.addEventListener("click", () => addSearched(label, shown));
  return element;
}

function activate(place) {
  active = place;
  matches.querySelectorAll("li").forEach((element, i) => {
    element.setAttribute("aria-selected", i === active);
    if (i === active) element.scrollIntoView({block: "nearest"});
  });
  if (active < 0) search.removeAttribute("aria-activedescendant");
  else search.setAttribute("aria-activedescendant", `match-${active}`);
}

function closeMatches() {
  searching?.abort();
  clearTimeout(searchPause);
  matched = "";
  matches.hidden = true;
  search.setAttribute("aria-expanded", "false");
  activate(-1);
}

/* Explain a label that may not be among the best. */
function addSearched(label, name) {
  closeMatches();
  search.value = "";
  const known = items().find(item => item.label === label);
  if (!known) searched = [...searched, {label, name}].slice(-SEARCHED);
  chosen = label;
  hovered = null;
  if (list.hidden) {
    at("status").textContent = at("nothing").textContent = `${takes("text") ? "Type a text" : "Enter a row"} to see the rank of ${name}.`;
    return;
  }
  showList();
  if (!known) showSearched(searched.at(-1));
  bringIntoView();
}

search.addEventListener("input", () => {
  clearTimeout(searchPause);
  searchPause = setTimeout(findMatches, SEARCH_PAUSE);
});
search.addEventListener("focus", () => { if (search.value.trim()) findMatches(); });
search.addEventListener("blur", closeMatches);
search.addEventListener("keydown", async event => {
  const options = matches.hidden ? [] : [...matches.querySelectorAll("li")];
  if (event.key === "Escape" && !matches.hidden) {
    event.stopPropagation();
    closeMatches();
  } else if (event.key === "Enter") {
    event.preventDefault();
    if (matched !== search.value.trim()) await findMatches();  // typing was faster than the search
    matches.querySelectorAll("li")[active]?.click();
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    const step = event.key === "ArrowDown" ? 1 : -1;
    if (options.length) activate((active + step + options.length) % options.length);
  }
});
