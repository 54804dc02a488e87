// The plan in force: headroom to the highest rate, and what it predicted against what is seen.

import { $, keyed, setAttribute, setHidden, setName, setText, tableRow } from "./dom.js";
import { duration, milliseconds, rate, significant, whole, wholePercent } from "./format.js";

const OFF = 1.25; // What is seen may be this many times what was predicted before it is marked.

export function showPlan(pipeline, now_s) {
  const { plan } = pipeline;
  setHidden($("plan-reason"), Boolean(plan?.in_force));
  setHidden($("plan-body"), !plan?.in_force);
  setText($("plan-reason"), plan?.reason ? `No plan is in force: ${plan.reason}.` : "No plan is in force.");
  if (!plan?.in_force) {
    setText($("plan-built"), "");
    return;
  }
  setText(
    $("plan-built"),
    plan.built_s === null ? "" : `made ${duration(now_s - plan.built_s)} ago for ${rate(plan.rate)}/s`,
  );
  setText($("headroom-times"), plan.headroom === null ? "–" : `${significant(plan.headroom)}×`);
  setText(
    $("headroom-text"),
    plan.highest_rate === null ? "headroom not known" : `headroom: at most ${rate(plan.highest_rate)} requests/s`,
  );
  const used = plan.headroom ? Math.min(1 / plan.headroom, 1) : 0;
  const bar = $("headroom").querySelector("i");
  bar.style.width = `${used * 100}%`;
  setAttribute($("headroom"), "data-tight", String(plan.headroom !== null && plan.headroom < 1.1));
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
      texts.forEach((text, index) => (index ? setText(row.cells[index], text) : setName(row.cells[0], text)));
      setAttribute(row, "data-off", String(more !== null && more > OFF - 1));
      setAttribute(row, "data-whole", String(item.key.startsWith("p")));
    },
  );
}

function difference(more) {
  if (more === null) return "";
  if (more >= 2) return `${significant(more + 1)} ×`;
  const percent = Math.round(more * 100);
  return `${percent > 0 ? "+" : percent < 0 ? "−" : "±"}${Math.abs(percent)}\u00a0%`;
}
