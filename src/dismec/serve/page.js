
"use strict";

const PAUSE = 350;           // ms after the last keystroke before labels are requested
const LONG = 100_000;        // characters; browsers take seconds to lay out a field with more
const BEGINNING = 2000;      // characters of a long text that the field shows
const WHOLE = 20_000;        // a longer text is shown as passages around its strongest words
const PASSAGES = 120;
const AROUND = 90;           // characters on each side of a word in a passage
const MARKS = 1000;
const FAINT = 0.1;           // share of the strongest contribution below which words are not marked
const TERMS = 300;           // contributions to request
const SHOWN = 10;            // maximum number shown before the rest is folded
const SMALL = 0.05;          // share of the largest contribution below which others are folded
const COMPARED = 3;          // maximum number of labels explained side by side
const PATIENCE = 150;        // ms before the page shows that it is working

const at = id => document.getElementById(id);
const field = at("text"), list = at("list");

let token = remembered();
let model = null;            // the answer of /model, requested once
let running = null;          // AbortController of the request for labels
let pause = 0;
let long = null;             // a text too long for the field, which shows only its beginning
let found = [];              // [{label, name, path, amount, share, place, assigned}] of `foundRow`, best first
let searched = [];             // [{label, name}] added by a search, shown below the best
let asked = null;            // the request that `found` answers
let foundRow = {};           // the row that `found` belongs to: {text} or {features}, {dense}
let explanations = new Map();  // label → promise, for `foundRow`
let chosen = null;           // label picked by click or keyboard
let hovered = null;          // label under the mouse
let mouse = {};              // its last position
let pinned = [];             // labels that stay next to the one shown
let unfolded = false;        // whether small contributions are visible
let again = null;            // what "Try again" does

class Refusal extends Error {
  constructor(status, reason) { super(reason); this.status = status; }
}

function remembered() {
  try { return sessionStorage.getItem("dismec-token") ?? ""; } catch { return ""; }
}

async function ask(path, body, signal) {
  const headers = {};
  // A header holds bytes: the token's UTF-8, one character per byte.
  if (token) headers.Authorization = "Bearer " + String.fromCharCode(...new TextEncoder().encode(token));
  if (body) headers["Content-Type"] = "application/json";
  let response, answer;
  try {
    response = await fetch(path, {method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal});
    answer = await response.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refusal(0, "The server does not respond. Your input is still here.");
  }
  if (!response.ok) throw new Refusal(response.status, answer.error);
  return answer;
}

async function loadModel() {
  if (model) return;
  model = await ask("model");
  document.title = `${model.name} · dismec`;
  at("model").textContent = model.name;
  at("about").textContent = count(model.labels, "label");
  showFields();
  showTree();
  at("seek").hidden = at("filters").hidden = false;
  at("example").hidden = !takes("text");
  const counts = [5, 10, 20, 50].filter(number => number <= model.limits.k);
  const options = (counts.length ? counts : [model.limits.k]).map(number => new Option(count(number, "label"), number));
  const before = at("count").value;
  at("count").replaceChildren(...options);
  if (counts.includes(Number(before))) at("count").value = before;
}

function setText(text, source = "") {
  at("source").hidden = !source;
  at("source").textContent = source;
  long = text.length > LONG ? text : null;
  field.value = long ? text.slice(0, BEGINNING) + " …" : text;
  field.readOnly = long !== null;
  at("long").hidden = long === null;
  at("long").textContent = `Only the beginning is shown: the text has ${text.length.toLocaleString("en")} characters.`;
  at("clear").hidden = !hasInput();
}

async function findLabels() {
  clearTimeout(pause);
  running?.abort();
  if (!hasInput()) return showNothing(missing());
  const controller = running = new AbortController();
  const slow = setTimeout(() => { at("busy").hidden = false; }, PATIENCE);
  try {
    await loadModel();
    if (controller.signal.aborted) return;
    const row = inputRow();
    const rank = model.calibrated ? "probability" : "score";
    const request = {...row, k: Number(at("count").value), rank, ...choice()};
    const answer = await ask("predict", request, controller.signal);
    if (controller.signal.aborted) return;
    showNotice(null);
    asked = request;
    showLabels(row, answer);
  } catch (error) {
    if (controller.signal.aborted) return;
    if (error instanceof InvalidInput) { showNotice(null); showNothing(error.message); } else fail(error, findLabels);
  } finally {
    clearTimeout(slow);
    if (running === controller) at("busy").hidden = true;
  }
}

