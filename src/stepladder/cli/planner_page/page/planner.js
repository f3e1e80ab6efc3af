// The planner's page: a form whose every change asks our own planner again.
import { draw, showProblems } from "./drawing.js";
import { ask } from "./planner_source.js";

const get = (id) => document.getElementById(id);
const WAIT = 60; // ms after a change before the planner is asked
const fields = new Map(); // name -> its input or select
let choices = null;

// name, label, and for a number the highest power of two of its slider.
const LAYOUT = {
  model: [["model", "Model"], ["family", "Family"], ["layers", "Layers", 8], ["hidden", "Hidden", 15], ["heads", "Heads", 8], ["kv_heads", "KV heads", 8], ["ffn", "MLP width", 16], ["vocab", "Vocabulary", 18]],
  devices: [["device", "Device"], ["per_node", "In a node", 4], ["nodes", "Nodes", 11], ["links", "Links, host, cap"], ["price", "$ a device-hour"]],
  batch: [["sequence", "Sequence", 17], ["batch", "Batch", 13], ["accumulate", "Accumulation", 10], ["tokens", "Tokens priced"]],
  plan: [["precision", "Precision"], ["data", "Data parallel"], ["copies", "Copies", 10], ["tensor", "Tensor", 6], ["pipeline", "Pipeline", 7], ["context", "Context", 7], ["recompute", "Recomputation"], ["schedule", "Schedule"], ["offload", "Offload"], ["compile", "Compile"], ["kernels", "Own kernels"]],
};
const OWN = ["family", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab"];
const HINTS = {
  links: "such as 400 Gb/s per GPU, 2048 GiB host, 500 W", price: "dollars for one device and hour; empty: the dated table's", tokens: "tokens, or samples for images", copies: "copies of the sharded state (hybrid sharding)",
  accumulate: "micro-batches of one step", batch: "sequences of one step, over all devices",
};

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function addField(home, [name, label, highest]) {
  const row = make("div", { class: "field", "data-field": name }, make("label", { for: `field-${name}` }, label));
  const hint = HINTS[name] ? { title: HINTS[name] } : {};
  if (choices[name]) {
    const select = make("select", { id: `field-${name}`, name, ...hint }, ...choices[name].map((one) => make("option", { value: one }, name === "model" && one === "own" ? "own numbers" : one)));
    row.append(select);
    fields.set(name, select);
  } else {
    const input = make("input", { id: `field-${name}`, name, class: highest ? "number" : "text", type: "text", ...hint });
    if (highest) row.append(sliderOf(name, label, highest, input));
    row.append(input);
    fields.set(name, input);
  }
  home.append(row);
}

// A slider over powers of two beside the number itself, which may be any.
function sliderOf(name, label, highest, input) {
  const slider = make("input", { type: "range", min: "0", max: String(highest), step: "1", "aria-label": `${label}, slider` });
  slider.addEventListener("input", () => {
    input.value = String(2 ** Number(slider.value));
    slider.setAttribute("aria-valuetext", input.value);
    changed(name);
  });
  input.follow = () => {
    slider.value = String(Math.round(Math.log2(Math.max(1, Number(input.value) || 1))));
    slider.setAttribute("aria-valuetext", input.value);
  };
  return slider;
}

const held = () => Object.fromEntries([...fields].map(([name, input]) => [name, input.value]));

function fill(values) {
  for (const [name, value] of Object.entries(values)) {
    const input = fields.get(name);
    if (!input) continue;
    if (input.tagName === "SELECT" && ![...input.options].some((one) => one.value === String(value))) input.append(make("option", { value }, value));
    input.value = String(value);
    input.follow?.();
  }
  showFields();
}

// Fields that say nothing of the model or plan that is chosen are not shown.
function showFields() {
  const values = held();
  const shown = (name) => {
    if (OWN.includes(name)) return values.model === "own";
    if (name === "sequence") return values.model === "own" || values.model in choices.sequences;
    if (name === "copies") return values.data !== "ddp";
    if (name === "schedule") return values.pipeline !== "1";
    return true;
  };
  for (const row of document.querySelectorAll(".field")) row.hidden = !shown(row.dataset.field);
}

let chosenModel = null;
function changed(name) {
  if (name === "model") {
    const next = fields.get("model").value;
    if (next === "own") fill(choices.shapes[chosenModel] ?? {});
    else if (next in choices.sequences) fill({ sequence: choices.sequences[next] });
    chosenModel = next;
  }
  showFields();
  planAgain();
}

let timer = null, asked = 0;
function planAgain() {
  clearTimeout(timer);
  timer = setTimeout(redraw, WAIT);
}

async function redraw() {
  const question = (asked += 1);
  const values = held();
  history.replaceState(null, "", `#${new URLSearchParams(values)}`);
  const answer = await asking("forecast", values);
  if (question !== asked) return; // a later one is under way
  if (answer.problems) showProblems(answer.problems);
  else draw(answer);
  document.body.dataset.drawn = String(question);
}

async function asking(question, values) {
  try {
    return await ask(question, values);
  } catch {
    return { problems: ["The planner does not answer: 'stepladder plan --page' has ended."] };
  }
}

async function findFastest() {
  const button = get("fastest");
  const said = button.textContent;
  button.disabled = true;
  button.textContent = "Searching…";
  const answer = await asking("fastest", held());
  button.disabled = false;
  button.textContent = said;
  button.focus();
  if (answer.problems) return showProblems(answer.problems);
  fill(answer.fields);
  planAgain();
}

const THEMES = ["system", "light", "dark"];
const stored = () => { try { return localStorage.getItem("theme") ?? "system"; } catch { return "system"; } };
function showTheme(theme) {
  const dark = theme === "dark" || (theme === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  get("theme").textContent = `theme: ${theme}`;
  try { localStorage.setItem("theme", theme); } catch { /* a page from a disk may have no storage */ }
}

async function begin() {
  showTheme(stored());
  get("theme").addEventListener("click", () => showTheme(THEMES[(THEMES.indexOf(stored()) + 1) % THEMES.length]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => showTheme(stored()));
  choices = await ask("choices", {});
  for (const [section, rows] of Object.entries(LAYOUT)) rows.forEach((row) => addField(get(`fields-${section}`), row));
  fill({ ...choices.start, ...Object.fromEntries(new URLSearchParams(location.hash.slice(1))) });
  chosenModel = fields.get("model").value;
  get("form").addEventListener("submit", (event) => event.preventDefault());
  for (const [name, input] of fields) input.addEventListener("input", () => { input.follow?.(); changed(name); });
  get("fastest").addEventListener("click", findFastest);
  redraw();
}

begin();
