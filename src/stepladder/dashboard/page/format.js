// Numbers as people read them.
export function short(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  const size = Math.abs(value);
  if (size >= 1e5) return scaled(value, 1000, ["", "k", "M", "G", "T", "P"], Math.max(3, digits - 1));
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size !== 0 && size < 1e-3) return exponential(value, digits);
  return trimmed(value, digits);
}
export const exponential = (value, digits = 4) => (value === 0 ? "0" : value.toExponential(Math.max(0, digits - 2)).replace(/\.?0*e([+-])0?/, "e$1"));
export function bytes(value, digits = 3) {
  return value === null || value === undefined ? "–" : scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"], digits, " ");
}
export function share(value, digits = 3) {
  return value === null || value === undefined ? "–" : `${trimmed(value * 100, digits)} %`;
}
export function seconds(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value >= 86400) return `${Math.floor(value / 86400)} d ${Math.round((value % 86400) / 3600)} h`;
  if (value >= 3600) return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
  if (value >= 100) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  if (value >= 1) return `${trimmed(value, digits)} s`;
  if (value >= 1e-3) return `${trimmed(value * 1e3, digits)} ms`;
  return value === 0 ? "0 s" : `${trimmed(value * 1e6, digits)} µs`;
}
export function whole(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}
export const unit = (name) => (value, digits = 3) => (value === null || value === undefined ? "–" : `${short(value, digits)} ${name}`);

function scaled(value, base, names, digits, gap = "") {
  let power = 0;
  while (Math.abs(value) >= base && power < names.length - 1) { value /= base; power += 1; }
  return `${trimmed(value, digits)}${names[power] ? gap : ""}${names[power]}`;
}
function trimmed(value, digits) {
  const text = value.toPrecision(digits);
  return text.includes("e") ? String(Number(text)) : text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

// Round steps of an axis.
export function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}
// Bytes have round numbers of their own.
export function byteTicks(low, high, count) {
  let size = 1;
  while ((high - low) / size >= 1024) size *= 1024;
  return ticks(low / size, high / size, count).map((one) => one * size);
}
export function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1)
    for (const digit of high / low > 300 ? [1] : high / low > 30 ? [1, 3] : [1, 1.5, 2, 3, 5, 7])
      if (digit * 10 ** power >= low && digit * 10 ** power <= high) found.push(digit * 10 ** power);
  return found.length > 1 ? found : ticks(low, high, 4);
}
