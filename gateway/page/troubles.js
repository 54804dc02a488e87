// The latest late or refused requests, models that are not served, and the dialog with details.

import { paint } from "./colours.js";
import { $, element, keyed, setAttribute, setHidden, setName, setText, tableRow } from "./dom.js";
import { bytes, count, duration, figure, milliseconds, whole, wholePercent, words } from "./format.js";

const PARTS = [
  ["queue_ms", "queue"],
  ["hand_off_ms", "hand-off"],
  ["compute_ms", "compute"],
  ["return_ms", "return"],
];
const REQUEST_MS = 8_000;

export function showTroubles(now) {
  const { troubles, not_served: missing, not_served_more: more } = now;
  setHidden($("troubles-none"), troubles.length > 0);
  setText(
    $("troubles-none"),
    now.troubles_open ? "None lately." : "Not shown: the group 'explain' is closed to this page.",
  );
  setHidden($("troubles-table"), troubles.length === 0);
  keyed(
    $("troubles-rows"),
    troubles,
    (each) => `${each.id} ${each.at_s}`,
    troubleRow,
    (row, each) => {
      const [, pipeline, took, cause, ago] = row.cells;
      setName(pipeline, each.pipeline);
      setText(took, each.total_ms === null ? "–" : milliseconds(each.total_ms));
      setName(cause, words(each.cause || each.outcome).replace(/^(rejected|evicted) /, ""), each.sentence);
      setText(ago, duration(now.server.now_s - each.at_s));
      setAttribute(row, "data-outcome", each.outcome === "completed_late" ? "late" : "refused");
    },
  );
  setHidden($("not-served"), missing.length === 0);
  setText($("not-served-count"), count(missing.length + more, "model"));
  const items = more ? [...missing, { name: "", version: "", reason: `and ${count(more, "more model")}` }] : missing;
  keyed(
    $("not-served-list"),
    items,
    (each) => `${each.name}:${each.version}`,
    () => {
      const item = element("li");
      item.append(element("b"), element("span"));
      return item;
    },
    (item, each) => {
      setText(item.firstChild, each.name && `${each.name}:${each.version}`);
      setText(item.lastChild, each.reason);
    },
  );
}

function troubleRow(trouble) {
  const row = tableRow(5);
  const open = element("button", "link cut", trouble.id);
  open.type = "button";
  open.title = trouble.sentence;
  row.cells[0].append(open);
  row.addEventListener("click", () => explain(trouble.id));
  return row;
}

/** Open the dialog with what `sluice why` says of a request. */
export async function explain(id) {
  const title = `Request ${id}`;
  show(title, element("p", "empty", "Asking the server …"));
  let answer;
  try {
    const response = await fetch(`v2/sluice/requests/${encodeURIComponent(id)}`, {
      signal: AbortSignal.timeout(REQUEST_MS),
    });
    answer = await response.json();
    if (!response.ok) throw new Error(answer.error ?? `status ${response.status}`);
  } catch (error) {
    if (opened(title)) show(title, element("p", "empty", `Nothing is known of it: ${error.message}`));
    return;
  }
  if (opened(title)) show(title, ...explanation(answer));
}

function opened(title) {
  return $("dialog").open && $("dialog-title").textContent === title;
}

function show(title, ...content) {
  setText($("dialog-title"), title);
  $("dialog-body").replaceChildren(...content);
  if (!$("dialog").open) $("dialog").showModal();
}

function facts(pairs) {
  const list = element("dl", "facts");
  for (const [name, value] of pairs) {
    const pair = element("div");
    pair.append(element("dt", "", name), element("dd", "", value));
    list.append(pair);
  }
  return list;
}

