// The two charts of the chosen pipeline, on uPlot: requests by outcome, and latency.

import { $, element, setText } from "./dom.js";
import { milliseconds, rate } from "./format.js";
import { COLUMNS, HISTORY } from "./store.js";

/* global uPlot */

const OUTCOMES = ["good", "late", "refused", "failed", "cancelled"];
const minutes = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const TEXT_EVERY_MS = 10_000;
const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A chart in a figure, with a legend whose figures are those under the pointer, or the newest. */
class Chart {
  constructor(id, lines, unit, series, range, { distr = 1, splits }) {
    this._plot = $(`${id}-plot`);
    this._words = $(`${id}-text`);
    this._lines = lines;
    this._unit = unit;
    this._values = lines.map((line) => {
      const item = element("span", "item");
      const value = element("span", "number");
      item.append(element("i", `line ${line.name}`), element("span", "", line.label), value);
      $(`${id}-legend`).append(item);
      return value;
    });
    this._columns = null;
    this._textMs = 0;
    const font = () => `11px ${getComputedStyle(document.body).fontFamily}`;
    const axis = {
      stroke: () => variable("--muted"),
      font: font(),
      grid: { stroke: () => variable("--grid"), width: 1 },
      ticks: { show: false },
    };
    const size = this._size();
    this._chart = new uPlot(
      {
        ...size,
        padding: [8, 14, 0, 0],
        legend: { show: false },
        cursor: { sync: { key: "page" }, drag: { x: false, y: false }, points: { show: false }, y: false },
        scales: { x: { time: true }, y: { range, distr } },
        axes: [
          {
            ...axis,
            size: 20,
            gap: 4,
            space: 44,
            incrs: [60, 120, 300, 600],
            values: (_, splits) => splits.map(clock),
          },
          {
            ...axis,
            size: 42,
            gap: 5,
            space: 28,
            ...(splits && { splits, filter: (_, found) => found }),
            values: (_, splits) =>
              splits.map((value) =>
                value === 0
                  ? "0"
                  : value < 1
                    ? String(Number(value.toPrecision(2)))
                    : value >= 10_000
                      ? `${value / 1000}k`
                      : String(value),
              ),
          },
        ],
        series: [{}, ...series],
        hooks: { setCursor: [() => this._legend()] },
      },
      [[], ...series.map(() => [])],
      this._plot,
    );
    new ResizeObserver(() => this._chart.setSize(this._size())).observe(this._plot);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this._chart.redraw(false, true));
  }

  /** Show columns: times, and a column for each line of the legend; `drawn` are those of the series. */
  update(times, columns, drawn) {
    this._columns = columns;
    this._chart.setData([times, ...drawn], false);
    const end = times.at(-1) ?? Date.now() / 1000;
    this._chart.setScale("x", { min: end - HISTORY + 1, max: end });
    this._legend();
    if (Date.now() - this._textMs < TEXT_EVERY_MS) return;
    this._textMs = Date.now();
    setText(this._words, this._describe());
  }

  /** Write the words for screen readers again with the next update. */
  changed() {
    this._textMs = 0;
  }

  _size() {
    return { width: Math.max(this._plot.clientWidth, 50), height: Math.max(this._plot.clientHeight, 40) };
  }

  _legend() {
    if (!this._columns) return;
    const index = this._chart.cursor.idx;
    this._columns.forEach((column, number) => {
      setText(this._values[number], this._unit(column[index ?? column.length - 1]));
    });
  }

  _describe() {
    const said = this._lines.map((line, number) => {
      const known = this._columns[number].filter((value) => value !== null && value !== undefined);
      if (!known.length) return `${line.label}: not known`;
      const [least, most] = [Math.min(...known), Math.max(...known)];
      return `${line.label}: now ${this._unit(known.at(-1))}, between ${this._unit(least)} and ${this._unit(most)}`;
    });
    return `The last ${Math.round(this._columns[0].length / 60)} minutes. ${said.join(". ")}.`;
  }
}

/** Since when a history that does not fill the charts is known; empty for one that does. */
export function knownSince(history) {
  if (history.good.length >= HISTORY - 1) return "";
  return `counted since ${minutes.format(history.start * 1000)}, when somebody began to look`;
}

/** Marks of a logarithmic axis: 1, 2, 5, 10 …, or fewer where these would be many. */
function decades(_chart, _axis, least, most) {
  let found = [];
  for (const digits of [[1, 2, 5], [1, 3], [1]]) {
    found = [];
    for (let power = Math.floor(Math.log10(least)); power <= Math.log10(most); power += 1) {
      found.push(...digits.map((digit) => digit * 10 ** power).filter((value) => value >= least && value <= most));
    }
    if (found.length <= 5) break;
  }
  return found;
}

function clock(seconds) {
  return minutes.format(seconds * 1000);
}

/** Points of a line that have no neighbour: without a point they would not be seen. */
function alone(chart, number, _show, _gaps) {
  const values = chart.data[number];
  const found = [];
  for (let index = 0; index < values.length; index += 1) {
    if (values[index] != null && values[index - 1] == null && values[index + 1] == null) found.push(index);
  }
  return found;
}

function line(name, options = {}) {
  return {
    stroke: () => variable(`--${name}`),
    width: 1.5,
    spanGaps: false,
    points: { show: true, size: 4, filter: alone, fill: () => variable(`--${name}`) },
    ...options,
  };
}

/** Both charts of a pipeline. */
export class Charts {
  constructor() {
    // The areas lie on each other, so the topmost outcome is drawn first, up to the sum of all.
    const areas = OUTCOMES.toReversed().map((name) => ({
      stroke: () => variable(`--${name}`),
      fill: () => variable(`--${name}-area`),
      width: 1,
      points: { show: false },
    }));
    this._outcomes = new Chart(
      "outcomes",
      OUTCOMES.map((name) => ({ name, label: name })),
      rate,
      areas,
      (_, __, most) => [0, Math.max(most * 1.1, 1)],
      {},
    );
    this._latencies = new Chart(
      "latencies",
      [
        { name: "p50", label: "p50" },
        { name: "p99", label: "p99" },
        { name: "objective", label: "objective" },
      ],
      milliseconds,
      [line("objective", { dash: [5, 4], points: { show: false } }), line("p50"), line("p99", { width: 1.8 })],
      (_, least, most) => (least > 0 ? [least / 1.25, most * 1.25] : [0.1, 100]),
      { distr: 3, splits: decades },
    );
    this._name = "";
  }

  update(pipeline, history) {
    if (pipeline.name !== this._name) {
      this._name = pipeline.name;
      this._outcomes.changed();
      this._latencies.changed();
    }
    const steps = history[COLUMNS[0]].length;
    const times = Array.from({ length: steps }, (_, index) => history.start + index * history.step);
    const sums = [];
    let sum = new Array(steps).fill(0);
    for (const name of OUTCOMES) {
      sum = sum.map((value, index) => (history[name][index] === null ? null : value + history[name][index]));
      sums.unshift(sum);
    }
    this._outcomes.update(
      times,
      OUTCOMES.map((name) => history[name]),
      sums,
    );
    const objective = new Array(steps).fill(pipeline.objective_ms);
    this._latencies.update(
      times,
      [history.p50_ms, history.p99_ms, objective],
      [objective, history.p50_ms, history.p99_ms],
    );
  }
}
