// The page: which runs are looked at, over which steps, and what the server is asked for when.
import { Chart, element, key, swatch } from "./chart.js";
import { series as seriesColour } from "./colours.js";
import { lastStep, linesOf, loggedCharts, SECTIONS, settings } from "./curves.js";
import { whole } from "./format.js";
import * as panels from "./panels.js";

const get = (id) => document.getElementById(id);
const EVERY = 1000; // ms between questions
const FEW = 4; // runs that are compared without being asked for
let listings = [];
let chosen = null; // names; the first is the one whose numbers and details are shown
let range = null; // [first, last], or all
const held = new Map(); // name -> {series, facts, revision, asked}
let answered = true;

const hub = {
  step: null,
  point(step, chart = null, event = null) {
    this.step = step;
    for (const one of charts) { one.cursor(step); one.root.hidden || one.tellNow(step); }
    showTip(step, chart, event);
  },
  look(next) {
    range = next;
    this.point(null); // a cursor from before would stand at another step
    remember();
    refresh(true);
  },
};

const charts = [];
function build() {
  for (const section of SECTIONS) {
    const made = section.charts.map((spec) => new Chart(spec, hub));
    charts.push(...made);
    section.root = element("section", { class: "section", "aria-label": section.title, hidden: "" }, element("h2", {}, section.title), element("div", { class: "grid" }, ...placed(made)));
    section.made = made;
    get("curves").append(section.root);
  }
  get("details").append(element("h2", {}, "The run"), element("div", { class: "grid", id: "cards" }));
}

// A wide chart has the next two beside it, one above the other.
function placed(made) {
  const roots = made.map((one) => one.root);
  return made[0]?.spec.size === "wide" ? [roots[0], element("div", { class: "side" }, ...roots.slice(1, 3)), ...roots.slice(3)] : roots;
}

function addLogged(runs) {
  const section = SECTIONS.find((one) => one.title === "Logged");
  for (const spec of loggedCharts(runs).filter((spec) => !section.made.some((chart) => chart.spec.id === spec.id))) {
    const chart = new Chart(spec, hub);
    charts.push(chart);
    section.made.push(chart);
    section.root.querySelector(".grid").append(chart.root);
  }
}

function showTip(step, chart, event) {
  const tip = get("tip");
  if (step === null || !chart) { tip.hidden = true; return; }
  const rows = chart.values(step);
  const near = chart.spec.events ? chart.view.events.filter((one) => Math.abs(chart.x(one.step) - chart.x(step)) < 5).slice(-3) : [];
  const parts = rows.map((row) => element("div", {}, row.stack ? swatch(row.line.color) : key(row.line), element("span", {}, row.label), element("span", {}, row.text)));
  tip.replaceChildren(element("b", {}, `step ${whole(step)}`), ...parts, ...near.map((one) => element("em", {}, `${whole(one.step)}: ${one.text}`)));
  get("readout").textContent = event ? "" : `step ${step}: ${rows.map((row) => `${row.label} ${row.text}`).join(", ")}`;
  tip.hidden = false;
  const box = chart.plot.getBoundingClientRect();
  const at = event ? event.clientX : box.left + chart.x(step);
  const top = event ? event.clientY : box.top + 24;
  const size = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, at + 16 + size.width > innerWidth ? at - size.width - 16 : at + 16)}px`;
  tip.style.top = `${Math.max(6, Math.min(top + 14, innerHeight - size.height - 6))}px`;
}

async function ask(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${response.status} ${await response.text()}`);
  return response.json();
}

async function refresh(force = false) {
  try {
    listings = await ask("/api/runs");
    choose();
    const points = Math.max(200, Math.min(1200, Math.round(innerWidth * 0.6)));
    await Promise.all(chosen.map((name) => follow(name, points, force)));
    answered = true;
  } catch (problem) {
    if (!(problem instanceof TypeError)) console.error(problem);
    answered = false;
  }
  show();
}

async function follow(name, points, force) {
  const listing = listings.find((one) => one.name === name);
  const before = held.get(name);
  if (!force && before && before.revision === listing?.revision && before.state === listing?.state) return;
  const run = encodeURIComponent(name);
  const asked = range;
  const part = asked ? `&first=${asked[0]}&last=${asked[1]}` : "";
  const [series, facts] = await Promise.all([ask(`/api/series?run=${run}&points=${points}${part}`), ask(`/api/facts?run=${run}`)]);
  if (asked !== range) return; // a late answer about other steps than are looked at by now
  held.set(name, { series, facts, revision: Math.min(series.revision, facts.revision), state: facts.state });
}

