
"use strict";

const AT_ONCE = 100;         // maximum number of texts per request; the server may allow fewer
const BYTES = 1_000_000;     // maximum size of a request; the server may allow less, one text may need more
const BUSY = 5;              // retries if the server is busy
const PREVIEWED = 10;

let table = null;            // {name, kind, columns, rows}: the contents of a file; a row is {line, values}
let sending = null;          // AbortController of the requests for a file
let saved = "";              // URL of the CSV file to save

/* Parse the contents of a file. Each row keeps its line number, for errors. */
function parseFile(name, content) {
  const text = content.replace(/^\ufeff/, "");
  const ending = name.toLowerCase().replace(/\.gz$/, "").match(/\.(\w+)$/)?.[1];
  const first = text.trimStart()[0];
  if (ending === "json" && first === "[") {
    let values;
    try { values = JSON.parse(text); } catch { throw new Error(`${name} is not valid JSON`); }
    return parseRecords(name, values.map((value, i) => ({line: i + 1, value})), "JSON");
  }
  if (first === "{" || ending === "jsonl" || ending === "ndjson") {
    const lines = text.split("\n").map((line, i) => ({line: i + 1, text: line})).filter(({text}) => text.trim());
    return parseRecords(name, lines.map(({line, text}) => {
      try { return {line, value: JSON.parse(text)}; } catch { throw new Error(`${name}:${line}: not valid JSON`); }
    }), "JSON lines");
  }
  if (ending === "csv" || ending === "tsv") return parseDelimited(name, text, ending);
  return parseLines(name, text);
}

function parseLines(name, text) {
  const labeled = /^.*(?<!\S)__label__\S/.test(text);  // labels in fastText's format in the first line
  const read = line => labeled ? line.replace(/(?<!\S)__label__\S+\s*/g, "") : line;
  const lines = text.split(/\r?\n/).map((line, i) => ({line: i + 1, text: line})).filter(({text}) => text.trim());
  const rows = lines.map(({line, text}) => ({line, values: [read(text)]}));
  return {name, kind: labeled ? "fastText lines" : "one text per line", columns: ["text"], rows};
}

function parseRecords(name, records, kind) {
  const columns = new Set();
  for (const {line, value} of records) {
    if (typeof value === "string") columns.add("text");
    else if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error(`${name}:${line}: expected an object or a text`);
    else Object.keys(value).forEach(key => columns.add(key));
  }
  const keys = [...columns];
  const rows = records.map(({line, value}) =>
    ({line, values: typeof value === "string" ? keys.map(key => key === "text" ? value : undefined) : keys.map(key => value[key])}));
  return {name, kind, columns: keys, rows};
}

function parseDelimited(name, text, ending) {
  const head = text.slice(0, text.search(/\r?\n|$/));
  const count = mark => head.split(mark).length;
  const mark = ending === "tsv" ? "\t" : [",", ";", "\t"].reduce((a, b) => count(b) > count(a) ? b : a);
  const rows = [];
  let values = [], value = "", quoted = false, begun = 1, line = 1;
  const end = () => {
    values.push(value);
    if (values.length > 1 || values[0]) rows.push({line: begun, values});
    values = [];
    value = "";
  };
  for (let i = 0; i < text.length; i++) {
    const char = text[i];
    if (char === "\n") line++;
    if (quoted) {
      if (char !== '"') value += char;
      else if (text[i + 1] === '"') value += text[++i];
      else quoted = false;
    } else if (char === '"' && !value) quoted = true;
    else if (char === mark) { values.push(value); value = ""; }
    else if (char === "\n") { end(); begun = line; }
    else if (char !== "\r" || text[i + 1] !== "\n") value += char;
  }
  if (quoted) throw new Error(`${name}:${begun}: missing closing quotation mark`);
  if (value || values.length) end();
  const columns = rows.shift()?.values.map(column => column.trim()) ?? [];
  for (const row of rows)
    if (row.values.length !== columns.length) throw new Error(`${name}:${row.line}: ${row.values.length} columns, but the header has ${columns.length}`);
  return {name, kind: mark === "\t" ? "TSV" : "CSV", columns, rows};
}

/* Cancel the requests in progress, if any, and hide their state. */
function stopSending() {
  sending?.abort();
  sending = null;
  showSending(false);
}

function showSending(busy) {
  at("batch-go").hidden = busy;
  at("batch-progress").hidden = at("batch-stop").hidden = !busy;
  for (const id of ["text-column", "id-column", "batch-kind"]) at(id).disabled = busy;
}

