// Partitions as lanes of time: each batch is a bar in its model's colour, as wide as it took, with its rows inside.

import { paint } from "./colours.js";
import { $, element, keyed, setAttribute, setHidden, setName, setText } from "./dom.js";
import { View, colours, drawAxis, drawLane } from "./drawing.js";
import { bytes, count, milliseconds, wholePercent } from "./format.js";

const WINDOWS_S = [0.01, 0.03, 0.1, 0.3, 1, 3];
const COMFORTABLE = 16; // pixels that a usual bar should have, as long as
const ENOUGH = 50; // bars are in the window of the busiest lane
const PATIENCE = 4; // ticks for which another window must suit better
const TOUCH_MS = 4_000; // for which a batch that was touched is described
const LANE = { least: 34, most: 80 }; // pixels
const LEGEND = 10;

/** Calls `details` with a partition whose button is pressed. */
export class Lanes {
  constructor(details) {
    this._details = details;
    this._store = null;
    this._window = 1;
    this._automatic = true;
    this._unsuited = 0;
    this._lanes = new Map();
    this._held = false;
    this._shownTo = 0;
    this._picked = null;
    this._touched = 0;
    this._suited = false;
    this._buildWindows();
    new ResizeObserver(() => this._drawAll()).observe($("lanes"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this._drawAll());
  }

  update(store) {
    this._store = store;
    const { partitions, partitions_more: more } = store.now;
    const items = more ? [...partitions, { name: "", more }] : partitions;
    keyed(
      $("lanes"),
      items,
      (each) => each.name,
      (each) => this._lane(each),
      (lane, each) => this._describe(lane, each),
    );
    const names = new Set(partitions.map((each) => each.name));
    for (const name of this._lanes.keys()) if (!names.has(name)) this._lanes.delete(name);
    if (this._held) return;
    this._shownTo = store.now.timeline.to_s;
    this._collect();
    this._suit();
    this._legend();
    this._drawAll();
  }

  _buildWindows() {
    const choices = [
      ["auto", "auto"],
      ...WINDOWS_S.map((seconds) => [String(seconds), seconds < 1 ? `${seconds * 1000} ms` : `${seconds} s`]),
    ];
    for (const [value, label] of choices) {
      const choice = element("label");
      const input = element("input");
      Object.assign(input, { type: "radio", name: "window", value, checked: value === "auto" });
      input.addEventListener("change", () => {
        this._automatic = value === "auto";
        if (this._automatic) this._unsuited = PATIENCE;
        else this._window = Number(value);
        if (this._store) this.update(this._store);
        this._drawAll();
      });
      choice.append(input, element("span", "", label));
      $("window").append(choice);
    }
  }

  _lane(partition) {
    const made = element("div", "lane");
    if (partition.more) {
      made.className = "note";
      return made;
    }
    const label = element("div", "label");
    const top = element("div", "top");
    const parts = {
      name: element("b", "cut"),
      kind: element("span", "note cut"),
      busy: element("span", "number"),
      proof: element("span", "proof"),
      level: element("span", "level busy"),
      memory: element("span", "cut"),
      models: element("button", "link"),
      swatches: element("span", "swatches"),
    };
    parts.level.append(element("i"));
    top.append(parts.name, parts.kind, parts.level, parts.busy);
    const bottom = element("div", "bottom");
    bottom.append(parts.memory, parts.models, parts.swatches, parts.proof);
    label.append(top, bottom);
    const canvas = element("canvas", "bars");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "slider");
    canvas.setAttribute("aria-label", `Batches of ${partition.name}`);
    for (const name of ["aria-valuemin", "aria-valuemax", "aria-valuenow"]) canvas.setAttribute(name, "0");
    canvas.setAttribute("aria-valuetext", "none chosen; arrow keys choose a batch");
    const over = element("span", "over");
    made.append(label, canvas, over);
    made.parts = { ...parts, canvas, over };
    made.name = partition.name;
    const lane = { name: partition.name, canvas, bars: [] };
    this._lanes.set(partition.name, lane);
    parts.models.type = "button";
    parts.models.addEventListener("click", () => {
      const found = this._store.now.partitions.find((each) => each.name === partition.name);
      if (found) this._details(found);
    });
    canvas.addEventListener("pointermove", (event) => this._point(lane, event));
    canvas.addEventListener("pointerdown", (event) => this._point(lane, event));
    canvas.addEventListener("pointerleave", (event) => {
      clearTimeout(this._touched);
      if (event.pointerType === "mouse") this._release();
      else this._touched = setTimeout(() => this._release(), TOUCH_MS);
    });
    canvas.addEventListener("blur", () => this._release());
    canvas.addEventListener("keydown", (event) => this._key(lane, event));
    return made;
  }

