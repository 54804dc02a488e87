// The chosen pipeline as a graph: stages as cards, edges as wide as the rows that go over them.

import { paint } from "./colours.js";
import { $, drawn, element, keyed, setAttribute, setName, setText, tableRow } from "./dom.js";
import { count, milliseconds, rate, significant, whole, wholePercent } from "./format.js";
import { layered, place } from "./layout.js";

const CARD = { least: 130, most: 156, height: 70, when: 26 };
const PORT = 15; // pixels between edges at the same side of a card
const END = { width: 56, height: 26 };
const BEND = 12;
const GAP = 46;
const LEAST_SCALE = 0.75;
const UPRIGHT_BELOW = 560; // pixels

export class Graph {
  constructor() {
    this._view = $("graph-view");
    this._shape = "";
    this._cards = [];
    this._edges = [];
    this._pipeline = null;
    this._size = "";
    new ResizeObserver(() => this._pipeline && this.update(this._pipeline)).observe(this._view);
  }

  update(pipeline) {
    this._pipeline = pipeline;
    const { clientWidth: width, clientHeight: height } = this._view;
    const shape = JSON.stringify([
      pipeline.name,
      pipeline.outputs,
      pipeline.stages.map(({ name, sources, when }) => [name, sources, when]),
      width,
      width < UPRIGHT_BELOW ? 0 : height,
    ]);
    if (shape !== this._shape) {
      this._shape = shape;
      this._build(pipeline, width, height);
    }
    const most = Math.max(...pipeline.stages.map((stage) => stage.rows_per_s ?? 0), 1e-9);
    const stages = new Map(pipeline.stages.map((stage) => [stage.name, stage]));
    for (const card of this._cards) fill(card, stages.get(card.name));
    for (const { line, label, edge } of this._edges) {
      const stage = stages.get((edge.kind === "answer" ? edge.path[0] : edge.path.at(-1)).stage?.name);
      const rows = stage?.rows_per_s ?? 0;
      setAttribute(line, "stroke-width", (1 + 5 * Math.sqrt(rows / most)).toFixed(1));
      setAttribute(line, "data-flows", String(rows > 0));
      if (label) setText(label, edge.kind === "when" ? wholePercent(stage.share) : `${rate(rows)}/s`);
    }
    setText($("graph-note"), note(pipeline));
    keyed(
      $("graph-table").tBodies[0],
      pipeline.stages,
      (stage) => stage.name,
      () => tableRow(9),
      (row, stage) => {
        const texts = [
          stage.name,
          stage.model || stage.combiner,
          stage.sources.join(", "),
          stage.when ? `${stage.when.stage}: ${stage.when.text}` : "always",
          rate(stage.rows_per_s),
          wholePercent(stage.share),
          significant(stage.mean_batch),
          whole(stage.queued_requests),
          milliseconds(stage.latency_ms),
        ];
        texts.forEach((text, index) => setText(row.cells[index], text));
      },
    );
  }

  _build(pipeline, room, height) {
    const upright = room < UPRIGHT_BELOW;
    const graph = layered(pipeline.stages, pipeline.outputs);
    const layers = graph.layers.filter((layer) => layer.some((node) => node.kind === "stage")).length;
    const spare = (room - 2 * END.width - (layers + 1) * GAP) / Math.max(layers, 1);
    const width = upright ? CARD.most : Math.min(Math.max(Math.floor(spare), CARD.least), CARD.most);
    const tall = (node) =>
      node.kind === "stage"
        ? CARD.height + (node.stage.when ? CARD.when : 0)
        : node.kind === "bend"
          ? BEND
          : END.height;
    const wide = (node) => (node.kind === "stage" ? width : node.kind === "bend" ? BEND : END.width);
    const shape = {
      upright,
      along: upright ? tall : wide,
      across: upright ? wide : tall,
      gap: upright ? 30 : GAP,
      between: upright ? 14 : 10,
    };
    // A picture that is too large is made smaller, as far as it can still be read; the rest is scrolled to.
    const natural = place(graph, { ...shape, length: 0, breadth: 0 });
    const fits = upright ? room / natural.width : Math.min(room / natural.width, (height - 2) / natural.height);
    const scale = Math.max(Math.min(fits, 1), LEAST_SCALE);
    const size = place(graph, {
      ...shape,
      length: upright ? 0 : room / scale,
      breadth: upright ? room / scale : (height - 2) / scale,
    });
    const svg = drawn("svg", { width: size.width, height: size.height, "aria-hidden": "true" });
    const canvas = element("div", upright ? "graph upright" : "graph");
    canvas.style.width = `${size.width}px`;
    canvas.style.height = `${size.height}px`;
    canvas.append(svg);
    const ports = sides(graph.edges, upright);
    this._edges = graph.edges.map((edge) => {
      const points = route(edge, ports, upright, upright ? tall : wide);
      const line = drawn("path", { d: curve(points, upright), class: `edge ${edge.kind}` });
      svg.append(line);
      if (edge.kind === "answer") return { edge, line, label: null };
      const label = element("span", `flow ${edge.kind}`);
      const [from, into] = points.slice(-2);
      label.style.left = `${(from[0] + into[0]) / 2}px`;
      label.style.top = `${(from[1] + into[1]) / 2}px`;
      canvas.append(label);
      return { edge, line, label };
    });
    this._cards = [];
    for (const node of graph.layers.flat()) {
      if (node.kind === "bend") continue;
      const made = node.kind === "stage" ? card(node.stage) : element("div", "end", node.kind);
      if (node.kind === "answer")
        made.title = node.outputs.map((output) => `${output.name}: from ${output.from.join(", else ")}`).join("\n");
      Object.assign(made.style, {
        left: `${node.x - wide(node) / 2}px`,
        top: `${node.y - tall(node) / 2}px`,
        width: `${wide(node)}px`,
        height: `${tall(node)}px`,
      });
      canvas.append(made);
      if (node.kind === "stage") this._cards.push(made);
    }
    if (scale < 1) canvas.style.transform = `scale(${scale})`;
    const frame = element("div", "frame");
    frame.style.height = `${size.height * scale}px`;
    frame.append(canvas);
    this._view.replaceChildren(frame);
  }
}

