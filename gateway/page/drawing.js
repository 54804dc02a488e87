// How lanes are drawn: bars of batches, and the axis of time below them.

import { colourOf } from "./colours.js";

const AHEAD = 0.12; // of the time shown is to come
const STEPS_S = { 0.01: 0.002, 0.03: 0.005, 0.1: 0.02, 0.3: 0.05, 1: 0.2, 3: 0.5 };
const INK = "#10151d";
const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The time that lanes show: `span` seconds from `from` to `to`, of which `now` is the present. */
export class View {
  constructor(now, span) {
    this.now = now;
    this.span = span;
    this.to = now + span * AHEAD;
    this.from = this.to - span;
  }

  /** The pixel of a time in a lane of this width. */
  x(time, width) {
    return ((time - this.from) / this.span) * width;
  }

  /** The time at a pixel. */
  at(x, width) {
    return this.from + (x / width) * this.span;
  }

  /** Marks of the axis: seconds before the present. */
  marks() {
    const count = Math.ceil((this.now - this.from) / STEPS_S[this.span]);
    return Array.from({ length: count }, (_, index) => index * STEPS_S[this.span]);
  }
}

/** The colours of the page as they are now: of lines, text, empty lanes and less important text. */
export function colours() {
  return { line: variable("--grid"), text: variable("--fg"), track: variable("--track"), muted: variable("--muted") };
}

/** Draw the bars of a lane in their order; `picked` is one of them or null. */
export function drawLane(canvas, bars, picked, view, { line, text, track, muted }) {
  const [context, width, height] = prepared(canvas, 600);
  if (!width) return;
  context.fillStyle = track;
  context.fillRect(0, 0, width, height);
  context.fillStyle = line;
  for (const back of view.marks()) context.fillRect(Math.round(view.x(view.now - back, width)), 0, 1, height);
  for (const bar of bars) {
    const left = view.x(bar.start_s, width);
    const length = Math.max((bar.length_ms / 1000 / view.span) * width - 0.5, 1.5);
    if (left + length < 0 || left > width) continue;
    if (bar.planned) outline(context, bar, left, length, height);
    else fill(context, bar, left, length, height);
    const rows = String(bar.rows);
    if (length > 3 + 6.5 * rows.length) {
      const [start, end] = [Math.max(left, 0), Math.min(left + length, width)];
      context.fillStyle = bar.planned ? muted : bar.running ? text : INK;
      context.fillText(rows, (start + end) / 2, height / 2 + 0.5);
    }
    if (bar === picked) {
      context.strokeStyle = text;
      context.lineWidth = 2;
      context.strokeRect(left - 1, 2, length + 2, height - 4);
    }
  }
  context.fillStyle = text;
  context.globalAlpha = 0.5;
  context.fillRect(Math.round(view.x(view.now, width)), 0, 1, height);
  context.globalAlpha = 1;
}

/** Draw the marks of time below the lanes. */
export function drawAxis(canvas, view, { muted }) {
  const [context, width, height] = prepared(canvas, 400);
  if (!width) return;
  context.clearRect(0, 0, width, height);
  context.fillStyle = muted;
  for (const back of view.marks()) {
    const x = view.x(view.now - back, width);
    if (x < 24) continue;
    const far = view.span < 1 ? `−${Math.round(back * 1000)} ms` : `−${Number(back.toFixed(1))} s`;
    context.fillText(back === 0 ? "now" : far, x, height / 2);
  }
  if (width - view.x(view.now, width) > 74) {
    context.textAlign = "right";
    context.fillText("planned", width - 4, height / 2);
  }
}

function outline(context, bar, left, length, height) {
  context.strokeStyle = colourOf(bar.model).colour;
  context.lineWidth = 1.5;
  context.setLineDash([4, 2]);
  context.strokeRect(left + 1, 4.5, Math.max(length - 2, 1), height - 9);
  context.setLineDash([]);
}

function fill(context, bar, left, length, height) {
  const { colour, hatched } = colourOf(bar.model);
  context.fillStyle = colour;
  context.globalAlpha = bar.running ? 0.55 : 1;
  rounded(context, left, 3, length, height - 6);
  if (hatched) hatch(context, left, length, height);
  context.globalAlpha = 1;
}

/** The context of a canvas whose size fits its place and the screen's pixels; width and height in CSS pixels. */
function prepared(canvas, weight) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const scale = devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== wide) canvas.width = wide;
  if (canvas.height !== high) canvas.height = high;
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.font = `${weight} 11px ${getComputedStyle(document.body).fontFamily}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  return [context, width, height];
}

function rounded(context, left, top, width, height) {
  if (width < 6) {
    context.fillRect(left, top, width, height);
    return;
  }
  context.beginPath();
  context.roundRect(left, top, width, height, 2.5);
  context.fill();
}

function hatch(context, left, width, height) {
  context.save();
  context.beginPath();
  context.rect(left, 3, width, height - 6);
  context.clip();
  context.strokeStyle = "rgb(0 0 0 / 35%)";
  context.lineWidth = 1.5;
  context.beginPath();
  for (let x = left - height; x < left + width; x += 6) {
    context.moveTo(x, height);
    context.lineTo(x + height, 0);
  }
  context.stroke();
  context.restore();
}
