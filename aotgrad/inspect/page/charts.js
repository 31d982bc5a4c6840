// Memory over the call, and the lines that most saved bytes come from, drawn with plotly.

const MOST_LINES = 8;
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const escaped = (text) => text.replace(/[&<>]/g, (each) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[each]); // plotly reads tags in labels

function layout(more) {
  const axis = { gridcolor: color("line"), zerolinecolor: color("line"), tickfont: { color: color("soft") }, automargin: true, title: { font: { color: color("soft"), size: 12 } } };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 56, r: 8, t: 8, b: 40 },
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: color("text") }, hovermode: "closest",
    hoverlabel: { bgcolor: color("card"), bordercolor: color("line"), font: { color: color("text") }, align: "left" },
    legend: { orientation: "h", x: 0, y: 1.12, font: { color: color("soft") } }, ...more(axis),
  };
}

function drawMemory(place, graph, onLine) {
  const hasBackward = graph.segments.length > 0;
  const moments = graph.memory.map((moment, position) => ({ ...moment, position, half: hasBackward ? moment.half : "forward" }));
  const traces = ["forward", "backward"].map((half) => {
    const points = moments.filter((moment) => moment.half === half);
    return {
      type: "scatter", mode: "lines", name: half, fill: "tozeroy", showlegend: hasBackward, fillcolor: `${color(half)}33`, customdata: points.map((point) => point.position),
      line: { shape: "hvh", width: 1.5, color: color(half) }, x: points.map((point) => point.position), y: points.map((point) => point.bytes),
      text: points.map((point) => escaped(`${sizeText(point.bytes)} while ${point.op} runs`) + `<br>${escaped(lineText(point.where))}`), hovertemplate: "%{text}<extra></extra>",
    };
  });
  const drawn = layout((axis) => ({
    xaxis: { ...axis, title: { ...axis.title, text: "ops, in the order in which they run" }, showgrid: false },
    yaxis: { ...axis, rangemode: "tozero", tickformat: "~s", ticksuffix: "B" },
  }));
  Plotly.react(place, traces, drawn, { displayModeBar: false, responsive: true });
  onClick(place, (point) => moments[point.customdata].where, onLine);
}

function savedLines(graph) {
  const lines = new Map();
  for (const row of graph.saved) {
    const key = placeText(row.where);
    const known = lines.get(key) ?? { where: row.where, bytes: 0 };
    lines.set(key, { ...known, bytes: known.bytes + row.bytes });
  }
  return [...lines.values()].filter((line) => line.bytes).sort((a, b) => b.bytes - a.bytes).slice(0, MOST_LINES).reverse();
}

function drawSaved(place, graph, onLine) {
  const lines = savedLines(graph);
  const trace = {
    type: "bar", orientation: "h", x: lines.map((line) => line.bytes), y: lines.map((_, k) => k), marker: { color: color("saved") }, customdata: lines.map((_, k) => k),
    text: lines.map((line) => sizeText(line.bytes)), textposition: "auto", textfont: { color: color("card") }, outsidetextfont: { color: color("text") }, cliponaxis: false,
    hovertext: lines.map((line) => escaped(lineText(line.where) || "arguments of the call")), hovertemplate: "%{hovertext}<extra></extra>",
  };
  const names = lines.map((line) => escaped(line.where ? placeText(line.where) : "arguments"));
  const drawn = layout((axis) => ({
    xaxis: { ...axis, tickformat: "~s", ticksuffix: "B", nticks: 5 }, yaxis: { ...axis, tickvals: lines.map((_, k) => k), ticktext: names, showgrid: false }, bargap: 0.35,
  }));
  Plotly.react(place, [trace], drawn, { displayModeBar: false, responsive: true });
  onClick(place, (point) => lines[point.customdata].where, onLine);
}

function onClick(place, whereOf, onLine) {
  place.removeAllListeners("plotly_click");
  place.on("plotly_click", ({ points }) => whereOf(points[0]) && onLine(whereOf(points[0])));
}
