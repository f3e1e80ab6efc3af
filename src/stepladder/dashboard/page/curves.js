// Which curves there are, in which order, and where their numbers come from.
import { meaning, tone } from "./colours.js";
import { bytes, seconds, share, short, unit } from "./format.js";

export const SECTIONS = [
  { title: "Learning", charts: [
    { id: "loss", title: "Loss", size: "wide", format: short, events: true, log: () => settings.log,
      lines: [["step", "loss", "training"], ["evaluation", "loss", "validation", { dots: true, dash: "5 4" }]] },
    { id: "grad_norm", title: "Gradient norm", format: short, lines: [["step", "grad_norm", "gradient norm"]] },
    { id: "lr", title: "Learning rate", format: short, zero: true, lines: [["step", "lr", "learning rate"]] },
    { id: "expert_load", title: "Busiest expert, times an even share", format: short, zero: true, lines: [["step", "expert_load", "worst layer"]] },
    { id: "dead_experts", title: "Dead experts", format: short, zero: true, lines: [["step", "dead_experts", "no token chose them"]] },
    { id: "loss_scale", title: "Loss scale", format: short, lines: [["step", "loss_scale", "loss scale"]] },
  ] },
  { title: "Logged", charts: [] }, // by names that a training loop chose: see loggedCharts
  { title: "Speed", charts: [
    { id: "tokens", title: "Throughput", format: short, zero: true, unit: () => `${settings.unit}/s`, alike: true, lines: [["step", "tokens_per_second", "throughput"]] },
    { id: "mfu", title: "Share of the peak (MFU)", format: share, zero: true, lines: [["step", "mfu", "MFU"], ["step", "hfu", "with recomputation", { dash: "5 4" }]] },
    { id: "seconds", title: "Step time and data wait", format: seconds, zero: true, lines: [["step", "seconds", "step"], ["step", "data_seconds", "waiting for data", { dash: "5 4" }]] },
    { id: "collectives", title: "Collectives of a step", format: seconds, zero: true, means: ["collective"], lines: [["collectives", "*"]] },
    { id: "ranks", title: "Ranks: own time", format: seconds, zero: true, lines: [["ranks", "slowest", "slowest rank"], ["ranks", "mean", "mean"], ["ranks", "quickest", "quickest"]] },
  ] },
  { title: "Memory", charts: [
    { id: "owners", title: "Memory by owner", size: "wide", format: bytes, zero: true, stack: true, means: ["owner"], limit: () => settings.memoryLimit, lines: [["memory", "*", null, { leaveOut: ["peak"] }]] },
    { id: "memory", title: "Peak memory", format: bytes, zero: true, limit: () => settings.memoryLimit, lines: [["step", "memory_bytes", "fullest rank"]] },
    { id: "held", title: "Memory held on the device", format: bytes, least: 2, zero: true, limit: () => settings.memoryLimit, lines: [["device", "memory_bytes", "held"]] },
  ] },
  { title: "Device", charts: [
    { id: "utilisation", title: "Utilisation", format: share, least: 2, zero: true, lines: [["device", "utilisation", "utilisation"]] },
    { id: "temperature", title: "Temperature", format: unit("°C"), least: 2, lines: [["device", "temperature_c", "temperature"]] },
    { id: "power", title: "Power", format: unit("W"), least: 2, zero: true, lines: [["device", "power_w", "power"]] },
  ] },
];

export const settings = { log: false, smooth: 0, memoryLimit: null, device: null, unit: "tokens", lastStep: 0 };
const OWNERS = ["parameters", "working", "gradients", "optimizer", "activations", "logits", "communication", "temporary", "context", "reserved"];
// What a process takes before it trains: on a CPU much more than all the rest, which could not be seen below it.
const CONTEXT = "context";
const rank = (owner) => (OWNERS.includes(owner) ? OWNERS.indexOf(owner) : OWNERS.length); // from what stays to what passes
const STROKES = [undefined, "5 4", "2 3"];

// A chart for each name that any of these runs logged.
const LOGGED = "logged ";
export const loggedCharts = (runs) => [...new Set(runs.flatMap((run) => Object.keys(run.series)))].filter((kind) => kind.startsWith(LOGGED))
  .map((kind) => ({ id: encodeURIComponent(kind), title: kind.slice(LOGGED.length), format: short, lines: [[kind, "value", kind.slice(LOGGED.length)]] }));

// The last step that has a curve of the loop's own: its reports', or what it logged.
export const lastStep = (runs) => Math.max(1, ...runs.flatMap((run) => Object.entries(run.series).filter(([kind]) => kind === "step" || kind.startsWith(LOGGED)).map(([, table]) => table.steps.at(-1) ?? 0)));

// The lines of one chart over the chosen runs. What has a meaning has its colour, and is of one run; else a run has
// its own, and several lines of it are told apart by tones and strokes.
export function linesOf(spec, runs) {
  const alike = spec.alike ? runs.filter((run) => run.facts.unit === settings.unit) : runs; // tokens are not drawn with images
  const shown = spec.means ? runs.slice(0, 1) : alike;
  return shown.flatMap((run) => {
    const found = withoutContext(spec, spec.lines.flatMap((wanted) => take(run.series, wanted)));
    return found.map((line, index) => ({
      ...line,
      label: shown.length > 1 ? (found.length > 1 ? `${run.name} · ${line.label}` : run.name) : line.label,
      color: spec.means ? meaning(spec.means, line.key, index) : tone(run.color, index),
      dash: spec.means ? undefined : line.dash ?? STROKES[index % 3],
    }));
  });
}

function withoutContext(spec, lines) {
  const newest = (line) => line.mean.at(-1) ?? 0;
  const context = spec.stack ? lines.find((line) => line.key === CONTEXT) : undefined;
  const rest = lines.filter((line) => line !== context);
  if (!context || !rest.length || newest(context) <= rest.reduce((sum, line) => sum + newest(line), 0)) return lines;
  return rest.map((line) => ({ ...line, note: `and ${bytes(newest(context))} of context, which is not drawn` }));
}

function take(series, [kind, column, label, look = {}]) {
  const table = series?.[kind];
  if (!table) return [];
  const names = column === "*" ? Object.keys(table.columns).sort((a, b) => rank(a) - rank(b)).filter((name) => !look.leaveOut?.includes(name)) : [column];
  return names.filter((name) => table.columns[name]).map((name) => {
    const { mean, low = mean, high = mean } = table.columns[name];
    const band = table.rows_per_point > 1 || settings.smooth > 0;
    return { key: name, label: (label ?? name.replaceAll("_", " ")) + (kind === "device" && settings.device ? ` of the ${settings.device}` : ""), steps: table.steps, mean: smoothed(mean, look), low, high, band, ...look };
  });
}

// A running mean that begins without a bias; the band still shows what was there.
function smoothed(values, look) {
  if (!settings.smooth || look.dots || look.leaveOut) return values;
  let total = 0, weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    total = settings.smooth * total + (1 - settings.smooth) * value;
    weight = settings.smooth * weight + (1 - settings.smooth);
    return total / weight;
  });
}
