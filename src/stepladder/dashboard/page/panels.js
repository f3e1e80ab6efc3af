// What is not a curve: numbers at the top, forecast against measured, ranks, timeline, events, texts.
import { element, shape, swatch } from "./chart.js";
import { meaning, series } from "./colours.js";
import { bytes, seconds, share, short, whole } from "./format.js";

const UNITS = { s: seconds, B: bytes, "/s": (value) => short(value) };
const SORTS = { save: "saved", restart: "restart", skipped: "skipped", spike: "spike", memory: "memory", failure: "failure", nonfinite: "not finite", slow: "slow rank", note: "note" };
export const markColor = (sort) => meaning(["event"], sort in SORTS ? sort : "note", 0);

export function headline(facts, name) {
  const newest = facts.newest ?? {};
  const limit = facts.memory?.limit_bytes;
  const done = (facts.step ?? -1) + 1;
  const left = facts.steps && newest.seconds && facts.state === "live" ? (facts.steps - done) * newest.seconds : null;
  const state = element("span", { class: `state ${facts.state}` }, facts.state);
  const note = left !== null && left > 0 ? `${seconds(left)} left` : facts.silent_seconds ? `no line for ${seconds(facts.silent_seconds)}` : null;
  const known = (value) => value !== null && value !== undefined;
  return [
    figure(name, state, note),
    figure("Step", whole(done), facts.steps ? `of ${whole(facts.steps)}` : null, facts.steps ? done / facts.steps : null),
    known(newest.loss) ? figure("Loss", short(newest.loss), "training") : null,
    known(facts.validation) ? figure("Loss", short(facts.validation), "validation") : null,
    known(newest.tokens_per_second) ? figure("Throughput", short(newest.tokens_per_second), `${facts.unit}/s`) : null,
    known(newest.mfu) ? figure("MFU", share(newest.mfu)) : null,
    known(newest.seconds) ? figure("Step time", seconds(newest.seconds)) : null,
    known(newest.memory_bytes) ? figure("Peak memory", bytes(newest.memory_bytes), limit ? `of ${bytes(limit)}` : null, limit ? newest.memory_bytes / limit : null) : null,
  ].filter(Boolean);
}

function figure(name, value, note = null, full = null) {
  const made = element("div", { class: "figure" }, element("dl", {}, element("dt", {}, name), element("dd", {}, value)), element("small", {}, note ?? ""));
  if (full !== null) {
    const filled = element("i");
    filled.style.width = `${Math.min(100, 100 * full).toFixed(1)}%`;
    made.append(element("div", { class: "bar" }, filled));
  }
  return made;
}

// Several runs side by side, the best loss and the best rate told. A row selects the run whose details are shown.
export function comparison(runs, selected, select) {
  const rows = runs.map((run) => ({ ...run, newest: run.facts.newest ?? {} }));
  const best = (pick, better) => better(...rows.map(pick).filter((value) => typeof value === "number"));
  const alike = new Set(rows.map((row) => row.facts.unit)).size === 1; // tokens are not compared with images
  const [loss, rate] = [best((row) => row.facts.validation, Math.min), alike ? best((row) => row.newest.tokens_per_second, Math.max) : null];
  const cell = (text, is = false) => element("td", { class: `n ${is ? "good" : ""}` }, text);
  const head = ["run", "state", "step", "loss", "validation", alike ? `${rows[0].facts.unit}/s` : "throughput", "MFU", "step time", "peak memory"];
  const body = rows.map((row) => {
    const name = element("button", { class: "pick", type: "button", "data-select": row.name, "aria-pressed": String(row.name === selected), title: "Show this run's numbers and details" }, swatch(row.color), row.name);
    const rateText = short(row.newest.tokens_per_second) + (alike ? "" : ` ${row.facts.unit}/s`);
    const made = element("tr", { class: row.name === selected ? "selected" : "" }, element("td", {}, name), element("td", {}, row.facts.state),
      cell(whole((row.facts.step ?? -1) + 1)), cell(short(row.newest.loss)), cell(short(row.facts.validation), row.facts.validation === loss), cell(rateText, row.newest.tokens_per_second === rate),
      cell(share(row.newest.mfu)), cell(seconds(row.newest.seconds)), cell(bytes(row.newest.memory_bytes)));
    made.addEventListener("click", () => select(row.name));
    return made;
  });
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Comparison of the runs" }, element("table", { id: "comparison" },
    element("thead", {}, element("tr", {}, ...head.map((name, index) => element("th", { class: index > 1 ? "n" : "", scope: "col" }, name)))), element("tbody", {}, ...body)));
}

