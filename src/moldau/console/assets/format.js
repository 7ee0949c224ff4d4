// Numbers, sizes, times and durations as text.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const unknown = "–";
export const number = (value) => (value === null || value === undefined ? unknown : whole.format(value));
export const compact = (value) => (value === null || value === undefined ? unknown : short.format(value));
export const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

export function bytes(value) {
  if (value === null || value === undefined || value < 0) return unknown;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) { size /= 1024; unit += 1; }
  return `${size >= 100 || unit === 0 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`;
}

export function time(ms) {
  if (ms === null || ms === undefined || ms < 0) return unknown;
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return String(ms);
  const pad = (value, width = 2) => String(value).padStart(width, "0");
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}.${pad(date.getMilliseconds(), 3)}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return unknown;
  const seconds = ms / 1000;
  if (seconds < 1) return `${Math.round(ms)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function retention(configs) {
  if (!configs) return unknown;
  const policy = configs["cleanup.policy"];
  const ms = Number(configs["retention.ms"]);
  const size = Number(configs["retention.bytes"]);
  const kept = ms < 0 ? "for ever" : duration(ms);
  const limit = size > 0 ? `, ${bytes(size)}` : "";
  return policy === "compact" ? "compact" : `${policy}, ${kept}${limit}`;
}
