// Where the stages of a pipeline are drawn: layers by their sources (Sugiyama, Tagawa and Toda 1981), without I/O.

const SWEEPS = 6;

/**
 * `stages`: [{name, sources, when}], in an order in which sources come first, as the server gives them.
 * `outputs`: [{name, from}].
 *
 * Returns `layers`: lists of nodes, each with `id`, `kind` ("request", "stage", "answer" or "bend") and `stage`; and
 * `edges`: {from, to, kind ("data", "when" or "answer"), path: [node, …]}, whose path bends in each layer between.
 */
export function layered(stages, outputs) {
  const nodes = new Map([["request", { id: "request", kind: "request", layer: 0 }]]);
  const edges = [];
  for (const stage of stages) {
    const id = `stage ${stage.name}`;
    const sources = stage.sources
      .map((source) => (source === "request" ? "request" : `stage ${source}`))
      .filter((source) => nodes.has(source));
    const asked = stage.when && nodes.has(`stage ${stage.when.stage}`) ? [`stage ${stage.when.stage}`] : [];
    const before = [...sources, ...asked];
    nodes.set(id, {
      id,
      kind: "stage",
      stage,
      layer: 1 + Math.max(0, ...before.map((source) => nodes.get(source).layer)),
    });
    for (const source of sources) if (!asked.includes(source)) edges.push({ from: source, to: id, kind: "data" });
    for (const source of asked) edges.push({ from: source, to: id, kind: "when" });
  }
  const last = 1 + Math.max(...[...nodes.values()].map((node) => node.layer));
  nodes.set("answer", { id: "answer", kind: "answer", layer: last, outputs });
  for (const source of new Set(outputs.flatMap((output) => output.from))) {
    if (nodes.has(`stage ${source}`)) edges.push({ from: `stage ${source}`, to: "answer", kind: "answer" });
  }
  const layers = Array.from({ length: last + 1 }, () => []);
  for (const node of nodes.values()) layers[node.layer].push(node);
  for (const edge of edges) {
    const [from, to] = [nodes.get(edge.from), nodes.get(edge.to)];
    edge.path = [from];
    for (let layer = from.layer + 1; layer < to.layer; layer += 1) {
      const bend = { id: `${edge.from} > ${edge.to} ${layer}`, kind: "bend", layer };
      layers[layer].push(bend);
      edge.path.push(bend);
    }
    edge.path.push(to);
  }
  untangle(layers, edges);
  return { layers, edges };
}

/** Order the nodes of each layer by the mean place of their neighbours, down and up, so that few edges cross. */
function untangle(layers, edges) {
  const before = new Map();
  const after = new Map();
  const push = (map, key, value) => map.set(key, [...(map.get(key) ?? []), value]);
  for (const { path } of edges) {
    for (let index = 1; index < path.length; index += 1) {
      push(before, path[index], path[index - 1]);
      push(after, path[index - 1], path[index]);
    }
  }
  let best = layers.map((layer) => [...layer]);
  let least = crossings(layers, after);
  for (let sweep = 0; sweep < SWEEPS && least > 0; sweep += 1) {
    const down = sweep % 2 === 0;
    const neighbours = down ? before : after;
    for (const layer of down ? layers.slice(1) : layers.slice(0, -1).reverse()) {
      const places = new Map(layers.flatMap((each) => each.map((node, index) => [node, index])));
      const mean = (node) => {
        const near = neighbours.get(node) ?? [];
        return near.length ? near.reduce((sum, each) => sum + places.get(each), 0) / near.length : places.get(node);
      };
      const means = new Map(layer.map((node) => [node, mean(node)]));
      layer.sort((one, other) => means.get(one) - means.get(other));
    }
    const found = crossings(layers, after);
    if (found < least) {
      least = found;
      best = layers.map((layer) => [...layer]);
    }
  }
  best.forEach((layer, index) => layers[index].splice(0, layer.length, ...layer));
}

function crossings(layers, after) {
  const places = new Map(layers.flatMap((layer) => layer.map((node, index) => [node, index])));
  let found = 0;
  for (const layer of layers) {
    const lines = layer.flatMap((node, index) => (after.get(node) ?? []).map((next) => [index, places.get(next)]));
    for (let one = 0; one < lines.length; one += 1) {
      for (let other = 0; other < one; other += 1) {
        if ((lines[one][0] - lines[other][0]) * (lines[one][1] - lines[other][1]) < 0) found += 1;
      }
    }
  }
  return found;
}

/**
 * Give each node `x` and `y` (its centre) and `length` (that of its layer), in a picture of the returned `width` and
 * `height`.
 *
 * Layers go to the right, or down where `upright`. `along` and `across` are the sizes of a node in these directions:
 * functions of the node. `gap` is the space between layers, `between` that between the nodes of a layer.
 */
export function place({ layers }, { upright, along, across, gap, between, length, breadth }) {
  const lengths = layers.map((layer) => Math.max(...layer.map(along)));
  const widths = layers.map((layer) => layer.reduce((sum, node) => sum + across(node), between * (layer.length - 1)));
  const most = Math.max(...widths, breadth);
  const least = lengths.reduce((sum, each) => sum + each, gap * (layers.length - 1));
  // What room is left goes between the layers.
  const space = gap + Math.max(length - least, 0) / Math.max(layers.length - 1, 1);
  let at = Math.max(length - least, 0) > 0 && layers.length === 1 ? (length - least) / 2 : 0;
  layers.forEach((layer, index) => {
    let offset = (most - widths[index]) / 2;
    for (const node of layer) {
      node.length = lengths[index];
      const middle = [at + lengths[index] / 2, offset + across(node) / 2];
      [node.x, node.y] = upright ? [middle[1], middle[0]] : middle;
      offset += across(node) + between;
    }
    at += lengths[index] + space;
  });
  const end = Math.max(at - space, length);
  return upright ? { width: most, height: end } : { width: end, height: most };
}