function fail(error, retry) {
  showNothing(waiting());
  if (error.status === 401) return askForToken();
  if (error.status === 413) return showNotice(`The text is too long: this server accepts at most ${model.limits.body / 1e6} MB and ${model.limits.characters.toLocaleString("en")} characters.`);
  model = null;  // the server may have switched to another one by the next request
  showNotice(error instanceof Refusal ? sentence(error.message) : "Something went wrong on this page: " + error.message, retry);
}

function sentence(reason) {
  const text = reason[0].toUpperCase() + reason.slice(1);
  return /[.!?…]$/.test(text) ? text : text + ".";
}

function showNotice(message, retry) {
  at("notice").hidden = !message;
  at("notice").firstElementChild.textContent = message ?? "";
  at("retry").hidden = !retry;
  again = retry;
}

function askForToken() {
  showNotice(null);
  at("access-reason").textContent = token ? "The token was rejected." : "It is kept in this tab only.";
  at("access").hidden = false;
  at("token").focus();
}

function showNothing(message) {
  found = [];
  explanations = new Map();
  chosen = hovered = null;
  list.hidden = at("scale").hidden = at("why").hidden = at("list-tools").hidden = true;
  list.replaceChildren();
  at("nothing").textContent = message;
  at("nothing").hidden = !message;
  at("status").textContent = message;
}

function showLabels(row, answer) {
  if (!answer.labels.length && !searched.length) {
    const filtered = Object.keys(choice()).length > 0;
    return showNothing(filtered ? "No label matches the restrictions." : "The model predicts no label for this input.");
  }
  foundRow = row;
  found = answer.labels.map((label, i) => ({
    ...described(label, answer.names?.[i], answer.probabilities?.[i] ?? answer.scores[i], i + 1),
    path: answer.paths?.[i] ?? [],
  }));
  for (const item of found) if (answer.without_rows?.includes(item.label)) item.amount += " · no training rows";
  explanations = new Map();
  hovered = null;
  at("nothing").hidden = true;
  at("list-tools").hidden = false;
  const assigned = found.filter(item => item.assigned).length;
  showScale(`${assigned} of these ${count(found.length, "label")} ${assigned === 1 ? "reaches" : "reach"} it`);
  at("status").textContent = `${count(found.length, "label")}. First: ${found[0]?.name}, ${found[0]?.amount}.`;
  showList();
  searched.forEach(showSearched);
}

function described(label, name, value, place) {
  const {rank, value: least} = model.threshold;
  const ofScore = rank === "score";
  return {
    label, place,
    name: name ?? `Label ${label}`,
    amount: ofScore ? signed(value) : percent(value),
    share: ofScore ? shareOf(value) : value,
    assigned: value >= least,
  };
}

function shareOf(score) { return Math.min(1, Math.max(0, (score + 1) / 2)); }

function showScale(reached) {
  const {rank, value} = model.threshold;
  const why = rank === "score"
    ? `a score of ${value}; ${reached}. Scores, not probabilities: a full bar is a score of 1, an empty one of −1. Train with --calibrate to see probabilities.`
    : `${exact(value)}, which gave the highest micro-F1 on held-out rows; ${reached}.`;
  at("scale").replaceChildren("Labels that reach the line", make("b"), `are assigned. It is at ${why}`);
  at("scale").hidden = false;
}

