"use strict";

/* Labels to choose from: those that begin with something, or a list. */

function groupLines() {
  return [...new Set(at("group").value.split("\n").map(line => line.trim()).filter(Boolean))];
}

/* What a request says of labels to choose from; nothing if all are. */
function choice() {
  const prefix = at("prefix").value.trim(), only = groupLines();
  return {...(prefix && {prefix}), ...(only.length && {only})};
}

/* Says on the page that not all labels are chosen from, also while the fields are folded. */
function showNarrowed() {
  const {prefix, only} = choice();
  const parts = [];
  if (prefix) parts.push(`labels that begin with “${prefix}”`);
  if (only) parts.push(`${only.length.toLocaleString("en")} ${only.length === 1 ? "label" : "labels"} of your list`);
  at("narrowed").textContent = parts.length ? `Chosen among ${parts.join(" that are among the ")}.` : "";
}

function narrow() {
  showNarrowed();
  clearTimeout(pause);
  if (field.value.trim()) pause = setTimeout(findLabels, PAUSE);
}

at("prefix").addEventListener("input", narrow);
at("group").addEventListener("change", narrow);
at("group").addEventListener("input", event => {  // while somebody types, the last line is not a label yet
  if (event.inputType === "insertFromPaste") narrow();
});
at("prefix").addEventListener("keydown", event => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  if (field.value.trim()) findLabels();
});
showNarrowed();
