// Figures as text. Each function has a dash for what is not known (null).

const NONE = "–";
const SPACE = "\u00a0";
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** A number with three significant digits, as far as they are decimals: 0.16, 3.70, 25.2, 1,240. */
export function figure(value) {
  if (value == null) return NONE;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 99.95) return grouped.format(value);
  if (size >= 9.995) return value.toFixed(1);
  return size < 0.005 ? value.toPrecision(1) : value.toFixed(2);
}

/** A number with two significant digits as far as they are decimals, without zeros at the end: 4, 1.6, 0.41, 120. */
export function significant(value) {
  if (value == null) return NONE;
  return Math.abs(value) >= 9.95 ? grouped.format(value) : String(Number(value.toPrecision(2)));
}

/** A whole number. */
export function whole(value) {
  return value == null ? NONE : grouped.format(value);
}

/** Events per second: whole ones from 10 on. */
export function rate(value) {
  if (value == null) return NONE;
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)}${SPACE}M`;
  if (value >= 9.95) return grouped.format(value);
  return value === 0 ? "0" : value < 0.05 ? "<0.1" : value.toFixed(1);
}

/** A duration in milliseconds, in seconds from 1 s on. */
export function milliseconds(value) {
  if (value == null) return NONE;
  return value >= 999.5 ? `${figure(value / 1000)}${SPACE}s` : `${figure(value)}${SPACE}ms`;
}

/** A share of 1 in percent, rounded down, so that 100 % means all. */
export function percent(value) {
  if (value == null) return NONE;
  const hundredths = Math.floor(value * 1e4 + 1e-6);
  const digits = hundredths % 10 && hundredths > 9990 ? 2 : hundredths >= 10_000 || hundredths === 0 ? 0 : 1;
  const scale = digits === 2 ? hundredths : Math.floor(hundredths / 10) * 10;
  return `${(scale / 100).toFixed(digits)}${SPACE}%`;
}

/** A share of 1 in whole percents. */
export function wholePercent(value) {
  return value == null ? NONE : `${Math.round(value * 100)}${SPACE}%`;
}

/** An amount of money with the sign of its currency, or alone where that is not known. */
export function money(value, currency) {
  if (value == null) return NONE;
  if (!currency) return figure(value);
  const digits = value >= 99.5 ? 0 : value >= 0.01 || value === 0 ? 2 : 4;
  try {
    const options = {
      style: "currency",
      currency,
      currencyDisplay: "narrowSymbol",
      minimumFractionDigits: digits,
      maximumFractionDigits: digits,
    };
    return new Intl.NumberFormat("en", options).format(value);
  } catch {
    return `${value.toFixed(digits)}${SPACE}${currency}`;
  }
}

/** Bytes in binary units. */
export function bytes(value) {
  if (value == null) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; unit += 1) value /= 1024;
  return `${unit === 0 || value >= 99.5 ? Math.round(value) : value.toFixed(1)}${SPACE}${units[unit]}`;
}

/** A duration in seconds in its two largest units. */
export function duration(seconds) {
  if (seconds == null) return NONE;
  const whole = Math.max(Math.floor(seconds), 0);
  const [days, hours, minutes] = [
    Math.floor(whole / 86_400),
    Math.floor(whole / 3600) % 24,
    Math.floor(whole / 60) % 60,
  ];
  if (days) return `${days}${SPACE}d ${hours}${SPACE}h`;
  if (hours) return `${hours}${SPACE}h ${minutes}${SPACE}min`;
  if (minutes) return `${minutes}${SPACE}min`;
  return `${whole}${SPACE}s`;
}

/** `3 models`, `1 model`. */
export function count(number, word, plural = `${word}s`) {
  return `${grouped.format(number)} ${number === 1 ? word : plural}`;
}

/** Words of an identifier: `completed_late` as `completed late`. */
export function words(identifier) {
  return identifier.replaceAll("_", " ").replace("hand off", "hand-off");
}