function card(title, size, ...body) {
  return element("section", { class: `card ${size}` }, element("h3", {}, title), ...body);
}

export function forecast(rows) {
  if (!rows.length) return null;
  const off = (value) => value === null ? element("td", { class: "n" }, "–")
    : element("td", { class: `n ${Math.abs(value) <= 0.1 ? "good" : Math.abs(value) <= 0.25 ? "warn" : "bad"}` }, far(value));
  const body = rows.map((row) => element("tr", {}, element("td", {}, row.what.replaceAll("_", " ")),
    element("td", { class: "n" }, UNITS[row.unit](row.forecast)), element("td", { class: "n" }, UNITS[row.unit](row.measured)), off(row.off)));
  const head = element("tr", {}, element("th", { scope: "col" }, "what"), ...["forecast", "measured", "off"].map((name) => element("th", { class: "n", scope: "col" }, name)));
  return card("Forecast against measured", "half", element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Forecast against measured" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...body))));
}

const far = (value) => (value >= 9 ? `× ${whole(value + 1)}` : `${value > 0.0005 ? "+" : ""}${(100 * value).toFixed(1).replace("-0.0", "0.0")} %`);

export function ranks(rows, verdict) {
  if (rows.length < 2) return null;
  const most = Math.max(...rows.map((row) => row.own_seconds + (row.wait_seconds ?? 0))) || 1;
  const lines = rows.map((row) => {
    const [own, wait] = [element("i", { class: "own" }), element("i", { class: "wait" })];
    own.style.cssText = `width: ${(100 * row.own_seconds) / most}%; background: ${series(row.rank)}`;
    wait.style.cssText = `width: ${(100 * (row.wait_seconds ?? 0)) / most}%; background: ${series(row.rank)}`;
    const note = `${seconds(row.own_seconds)}${row.wait_seconds === null ? "" : ` + ${seconds(row.wait_seconds)}`}${row.memory_bytes === null ? "" : ` · ${bytes(row.memory_bytes)}`}`;
    return element("div", { class: `rank ${row.straggles ? "slow" : ""}` }, element("span", {}, `rank ${row.rank}`), element("div", { class: "track" }, own, wait), element("span", {}, note));
  });
  return card("Ranks: own work and waiting for others", "half", element("p", { class: `legend ${rows.some((row) => row.straggles) ? "bad" : ""}` }, verdict),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Ranks. ${verdict}` }, ...lines));
}

export function timeline(entry) {
  const lanes = entry?.lanes?.filter((lane) => lane.spans?.length) ?? [];
  if (!lanes.length) return null;
  const spans = lanes.flatMap((lane) => lane.spans);
  const begin = Math.min(...spans.map((span) => span.start));
  const end = Math.max(...spans.map((span) => span.start + span.seconds));
  const families = [...new Set(spans.map((span) => family(span.name)))];
  const [wide, tall, left] = [1200, 24, 64];
  const x = (at) => left + ((at - begin) / (end - begin || 1)) * (wide - left - 4);
  const plot = shape("svg", { class: "timeline", viewBox: `0 0 ${wide} ${lanes.length * tall + 22}`, role: "img", "aria-label": `Timeline of step ${entry.step}: ${lanes.length} ranks over ${seconds(end - begin)}` });
  lanes.forEach((lane, row) => {
    plot.append(shape("text", { x: left - 8, y: row * tall + 16, "text-anchor": "end" }, `rank ${lane.rank}`));
    for (const span of lane.spans) {
      const size = Math.max(0.8, x(span.start + span.seconds) - x(span.start) - 0.6);
      const box = shape("rect", { x: x(span.start), y: row * tall + 2, width: size, height: tall - 4, rx: 2, fill: laneColor(family(span.name), families) });
      box.append(shape("title", {}, `rank ${lane.rank} · ${span.name} · ${seconds(span.seconds)} from ${seconds(span.start - begin)}`));
      plot.append(box);
      if (size > 8 * span.name.length) plot.append(shape("text", { class: "in", x: x(span.start) + size / 2, y: row * tall + 15.5, "text-anchor": "middle" }, span.name));
    }
  });
  for (const part of [0, 0.25, 0.5, 0.75, 1])
    plot.append(shape("text", { x: x(begin + part * (end - begin)), y: lanes.length * tall + 15, "text-anchor": part === 1 ? "end" : "middle" }, seconds(part * (end - begin))));
  const legend = element("ul", { class: "legend" }, ...families.slice(0, 20).map((name) => element("li", {}, swatch(laneColor(name, families)), PASSES[name] ?? name.replaceAll("_", " "))));
  const scroll = element("div", { class: "scroll lanes", tabindex: "0", role: "region", "aria-label": `Timeline of step ${whole(entry.step)}` }, plot);
  return card(`Timeline of step ${whole(entry.step)}`, "full", scroll, legend);
}
const PASSES = { F: "forward", B: "backward", W: "gradients of weights" };
const laneColor = (name, families) => meaning(["cause", "pass"], name, families.indexOf(name));
const family = (name) => String(name).replace(/[\s_#:]*\d+$/, "") || String(name);

export function events(list) {
  if (!list.length) return null;
  const rows = list.slice(-300).reverse().map((one) => element("li", {}, element("span", { class: "at" }, one.step === null ? "" : whole(one.step)),
    tag(one.sort), element("span", { class: "text" }, one.text)));
  return card(`Events (${list.length})`, "half", element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Events, newest first" }, element("ul", { class: "events" }, ...rows)));
}

function tag(sort) {
  return element("span", { class: "tag" }, swatch(markColor(sort)), SORTS[sort] ?? sort);
}

// Pictures and texts that the loop kept: the newest of each name, the earlier ones behind it.
export function samples(run, list) {
  if (!list.length) return null;
  const names = [...new Set(list.map((one) => one.name))];
  const picture = (one) => element("img", { src: `/api/picture?${new URLSearchParams({ run, name: one.name, step: one.step })}`, alt: `${one.name} at step ${whole(one.step)}`, loading: "lazy" });
  const shown = (one) => element("figure", {}, one.text === null ? picture(one) : element("pre", { tabindex: "0" }, one.text), element("figcaption", {}, `${one.name}, step ${whole(one.step)}`));
  return card("Samples", "full", element("div", { class: "samples" }, ...names.map((name) => {
    const [newest, ...earlier] = list.filter((one) => one.name === name);
    const more = earlier.length ? element("details", { id: `earlier-${encodeURIComponent(name)}` }, element("summary", {}, `earlier: ${earlier.length}`), element("div", { class: "samples" }, ...earlier.map(shown))) : null;
    return element("div", { class: "sample" }, shown(newest), more);
  })));
}

export function profile(entry) {
  const causes = Object.entries(entry?.causes ?? {}).filter((pair) => typeof pair[1] === "number" && pair[1] > 0).sort((a, b) => b[1] - a[1]);
  const offers = (entry?.findings ?? []).map((one) => `${one.text ?? ""}. ${one.fix ?? ""}${one.gain ? ` (${one.gain.toFixed(2)} ×)` : ""}`);
  const verdict = [entry?.bound, ...offers].filter(Boolean);
  if (!causes.length && !verdict.length) return null;
  const total = causes.reduce((sum, pair) => sum + pair[1], 0);
  const rows = causes.map(([name, spent]) => {
    const own = element("i", { class: "own" });
    own.style.cssText = `width: ${(100 * spent) / causes[0][1]}%; background: ${meaning(["cause"], name, 0)}`;
    return element("div", { class: "rank" }, element("span", {}, name.replaceAll("_", " ")), element("div", { class: "track" }, own), element("span", {}, `${seconds(spent)} · ${share(spent / total)}`));
  });
  return card("Where a step's time goes", "half", ...verdict.map((one) => element("p", {}, one)), element("div", { class: "causes" }, ...rows));
}

export function texts(facts) {
  const environment = Object.entries(facts.environment ?? {}).map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join("\n");
  const summary = Object.entries(facts.summary ?? {}).filter(([name, value]) => name !== "kind" && value !== null && value !== "nan").map(([name, value]) => `${name}: ${typeof value === "number" ? short(value) : value}`).join("\n");
  const plan = [facts.plan, facts.because ? `because: ${facts.because}` : null].filter(Boolean).join("\n");
  return [["Plan", plan, true], ["Result", summary, true], ["Environment", environment, false], ["Recipe", facts.recipe, false]]
    .filter((part) => part[1]).map(([name, text, open]) => element("section", { class: "card half" }, element("details", open ? { open: "", id: `text-${name}` } : { id: `text-${name}` }, element("summary", {}, name), element("pre", { tabindex: "0" }, text))));
}
