// The nodes by source line. Only the rows in view are in the document, so that a large graph stays quick.

const ROW_HEIGHT = 32;
const COLUMNS = ["value", "op", "type", "bytes", "graph", "state", "reason"];
const STATES = ["saved", "offloaded", "recomputed", "computed", "input", "island"];

class NodeTable {
  constructor(graph) {
    this.nodes = graph.nodes.map((node) => ({ ...node, text: searchText(node) }));
    this.filter = { text: "", file: "", graph: "", states: new Set() };
    this.closed = new Set();
    this.savedBytes = savedBytes(graph);
    this.search = element("input", { type: "search", "aria-label": "filter nodes", placeholder: "Filter by line (model.py:12), code, op or name", oninput: () => this.set({ text: this.search.value.trim().toLowerCase() }) });
    this.count = element("span", { class: "soft", role: "status" });
    this.body = element("div", { style: "position: relative; min-width: 1060px" });
    this.view = element("div", { class: "view", tabindex: "0", onscroll: () => this.draw() }, headRow(), this.body);
    this.element = element("section", { class: "card", id: "nodes" }, element("header", {}, element("h2", {}, "Nodes by source line"), this.count), this.filters(), element("div", { class: "grid" }, this.view));
    this.set({});
  }

  filters() {
    const choice = (name, all, values, text) => {
      const list = element("select", { "aria-label": name, onchange: () => this.set({ [name]: list.value }) }, element("option", { value: "" }, all), ...values.map((value) => element("option", { value }, text(value))));
      return values.length > 1 ? list : null;
    };
    const files = [...new Set(this.nodes.filter((node) => node.where).map((node) => node.where.file))];
    const graphs = [...new Set(this.nodes.map((node) => node.graph))];
    const chips = STATES.filter((state) => this.nodes.some((node) => hasState(node, state))).map((state) => this.chip(state));
    return element("div", { class: "filters" }, this.search, choice("file", "all files", files, fileName), choice("graph", "all graphs", graphs, String), ...chips);
  }

  chip(state) {
    const count = this.nodes.filter((node) => hasState(node, state)).length;
    const made = element("button", { class: "chip", "data-state": state, "aria-pressed": "false", style: `--kind: var(--${state})`, onclick: () => {
      const { states } = this.filter;
      states.has(state) ? states.delete(state) : states.add(state);
      made.setAttribute("aria-pressed", String(states.has(state)));
      this.set({});
    } }, `${state} ${count}`);
    return made;
  }

  showLine(where) {
    this.search.value = placeText(where);
    this.set({ text: this.search.value.toLowerCase(), file: "" });
    for (const list of this.element.querySelectorAll("select")) if (list.ariaLabel === "file") list.value = "";
    this.element.scrollIntoView({ block: "nearest" });
  }

  set(change) {
    Object.assign(this.filter, change);
    const { text, file, graph, states } = this.filter;
    const matches = (node) => textMatches(node, text) && (!file || node.where?.file === file) && (!graph || node.graph === graph) && (!states.size || [...states].some((state) => hasState(node, state)));
    this.found = this.nodes.filter(matches);
    this.count.textContent = `${this.found.length.toLocaleString("en")} of ${countText(this.nodes.length, "node")}`;
    this.view.scrollTop = 0;
    this.arrange();
  }

  arrange() {
    const groups = new Map();
    for (const node of this.found) {
      const key = keyOf(node.where);
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(node);
    }
    const ordered = [...groups].sort(([a], [b]) => (a === "") - (b === "")); // nodes without a line come last
    this.rows = ordered.flatMap(([key, nodes]) => [{ key, nodes }, ...(this.closed.has(key) ? [] : nodes)]);
    this.body.style.height = `${Math.max(this.rows.length * ROW_HEIGHT, 80)}px`;
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.view.scrollTop / ROW_HEIGHT) - 8);
    const rows = this.rows.slice(first, first + Math.ceil((this.view.clientHeight || 520) / ROW_HEIGHT) + 16);
    const made = rows.map((row, k) => {
      const line = row.nodes ? this.groupRow(row) : nodeRow(row);
      line.style.top = `${(first + k) * ROW_HEIGHT}px`;
      return line;
    });
    this.body.replaceChildren(...(made.length ? made : [element("div", { class: "empty" }, this.nodes.length ? "No node matches these filters." : "The graph has no nodes.")]));
  }

  groupRow({ key, nodes }) {
    const { where } = nodes[0];
    const saved = this.savedBytes.get(key);
    const toggle = () => {
      this.closed.has(key) ? this.closed.delete(key) : this.closed.add(key);
      this.arrange();
    };
    const text = element("span", { title: where ? `${where.file}:${where.line}` : "" }, element("b", {}, placeText(where)), element("code", {}, where?.code ?? "inputs, constants and what the compiler adds"));
    const figures = [countText(nodes.length, "node"), saved ? `${sizeText(saved)} saved` : ""].filter(Boolean).join(" · ");
    return element("button", { class: "row group", "aria-expanded": String(!this.closed.has(key)), onclick: toggle }, text, element("span", { class: "soft" }, figures));
  }
}

const headRow = () => element("div", { class: "row head" }, ...COLUMNS.map((name) => element("span", { class: name === "bytes" ? "number" : null }, name)));

function nodeRow(node) {
  const kind = node.is_island ? "island" : node.state;
  const badge = element("span", { class: "badge", style: `--kind: var(--${kind})` }, node.is_island ? `${node.state}, island` : node.state);
  const texts = [[node.name, "mono"], [node.op, "mono soft"], [node.type, "mono"], [node.bytes ? sizeText(node.bytes) : "", "number"], [node.graph, "soft"]];
  const cells = texts.map(([text, kind]) => element("span", { class: kind, title: text }, text));
  return element("div", { class: "row node" }, ...cells, badge, element("span", { class: "soft", title: node.reason }, node.reason));
}

const keyOf = (where) => (where ? `${where.file}:${where.line}:${where.code}` : "");

function savedBytes(graph) {
  const bytes = new Map();
  for (const { where, bytes: size } of graph.saved) bytes.set(keyOf(where), (bytes.get(keyOf(where)) ?? 0) + size);
  return bytes;
}

const hasState = (node, state) => (state === "island" ? node.is_island : node.state === state);
const searchText = (node) => [node.where ? `${node.where.file}:${node.where.line} ${node.where.code}` : "", node.name, node.op, node.type].join("\n").toLowerCase();

// `model.py:1` means line 1, not line 12.
function textMatches(node, text) {
  const line = text.match(/^(\S+):(\d+)$/);
  if (line) return Boolean(node.where) && String(node.where.line) === line[2] && node.where.file.toLowerCase().endsWith(line[1]);
  return node.text.includes(text);
}
