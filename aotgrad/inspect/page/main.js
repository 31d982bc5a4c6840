// The page of a report: of one graph, or of each of Dynamo's.

const report = JSON.parse(document.getElementById("report").textContent);
const page = document.getElementById("page");
const graphs = "breaks" in report ? report.graphs : [report];
let redraw = () => {};

function tiles(graph) {
  const ops = graph.graphs.filter((row) => row.name !== "joint").reduce((total, row) => total + row.ops, 0);
  const hasBackward = graph.segments.length > 0;
  const figures = [
    ...(hasBackward ? [[sizeText(graph.saved_bytes), "saved for the backward"]] : []), [sizeText(graph.peak_bytes), "peak of the call, simulated"],
    [ops.toLocaleString("en"), "ops that compute"], [graph.recomputed.length, "values recomputed"],
    ...(graph.offloaded.length ? [[sizeText(graph.host_bytes), "on the host"]] : []), [graph.islands.length, "islands in eager"],
    ...(hasBackward ? [[graph.segments.length, "backward segments"]] : []),
  ];
  return element("div", { class: "tiles" }, ...figures.map(([figure, text]) => element("div", { class: "tile" }, element("b", {}, String(figure)), element("span", {}, text))));
}

function charts(graph, nodes) {
  const place = () => element("div", { class: "chart" });
  const [memory, saved] = [place(), place()];
  const cards = [];
  if (graph.memory.length) cards.push([card("Memory over the call", "simulated, without its arguments; click for the line", memory), () => drawMemory(memory, graph, (where) => nodes.showLine(where))]);
  if (savedLines(graph).length) cards.push([card("Saved by line", "the largest", saved), () => drawSaved(saved, graph, (where) => nodes.showLine(where))]);
  redraw = () => cards.forEach(([, draw]) => draw());
  return element("div", { class: cards.length > 1 ? "charts" : "" }, ...cards.map(([made]) => made));
}

function parts(graph) {
  const variants = (segment) => graph.variants.filter((row) => row.name === segment.name || row.name.startsWith(`${segment.name} without `));
  const compiled = (segment) => variants(segment).map((row) => `${row.name} (${countText(row.ops, "op")})`).join("; ") || "none yet";
  return [
    graph.islands.length ? card("Islands", "ops that run in eager between compiled graphs, and why", table(["graph", "value", "type", "line", "reason"], graph.islands.map((row) => [row.graph, row.name, row.type, lineText(row.where), row.reason]))) : null,
    graph.segments.length ? card("Backward segments and variants", "each is compiled when a backward first needs it", table(["segment", "ops", "gradients of these enter", "gradients of these leave", "variants compiled so far"], graph.segments.map((row) => [row.name, row.ops, row.tangents.join(", "), row.gradients.join(", "), compiled(row)]))) : null,
    graph.offloaded.length ? folded("On the host until the backward", countText(graph.offloaded.length, "value"), table(["value", "type", "bytes", "µs on the link", "µs exposed", "line", "reason"], graph.offloaded.map((row) => [row.name, row.type, row.bytes, Math.round(row.transfer_seconds * 1e6), Math.round(row.exposed_seconds * 1e6), lineText(row.where), row.reason]))) : null,
    folded("Inputs", String(graph.inputs.length), table(["name", "kind", "type", "bytes", "what happens to it", "gradient"], graph.inputs.map((row) => [row.name, row.kind, row.type, row.bytes, row.happened, row.gradient]))),
    folded("Outputs", String(graph.outputs.length), table(["name", "type", "what it is", "its gradient enters"], graph.outputs.map((row) => [row.name, row.type, row.what, row.backward || "none"]))),
    folded("Graphs", String(graph.graphs.length), table(["name", "ops that compute", "nodes", "inputs", "outputs"], graph.graphs.map((row) => [row.name, row.ops, row.nodes, row.inputs, row.outputs]))),
    folded("What one call does", countText(graph.steps.length, "step"), element("div", { class: "scroll" }, element("ol", {}, ...graph.steps.map((step) => element("li", {}, step)))), element("pre", { style: "margin-top: 16px" }, graph.source)),
  ];
}

function show(graph) {
  const nodes = new NodeTable(graph);
  const plans = folded("Plans", String(graph.plans.length), table(["plan", "hits", "compiled (ms)", "used if"], graph.plans.map((row, k) => [`${k}${row.explained ? ", this one" : ""}`, row.hits, Math.round(row.compile_ms), row.guards.join("\n")])));
  const shown = graph.note === null ? [tiles(graph), charts(graph, nodes), nodes.element, ...parts(graph)] : [element("p", { class: "card" }, graph.note)];
  page.replaceChildren(...heading(graph), ...shown.filter(Boolean), ...(graph.plans.length ? [plans] : []));
  nodes.draw();
  redraw();
}

function heading(graph) {
  const head = [element("p", { class: "brand" }, "aotgrad explain"), element("h1", {}, report.name), element("p", { class: "soft" }, `backend ${graph.backend}`)];
  if (!("breaks" in report)) return head;
  const choice = element("select", { class: "graphs", "aria-label": "graph of Dynamo", onchange: () => show(graphs[choice.value]) }, ...graphs.map((each, k) => element("option", { value: k }, each.name)));
  choice.value = graphs.indexOf(graph);
  const breaks = report.breaks.length ? [card("Graph breaks", String(report.breaks.length), table(["line", "reason"], report.breaks.map((row) => [lineText(row.where), row.reason])))] : [];
  return [...head, choice, ...breaks];
}

document.title = `${report.name} · aotgrad`;
if (graphs.length) show(graphs[0]);
else page.replaceChildren(element("h1", {}, report.name), element("p", { class: "card" }, "Dynamo makes no graph of it."));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());