async function takeFile(file) {
  at("batch-panel").open = true;
  try {
    const [first, second] = new Uint8Array(await file.slice(0, 2).arrayBuffer());
    const zipped = first === 0x1f && second === 0x8b;
    const bytes = zipped ? new Response(file.stream().pipeThrough(new DecompressionStream("gzip"))) : file;
    let content;
    try { content = new TextDecoder("utf-8", {fatal: true, ignoreBOM: true}).decode(await bytes.arrayBuffer()); }
    catch { throw new Error(`${file.name} is not a UTF-8 text file: save it as UTF-8`); }
    await takeTable(parseFile(file.name, content));
  } catch (error) {
    refuseTable(error);
  }
}

function refuseTable(error) {
  stopSending();
  table = null;
  at("batch").hidden = at("batch-table").hidden = true;
  at("batch-state").textContent = sentence(error.message);
}

async function takeTable(given) {
  if (!given.rows.length) throw new Error(`${given.name}: no texts`);
  await loadModel();
  stopSending();
  table = given;
  const {columns, rows, name, kind} = table;
  at("batch-what").textContent = `${name}: ${kind}, ${count(rows.length, "text")}`;
  const size = i => rows.slice(0, 50).reduce((sum, row) => sum + (typeof row.values[i] === "string" ? row.values[i].length : 0), 0);
  const longest = columns.map((_, i) => i).reduce((a, b) => size(b) > size(a) ? b : a, 0);
  const texts = columns.indexOf("text"), ids = columns.indexOf("id");
  const options = columns.map((column, i) => new Option(column || `column ${i + 1}`, i));
  at("text-column").replaceChildren(...options);
  at("text-column").value = texts < 0 ? longest : texts;
  at("id-column").replaceChildren(new Option("no column", -1), ...options.map(option => option.cloneNode(true)));
  at("id-column").value = ids;
  at("text-choice").hidden = at("id-choice").hidden = columns.length < 2;
  at("batch").hidden = false;
  forgetResults();
}

function forgetResults() {
  at("batch-table").hidden = at("batch-save").hidden = true;
  at("batch-state").textContent = "";
  at("batch-kind").options[0].textContent = `the best ${at("count").value} labels`;
  at("batch-go").textContent = `Find labels for ${count(table.rows.length, "text")}`;
  const first = table.rows[0].values[at("text-column").value];
  at("batch-first").textContent = `First text: ${typeof first === "string" ? first.slice(0, 300) : "–"}`;
}

/* Return the requests for all texts, each within the limits on rows, bytes and characters. */
function requests() {
  const column = Number(at("text-column").value);
  const options = {k: Number(at("count").value), rank: model.threshold.rank, ...choice()};
  if (at("batch-kind").value === "assigned") Object.assign(options, {k: model.limits.k, threshold: model.threshold.value});
  const most = Math.min(AT_ONCE, model.limits.rows), overhead = 200 + new Blob([JSON.stringify(choice())]).size;
  const parts = [];
  let rows = [], bytes = 0, characters = 0;
  for (const {line, values} of table.rows) {
    const given = values[column];
    if (typeof given !== "string") throw new Error(`${table.name}:${line}: "${table.columns[column]}" is not a text`);
    const text = given.toWellFormed?.() ?? given;
    const size = new Blob([JSON.stringify({text})]).size + 1;
    if (size + overhead > model.limits.body) throw new Error(`${table.name}:${line}: the text is too long: this server accepts ${model.limits.body / 1e6} MB per request`);
    const length = [...text].length;
    if (length > model.limits.characters) throw new Error(`${table.name}:${line}: the text is too long: this server accepts ${model.limits.characters.toLocaleString("en")} characters per request`);
    const full = bytes + size + overhead > Math.min(BYTES, model.limits.body) || characters + length > model.limits.characters;
    if (rows.length === most || (rows.length && full)) {
      parts.push({...options, rows});
      rows = [];
      bytes = characters = 0;
    }
    rows.push({text});
    bytes += size;
    characters += length;
  }
  return [...parts, {...options, rows}];
}

async function askWithRetries(request, signal) {
  for (let tries = 0; ; tries++) {
    try {
      return await ask("predict", request, signal);
    } catch (error) {
      if (error.status !== 503 || tries === BUSY) throw error;
      await new Promise(done => setTimeout(done, 1000 * (tries + 1)));
      signal.throwIfAborted();
    }
  }
}

