// Documents from the server: a stream of events, or a request a second where streams do not come through.

const SILENT_MS = 4_500; // A stream has a document each second; one that is silent for longer is given up.
const REQUEST_MS = 8_000;
const POLL_MS = 1_000;
const LONGEST_WAIT_MS = 8_000;
const LONGEST_STREAM_WAIT_MS = 60_000;
const HIDDEN_MS = 60_000; // A page that nobody sees stops asking after this time.
const OFFSETS = 60; // documents; a clock that is set is forgotten after as many

/**
 * Calls `onDocument` with each document, and `onChange` when `mode` changes.
 *
 * `mode` is "connecting", "stream", "requests", "lost" or "paused". A failed stream is followed by requests, and tried
 * again later; failed requests are repeated after 1, 2, 4, 8, 8 … seconds.
 */
export class Feed {
  constructor(onDocument, onChange) {
    this.mode = "connecting";
    this.problem = "";
    this.pipeline = "";
    this._onDocument = onDocument;
    this._onChange = onChange;
    this._stream = null;
    this._request = null;
    this._timer = 0;
    this._hiddenTimer = 0;
    this._failures = 0;
    this._streamFailures = 0;
    this._streamAgainMs = 0;
    this._openedMs = 0;
    this._receivedMs = 0;
    this._retryMs = 0;
    this._last = null;
    this._whole = true; // Ask for all history and bars, not only for what came after the last ones.
    this._offsets = [];
  }

  start() {
    document.addEventListener("visibilitychange", () => this._visibility());
    window.addEventListener("online", () => this._hurry());
    window.addEventListener("pageshow", (event) => event.persisted && this._open());
    this._open();
  }

  /** Ask for another pipeline from now on. */
  choose(pipeline) {
    this.pipeline = pipeline;
    this._open();
  }

  /** How old the newest document is, in milliseconds; null before the first. */
  ageMs() {
    if (!this._last) return null;
    // The clocks differ by the smallest offset that was seen. What a proxy holds back comes with a larger one.
    return Math.max(Date.now() - this._last.server.now_s * 1000 - Math.min(...this._offsets), 0);
  }

  /** Milliseconds until the next attempt. */
  retryInMs() {
    return Math.max(this._retryMs - performance.now(), 0);
  }

  /** Give up a stream that is silent; called once a second. */
  check() {
    if (this._stream && performance.now() - Math.max(this._receivedMs, this._openedMs) > SILENT_MS) this._streamFailed();
  }

  _open() {
    this._close();
    this._whole = true;
    if (performance.now() < this._streamAgainMs) {
      this._poll();
      return;
    }
    this._openedMs = performance.now();
    const stream = new EventSource(this._url("v2/sluice/now/events"));
    this._stream = stream;
    stream.onmessage = (event) => {
      if (stream !== this._stream) return;
      this._streamFailures = 0;
      if (this._received(event.data)) this._set("stream");
    };
    stream.onerror = () => stream === this._stream && this._streamFailed();
  }

  _streamFailed() {
    this._close();
    this._streamFailures += 1;
    this._streamAgainMs = performance.now() + Math.min(2_500 * 2 ** this._streamFailures, LONGEST_STREAM_WAIT_MS);
    this._poll();
  }

  async _poll() {
    const request = new AbortController();
    this._request = request;
    const limit = setTimeout(() => request.abort(), REQUEST_MS);
    let problem = "";
    let text = "";
    try {
      const response = await fetch(this._url("v2/sluice/now"), { signal: request.signal, cache: "no-store" });
      if (response.ok) text = await response.text();
      else problem = `the server answers with status ${response.status}`;
    } catch {
      problem = request.signal.aborted ? "the server does not answer" : "the server cannot be reached";
    } finally {
      clearTimeout(limit);
    }
    if (this._request !== request) return;
    this._request = null;
    if (!problem && this._received(text)) {
      this._failures = 0;
      this._set("requests");
      if (performance.now() >= this._streamAgainMs) this._open();
      else this._again(POLL_MS);
      return;
    }
    this._failures += 1;
    this.problem = problem || "the answer is not a document of this page";
    this._whole = true;
    this._again(Math.min(1_000 * 2 ** (this._failures - 1), LONGEST_WAIT_MS) * (0.8 + 0.4 * Math.random()));
    this._set("lost");
  }

  _again(waitMs) {
    this._retryMs = performance.now() + waitMs;
    this._timer = setTimeout(() => this._poll(), waitMs);
  }

  _received(text) {
    let found;
    try {
      found = JSON.parse(text);
    } catch {
      return false;
    }
    if (!found?.server?.now_s) return false;
    this._receivedMs = performance.now();
    this._offsets.push(Date.now() - found.server.now_s * 1000);
    if (this._offsets.length > OFFSETS) this._offsets.shift();
    const another = this._last !== null && this._last.server.started_s !== found.server.started_s;
    if (another) this._offsets = this._offsets.slice(-1);
    this._whole = another;
    this._last = found;
    this._onDocument(found);
    return true;
  }

  _url(path) {
    const query = new URLSearchParams();
    if (this.pipeline) query.set("pipeline", this.pipeline);
    if (!this._whole) {
      const { history } = this._last.pipeline ?? {};
      if (history) query.set("since", String(history.start_s + history.step_s * history.good.length));
      query.set("bars_since", String(this._last.timeline.last));
    }
    return query.size ? `${path}?${query}` : path;
  }

  _close() {
    this._stream?.close();
    this._request?.abort();
    clearTimeout(this._timer);
    this._stream = null;
    this._request = null;
  }

  _hurry() {
    if (this.mode === "lost" || this.mode === "paused") {
      this._streamAgainMs = 0;
      this._open();
    }
  }

  _visibility() {
    clearTimeout(this._hiddenTimer);
    if (document.hidden) {
      this._hiddenTimer = setTimeout(() => {
        this._close();
        this._set("paused");
      }, HIDDEN_MS);
    } else {
      this._hurry();
    }
  }

  _set(mode) {
    if (mode !== "lost") this.problem = "";
    if (this.mode === mode && mode !== "lost") return;
    this.mode = mode;
    this._onChange();
  }
}
