// Numbers, durations, sizes and times as people read them.

const two = (number) => String(number).padStart(2, "0");

export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0/s";
  if (value < 10) return `${value.toFixed(1)}/s`;
  return `${compact(value)}/s`;
}

export function compact(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${trim(value / 1e9)} G`;
  if (size >= 1e6) return `${trim(value / 1e6)} M`;
  if (size >= 1e4) return `${trim(value / 1e3)} k`;
  if (size < 10 && !Number.isInteger(value)) return value.toFixed(1);
  return Math.round(value).toLocaleString("en");
}

const trim = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(1));

export function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000) return `${unit === "B" ? Math.round(value) : trim(value)} ${unit}`;
    value /= 1000;
  }
  return `${trim(value)} TB`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 0.00095) return `${Math.max(0.1, Math.round(seconds * 10000) / 10)} ms`;
  if (seconds < 0.0995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 100) * 10} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${trimmed(seconds / 60)} min`;
  if (seconds < 129600) return `${trimmed(seconds / 3600)} h`;
  return `${trimmed(seconds / 86400)} d`;
}

const trimmed = (value) => value.toFixed(value < 10 ? 1 : 0).replace(/\.0$/, "");

export function clock(at, withMillis = false) {
  const date = new Date(at * 1000);
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return withMillis ? `${time}.${String(date.getMilliseconds()).padStart(3, "0")}` : time;
}

/** A time of day, with the date when it is not today's. */
export function moment(at) {
  if (at === null || at === undefined) return "–";
  const date = new Date(at * 1000);
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return date.toDateString() === new Date().toDateString() ? clock(at) : `${day} ${clock(at)}`;
}

export function ago(at, now) {
  return at === null || at === undefined ? "–" : `${duration(Math.max(0, now - at))} ago`;
}
