
"use strict";

/* The tree of labels: nodes are requested when opened; choosing one restricts predictions. */

const NODES = 50;            // children shown at a time
const TREE_MATCHES = 20;

let treeOf = null;           // the answer of /model that the visible nodes belong to
let seekingNodes = null;     // AbortController of a search
let treePause = 0;

/* Show the tree of the current model. */
function showTree() {
  const {hierarchy} = model;
  at("tree").hidden = !hierarchy;
  if (!hierarchy && group) leaveGroup();
  if (!hierarchy) return;
  const groups = hierarchy.groups ? ` and ${count(hierarchy.groups, "group")}` : "";
  at("tree-about").textContent = `${count(hierarchy.nodes - hierarchy.groups, "label")}${groups} on ${count(hierarchy.levels, "level")}. Choose a name to restrict predictions to its group.`;
  if (at("tree").open) fillTree();
}

/* Show the top nodes, or those that match a search. */
async function fillTree() {
  clearTimeout(treePause);
  seekingNodes?.abort();
  const controller = seekingNodes = new AbortController();
  const part = at("tree-search").value.trim();
  try {
    await loadModel();
    const query = part ? `limit=${TREE_MATCHES}&search=${encodeURIComponent(part)}` : `limit=${NODES}`;
    const {nodes, more} = await ask(`tree?${query}`, null, controller.signal);
    if (controller.signal.aborted) return;
    treeOf = model;
    at("tree-list").replaceChildren(...nodes.map(nodeItem));
    if (more && !part) at("tree-list").append(moreItem(null, nodes.length));
    at("tree-state").textContent = !part ? "" : !nodes.length ? "No name contains this."
      : more ? `The first ${nodes.length}; there are more: keep typing.` : `${count(nodes.length, "name")} found.`;
  } catch (error) {
    if (!controller.signal.aborted) treeTrouble(error);
  }
}

function treeTrouble(error) {
  if (error.status === 401) askForToken();
  else at("tree-state").textContent = sentence(error.message);
}

function nodeItem(entry) {
  const item = make("li"), line = make("div", {className: "node"});
  const kind = entry.is_label ? [] : [`group of ${count(entry.labels, "label")}`];
  if (entry.is_label && entry.labels) kind.push(`${count(entry.labels, "label")} below`);
  if (entry.is_label) kind.push(entry.rows ? count(entry.rows, "training row") : "no training rows");
  const pick = make("button", {className: "pick", title: entry.name.length > 80 ? entry.name : "", type: "button"},
    make("span", {className: "name", dir: "auto", textContent: entry.name}));
  pick.dataset.name = entry.name;
  pick.ariaPressed = String(group?.name === entry.name);
  pick.addEventListener("click", () => enterGroup(entry));
  line.append(entry.children ? foldButton(entry, item) : make("span", {className: "leaf"}), pick,
    make("small", {textContent: kind.join(", ")}));
  if (entry.path?.length) line.append(make("span", {className: "path", dir: "auto", textContent: entry.path.join(" › ")}));
  item.append(line);
  return item;
}

function foldButton(entry, item) {
  const fold = make("button", {type: "button", className: "fold", ariaLabel: `Children of ${entry.name}`, ariaExpanded: "false"});
  fold.addEventListener("click", async () => {
    const opens = fold.ariaExpanded === "false";
    fold.ariaExpanded = String(opens);
    item.querySelector("ul")?.remove();  // free the memory of folded nodes
    if (!opens) return;
    const below = make("ul", {className: "nodes"});
    item.append(below);
    await addNodes(below, entry, 0);
  });
  return fold;
}

/* Append further children of a node, or further top nodes, to a list. */
async function addNodes(below, entry, start) {
  try {
    const of = entry ? `node=${entry.node}&` : "";
    const {nodes, more} = await ask(`tree?${of}start=${start}&limit=${NODES}`);
    if (treeOf !== model) return fillTree();  // the server has switched to another model
    below.append(...nodes.map(nodeItem));
    if (more) below.append(moreItem(entry, start + nodes.length));
    at("tree-state").textContent = "";
  } catch (error) {
    treeTrouble(error);
  }
}

function moreItem(entry, start) {
  const left = entry ? ` (${(entry.children - start).toLocaleString("en")} left)` : "";
  const button = make("button", {type: "button", className: "more", textContent: `Show more${left}`});
  const item = make("li", {}, button);
  button.addEventListener("click", async () => {
    const below = item.parentElement;
    item.remove();
    await addNodes(below, entry, start);
    below.children[start]?.querySelector("button")?.focus();
  });
  return item;
}

/* Restrict predictions to a node and its descendants, or undo that. */
function enterGroup(entry) {
  group = group?.name === entry.name ? null : {name: entry.name, is_label: entry.is_label};
  markGroup();
}

function leaveGroup() {
  group = null;
  markGroup();
}

function markGroup() {
  for (const pick of at("tree-list").querySelectorAll(".pick")) pick.ariaPressed = String(group?.name === pick.dataset.name);
  filtersChanged();
}

at("tree").addEventListener("toggle", () => { if (at("tree").open) fillTree(); });
at("widen").addEventListener("click", leaveGroup);
at("tree-search").addEventListener("input", () => {
  clearTimeout(treePause);
  treePause = setTimeout(fillTree, SEARCH_PAUSE);
});
at("tree-search").addEventListener("keydown", event => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  fillTree();
});
