// What is not a curve: numbers at the top, forecast against measured, ranks, timeline, events, texts.
import { element, shape, swatch } from "./chart.js";
import { color } from "./curves.js";
import { bytes, seconds, share, short, whole } from "./format.js";

const UNITS = { s: seconds, B: bytes, "/s": (value) => short(value) };
const SORTS = { save: "saved", restart: "restart", skipped: "skipped", spike: "spike", memory: "memory", failure: "failure", nonfinite: "not finite", slow: "slow rank", note: "note" };
export const markColor = (sort) => ({ save: "var(--c2)", restart: "var(--c0)", skipped: "var(--c4)", spike: "var(--c4)", memory: "var(--c3)", slow: "var(--c6)", failure: "var(--bad)", nonfinite: "var(--bad)" })[sort] ?? "var(--soft)";

export function headline(facts, listing, several) {
  const newest = facts.newest ?? {};
  const limit = facts.memory?.limit_bytes;
  const done = listing.step === null || listing.step === undefined ? 0 : listing.step + 1;
  const left = listing.steps && newest.seconds && facts.state === "live" ? (listing.steps - done) * newest.seconds : null;
  const state = element("span", { class: `state ${facts.state}` }, facts.state);
  const cells = [
    figure(several ? listing.name : "Run", state, left !== null && left > 0 ? `${seconds(left)} left` : null),
    figure("Step", whole(done), listing.steps ? `of ${whole(listing.steps)}` : null, listing.steps ? done / listing.steps : null),
    figure("Loss", short(newest.loss)),
    figure("Validation", short(listing.validation)),
    figure("Tokens a second", short(newest.tokens_per_second)),
    figure("MFU", newest.mfu === null || newest.mfu === undefined ? "unknown" : share(newest.mfu)),
    figure("Step time", seconds(newest.seconds)),
    figure("Peak memory", bytes(newest.memory_bytes), limit ? `of ${bytes(limit)}` : null, limit ? newest.memory_bytes / limit : null),
  ];
  return cells;
}

function figure(name, value, note = null, full = null) {
  const made = element("dl", { class: "figure" }, element("dt", {}, name), element("dd", {}, value), element("small", {}, note ?? ""));
  made.style.margin = "0";
  if (full !== null) {
    const filled = element("i");
    filled.style.width = `${Math.min(100, 100 * full).toFixed(1)}%`;
    made.append(element("div", { class: "bar" }, filled));
  }
  return made;
}

// Several runs side by side, the best loss and the best rate told.
export function comparison(runs, listings) {
  const rows = runs.map((run) => ({ ...run, listing: listings.find((one) => one.name === run.name) ?? {}, newest: run.facts.newest ?? {} }));
  const best = (pick, better) => better(...rows.map(pick).filter((value) => typeof value === "number"));
  const [loss, rate] = [best((row) => row.listing.validation, Math.min), best((row) => row.newest.tokens_per_second, Math.max)];
  const cell = (text, is = false) => element("td", { class: `n ${is ? "good" : ""}` }, text);
  const head = ["", "step", "loss", "validation", "tokens/s", "MFU", "step time", "peak memory"];
  const body = rows.map((row) => element("tr", {}, element("td", {}, element("span", { class: "state-name" }, swatch(row.color), row.name)),
    cell(whole((row.listing.step ?? -1) + 1)), cell(short(row.newest.loss)), cell(short(row.listing.validation), row.listing.validation === loss), cell(short(row.newest.tokens_per_second), row.newest.tokens_per_second === rate),
    cell(row.newest.mfu === null || row.newest.mfu === undefined ? "unknown" : share(row.newest.mfu)), cell(seconds(row.newest.seconds)), cell(bytes(row.newest.memory_bytes))));
  return element("div", { class: "scroll", tabindex: "0", "aria-label": "Comparison of the runs" }, element("table", { id: "comparison" },
    element("thead", {}, element("tr", {}, ...head.map((name, index) => element("th", { class: index ? "n" : "", scope: "col" }, name)))), element("tbody", {}, ...body)));
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
  const head = element("tr", {}, element("th", { scope: "col" }, ""), ...["forecast", "measured", "off"].map((name) => element("th", { class: "n", scope: "col" }, name)));
  return card("Forecast against measured", "half", element("div", { class: "scroll", tabindex: "0", "aria-label": "Forecast against measured" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...body))));
}

const far = (value) => (value >= 9 ? `× ${whole(value + 1)}` : `${value > 0.0005 ? "+" : ""}${(100 * value).toFixed(1).replace("-0.0", "0.0")} %`);