function choose() {
  const names = listings.map((one) => one.name);
  if (chosen) chosen = chosen.filter((name) => names.includes(name));
  if (chosen?.length || !names.length) return (chosen ??= []);
  const wanted = new URLSearchParams(location.hash.slice(1));
  chosen = wanted.getAll("run").filter((name) => names.includes(name));
  if (wanted.get("steps") && range === null) range = wanted.get("steps").split("-").map(Number);
  if (!range?.every(Number.isFinite)) range = null;
  const live = (one) => (one.state === "live" ? 1 : 0);
  const newest = [...listings].sort((a, b) => live(b) - live(a) || b.changed - a.changed).map((one) => one.name);
  if (!chosen.length) chosen = newest.slice(0, names.length <= FEW ? FEW : 1);
}

// Show a run's numbers and details; it is compared with the others as before.
function select(name) {
  chosen = [name, ...chosen.filter((one) => one !== name)];
  remember();
  show();
}

function remember() {
  const kept = new URLSearchParams(chosen.map((name) => ["run", name]));
  if (range) kept.set("steps", range.join("-"));
  history.replaceState(null, "", `#${kept}`);
}

const colorOf = (name) => seriesColour(listings.findIndex((one) => one.name === name));

function show() {
  const runs = chosen?.filter((name) => held.has(name)).map((name) => ({ name, color: colorOf(name), ...held.get(name) })) ?? [];
  showChips();
  showNotice(runs);
  showEmpty(runs);
  if (!runs.length) return;
  const main = runs[0];
  settings.unit = main.facts.unit;
  settings.memoryLimit = main.facts.memory?.limit_bytes ?? null;
  settings.device = main.facts.device?.source ?? null;
  const last = range?.[1] ?? lastStep(runs);
  const view = { first: range?.[0] ?? 0, last, end: Math.min(last, lastStep([main])), events: main.facts.events.filter((one) => one.step !== null).map((one) => ({ ...one, color: panels.markColor(one.sort) })) };
  addLogged(runs);
  drawFrom(0, runs, view);
  get("headline").replaceChildren(...panels.headline(main.facts, listings.length > 1 ? main.name : "Run"));
  get("compare").hidden = runs.length < 2;
  if (runs.length > 1) showComparison(runs, main);
  document.title = `${main.name} · stepladder`;
  showRange(main);
}

// What there is to see, where there are no curves: nothing here, or nothing yet.
function showEmpty(runs) {
  const steps = runs.some((run) => Object.values(run.series).some((table) => table.steps?.length));
  const said = !listings.length && answered ? ["No run here yet.", "The page looks for one every few seconds. Start one with:", "stepladder train --run.folder FOLDER/first"]
    : runs.length && !steps ? [`${runs[0].name} has not reported a step yet.`, runs[0].facts.state === "silent" ? "It wrote its last line a while ago, and may have been ended." : "Curves appear with the first report."] : null;
  get("empty").hidden = !said;
  get("details").hidden = get("headline").hidden = !runs.length;
  if (said) get("empty").replaceChildren(element("h2", {}, said[0]), element("p", {}, said[1]), said[2] ? element("pre", {}, said[2]) : null);
}

function showComparison(runs, main) {
  const focused = document.activeElement?.dataset?.select;
  const shown = [...runs].sort((a, b) => listings.findIndex((one) => one.name === a.name) - listings.findIndex((one) => one.name === b.name));
  get("compare").replaceChildren(panels.comparison(shown, main.name, select));
  if (focused) [...get("compare").querySelectorAll("[data-select]")].find((one) => one.dataset.select === focused)?.focus({ preventScroll: true });
}

// Section by section, the browser painting in between: what is on top is seen first.
function drawFrom(place, runs, view) {
  clearTimeout(drawFrom.next);
  const section = SECTIONS[place];
  section.made.forEach((chart) => chart.draw(linesOf(chart.spec, runs), view));
  section.root.hidden = section.made.every((chart) => chart.root.hidden);
  const side = section.root.querySelector(".side");
  if (side) side.hidden = [...side.children].every((one) => one.hidden);
  if (place + 1 < SECTIONS.length) drawFrom.next = setTimeout(() => drawFrom(place + 1, runs, view));
  else {
    showCards(runs[0]);
    document.body.dataset.drawn = view.last; // for whoever waits until all of it is there
  }
}