  _describe(made, partition) {
    if (partition.more) {
      setText(made, `${count(partition.more, "more partition")} not shown`);
      return;
    }
    const { parts } = made;
    setName(parts.name, partition.name);
    const kind = partition.node ? `${partition.kind} on ${partition.node}` : partition.kind;
    setText(parts.kind, partition.state === "ready" ? kind : partition.state);
    setAttribute(made, "data-state", partition.ready ? "ready" : partition.state);
    setText(parts.busy, wholePercent(partition.busy));
    parts.level.firstChild.style.width = `${Math.min(partition.busy ?? 0, 1) * 100}%`;
    setAttribute(parts.level, "title", `busy for ${wholePercent(partition.busy)} of the time`);
    const used =
      partition.memory_bytes === null || partition.memory_free_bytes === null
        ? null
        : partition.memory_bytes - partition.memory_free_bytes;
    setHidden(parts.memory, used === null);
    setText(parts.memory, used === null ? "" : `${bytes(used)} of ${bytes(partition.memory_bytes)}`);
    setText(parts.models, count(partition.models, "model"));
    setAttribute(parts.models, "aria-label", `${partition.name}: ${count(partition.models, "model")}, details`);
    keyed(
      parts.swatches,
      partition.resident.slice(0, 6).map((model) => ({ model })),
      ({ model }) => model,
      () => element("i"),
      (swatch, { model }) => {
        paint(swatch, model);
        setAttribute(swatch, "title", model);
      },
    );
    const bare = partition.ready && partition.proof.startsWith("not enforced");
    setName(parts.proof, bare ? "not enforced" : "", `isolation: ${partition.proof}`);
    setText(parts.over, partition.ready ? "" : partition.reason || partition.state);
  }

  /** Sort what is known of batches by lane. */
  _collect() {
    for (const lane of this._lanes.values()) lane.bars = [];
    const { bars, running, planned } = this._store;
    for (const bar of bars.values()) this._lanes.get(bar.partition)?.bars.push(bar);
    for (const bar of running)
      this._lanes
        .get(bar.partition)
        ?.bars.push({ ...bar, length_ms: (this._shownTo - bar.start_s) * 1000, running: true });
    for (const bar of planned) this._lanes.get(bar.partition)?.bars.push(bar);
    for (const lane of this._lanes.values()) lane.bars.sort((one, other) => one.start_s - other.start_s);
  }

  /** Choose the window in which a usual bar can be read; not for one odd second. */
  _suit() {
    if (!this._automatic) return;
    const width = this._lanes.values().next().value?.canvas.clientWidth ?? 0;
    const lengths = [...this._store.bars.values()]
      .map((bar) => bar.length_ms / 1000 / bar.merged)
      .sort((one, other) => one - other);
    if (!lengths.length || !width) return;
    // Half of the busy time is in bars of this length or more.
    let half = lengths.reduce((sum, length) => sum + length, 0) / 2;
    const usual = lengths.find((length) => (half -= length) <= 0);
    const most = Math.max(...[...this._lanes.values()].map((lane) => lane.bars.length));
    const times = [...this._store.bars.values()].map((bar) => bar.start_s);
    const spanned = this._shownTo - times.reduce((one, other) => Math.min(one, other), this._shownTo);
    const wanted = Math.log(Math.max((usual * width) / COMFORTABLE, (spanned * ENOUGH) / most));
    const off = (window) => Math.abs(Math.log(window) - wanted);
    const best = WINDOWS_S.reduce((one, other) => (off(other) < off(one) ? other : one));
    this._unsuited = best === this._window ? 0 : this._unsuited + 1;
    if (this._unsuited > PATIENCE || !this._suited) {
      this._window = best;
      this._unsuited = 0;
      this._suited = true;
    }
  }

  _legend() {
    const seen = new Set();
    for (const lane of this._lanes.values()) for (const bar of lane.bars) seen.add(bar.model);
    const items = [...seen]
      .sort()
      .slice(0, LEGEND)
      .map((model) => ({ model }));
    if (seen.size > LEGEND) items.push({ model: "", note: `+ ${seen.size - LEGEND}` });
    setText($("joined"), this._store.now.timeline.merged ? "Short batches are joined." : "");
    keyed(
      $("models-legend"),
      items,
      ({ model }) => model,
      ({ model }) => {
        const item = element("span", "item");
        if (model) item.append(element("i", "swatch"), element("span", "cut"));
        return item;
      },
      (item, each) => {
        if (each.note) {
          setText(item, each.note);
          return;
        }
        paint(item.firstChild, each.model);
        setName(item.lastChild, each.model);
      },
    );
  }

