
"use strict";

/* The input: a text or feature pairs, and dense features, depending on the model. */

const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i;
const FLOATS = {f2: [2, "getFloat16", 9], f4: [4, "getFloat32", 9], f8: [8, "getFloat64", 17]};  // bytes, getter, digits

const pairs = at("features"), dense = at("dense");
let vectors = null;          // {file, width, rows, …}: a .npy file; the field shows one of its rows

class InvalidInput extends Error {}  // the input does not fit the model

function takes(kind) { return document.body.dataset.takes.split(" ").includes(kind); }

/* Show the fields for the input of the current model. */
function showFields() {
  const kinds = [model.text ? "text" : "features"].filter(() => model.features || !model.dense);
  document.body.dataset.takes = [...kinds, ...(model.dense ? ["dense"] : [])].join(" ");
  showVector();
}

function hasInput() {
  return [["text", field], ["features", pairs], ["dense", dense]].some(([kind, part]) => takes(kind) && part.value.trim());
}

function waiting() {
  return takes("text") && !takes("dense") ? "Labels appear here as you type." : "Labels appear here once you have entered a row.";
}

function missing() {
  if (takes("text")) return "Type or paste a text first.";
  return takes("features") ? "Enter features first." : "Enter dense features first.";
}

function focusMissing() {
  const empty = [["text", field], ["features", pairs], ["dense", dense]].find(([kind, part]) => takes(kind) && !part.value.trim());
  empty?.[1].focus();
}

/* Return the row for a request. */
function inputRow() {
  const row = {};
  if (takes("text")) {
    const given = long ?? field.value;
    row.text = given.toWellFormed?.() ?? given;
    if (!row.text.trim()) throw new InvalidInput(missing());
  } else if (takes("features")) {
    row.features = parsePairs(pairs.value);
  }
  if (takes("dense")) row.dense = checkedVector();
  return row;
}

/* Parse pairs of a feature number and a value: 3:0.5 17:1, or JSON. */
function parsePairs(text) {
  const given = text.trim();
  if (given.startsWith("[")) {
    let read;
    try { read = JSON.parse(given); } catch { throw new InvalidInput("The features are not valid JSON: use [[3, 0.5], [17, 1]] or 3:0.5 17:1."); }
    return read;
  }
  return given.split(/[\s,;]+/).filter(Boolean).map(part => {
    const [feature, value] = part.split(":");
    if (!/^\d+$/.test(feature) || !NUMBER.test(value ?? "")) throw new InvalidInput(`“${part}” is not a feature with a value: use 3:0.5 17:1.`);
    return [Number(feature), Number(value)];
  });
}

/* Parse numbers in the notation of JSON, CSV or numpy. */
function parseVector(text) {
  const parts = text.trim().replace(/^[[\]\s]+|[[\]\s]+$/g, "").split(/[\s,;]+/).filter(Boolean);
  const wrong = parts.findIndex(part => !NUMBER.test(part));
  if (wrong >= 0) throw new InvalidInput(`“${parts[wrong].slice(0, 40)}” is not a number (number ${wrong + 1} of ${parts.length}).`);
  return parts.map(Number);
}

function checkedVector() {
  const numbers = parseVector(dense.value);
  if (numbers.length === model.dense) return numbers;
  const beside = takes("text") ? " in addition to the text" : takes("features") ? " in addition to the others" : "";
  throw new InvalidInput(numbers.length
    ? `${count(numbers.length, "dense feature")} given; the model needs ${model.dense.toLocaleString("en")}.`
    : `No dense features given; the model needs ${model.dense.toLocaleString("en")}${beside}.`);
}

/* Show next to the field whether the number of values is right. */
function showVector() {
  let said = model?.dense ? `The model needs ${count(model.dense, "dense feature")}.` : "";
  let fits = true;
  if (model?.dense && dense.value.trim()) {
    try { said = `${count(checkedVector().length, "dense feature")}, as the model needs.`; }
    catch (error) { said = error.message; fits = false; }
  }
  at("dense-state").textContent = said;
  at("dense-state").classList.toggle("wrong", !fits);
}

