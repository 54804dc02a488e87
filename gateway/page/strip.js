// The strip at the top: state and totals of the server, and how old they are.

import { $, element, keyed, setAttribute, setHidden, setText } from "./dom.js";
import { duration, milliseconds, money, percent, rate, whole } from "./format.js";

const MOODS = { ready: "calm", starting: "wait", draining: "wait", degraded: "bad", overloaded: "bad", failed: "bad" };
const FRESH_MS = 3_500;

let said = "";

/** Show the newest document (null before the first), and what the feed says of it. */
export function showStrip(now, feed) {
  const age = feed.ageMs();
  const lost = feed.mode === "lost";
  const word = lost ? "no connection" : now ? now.server.state : "connecting";
  const reasons = lost
    ? [`${feed.problem}; next try in ${duration(Math.ceil(feed.retryInMs() / 1000))}`]
    : (now?.server.reasons ?? []);
  setText($("state-word"), word);
  setAttribute($("strip"), "data-mood", lost ? "lost" : now ? (MOODS[word] ?? "bad") : "wait");
  setHidden($("reasons"), reasons.length === 0);
  keyed(
    $("reasons"),
    reasons.map((text, index) => ({ text, index })),
    ({ index }) => index,
    () => element("li"),
    (item, { text }) => setText(item, text),
  );
  announce(word, lost ? [feed.problem] : reasons);
  showAge(age, feed);
  if (!now) return;
  const { server, totals } = now;
  setText($("rate"), rate(totals.requests_per_s));
  setText($("in-time"), percent(totals.in_time));
  setText($("p99"), milliseconds(totals.p99_ms));
  setText($("refused"), rate(totals.refused_per_s));
  setText(
    $("cost"),
    money(totals.cost_per_1000_good === null ? null : totals.cost_per_1000_good * 1000, server.currency),
  );
  setText($("queued"), whole(totals.queued_rows));
  setAttribute($("in-time").parentElement, "data-bad", String(totals.in_time !== null && totals.in_time < 0.99));
  setAttribute($("refused").parentElement, "data-bad", String(totals.refused_per_s >= 0.05));
  setText(
    $("version"),
    `${/^\d/.test(server.version) ? "v" : "version "}${server.version}${server.compiled ? " compiled" : ""}`,
  );
  setText($("up"), duration(server.now_s - server.started_s));
  const title = `${word === "ready" ? "" : `${word} · `}${rate(totals.requests_per_s)}/s · Sluice`;
  if (document.title !== title) document.title = title;
}

function showAge(age, feed) {
  const fresh = age !== null && age < FRESH_MS && feed.mode !== "paused";
  setAttribute($("age"), "data-fresh", fresh ? feed.mode : "no");
  setText(
    $("age"),
    age === null
      ? "no data yet"
      : fresh
        ? feed.mode === "stream"
          ? "live"
          : "live, by requests"
        : `data is ${duration(age / 1000)} old`,
  );
  setAttribute(document.body, "data-stale", String(age !== null && !fresh));
}

/** Tell screen readers the state when it changes, and nothing else. */
function announce(word, reasons) {
  if (word === said) return;
  said = word;
  setText($("said"), ["Sluice", word, ...reasons].join(": "));
}