  /** Let the lanes fill the height that there is. */
  _fit() {
    const view = $("lanes");
    const lanes = Math.max(this._lanes.size, 1);
    const height = Math.min(Math.max(Math.floor(view.clientHeight / lanes) - 7, LANE.least), LANE.most);
    if (view.style.getPropertyValue("--lane") !== `${height}px`) view.style.setProperty("--lane", `${height}px`);
  }

  _view() {
    return new View(this._shownTo, this._window);
  }

  _drawAll() {
    if (!this._store) return;
    this._fit();
    const view = this._view();
    const used = colours();
    for (const lane of this._lanes.values()) {
      drawLane(lane.canvas, lane.bars, this._picked?.lane === lane ? this._picked.bar : null, view, used);
    }
    drawAxis($("axis"), view, used);
  }

  _point(lane, event) {
    const box = lane.canvas.getBoundingClientRect();
    const at = this._view().at(event.clientX - box.left, box.width);
    const slack = (2 / box.width) * this._window;
    // Where bars lie over each other, the last is on top.
    const bar = lane.bars.findLast(
      (each) => at >= each.start_s - slack && at <= each.start_s + each.length_ms / 1000 + slack,
    );
    this._hold();
    this._pick(lane, bar ?? null, event.clientX);
  }

  _key(lane, event) {
    const view = this._view();
    const seen = lane.bars.filter((bar) => bar.start_s + bar.length_ms / 1000 > view.from);
    const at = this._picked?.lane === lane ? seen.indexOf(this._picked.bar) : seen.length;
    const to = {
      ArrowLeft: Math.max(at - 1, 0),
      ArrowDown: Math.max(at - 1, 0),
      ArrowRight: Math.min(at + 1, seen.length - 1),
      ArrowUp: Math.min(at + 1, seen.length - 1),
      Home: 0,
      End: seen.length - 1,
    }[event.key];
    if (event.key === "Escape") this._release();
    if (to === undefined || !seen.length) return;
    event.preventDefault();
    this._hold();
    const bar = seen[to];
    const box = lane.canvas.getBoundingClientRect();
    const middle = view.x(bar.start_s + bar.length_ms / 2000, box.width);
    this._pick(lane, bar, box.left + Math.min(Math.max(middle, 0), box.width));
    setAttribute(lane.canvas, "aria-valuemin", "1");
    setAttribute(lane.canvas, "aria-valuemax", String(seen.length));
    setAttribute(lane.canvas, "aria-valuenow", String(to + 1));
    setAttribute(lane.canvas, "aria-valuetext", this._say(bar).join(", "));
  }

  /** Time stands still while somebody looks at a batch. */
  _hold() {
    this._held = true;
    setHidden($("held"), false);
  }

  _release() {
    if (!this._held) return;
    this._held = false;
    this._picked = null;
    setHidden($("held"), true);
    setHidden($("tip"), true);
    if (this._store) this.update(this._store);
  }

  _pick(lane, bar, clientX) {
    this._picked = bar && { lane, bar };
    this._drawAll();
    const tip = $("tip");
    setHidden(tip, !bar);
    if (!bar) return;
    const [model, ...rest] = this._say(bar);
    const swatch = element("i");
    paint(swatch, bar.model);
    const name = element("b");
    name.append(swatch, model);
    tip.replaceChildren(name, ...rest.map((text) => element("div", "", text)));
    const box = lane.canvas.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = tip;
    const most = document.documentElement.clientWidth - width - 6;
    tip.style.left = `${Math.min(Math.max(clientX - width / 2, 6), most)}px`;
    tip.style.top = `${box.top - height - 6 < 4 ? box.bottom + 6 : box.top - height - 6}px`;
  }

  _say(bar) {
    const rows = bar.merged > 1 ? `${count(bar.rows, "row")} in ${bar.merged} batches` : count(bar.rows, "row");
    if (bar.planned)
      return [
        bar.model,
        `${rows} planned`,
        `for ${milliseconds(bar.length_ms)} in ${milliseconds((bar.start_s - this._shownTo) * 1000)}`,
      ];
    const back = milliseconds((this._shownTo - bar.start_s) * 1000);
    return [bar.model, rows, bar.running ? `has run for ${back}` : `${milliseconds(bar.length_ms)}, began ${back} ago`];
  }
}