function showCards(main) {
  if (main.facts === showCards.shown) return; // what did not change keeps its place and focus
  showCards.shown = main.facts;
  const opened = new Map([...document.querySelectorAll("details[id]")].map((one) => [one.id, one.open]));
  const { facts } = main;
  const wide = [panels.samples(main.name, facts.samples), panels.timeline(facts.timeline)];
  const others = [panels.forecast(facts.comparison), panels.ranks(facts.ranks, facts.ranks_verdict), panels.profile(facts.profile), panels.events(facts.events), ...panels.texts(facts)];
  const columns = element("div", { class: "columns" }, ...others); // each as high as what is in it
  const focused = document.activeElement?.getAttribute?.("aria-label");
  get("cards").replaceChildren(...wide.filter(Boolean), columns);
  get("details").querySelector("h2").textContent = listings.length > 1 ? `The run: ${main.name}` : "The run";
  for (const [id, open] of opened) if (get(id)) get(id).open = open;
  if (focused) [...get("cards").querySelectorAll("[aria-label]")].find((one) => one.getAttribute("aria-label") === focused)?.focus({ preventScroll: true });
}

function showRange(main) {
  get("range").hidden = !range;
  const each = main.series.step.rows_per_point;
  if (range) get("rangetext").textContent = `steps ${whole(range[0])} to ${whole(range[1])}${each > 1 ? `, a point is up to ${whole(each)} reports` : ""}`;
}

function showNotice(runs) {
  const said = [];
  if (!answered) said.push("The server does not answer; what you see is what it said last. Trying again.");
  if (listings.length && !runs.length && answered) said.push("Choose a run above.");
  for (const run of runs) {
    const listing = listings.find((one) => one.name === run.name) ?? {};
    if (listing.read < 0.999) said.push(`${run.name}: ${Math.floor(100 * listing.read)} % of the journal is read.`);
    if (run.facts.bad_lines) said.push(`${run.name}: ${run.facts.bad_lines} line${run.facts.bad_lines > 1 ? "s" : ""} of the journal could not be read and ${run.facts.bad_lines > 1 ? "were" : "was"} passed over.`);
    if (run.facts.state === "empty") said.push(`${run.name}: nothing is written yet.`);
    if (run.facts.failure) said.push(`${run.name} ended by ${run.facts.failure}`);
  }
  get("notice").hidden = !said.length;
  get("notice").textContent = said.join(" ");
}

function showChips() {
  const row = get("runs");
  const sign = JSON.stringify(listings.map((one) => [one.name, one.state, chosen.includes(one.name)]));
  if (row.dataset.sign === sign) return;
  row.dataset.sign = sign;
  const focused = document.activeElement?.dataset?.run;
  row.replaceChildren(...listings.map((listing) => {
    const on = chosen.includes(listing.name);
    const dot = element("span", { class: "dot" });
    if (on) dot.style.background = colorOf(listing.name);
    const chip = element("button", { class: "chip", type: "button", "aria-pressed": String(on), "data-run": listing.name }, dot, listing.name, listing.state ? element("small", {}, listing.state) : null);
    chip.addEventListener("click", () => toggle(listing.name));
    return chip;
  }));
  if (focused) [...row.children].find((one) => one.dataset.run === focused)?.focus();
  else row.scrollLeft = (row.querySelector("[aria-pressed=true]")?.offsetLeft ?? 0) - row.offsetLeft - 12; // a phone shows few of many
}

function toggle(name) {
  if (chosen.includes(name) && chosen.length > 1) chosen = chosen.filter((one) => one !== name);
  else if (!chosen.includes(name)) chosen = [...chosen, name];
  remember();
  refresh();
}

function setTheme(next) {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = next === "system" ? system : next;
  get("theme").textContent = `theme: ${next}`;
  try { localStorage.setItem("stepladder-theme", next); } catch { /* a browser may keep nothing */ }
  setTheme.now = next;
}

function start() {
  let kept = null;
  try { kept = localStorage.getItem("stepladder-theme"); } catch { /* see above */ }
  setTheme(["light", "dark"].includes(kept) ? kept : "system");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(setTheme.now));
  get("theme").addEventListener("click", () => setTheme({ system: "dark", dark: "light", light: "system" }[setTheme.now]));
  get("log").addEventListener("click", () => { settings.log = !settings.log; get("log").setAttribute("aria-pressed", settings.log); show(); });
  get("smooth").addEventListener("input", (event) => { settings.smooth = event.target.value / 100; show(); });
  get("whole").addEventListener("click", () => hub.look(null));
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  build();
  const turn = async () => {
    if (!document.hidden) await refresh();
    setTimeout(turn, EVERY);
  };
  turn();
}

start();
