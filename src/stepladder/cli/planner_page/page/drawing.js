// What a forecast looks like: memory by owner and time by cause, fits or not, price, commands.
const get = (id) => document.getElementById(id);
const GIB = 2 ** 30;
// Owners and causes in the order of their bars; palette.css has the colour of each.
const OWNERS = ["parameters", "working", "gradients", "optimizer", "activations", "logits", "communication", "temporary", "context", "reserved"];
const CAUSES = ["matrix", "attention", "memory_bound", "communication", "bubble", "optimizer", "data", "host"];

export const short = (value) => (Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3))));
const gib = (bytes) => `${short(bytes / GIB)} GiB`;
const seconds = (value) => (value >= 1 ? `${short(value)} s` : value >= 1e-3 ? `${short(value * 1e3)} ms` : `${short(value * 1e6)} µs`);

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function showProblems(problems) {
  get("problems").replaceChildren(...problems.map((line) => make("p", {}, line)));
  get("problems").hidden = false;
  get("answer").classList.add("stale");
  get("verdict").replaceChildren(make("b", { class: "bad" }, "not a plan: "), problems[0]);
}

export function draw(answer) {
  const { forecast } = answer;
  get("problems").hidden = true;
  get("answer").classList.remove("stale");
  showVerdict(forecast);
  showHeadline(answer);
  showMemory(forecast);
  showTime(forecast);
  showRemedies(forecast.remedies);
  showNotes(answer);
  showCommands(answer.commands, forecast.fits);
}

function showVerdict(forecast) {
  const risky = forecast.fits && mayRunOut(forecast);
  const word = risky ? make("b", { class: "warn" }, "fits, and may run out") : forecast.fits ? make("b", { class: "good" }, "fits") : make("b", { class: "bad" }, "does not fit");
  const limit = forecast.memory_limit_bytes;
  const room = limit ? `${short(forecast.memory.peak_bytes / GIB)} of ${gib(limit)}` : gib(forecast.memory.peak_bytes);
  const step = forecast.time ? `, ${seconds(forecast.time.step_seconds)} a step` : ", time unknown";
  get("verdict").replaceChildren(word, ` · ${room}${step}`);
}

// Whether the upper end of the forecast passes the limit.
const mayRunOut = ({ peak_bytes: span, memory_limit_bytes: limit }) => Boolean(limit && span && span.high > limit);

function showHeadline({ forecast, price, parameters, active_parameters, model }) {
  const active = active_parameters < parameters ? `${short(active_parameters / 1e9)} B active` : "";
  const unit = forecast.unit;
  const known = (value, text) => (value === null ? "unknown" : text(value));
  const rows = [
    ["Model", `${short(parameters / 1e9)} B`, active || model],
    ["Devices", forecast.num_devices.toLocaleString("en"), forecast.cluster_dollars_per_hour === null ? "rent unknown" : `$${short(forecast.cluster_dollars_per_hour)} an hour`],
    ["Throughput", known(forecast.tokens_per_second_per_device, (rate) => short(rate)), `${unit}/s a device`],
    ["MFU", known(forecast.mfu, (share) => `${(100 * share).toFixed(1)} %`), "of the peak"],
    ["Price", known(forecast.dollars, (dollars) => `$${short(dollars)}`), `of ${many.format(forecast[unit])} ${unit}`],
    ["Energy", known(forecast.kilowatt_hours, (kwh) => (kwh >= 1000 ? `${short(kwh / 1000)} MWh` : `${short(kwh)} kWh`)), known(forecast.co2_kilograms, (kg) => (kg >= 1000 ? `${short(kg / 1000)} t CO2` : `${short(kg)} kg CO2`))],
  ];
  get("headline").title = price;
  get("headline").replaceChildren(...rows.map(([term, value, small]) => make("div", { class: "figure" }, make("dl", {}, make("dt", {}, term), make("dd", {}, value)), make("small", {}, small))));
}

function showMemory(forecast) {
  const { memory, memory_limit_bytes: limit, peak_bytes: span } = forecast;
  const whole = 1.04 * Math.max(memory.peak_bytes, limit ?? 0, span?.high ?? 0);
  const drawn = bar("owner", OWNERS, memory, whole, gib, "Memory by owner");
  if (limit) drawn.append(mark(limit / whole, `${gib(limit)} usable`));
  if (span) drawn.append(spanned(span, whole));
  const range = span ? `between ${short(span.low / GIB)} and ${gib(span.high)} nine times in ten` : "";
  const title = heading("memory-title", `Memory of the fullest device by owner: ${gib(memory.peak_bytes)}`, range);
  get("memory").replaceChildren(title, drawn, legend("owner", OWNERS, memory, memory.peak_bytes, gib));
}

