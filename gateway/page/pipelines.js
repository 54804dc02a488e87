// The list of pipelines to choose from: a listbox with a filter.

import { $, element, keyed, setAttribute, setHidden, setName, setText } from "./dom.js";
import { count, milliseconds, percent, rate } from "./format.js";

const SORT_EVERY_MS = 60_000;

/** Calls `choose` with a name. The busiest is first; the order changes once a minute, not while one is pointed at. */
export class Pipelines {
  constructor(choose) {
    this._choose = choose;
    this._order = new Map();
    this._sortedMs = 0;
    this._all = [];
    this._more = 0;
    this._chosen = "";
    this._wanted = "";
    const filter = $("filter");
    filter.addEventListener("input", () => this._draw());
    filter.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "Enter") {
        event.preventDefault();
        const first = $("choices").querySelector("[role=option]");
        first?.focus();
        if (event.key === "Enter") first?.click();
      } else if (event.key === "Escape") {
        filter.value = "";
        this._draw();
      }
    });
    $("choices").addEventListener("keydown", (event) => this._key(event));
    document.addEventListener("keydown", (event) => {
      const typing = event.target instanceof HTMLInputElement && event.target.type === "search";
      if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey || $("dialog").open) return;
      event.preventDefault();
      filter.focus();
    });
  }

  update(now) {
    this._all = now.pipelines;
    this._more = now.pipelines_more;
    this._chosen = now.pipeline?.name ?? "";
    if (this._wanted === this._chosen || now.pipeline?.asked) this._wanted = "";
    this._sort();
    this._draw();
  }

  _sort() {
    const names = this._all.map((each) => each.name);
    const known = names.every((name) => this._order.has(name));
    const held = $("choices").matches(":hover, :focus-within");
    if (known && (held || Date.now() - this._sortedMs < SORT_EVERY_MS)) return;
    this._sortedMs = Date.now();
    this._order = new Map(names.map((name, index) => [name, index]));
  }

  _draw() {
    const wanted = $("filter").value.trim().toLowerCase();
    const shown = this._all
      .filter((each) => each.name.toLowerCase().includes(wanted))
      .sort((one, other) => this._order.get(one.name) - this._order.get(other.name));
    const chosen = this._wanted || this._chosen;
    const busiest = Math.max(...this._all.map((each) => each.requests_per_s ?? 0), 1e-9);
    const reachable = shown.some((each) => each.name === chosen) ? chosen : shown[0]?.name;
    keyed(
      $("choices"),
      shown,
      (each) => each.name,
      (each) => this._item(each.name),
      (item, each) => {
        const { name, numbers, detail, level } = item.parts;
        setName(name, each.name);
        setText(numbers, rate(each.requests_per_s));
        const misses = each.in_time !== null && each.in_time < each.percentile / 100 - 1e-9;
        setText(detail.firstChild, each.in_time === null ? "no requests" : `${percent(each.in_time)} in time`);
        setText(detail.lastChild, each.p99_ms === null ? "" : `p99 ${milliseconds(each.p99_ms)}`);
        setAttribute(item, "data-bad", String(misses));
        setAttribute(item, "aria-selected", String(each.name === chosen));
        setAttribute(item, "tabindex", each.name === reachable ? "0" : "-1");
        const width = `${((each.requests_per_s ?? 0) / busiest) * 100}%`;
        if (level.style.width !== width) level.style.width = width;
      },
    );
    setText(
      $("pipelines-count"),
      wanted ? `${shown.length} of ${this._all.length + this._more}` : String(this._all.length + this._more),
    );
    const note = shown.length
      ? this._more
        ? `${count(this._more, "more pipeline")} with fewer requests`
        : ""
      : wanted
        ? "No name has this in it."
        : "Nothing is served.";
    setText($("pipelines-note"), note);
    setHidden($("pipelines-note"), !note);
  }

  _item(name) {
    const item = element("div", "choice");
    item.setAttribute("role", "option");
    item.tabIndex = -1;
    const top = element("span", "top");
    const parts = {
      name: element("b", "cut"),
      numbers: element("span", "number"),
      detail: element("span", "detail"),
      level: element("i"),
    };
    const unit = element("span", "unit", "/s");
    const level = element("span", "level");
    level.append(parts.level);
    parts.detail.append(element("span"), element("span"));
    top.append(parts.name, parts.numbers, unit);
    item.append(top, parts.detail, level);
    item.parts = parts;
    item.addEventListener("click", () => this._pick(item, name));
    return item;
  }

  _pick(item, name) {
    item.focus({ preventScroll: true });
    if (name === (this._wanted || this._chosen)) return;
    this._wanted = name;
    this._draw();
    this._choose(name);
  }

  _key(event) {
    const options = [...$("choices").querySelectorAll("[role=option]")];
    const at = options.indexOf(document.activeElement);
    const last = options.length - 1;
    const to = {
      ArrowDown: Math.min(at + 1, last),
      ArrowUp: at - 1,
      Home: 0,
      End: last,
      PageDown: Math.min(at + 8, last),
      PageUp: Math.max(at - 8, 0),
    }[event.key];
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      options[at]?.click();
    } else if (to !== undefined) {
      event.preventDefault();
      if (to < 0) {
        $("filter").focus();
        return;
      }
      options[to].focus();
      options[to].click();
    }
  }
}