async function findAll() {
  const controller = sending = new AbortController();
  const answers = [], total = table.rows.length, progress = at("batch-progress");
  forgetResults();
  let trouble = "";
  progress.max = total;
  progress.value = 0;
  showSending(true);
  try {
    await loadModel();
    for (const request of requests()) {
      answers.push(...(await askWithRetries(request, controller.signal)).rows);
      progress.value = answers.length;
      at("batch-state").textContent = `${answers.length.toLocaleString("en")} of ${count(total, "text")}`;
    }
  } catch (error) {
    if (sending !== controller) return;
    trouble = controller.signal.aborted ? "Canceled" : error.message;
    if (error.status === 401) askForToken();
  }
  if (sending !== controller) return;
  showSending(false);
  const done = `${answers.length.toLocaleString("en")} of ${count(total, "text")} ${answers.length === 1 ? "has" : "have"} labels`;
  at("batch-state").textContent = trouble ? `${sentence(trouble)} ${done}.` : `${count(total, "text")} done.`;
  const full = answers.filter(answer => at("batch-kind").value === "assigned" && answer.labels.length === model.limits.k).length;
  if (full) at("batch-state").textContent += ` ${count(full, "text")} may have more labels: this server returns at most ${model.limits.k} per text.`;
  sending = null;
  if (answers.length) showResults(answers);
}

function showResults(answers) {
  const column = Number(at("text-column").value);
  const rows = answers.slice(0, PREVIEWED).map((answer, i) => {
    const text = table.rows[i].values[column];
    const look = make("button", {type: "button", dir: "auto", textContent: text.slice(0, 200), title: "Explain this text"});
    look.addEventListener("click", () => { setText(text); findLabels(); at("labels").scrollIntoView({block: "nearest"}); });
    return make("tr", {}, make("td", {}, look), make("td", {dir: "auto", textContent: labelsOf(answer).join(" · ") || "none"}));
  });
  at("batch-table").caption.textContent = answers.length > PREVIEWED ? `The first ${PREVIEWED}; the CSV file has all ${answers.length.toLocaleString("en")}.` : "";
  at("batch-table").tBodies[0].replaceChildren(...rows);
  at("batch-table").hidden = false;
  URL.revokeObjectURL(saved);
  saved = URL.createObjectURL(new Blob(["\ufeff", csv(answers, column)], {type: "text/csv"}));  // spreadsheets recognize UTF-8 by this mark
  at("batch-save").href = saved;
  at("batch-save").download = table.name.replace(/(\.\w+)?(\.gz)?$/i, "") + "-labels.csv";
  at("batch-save").hidden = false;
}

function labelsOf(answer) { return answer.names ?? answer.labels; }

/* Return one line per text: its id or the text, and JSON lists of labels and scores. */
function csv(answers, column) {
  const ids = Number(at("id-column").value);
  const cell = value => /[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
  const values = model.threshold.rank === "score" ? "scores" : "probabilities";
  const lines = answers.map((answer, i) => {
    const row = table.rows[i].values;
    const key = ids < 0 ? row[column] : typeof row[ids] === "string" ? row[ids] : JSON.stringify(row[ids] ?? "");
    return [key, JSON.stringify(labelsOf(answer)), JSON.stringify(answer[values])].map(cell).join(",");
  });
  return [[ids < 0 ? "text" : "id", "labels", values].join(","), ...lines, ""].join("\r\n");
}

at("file").addEventListener("change", event => { if (event.target.files[0]) takeFile(event.target.files[0]); });
at("lines").addEventListener("click", () => takeTable(parseLines("The text above", long ?? field.value)).catch(refuseTable));
at("text-column").addEventListener("change", forgetResults);
at("id-column").addEventListener("change", forgetResults);
at("batch-kind").addEventListener("change", forgetResults);
at("count").addEventListener("change", () => { if (table && !sending) forgetResults(); });
at("batch-go").addEventListener("click", findAll);
at("batch-stop").addEventListener("click", () => sending?.abort());
for (const kind of ["dragenter", "dragover"])
  document.addEventListener(kind, event => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
document.addEventListener("dragleave", event => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
document.addEventListener("drop", event => {
  document.body.classList.remove("dropping");
  if (!event.dataTransfer?.files.length) return;
  event.preventDefault();
  const file = event.dataTransfer.files[0];
  if (takes("dense")) takeVectors(file);
  else if (takes("text")) takeFile(file);
});
begin();