function explanation(found) {
  const scale = Math.max(...found.stages.map((stage) => PARTS.reduce((sum, [key]) => sum + stage[key], 0)), 1e-6);
  const legend = element("div", "legend");
  for (const [, name] of PARTS) {
    const item = element("span", "item");
    item.append(element("i", `part ${name}`), name);
    legend.append(item);
  }
  const chart = element("div", "parts");
  for (const stage of found.stages) {
    const bar = element("div", "part-bar");
    for (const [key, name] of PARTS) {
      const part = element("i", `part ${name}`);
      part.style.width = `${(stage[key] / scale) * 100}%`;
      part.title = `${name}: ${milliseconds(stage[key])}`;
      bar.append(part);
    }
    const total = PARTS.reduce((sum, [key]) => sum + stage[key], 0);
    chart.append(element("span", "cut", stage.stage), bar, element("span", "number", milliseconds(total)));
  }
  chart.setAttribute("aria-hidden", "true");
  const sections = [
    element("p", "sentence", found.sentence),
    facts([
      ["pipeline", found.pipeline],
      ["outcome", words(found.outcome)],
      ["took", milliseconds(found.total_ms)],
      ["had", milliseconds(found.deadline_ms)],
      ["rows", whole(found.rows)],
    ]),
  ];
  if (found.reason && !found.sentence.includes(found.reason)) sections.push(element("p", "", found.reason));
  if (found.stages.length) sections.push(legend, chart, stagesTable(found.stages));
  const command = element("p", "note", "In a terminal: ");
  command.append(element("code", "", `sluice why ${found.id}`));
  return [...sections, command];
}

function stagesTable(stages) {
  const table = element("table");
  table.append(element("caption", "unseen", "Time of each stage"));
  const names = ["stage", "model", "on", "batch", "closed", ...PARTS.map(([, name]) => name), "predicted"];
  const top = element("tr");
  for (const name of names) {
    const heading = element("th", "", name);
    heading.scope = "col";
    top.append(heading);
  }
  table.createTHead().append(top);
  const body = table.createTBody();
  for (const stage of stages) {
    const row = tableRow(names.length);
    const texts = [
      stage.stage,
      stage.model,
      stage.partition,
      `${stage.rows} of ${count(stage.batch_rows, "row")}`,
      words(stage.closed),
      ...PARTS.map(([key]) => figure(stage[key])),
      figure(stage.predicted_ms),
    ];
    texts.forEach((text, index) => setText(row.cells[index], text));
    if (stage.failed) row.cells[4].textContent = `failed: ${stage.failed}`;
    body.append(row);
  }
  const scroll = element("div", "scroll");
  scroll.append(table);
  return scroll;
}

/** Open the dialog with everything about a partition. */
export function partitionDetails(partition) {
  const used =
    partition.memory_bytes === null || partition.memory_free_bytes === null
      ? null
      : partition.memory_bytes - partition.memory_free_bytes;
  const list = element("ul", "models");
  for (const model of partition.resident) {
    const item = element("li");
    const swatch = element("i");
    paint(swatch, model);
    item.append(swatch, model);
    list.append(item);
  }
  if (partition.resident_more)
    list.append(element("li", "note", `and ${count(partition.resident_more, "more model")}`));
  show(
    `Partition ${partition.name}`,
    facts([
      ["kind", partition.kind],
      ["state", [partition.state, partition.reason].filter(Boolean).join(": ")],
      ...(partition.node || partition.url
        ? [["worker", [partition.node, partition.url].filter(Boolean).join(" at ")]]
        : []),
      ["isolation", partition.proof],
      ["busy", wholePercent(partition.busy)],
      ["runs", partition.running ? `${partition.running.model}, ${count(partition.running.rows, "row")}` : "nothing"],
      [
        "memory",
        used === null
          ? "–"
          : `${bytes(used)} used, ${bytes(partition.memory_free_bytes)} free of ${bytes(partition.memory_bytes)}`,
      ],
    ]),
    element("h3", "", `Holds ${count(partition.models, "model")}`),
    list,
  );
}

/** Close the dialog where it is clicked beside. */
export function prepareDialog() {
  $("dialog").addEventListener("click", (event) => event.target === $("dialog") && $("dialog").close());
}