function exact(share) { return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`; }

/* All items of the list: the best labels, then those added by a search. */
function items() {
  return [...found, ...searched.filter(item => !found.some(other => other.label === item.label))];
}

function showList() {
  const every = items();
  if (!every.some(item => item.label === chosen)) chosen = every[0]?.label ?? null;
  list.replaceChildren(...every.map(option));
  list.hidden = !every.length;
  at("unwant").hidden = !searched.length;
  showChoice();
}

/* Fill in the model's result for a label added by a search. */
async function showSearched(item) {
  const known = explanations;
  try {
    const why = await explained(item.label);
    if (known !== explanations) return;
    Object.assign(item, described(item.label, why.name, model.threshold.rank === "score" ? why.score : why.probability, why.rank), {path: why.path ?? []});
    const place = items().indexOf(item);
    if (place < 0) return;
    const before = list.children[place], after = option(item);
    const focused = before === document.activeElement;
    before.replaceWith(after);
    markChoice();
    if (focused) after.focus();
  } catch (error) {
    if (known !== explanations) return;
    searched = searched.filter(other => other !== item);
    showList();
    showNotice(sentence(error.message));
  }
}

function percent(share) {
  if (share >= 0.995) return "> 99 %";
  return share < 0.01 ? "< 1 %" : `${Math.round(100 * share)} %`;
}

function signed(number, places = 2) {
  const digits = Math.abs(number).toFixed(places);
  return Number(digits) === 0 ? digits : (number < 0 ? "−" : "+") + digits;
}

function count(number, what) { return `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`; }

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function option(item) {
  const length = make("i"), line = make("b");
  length.style.width = `${100 * (item.share ?? 0)}%`;
  line.style.left = `${100 * (model.threshold.rank === "score" ? shareOf(model.threshold.value) : model.threshold.value)}%`;
  const isBest = found.includes(item);
  const element = make("li", {title: item.name.length > 80 ? item.name : "", className: isBest ? "" : "wanted"},
    make("span", {className: "place", textContent: item.place ? `${item.place.toLocaleString("en")}.` : "…"}),
    make("span", {className: "name", dir: "auto", textContent: item.name}),
    make("span", {className: "amount", textContent: item.amount ?? ""}),
    ...(item.path?.length ? [make("span", {className: "path", dir: "auto", textContent: item.path.join(" › ")})] : []),
    make("span", {className: "bar"}, length, line),
    make("span", {className: "unseen", textContent: item.assigned ? "assigned" : "not assigned"}));
  element.classList.toggle("assigned", Boolean(item.assigned));
  element.setAttribute("role", "option");
  element.addEventListener("pointermove", event => {  // ignore a list that moves under a resting mouse
    const moved = event.clientX !== mouse.x || event.clientY !== mouse.y;
    if (event.pointerType === "mouse" && moved && hovered !== item.label) hover(item.label);
  });
  element.addEventListener("focus", () => choose(item.label));
  element.addEventListener("click", () => { choose(item.label); bringIntoView(); });
  return element;
}

function hover(label) { hovered = label; showChoice(); }

function choose(label) { chosen = label; hovered = null; showChoice(); }

function bringIntoView() {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (matchMedia("(max-width: 52rem)").matches && !at("why").hidden)
    at("why").scrollIntoView({block: "nearest", behavior: calm ? "auto" : "smooth"});
}

function markChoice() {
  const label = hovered ?? chosen, every = items();
  every.forEach((item, i) => {
    const element = list.children[i];
    element.tabIndex = item.label === (chosen ?? every[0].label) ? 0 : -1;
    element.setAttribute("aria-selected", item.label === chosen);
    element.classList.toggle("shown", item.label === label || pinned.includes(item.label));
  });
}

function explained(label) {
  const known = explanations;
  if (!known.has(label)) {
    const answer = ask("explain", {...foundRow, label, limit: TERMS});
    known.set(label, answer);
    answer.catch(() => known.delete(label));
  }
  return known.get(label);
}

async function showChoice() {
  const label = hovered ?? chosen;
  markChoice();
  if (label === null || !model) {
    at("why").hidden = true;
    return;
  }
  const known = explanations;
  const labels = [...pinned.filter(other => other !== label), label];
  try {
    const answers = await Promise.all(labels.map(explained));
    if (known === explanations && label === (hovered ?? chosen)) showWhy(answers);
  } catch (error) {
    if (known !== explanations) return;
    at("why").hidden = true;
    if (error.status === 401) askForToken();
    else if (error.status !== 501) showNotice(sentence(error.message), showChoice);
  }
}

/* Explain the last of some labels, and compare it with the others. */
function showWhy(answers) {
  const why = answers.at(-1);
  const {name, amount, assigned, place} = described(why.label, why.name, model.threshold.rank === "score" ? why.score : why.probability, why.rank);
  at("why-word").textContent = assigned ? "Why" : "Why not";
  at("why-title").textContent = name;
  at("why-path").textContent = (why.path ?? []).join(" › ");
  const least = model.threshold.rank === "score" ? "a score of 0" : exact(model.threshold.value);
  at("verdict").textContent = `Rank ${place.toLocaleString("en")} of ${model.labels.toLocaleString("en")} · ${amount} · ${assigned ? "assigned: it reaches" : "not assigned: it is below"} the threshold of ${least}`;
  at("pin").textContent = pinned.includes(why.label) ? "Stop comparing" : "Compare with others";
  at("pin").hidden = !pinned.includes(why.label) && pinned.length + 1 >= COMPARED;
  at("copy").replaceChildren(...(foundRow.text ? passages(foundRow.text, why.highlights ?? []) : []));
  showStrongest(at("copy"));
  showTerms(answers);
  at("sum").textContent = summed(why);
  at("why").hidden = false;
}

/* Describe the parts of a score in a sentence. */
function summed(why) {
  const [row, parts] = takes("text") ? ["text", "words"] : ["row", "features"];
  const likely = why.reasons?.length ? " and the labels they make likely" : "";
  const added = why.score - why.bias - (why.embedding ?? 0);
  const begins = `The score is ${signed(why.score)}: every ${row} starts at ${signed(why.bias)}`;
  if (why.embedding !== undefined) {
    const sparse = why.terms.length ? `, its ${parts}${likely} add ${signed(added)}` : "";
    return `${begins}${sparse}, and its embedding adds ${signed(why.embedding)}.`;
  }
  const own = why.own_text ? `, of which the words about the label add ${signed(why.own_text)}` : "";
  return why.terms.length
    ? `${begins}, and its ${parts}${likely} add ${signed(added)}${own}.`
    : `No ${parts.slice(0, -1)} of this ${row} has a weight for this label: its score is ${signed(why.score)}, where every ${row} starts.`;
}

/* Return the contributions of words, likely labels and the embedding as a whole to each score: {term, amounts}, largest first. */
function contributions(answers) {
  const rows = new Map();
  answers.forEach((answer, i) => {
    const likely = (answer.reasons ?? []).map(reason =>
      ({feature: `label ${reason.label}`, term: `likely: ${reason.name ?? `label ${reason.label}`}`, contribution: reason.contribution}));
    const embedding = answer.embedding === undefined ? [] : [{feature: "embedding", term: `embedding (${count(model.dense, "dense feature")})`, contribution: answer.embedding}];
    for (const {feature, term, contribution} of [...answer.terms, ...likely, ...embedding]) {
      if (!rows.has(feature)) rows.set(feature, {term: term ?? `feature ${feature}`, amounts: Array(answers.length).fill(0), isWhole: feature === "embedding"});
      rows.get(feature).amounts[i] = contribution;
    }
  });
  const weight = row => Math.max(...row.amounts.map(Math.abs));
  return [...rows.values()].sort((a, b) => weight(b) - weight(a)).map(row => ({...row, weight: weight(row)}));
}

function showTerms(answers) {
  const rows = contributions(answers);
  const isLarge = (row, i) => row.isWhole || (i < SHOWN && row.weight >= SMALL * rows[0].weight);
  const large = rows.filter(isLarge), rest = rows.filter((row, i) => !isLarge(row, i));
  const small = rest.length > 1 ? rest : [];
  const shown = small.length ? large : rows;
  const every = rows.flatMap(row => row.amounts);
  const least = Math.min(0, ...every), range = Math.max(0, ...every) - least || 1;
  const places = rows[0]?.weight < 0.1 ? 3 : 2;
  const line = row => termRow(row.term, row.amounts, range, places);
  const table = at("terms");
  table.style.setProperty("--zero", `${-100 * least / range}%`);
  table.classList.toggle("several", answers.length > 1);
  table.hidden = !rows.length;
  table.tHead.replaceChildren(...(answers.length > 1 ? [headRow(answers)] : []));
  table.tBodies[0].replaceChildren(...shown.map(line));
  at("small").replaceChildren(...small.map(line));
  const sums = pick => answers.map((answer, i) => pick(answer, i));
  const foot = [];
  if (small.length) {
    const left = sums((answer, i) => answer.score - answer.bias - shown.reduce((sum, row) => sum + row.amounts[i], 0));
    const fold = make("button", {id: "fold", type: "button"});
    fold.addEventListener("click", () => { unfolded = !unfolded; showFold(small.length); });
    foot.push(footRow(fold, left));
  }
  foot.push(footRow(`Every ${takes("text") ? "text" : "row"} starts at`, sums(answer => answer.bias)), footRow("Score", sums(answer => answer.score)));
  table.tFoot.replaceChildren(...foot);
  showFold(small.length);
}

function showFold(count) {
  at("small").hidden = !unfolded;
  const fold = at("fold");
  if (!fold) return;
  fold.textContent = unfolded ? "Hide small ones" : `${count.toLocaleString("en")} small ones`;
  fold.setAttribute("aria-expanded", unfolded);
}

function headRow(answers) {
  return make("tr", {}, make("td"), ...answers.map(answer => {
    const name = answer.name ?? `Label ${answer.label}`;
    const head = make("th", {scope: "col"}, make("span", {dir: "auto", textContent: name, title: name}));
    if (pinned.includes(answer.label)) {
      const remove = make("button", {type: "button", textContent: "Remove", ariaLabel: `Remove ${name} from the comparison`});
      remove.addEventListener("click", () => pin(answer.label));
      head.append(remove);
    }
    return head;
  }));
}

function footRow(what, amounts) {
  return make("tr", {}, make("th", {scope: "row"}, what),
    ...amounts.map(amount => make("td", {}, make("div", {className: "part"}, make("b"), make("span", {textContent: signed(amount)})))));
}

/* Add a label to the comparison, or remove it. */
function pin(label) {
  pinned = pinned.includes(label) ? pinned.filter(other => other !== label) : [...pinned, label].slice(-COMPARED + 1);
  showChoice();
}

function showStrongest(copy) {
  const strength = mark => Number(mark.style.getPropertyValue("--strength"));
  const strongest = [...copy.querySelectorAll("mark")].reduce((a, b) => strength(b) > strength(a) ? b : a, copy);
  copy.scrollTop = strongest === copy ? 0 : strongest.offsetTop - copy.clientHeight / 2;
}

function termRow(term, amounts, range, places) {
  const cells = amounts.map(amount => {
    const length = make("i", {className: amount < 0 ? "against" : "for"});
    length.style.width = `${100 * Math.abs(amount) / range}%`;
    return make("td", {}, make("div", {className: "part"},
      make("div", {}, length), make("span", {textContent: amount ? signed(amount, places) : "·"})));
  });
  return make("tr", {}, make("th", {scope: "row"}, make("bdi", {textContent: term})), ...cells);
}

/* Return the text as nodes, with its strongest words marked; MARKS bounds their number. */
function passages(text, highlights) {
  const whole = text.length <= WHOLE;
  const pieces = weighed(text, inUnits(text, highlights));
  const strongest = pieces.toSorted((a, b) => b.rank - a.rank).slice(0, whole ? MARKS : PASSAGES);
  const most = strongest[0]?.weight ?? 0;
  const marked = strongest.filter(piece => piece.weight > FAINT * most).sort((a, b) => a.begin - b.begin);
  const nodes = [];
  const gap = () => nodes.push(make("span", {className: "gap", textContent: " … "}));
  let place = 0;
  for (const {begin, end, amount, weight} of marked) {
    const after = place ? place + AROUND : 0;
    if (!whole && begin - AROUND > after) {
      nodes.push(text.slice(place, after));
      gap();
      place = begin - AROUND;
    }
    const mark = make("mark", {className: amount < 0 ? "against" : "for", title: signed(amount), textContent: text.slice(begin, end)});
    mark.style.setProperty("--strength", (0.1 + 0.3 * weight / most).toFixed(3));
    nodes.push(text.slice(place, begin), mark);
    place = end;
  }
  nodes.push(text.slice(place, whole ? undefined : place + AROUND));
  if (!whole) gap();
  return nodes;
}

/* The weight of a word is the sum over its occurrences; the first ranks with all of it, the second with half. */
function weighed(text, highlights) {
  const words = highlights.map(([begin, end]) => text.slice(begin, end).toLowerCase());
  const totals = new Map(), places = new Map();
  words.forEach((word, i) => totals.set(word, (totals.get(word) ?? 0) + highlights[i][2]));
  return highlights.map(([begin, end, amount], i) => {
    const weight = Math.abs(totals.get(words[i])), place = (places.get(words[i]) ?? 0) + 1;
    places.set(words[i], place);
    return {begin, end, amount, weight, rank: weight / place};
  });
}

/* The server counts code points, JavaScript strings UTF-16 units: an emoji is two of these. */
function inUnits(text, highlights) {
  if (!/[\ud800-\udbff]/.test(text)) return highlights;
  let unit = 0, character = 0;
  const to = target => {
    for (; character < target; character++) unit += text.codePointAt(unit) > 0xffff ? 2 : 1;
    return unit;
  };
  return highlights.map(([begin, end, amount]) => [to(begin), to(end), amount]);
}

at("ask").addEventListener("submit", event => {
  event.preventDefault();
  findLabels();
  focusMissing();
});
field.addEventListener("input", () => {
  if (field.value.length > LONG) setText(field.value);
  at("source").hidden = true;
  changed();
});
field.addEventListener("paste", event => {
  const pasted = event.clipboardData.getData("text/plain").replaceAll("\r\n", "\n");
  if (long === null && field.value.length + pasted.length <= LONG) return;
  event.preventDefault();
  const kept = long === null ? field.value : "";  // a long text cannot be edited, only replaced
  setText(kept.slice(0, field.selectionStart) + pasted + kept.slice(field.selectionEnd));
  findLabels();
});
at("clear").addEventListener("click", () => {
  setText("");
  clearNumbers();
  changed();
  focusMissing();
});
at("example").addEventListener("click", async () => {
  try {
    let answer;
    for (let tries = 0; tries < 4 && (!answer || answer.text === field.value); tries++) answer = await ask("example");
    setText(answer.text, answer.training ? "An example from the training data." : "");
    await findLabels();
  } catch (error) {
    fail(error, null);
  }
});
at("pin").addEventListener("click", () => pin(hovered ?? chosen));
at("copy-labels").addEventListener("click", event => copy(event.target, items().map(item => item.name).join("\n") + "\n"));
at("copy-curl").addEventListener("click", event => copy(event.target, curl()));
at("unwant").addEventListener("click", () => { searched = []; showList(); });
at("count").addEventListener("change", () => { if (hasInput()) findLabels(); });
at("retry").addEventListener("click", () => again?.());
at("access").addEventListener("submit", async event => {
  event.preventDefault();
  token = at("token").value.trim();
  at("token").value = "";
  try { sessionStorage.setItem("dismec-token", token); } catch { /* kept while the page is open */ }
  at("access").hidden = true;
  begin();
});
list.addEventListener("pointerleave", () => { if (hovered !== null) hover(null); });
list.addEventListener("keydown", event => {
  const now = [...list.children].indexOf(document.activeElement);
  const last = list.children.length - 1;
  const next = {ArrowDown: Math.min(now + 1, last), ArrowUp: Math.max(now - 1, 0), Home: 0, End: last}[event.key];
  if (next === undefined) return;
  event.preventDefault();
  list.children[next].focus();
});
document.addEventListener("keydown", event => { if (event.key === "Escape") choose(null); });
document.addEventListener("pointermove", event => { mouse = {x: event.clientX, y: event.clientY}; });

function curl() {
  const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;
  const address = new URL("predict", location.href).href;
  const secret = token ? ' -H "Authorization: Bearer $DISMEC_TOKEN"' : "";
  const body = JSON.stringify(asked);
  // A shell argument can have at most 128 KB.
  const data = body.length < 30_000 ? `-d ${quoted(body)}` : `--data-binary @- <<'JSON'\n${body}\nJSON`;
  return `curl -sS ${quoted(address)} -H 'Content-Type: application/json'${secret} ${data}\n`;
}

async function copy(button, text) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // only pages from https or this machine may use the clipboard
    const place = make("textarea", {value: text, className: "unseen"});
    document.body.append(place);
    place.select();
    done = document.execCommand("copy");
    place.remove();
  }
  const before = button.dataset.text ??= button.textContent;
  at("status").textContent = button.textContent = done ? "Copied" : "Not copied: blocked by the browser";
  setTimeout(() => { button.textContent = before; }, 1500);
}

async function begin() {
  showNothing(waiting());
  try {
    await loadModel();
    showNotice(null);
    if (hasInput()) { at("clear").hidden = false; await findLabels(); }
  } catch (error) {
    fail(error, begin);
  }
}
