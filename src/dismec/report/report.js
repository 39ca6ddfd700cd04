"use strict";
// Tables of labels: the first rows are in the page, all of them in the JSON beside it.
const AT_ONCE = 50;
const MORE = 500;
const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

for (const section of document.querySelectorAll(".labels")) {
  const { columns, file } = JSON.parse(section.querySelector("script").textContent);
  const names = columns.find(column => column.key === "name").values;
  const lower = names.map(name => name.toLowerCase());
  const heads = [...section.querySelectorAll("th")];
  const body = section.querySelector("tbody");
  const filter = section.querySelector("input");
  const more = section.querySelector(".more");
  const count = section.querySelector(".count");
  const shown = columns.filter(column => column.title);
  let order = names.map((_, i) => i);
  let found = order;
  let visible = AT_ONCE;

  const written = (column, value) => value === null ? "–"
    : typeof value !== "number" ? value
    : column.digits ? value.toFixed(column.digits) : value.toLocaleString("en-US");

  const render = () => {
    body.replaceChildren(...found.slice(0, visible).map(i => {
      const row = document.createElement("tr");
      for (const column of shown) {
        row.insertCell().textContent = written(column, column.values[i]);
      }
      return row;
    }));
    const left = found.length - Math.min(visible, found.length);
    more.hidden = left === 0;
    more.textContent = `Show ${Math.min(left, MORE).toLocaleString("en-US")} more`;
    const of = found.length < names.length ? ` of ${names.length.toLocaleString("en-US")}` : "";
    count.textContent = `${found.length.toLocaleString("en-US")}${of} labels`;
  };

  const choose = () => {
    const wanted = filter.value.trim().toLowerCase();
    found = wanted ? order.filter(i => lower[i].includes(wanted)) : order;
    visible = AT_ONCE;
    render();
  };

  const sort = place => {
    const { values } = shown[place];
    const isText = shown[place].key === "name";
    const now = heads[place].ariaSort;
    const rising = now === "none" ? isText : now === "descending";
    heads.forEach((head, i) => {
      head.ariaSort = i !== place ? "none" : rising ? "ascending" : "descending";
    });
    const compare = isText
      ? (a, b) => collator.compare(values[a], values[b])
      : (a, b) => values[a] - values[b];
    // What was not measured comes last either way; equal ones keep their order.
    order = [...order].sort((a, b) => {
      const missing = (values[a] === null) - (values[b] === null);
      return missing || (values[a] === null ? 0 : rising ? compare(a, b) : compare(b, a));
    });
    choose();
  };

  const quoted = value => {
    const text = value === null ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };

  const download = () => {
    const lines = [columns.map(column => quoted(column.key)).join(",")];
    for (let i = 0; i < names.length; i++) {
      lines.push(columns.map(column => quoted(column.values[i])).join(","));
    }
    // The mark at the beginning tells spreadsheets that this is UTF-8.
    const blob = new Blob(["\ufeff", lines.join("\r\n"), "\r\n"], { type: "text/csv" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  };

  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(place));
    head.replaceChildren(button);
  });
  filter.addEventListener("input", choose);
  more.addEventListener("click", () => { visible += MORE; render(); });
  section.querySelector(".csv").addEventListener("click", download);
  section.querySelector(".tools").hidden = false;
  section.querySelector(".rest")?.remove();
  render();
}

// Paper has nothing to unfold.
const folded = new Set();
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) {
    folded.add(details);
    details.open = true;
  }
});
addEventListener("afterprint", () => {
  for (const details of folded) details.open = false;
  folded.clear();
});
