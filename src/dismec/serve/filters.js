"use strict";

/* Restrictions on the labels: a prefix, a list, or a group of the tree. */

let group = null;            // {name, is_label}: the node of the tree to which labels are restricted

function groupLines() {
  return [...new Set(at("group").value.split("\n").map(line => line.trim()).filter(Boolean))];
}

/* Return the restrictions for a request; empty if there are none. */
function choice() {
  const prefix = at("prefix").value.trim(), only = groupLines();
  return {...(prefix && {prefix}), ...(only.length && {only}), ...(group && {below: group.name})};
}

/* Show the restrictions on the page, also while the fields are folded. */
function showNarrowed() {
  const {prefix, only} = choice();
  const parts = [];
  if (group) parts.push(group.is_label ? `“${group.name}” and the labels below it` : `labels below “${group.name}”`);
  if (prefix) parts.push(`labels that start with “${prefix}”`);
  if (only) parts.push(`${count(only.length, "label")} of your list`);
  at("widen").hidden = !group;
  at("filters-state").textContent = parts.length ? `Restricted to ${parts.join(" that are among the ")}.` : "";
}

function filtersChanged() {
  showNarrowed();
  clearTimeout(pause);
  if (hasInput()) pause = setTimeout(findLabels, PAUSE);
}

at("prefix").addEventListener("input", filtersChanged);
at("group").addEventListener("change", filtersChanged);
at("group").addEventListener("input", event => {  // while a line is being typed, it is not a label yet
  if (event.inputType === "insertFromPaste") filtersChanged();
});
at("prefix").addEventListener("keydown", event => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  if (hasInput()) findLabels();
});
showNarrowed();