function showTime(forecast) {
  const { time, step_seconds: span } = forecast;
  if (!time) {
    get("time").replaceChildren(heading("time-title", "Time of a step: unknown", "the table has no speed for this device; 'stepladder calibrate' there measures one"));
    return;
  }
  const whole = 1.04 * Math.max(time.step_seconds, span.high);
  const drawn = bar("cause", CAUSES, time, whole, seconds, "Time by cause");
  drawn.append(spanned(span, whole));
  const title = heading("time-title", `Time of a step by cause: ${seconds(time.step_seconds)}`, `between ${seconds(span.low)} and ${seconds(span.high)} nine times in ten`);
  get("time").replaceChildren(title, drawn, legend("cause", CAUSES, time, time.step_seconds, seconds));
}

const share = (percent) => (percent < 1 ? "< 1 %" : `${Math.round(percent)} %`);
const heading = (id, text, more) => make("h2", { id }, text, make("span", {}, more));
const colour = (kind, name) => `var(--${kind}-${name})`;
const many = new Intl.NumberFormat("en", { notation: "compact", compactDisplay: "long", maximumSignificantDigits: 3 });
const plain = (name) => name.replaceAll("_", " ");

function bar(kind, names, amounts, whole, write, label) {
  const pieces = names.map((name) => {
    const piece = make("i", { title: `${plain(name)}: ${write(amounts[name])}`, "data-part": name });
    piece.style.width = `${(100 * amounts[name]) / whole}%`;
    piece.style.background = colour(kind, name);
    piece.hidden = amounts[name] <= 0;
    return piece;
  });
  return make("div", { class: "measure" }, make("div", { class: "track", role: "img", "aria-label": `${label}; the list below has its numbers` }, ...pieces));
}

function mark(share, text) {
  const made = make("div", { class: share < 0.3 ? "over left" : "over" }, make("span", {}, text));
  made.style.left = `${100 * share}%`;
  return made;
}

function spanned({ low, high }, whole) {
  const made = make("div", { class: "span", title: "nine times in ten" });
  made.style.left = `${(100 * low) / whole}%`;
  made.style.width = `${(100 * (high - low)) / whole}%`;
  return made;
}

function legend(kind, names, amounts, whole, write) {
  const rows = names.filter((name) => amounts[name] > 0).sort((a, b) => amounts[b] - amounts[a]);
  return make("ul", { class: "parts" }, ...rows.map((name) => {
    const dot = make("span", { class: "swatch" });
    dot.style.background = colour(kind, name);
    return make("li", { "data-part": name }, dot, make("span", {}, plain(name)), make("span", {}, write(amounts[name])), make("span", { class: "share" }, share((100 * amounts[name]) / whole)));
  }));
}

// What to change of a plan that does not fit; nothing is sent for one that does.
function showRemedies(remedies) {
  get("remedies").hidden = !remedies;
  if (!remedies) return;
  const title = heading("remedies-title", "What to change, cheapest first", remedies.length ? "" : "no change of it fits: the button finds a plan that does");
  const columns = [["Change", ""], ["GiB a device", "n"], ["Fits", ""], ["Time a token", "n"], ["$ an hour", "n"], ["What else changes", ""]];
  const head = make("tr", {}, ...columns.map(([text, kind]) => make("th", { class: kind, scope: "col" }, text)));
  const rows = remedies.map(({ change, peak_bytes, fits, cost_per_token: cost, cluster_dollars_per_hour: rent, besides }) => {
    const cells = [change, short(peak_bytes / GIB), fits ? "yes" : "no", cost === null ? "unknown" : `${cost.toFixed(2)} ×`, rent === null ? "unknown" : short(rent), besides];
    return make("tr", {}, ...cells.map((text, index) => make("td", { class: columns[index][1] }, text)));
  });
  const table = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": "remedies-title" }, make("table", {}, head, ...rows));
  get("remedies").replaceChildren(title, ...(rows.length ? [table] : []));
}

function showNotes({ forecast, price, rent, cluster, assumptions }) {
  const risk = forecast.fits && mayRunOut(forecast) ? [`The upper end, ${gib(forecast.peak_bytes.high)}, passes the limit of ${gib(forecast.memory_limit_bytes)}: it may run out of memory. A smaller micro-batch or recomputation leaves more room.`] : [];
  const lines = [...risk, ...forecast.reasons, price, rent, cluster, ...assumptions.map((one) => `assumed: ${one}`)];
  get("notes").replaceChildren(...lines.map((line) => make("p", {}, line)));
  get("notes").hidden = false;
}

function showCommands({ plan, train }, fits) {
  const rows = [["forecast this plan", plan]];
  if (fits) rows.push([train.includes("--nodes") ? "train with it, on each machine" : "train with it", train || "# there is no built-in module of this model: it is only planned"]);
  get("commands").replaceChildren(...rows.map(([what, text]) => {
    const copy = make("button", { type: "button", "aria-label": `Copy the command: ${what}` }, "copy");
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(text);
      copy.textContent = "copied";
    });
    return make("div", { class: "command" }, make("h3", {}, what), make("pre", { tabindex: "0" }, text), copy);
  }));
}