export function ranks(rows) {
  if (rows.length < 2) return null;
  const most = Math.max(...rows.map((row) => row.own_seconds + (row.wait_seconds ?? 0)));
  const usual = [...rows].map((row) => row.own_seconds).sort((a, b) => a - b)[Math.floor(rows.length / 2)];
  const slow = rows.filter((row) => row.straggles);
  const lines = rows.map((row) => {
    const [own, wait] = [element("i", { class: "own" }), element("i", { class: "wait" })];
    own.style.width = `${(100 * row.own_seconds) / most}%`;
    wait.style.width = `${(100 * (row.wait_seconds ?? 0)) / most}%`;
    const note = `${seconds(row.own_seconds)}${row.wait_seconds === null ? "" : ` + ${seconds(row.wait_seconds)}`}${row.memory_bytes === null ? "" : ` · ${bytes(row.memory_bytes)}`}`;
    return element("div", { class: `rank ${row.straggles ? "slow" : ""}` }, element("span", {}, `rank ${row.rank}`), element("div", { class: "track" }, own, wait), element("span", {}, note));
  });
  const said = slow.length ? `${slow.map((row) => `rank ${row.rank}`).join(", ")} holds the others up: ${Math.round(100 * (slow[0].own_seconds / usual - 1))} % more work than the median` : "no rank holds the others up";
  return card("Ranks: own work and waiting for others", "half", element("p", { class: `legend ${slow.length ? "bad" : ""}` }, said),
    element("div", { class: "scroll", tabindex: "0", "aria-label": `Ranks. ${said}` }, ...lines));
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
      const box = shape("rect", { x: x(span.start), y: row * tall + 2, width: size, height: tall - 4, rx: 2, fill: color(families.indexOf(family(span.name))) });
      box.append(shape("title", {}, `rank ${lane.rank} · ${span.name} · ${seconds(span.seconds)} from ${seconds(span.start - begin)}`));
      plot.append(box);
      if (size > 8 * span.name.length) plot.append(shape("text", { class: "in", x: x(span.start) + size / 2, y: row * tall + 15.5, "text-anchor": "middle" }, span.name));
    }
  });
  for (const part of [0, 0.25, 0.5, 0.75, 1])
    plot.append(shape("text", { x: x(begin + part * (end - begin)), y: lanes.length * tall + 15, "text-anchor": part === 1 ? "end" : "middle" }, seconds(part * (end - begin))));
  const legend = element("ul", { class: "legend" }, ...families.slice(0, 10).map((name, index) => element("li", {}, swatch(color(index)), name)));
  return card(`Timeline of step ${whole(entry.step)}`, "full", plot, legend);
}
const family = (name) => String(name).replace(/[\s_#:]*\d+$/, "") || String(name);

export function events(list) {
  if (!list.length) return null;
  const rows = list.slice(-300).reverse().map((one) => element("li", {}, element("span", { class: "at" }, one.step === null ? "" : whole(one.step)),
    element("span", { class: `tag ${one.sort}` }, SORTS[one.sort] ?? one.sort), element("span", { class: "text" }, one.text)));
  return card(`Events (${list.length})`, "half", element("div", { class: "scroll", tabindex: "0", "aria-label": "Events, newest first" }, element("ul", { class: "events" }, ...rows)));
}

export function profile(entry) {
  const causes = Object.entries(entry?.causes ?? {}).filter((pair) => typeof pair[1] === "number" && pair[1] > 0).sort((a, b) => b[1] - a[1]);
  const offers = (entry?.findings ?? []).map((one) => `${one.text ?? ""}. ${one.fix ?? ""}${one.gain ? ` (${one.gain.toFixed(2)} ×)` : ""}`);
  const verdict = [entry?.bound, ...offers].filter(Boolean);
  if (!causes.length && !verdict.length) return null;
  const total = causes.reduce((sum, pair) => sum + pair[1], 0);
  const rows = causes.map(([name, spent]) => {
    const own = element("i", { class: "own" });
    own.style.width = `${(100 * spent) / causes[0][1]}%`;
    return element("div", { class: "rank" }, element("span", {}, name.replaceAll("_", " ")), element("div", { class: "track" }, own), element("span", {}, `${seconds(spent)} · ${share(spent / total)}`));
  });
  return card("Where a step's time goes", "half", ...verdict.map((one) => element("p", {}, one)), element("div", { class: "causes" }, ...rows));
}

export function texts(facts) {
  const environment = Object.entries(facts.environment ?? {}).map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join("\n");
  const summary = Object.entries(facts.summary ?? {}).filter(([name]) => name !== "kind").map(([name, value]) => `${name}: ${value === null ? "unknown" : typeof value === "number" ? short(value) : value}`).join("\n");
  const plan = [facts.plan, facts.because ? `because: ${facts.because}` : null].filter(Boolean).join("\n");
  return [["Plan", plan, true], ["Result", summary, true], ["Environment", environment, false], ["Recipe", facts.recipe, false]]
    .filter((part) => part[1]).map(([name, text, open]) => element("section", { class: "card half" }, element("details", open ? { open: "", id: `text-${name}` } : { id: `text-${name}` }, element("summary", {}, name), element("pre", {}, text))));
}
