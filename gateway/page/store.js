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
    const known = this.history?.step === step ? this.history : null;
    const kept = known ? Math.min(Math.max(Math.round((fresh.start_s - known.start) / step), 0), known.good.length) : 0;
    const gap = kept ? Math.round((fresh.start_s - known.start) / step) - kept : 0;
    const unknown = new Array(Math.min(gap, HISTORY)).fill(null);
    const history = { step };
    for (const name of COLUMNS) {
      const before = kept ? known[name].slice(0, kept) : [];
      history[name] = [...before, ...unknown, ...fresh[name]].slice(-HISTORY);
    }
    // The first second of all may last one and a half: its counts would look like a burst.
    if (!kept && fresh.good.length && fresh.good.length < HISTORY) for (const name of COLUMNS) history[name][0] = null;
    history.start = fresh.start_s + step * (fresh.good.length - history.good.length);
    this.history = history;
  }

  _addBars(partitions, timeline) {
    const named = (index) => partitions[index]?.name ?? "";
    this.running = [];
    for (const [id, partition, model, start, length, rows, merged] of timeline.bars) {
      const bar = {
        id,
        partition: named(partition),
        model: timeline.models[model],
        start_s: timeline.from_s + start,
        length_ms: length,
        rows,
        merged,
      };
      if (length < 0) this.running.push(bar);
      else this.bars.set(`${id} ${bar.partition}`, bar);
    }
    this.planned = timeline.planned.map(([partition, model, start, length, rows]) => ({
      partition: named(partition),
      model: timeline.models[model],
      start_s: timeline.from_s + start,
      length_ms: length,
      rows,
      planned: true,
    }));
    let spare = this.bars.size - MOST_BARS;
    for (const [key, bar] of this.bars) {
      if (spare > 0 || bar.start_s + bar.length_ms / 1000 < timeline.to_s - BARS_S) this.bars.delete(key);
      spare -= 1;
    }
  }
}