/** For each edge, how far beside the middles of its first and last node its ends lie, so that they are apart. */
function sides(edges, upright) {
  const across = upright ? "x" : "y";
  const ports = new Map(edges.map((edge) => [edge, { leaves: 0, enters: 0 }]));
  for (const [key, end, next] of [
    ["leaves", 0, 1],
    ["enters", -1, -2],
  ]) {
    const groups = Map.groupBy(edges, (edge) => edge.path.at(end));
    for (const [node, group] of groups) {
      if (node.kind !== "stage") continue;
      group.sort((one, other) => one.path.at(next)[across] - other.path.at(next)[across]);
      group.forEach((edge, index) => {
        ports.get(edge)[key] = (index - (group.length - 1) / 2) * Math.min(PORT, 48 / group.length);
      });
    }
  }
  return ports;
}

/** The points of an edge: it runs straight through the layers that it passes. */
function route(edge, ports, upright, along) {
  const { leaves, enters } = ports.get(edge);
  const { path } = edge;
  const last = path.length - 1;
  return path.flatMap((node, index) => {
    const half = node.kind === "bend" ? node.length / 2 : along(node) / 2;
    const at = (sign, beside) =>
      upright ? [node.x + beside, node.y + sign * half] : [node.x + sign * half, node.y + beside];
    if (index === 0) return [at(1, leaves)];
    return index === last ? [at(-1, enters)] : [at(-1, 0), at(1, 0)];
  });
}

function curve(points, upright) {
  let path = `M${points[0]}`;
  for (let index = 1; index < points.length; index += 1) {
    const [[x1, y1], [x2, y2]] = [points[index - 1], points[index]];
    const [x, y] = [(x1 + x2) / 2, (y1 + y2) / 2];
    path += upright ? `C${x1},${y} ${x2},${y} ${x2},${y2}` : `C${x},${y1} ${x},${y2} ${x2},${y2}`;
  }
  return path;
}

function card(stage) {
  const made = element("div", "card");
  made.name = stage.name;
  const [top, model, flow, wait] = [
    element("div", "cut name"),
    element("div", "cut model"),
    element("div", "flows"),
    element("div", "waits"),
  ];
  const [swatch, name] = [element("i", "swatch"), element("span")];
  model.append(swatch, name);
  for (const row of [flow, wait]) row.append(element("span"), element("span"));
  made.append(top, model);
  const when = element("div", "when");
  if (stage.when) made.append(when);
  made.append(flow, wait);
  made.parts = { top, swatch, name, flow, wait, when };
  return made;
}

function fill(made, stage) {
  if (!stage) return;
  const { top, swatch, name, flow, wait, when } = made.parts;
  setName(top, stage.name);
  if (stage.model) paint(swatch, stage.model);
  setName(name, stage.model || `combiner: ${stage.combiner}`);
  if (stage.when)
    setName(when, `if ${stage.when.text}`, `runs for the rows of ${stage.when.stage} with ${stage.when.text}`);
  setText(flow.firstChild, `${rate(stage.rows_per_s)} rows/s`);
  setText(flow.lastChild, milliseconds(stage.latency_ms));
  setText(wait.firstChild, stage.model ? `batch ${significant(stage.mean_batch)}` : "");
  setText(wait.lastChild, stage.model ? `queue ${whole(stage.queued_requests)}` : "");
  setAttribute(made, "data-waits", String((stage.queued_requests ?? 0) >= 20));
}

function note(pipeline) {
  const gated = pipeline.stages.filter((stage) => stage.when);
  const shares = gated.map((stage) => `${stage.name}: ${wholePercent(stage.share)} of rows`);
  return [...shares, pipeline.stages_more ? `${count(pipeline.stages_more, "more stage")} not shown` : ""]
    .filter(Boolean)
    .join(" · ");
}
