// Elements, texts and plain tables. Text of the user only ever enters an element as text.

export {}; // a module: its names stay inside

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function sizeText(count) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (count >= size) return `${Number((count / size).toPrecision(4))} ${unit}`;
  }
  return `${count} B`;
}

const countText = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const fileName = (path) => path.split(/[\\/]/).pop();
const placeText = (where) => (where ? `${fileName(where.file)}:${where.line}` : "no source line");
const lineText = (where) => (where ? `${placeText(where)}  ${where.code}` : "");

const MOST_ROWS = 200;

function table(headers, rows) {
  const body = element("tbody");
  const box = element("div", { class: "scroll" }, element("table", {}, element("thead", {}, tableRow("th", headers)), body));
  const more = element("button", { class: "chip", onclick: () => show() });
  let shown = 0;
  function show() {
    body.append(...rows.slice(shown, shown + MOST_ROWS).map((cells) => tableRow("td", cells)));
    shown += MOST_ROWS;
    more.textContent = `${rows.length - shown} more`;
    if (shown >= rows.length) more.remove();
  }
  if (rows.length > MOST_ROWS) box.append(more);
  show();
  return box;
}

function tableRow(tag, cells) {
  return element("tr", {}, ...cells.map((cell) => element(tag, { class: typeof cell === "number" ? "number" : null }, String(cell))));
}

function card(title, note, ...children) {
  return element("section", { class: "card" }, element("header", {}, element("h2", {}, title), element("span", { class: "soft" }, note)), ...children);
}

function folded(title, note, ...children) {
  return element("details", { class: "card" }, element("summary", {}, title, element("span", { class: "soft" }, note)), ...children);
}
