// The plan in force: headroom to the highest rate, and what it predicted against what is seen.

import { $, keyed, setAttribute, setHidden, setName, setText, tableRow } from "./dom.js";
import { duration, milliseconds, percent, rate, significant, whole, wholePercent } from "./format.js";

const OFF = 1.25; // What is seen may be this many times what was predicted before a stage is marked.
const REFUSED = 0.01; // of the requests, at least
const REFUSED_PER_S = 1; // with which the headroom is in doubt, as in the state of the server
const OWN_TIME = "predicted without the time that the server itself takes; red where it misses the objective";

/** Show the plan of the chosen pipeline; `rates` are its figures in the list, if it is there. */
export function showPlan(pipeline, rates, now_s) {
  const { plan } = pipeline;
  const refused = rates?.requests_per_s ? rates.refused_per_s / rates.requests_per_s : 0;
  const refuses = refused > REFUSED && rates.refused_per_s >= REFUSED_PER_S;
  setHidden($("plan-reason"), Boolean(plan?.in_force));
  setHidden($("plan-body"), !plan?.in_force);
  setText($("plan-reason"), plan?.reason ? `No plan is in force: ${plan.reason}.` : "No plan is in force.");
  if (!plan?.in_force) {
    setText($("plan-built"), "");
    return;
  }
  setText(
    $("plan-built"),
    plan.built_s === null
      ? ""
      : `made by ${plan.planner} ${duration(now_s - plan.built_s)} ago for ${rate(plan.rate)}/s`,
  );
  setText($("headroom-times"), plan.headroom === null ? "–" : `${significant(plan.headroom)}×`);
  const highest = plan.highest_rate === null ? "" : `highest rate ${rate(plan.highest_rate)}/s`;
  const contradicted = refuses && !(plan.headroom < 1);
  setName(
    $("headroom-text"),
    contradicted
      ? `headroom by the plan, yet ${percent(refused)} are refused`
      : ["headroom", highest].filter(Boolean).join("; "),
    contradicted
      ? `Something takes time that the plan does not know of. By the plan: ${highest || "no highest rate yet"}.`
      : "",
  );
  const used = plan.headroom ? Math.min(1 / plan.headroom, 1) : 0;
  const bar = $("headroom").querySelector("i");
  bar.style.width = `${used * 100}%`;
  setAttribute($("headroom"), "data-tight", String(refuses || (plan.headroom !== null && plan.headroom < 1.1)));
  const gated = new Set(pipeline.stages.filter((stage) => stage.when).map((stage) => stage.name));
  const rows = [
    {
      key: "p50",
      name: "p50",
      batch: "",
      on: "",
      predicted: plan.predicted_p50_ms,
      seen: plan.seen_p50_ms,
      show: milliseconds,
    },
    {
      key: "p99",
      name: "p99",
      batch: "",
      on: "",
      predicted: plan.predicted_p99_ms,
      seen: plan.seen_p99_ms,
      show: milliseconds,
    },
    ...plan.stages.map((stage) => ({
      key: `stage ${stage.stage}`,
      name: stage.stage,
      batch: whole(stage.batch),
      rule: ruleText(stage.rule),
      on: stage.kinds.map((each) => `${each.partitions} × ${each.kind}`).join(", "),
      predicted: stage.predicted_ms,
      seen: stage.seen_ms,
      show: milliseconds,
    })),
    ...plan.stages
      .filter(({ stage }) => gated.has(stage))
      .map((stage) => ({
        key: `share ${stage.stage}`,
        name: `share to ${stage.stage}`,
        batch: "",
        on: "",
        predicted: stage.predicted_share,
        seen: stage.seen_share,
        show: wholePercent,
      })),
  ];
  keyed(
    $("plan-rows"),
    rows,
    (row) => row.key,
    () => tableRow(6),
    (row, item) => {
      const more = item.predicted && item.seen !== null ? item.seen / item.predicted - 1 : null;
      const texts = [item.name, item.batch, item.on, item.show(item.predicted), item.show(item.seen), difference(more)];
      const whole = item.key === "p50" || item.key === "p99";
      texts.forEach((text, index) => index && setText(row.cells[index], text));
      setName(row.cells[0], item.name, whole ? OWN_TIME : item.name);
      setAttribute(row.cells[1], "title", item.rule ?? "");
      const counts = Number(item.key.slice(1)) <= pipeline.percentile;
      const missed = counts && item.seen > (pipeline.objective_ms ?? Infinity);
      setAttribute(row, "data-off", String(whole ? missed : more !== null && more > OFF - 1));
      setAttribute(row, "data-whole", String(whole));
    },
  );
}

/** The rule of a planner for the batches of a stage; "" where each is chosen when it starts. */
function ruleText(rule) {
  if (!rule) return "";
  if (rule.rule === "search") {
    return `searched again for each batch, within ${wholePercent(rule.share)} of the time that is left`;
  }
  return `until the next plan: ${whole(rule.rows)} rows on ${rule.kind}, or fewer after ${milliseconds(rule.wait_ms)}`;
}

function difference(more) {
  if (more === null) return "";
  if (more >= 2) return `${significant(more + 1)} ×`;
  const off = Math.round(more * 100);
  return `${off > 0 ? "+" : off < 0 ? "−" : "±"}${Math.abs(off)}\u00a0%`;
}