/* Read the header of a .npy file: type, rows and columns. */
async function readHeader(file) {
  const start = new DataView(await file.slice(0, 12).arrayBuffer());
  const magic = start.byteLength === 12 && String.fromCharCode(...new Uint8Array(start.buffer, 1, 5)) === "NUMPY" && start.getUint8(0) === 0x93;
  if (!magic) throw new InvalidInput(`${file.name} is not a .npy file.`);
  const isOld = start.getUint8(6) === 1;
  const begin = (isOld ? 10 : 12) + (isOld ? start.getUint16(8, true) : start.getUint32(8, true));
  const header = await file.slice(isOld ? 10 : 12, begin).text();
  const [, order, kind] = header.match(/'descr': '([<>=|]?)(\w+)'/) ?? [];
  const shape = header.match(/'shape': \(([\d, ]*)\)/)?.[1].split(",").filter(part => part.trim()).map(Number);
  if (!FLOATS[kind]) throw new InvalidInput(`${file.name} holds ${kind ?? "records"}, not float16, float32 or float64: save it with astype("float32").`);
  if (!shape || shape.length < 1 || shape.length > 2) throw new InvalidInput(`${file.name} has ${count(shape?.length ?? 0, "dimension")}: expected one row of numbers, or rows × dense features.`);
  const [rows, width] = shape.length === 1 ? [1, shape[0]] : shape;
  return {file, begin, rows, width, kind, little: order !== ">", byColumns: /'fortran_order': True/.test(header) && rows > 1};
}

/* Read row `number` (from 1) of a .npy file, rounded for display. */
async function readVector({file, begin, rows, width, kind, little, byColumns}, number) {
  const [bytes, getter, digits] = FLOATS[kind];
  const [first, last] = byColumns ? [0, rows * width] : [(number - 1) * width, number * width];
  const view = new DataView(await file.slice(begin + first * bytes, begin + last * bytes).arrayBuffer());
  if (view.byteLength < (last - first) * bytes) throw new InvalidInput(`${file.name} is truncated: it should have ${count(rows, "row")}.`);
  const value = place => getter === "getFloat16" ? half(view.getUint16(place * bytes, little)) : view[getter](place * bytes, little);
  return Array.from({length: width}, (_, column) => Number(value(byColumns ? column * rows + number - 1 : column).toPrecision(digits)));
}

function half(bits) {
  const exponent = bits >> 10 & 31, fraction = bits & 1023, sign = bits >> 15 ? -1 : 1;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * fraction / 1024);
}

async function takeVectors(file) {
  try {
    await loadModel();
    const found = await readHeader(file);
    if (found.width !== model.dense) throw new InvalidInput(`${file.name} has ${count(found.width, "dense feature")} per row; the model needs ${model.dense.toLocaleString("en")}.`);
    if (!found.rows) throw new InvalidInput(`${file.name} has no rows.`);
    vectors = found;
    at("dense-rows").hidden = found.rows === 1;
    at("dense-rows").lastElementChild.textContent = `of ${found.rows.toLocaleString("en")}`;
    at("dense-row").max = found.rows;
    at("dense-row").value = 1;
    await takeVector();
  } catch (error) {
    if (!(error instanceof InvalidInput)) return fail(error, null);
    forgetVectors();
    at("dense-state").textContent = error.message;
    at("dense-state").classList.add("wrong");
  }
}

/* Put the chosen row of the file into the field. */
async function takeVector() {
  const from = vectors, number = Math.min(Math.max(1, Math.round(Number(at("dense-row").value)) || 1), from.rows);
  try {
    const numbers = await readVector(from, number);
    if (from !== vectors) return;
    dense.value = JSON.stringify(numbers).replaceAll(",", ", ");
    changed();
  } catch (error) {
    at("dense-state").textContent = error.message;
    at("dense-state").classList.add("wrong");
  }
}

function forgetVectors() {
  vectors = null;
  at("dense-rows").hidden = true;
  at("dense-file").value = "";
}

function clearNumbers() {
  pairs.value = dense.value = "";
  forgetVectors();
}

/* React to a change of the input. */
function changed() {
  clearTimeout(pause);
  at("clear").hidden = !hasInput();
  showVector();
  if (hasInput()) {
    pause = setTimeout(findLabels, PAUSE);
  } else {
    running?.abort();
    at("busy").hidden = true;
    showNotice(null);
    showNothing(waiting());
  }
}

pairs.addEventListener("input", changed);
dense.addEventListener("input", () => { forgetVectors(); changed(); });
at("dense-file").addEventListener("change", event => { if (event.target.files[0]) takeVectors(event.target.files[0]); });
at("dense-row").addEventListener("change", takeVector);
for (const part of [field, pairs, dense])
  part.addEventListener("keydown", event => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    findLabels();
  });
