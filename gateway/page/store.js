// What the page knows: the newest document, and of earlier ones the bounded rest that charts and lanes show.

export const HISTORY = 300; // steps
const BARS_S = 6;
const MOST_BARS = 6_000;
export const COLUMNS = ["good", "late", "refused", "failed", "cancelled", "p50_ms", "p99_ms"];

export class Store {
  constructor() {
    this._forget();
  }

  /** Take in a document, which may have only what is new since the one before. */
  add(found) {
    const { server, pipeline, timeline } = found;
    if (this.now && this.now.server.started_s !== server.started_s) this._forget();
    if (this.now?.pipeline?.name !== pipeline?.name) this.history = null;
    this.now = found;
    if (pipeline) this._addHistory(pipeline.history);
    this._addBars(found.partitions, timeline);
  }

  _forget() {
    this.now = null;
    this.history = null; // { start, step, good: [...], … }, oldest first
    this.bars = new Map(); // by number and partition: { partition, model, start_s, length_ms, rows, merged }
    this.running = [];
    this.planned = [];
  }

  _addHistory(fresh) {
    const step = fresh.step_s;
    const before = this.history;
    const known = before && before.step === step ? before : null;
    const length = fresh.good.length;
    if (!length && known) return;
    const end = fresh.start_s + step * length;
    const oldest = known ? Math.min(known.start, fresh.start_s) : fresh.start_s;
    const start = Math.max(oldest, end - HISTORY * step);
    const steps = Math.max(Math.round((end - start) / step), 0);
    this.history = { start, step };
    for (const name of COLUMNS) {
      const values = new Array(steps).fill(null);
      for (const part of [known, { ...fresh, start: fresh.start_s }]) {
        if (!part) continue;
        const shift = Math.round((part.start - start) / step);
        part[name].forEach((value, index) => {
          if (index + shift >= 0 && index + shift < steps) values[index + shift] = value;
        });
      }
      this.history[name] = values;
    }
  }

  _addBars(partitions, timeline) {
    const named = (index) => partitions[index]?.name ?? "";
    this.running = [];
    for (const [id, partition, model, start, length, rows, merged] of timeline.bars) {
      const bar = {
        id, partition: named(partition), model: timeline.models[model], start_s: timeline.from_s + start, length_ms: length, rows, merged,
      };
      if (length < 0) this.running.push(bar);
      else this.bars.set(`${id} ${bar.partition}`, bar);
    }
    this.planned = timeline.planned.map(([partition, model, start, length, rows]) => ({
      partition: named(partition), model: timeline.models[model], start_s: timeline.from_s + start, length_ms: length, rows, planned: true,
    }));
    let spare = this.bars.size - MOST_BARS;
    for (const [key, bar] of this.bars) {
      if (spare > 0 || bar.start_s + bar.length_ms / 1000 < timeline.to_s - BARS_S) this.bars.delete(key);
      spare -= 1;
    }
  }
}
