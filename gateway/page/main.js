// The page: documents come from the feed, are kept in the store, and are shown once a frame.

import { Charts, knownSince } from "./charts.js";
import { colourOf } from "./colours.js";
import { $, setHidden, setText } from "./dom.js";
import { Feed } from "./feed.js";
import { significant } from "./format.js";
import { Graph } from "./graph.js";
import { Lanes } from "./lanes.js";
import { Pipelines } from "./pipelines.js";
import { showPlan } from "./plan.js";
import { Store } from "./store.js";
import { showStrip } from "./strip.js";
import { partitionDetails, prepareDialog, showTroubles } from "./troubles.js";

const store = new Store();
const feed = new Feed(
  (found) => {
    store.add(found);
    draw();
  },
  () => showStrip(store.now, feed),
);
const charts = new Charts();
const graph = new Graph();
const lanes = new Lanes(partitionDetails);
const pipelines = new Pipelines((name) => {
  history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  feed.choose(name);
});

let asked = 0;

function draw() {
  asked ||= requestAnimationFrame(() => {
    asked = 0;
    show(store.now);
  });
}

function show(now) {
  showStrip(now, feed);
  pipelines.update(now);
  showChosen(now);
  lanes.update(store);
  showTroubles(now);
}

function showChosen({ server, pipeline, pipelines, timeline }) {
  $("shown").toggleAttribute("data-empty", !pipeline);
  setHidden($("chosen-kind"), !pipeline);
  if (!pipeline) {
    setText($("chosen-name"), server.state === "starting" ? "The server is starting" : "Nothing is served");
    setText($("chosen-objective"), "Models appear here when they are loaded.");
    setText($("chosen-asked"), "");
    setText($("chosen-since"), "");
    return;
  }
  // In this order, so that another viewer of this pipeline sees the same colours.
  for (const model of [...pipeline.stages.map((stage) => stage.model), ...timeline.models.toSorted()])
    if (model) colourOf(model);
  setText($("chosen-name"), pipeline.name);
  $("chosen-name").title = pipeline.name;
  setText($("chosen-kind"), pipeline.kind);
  setText(
    $("chosen-objective"),
    pipeline.objective_ms === null
      ? "no objective"
      : `objective: p${pipeline.percentile} within ${significant(pipeline.objective_ms)} ms`,
  );
  setText($("chosen-asked"), pipeline.asked ? `'${pipeline.asked}' is not served` : "");
  setText($("chosen-since"), knownSince(store.history));
  charts.update(pipeline, store.history);
  graph.update(pipeline);
  showPlan(
    pipeline,
    pipelines.find((each) => each.name === pipeline.name),
    server.now_s,
  );
}

function fromAddress() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

prepareDialog();
window.addEventListener("hashchange", () => feed.choose(fromAddress()));
setInterval(() => {
  feed.check();
  showStrip(store.now, feed);
}, 1_000);
feed.pipeline = fromAddress();
feed.start();
