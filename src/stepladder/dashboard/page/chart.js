// Curves over steps: a line for the mean, a band from lowest to highest, one cursor for all charts.
import { byteTicks, bytes, exponential, logTicks, short, ticks, whole } from "./format.js";

const SPACE = "http://www.w3.org/2000/svg";
const EDGE = { left: 58, right: 14, top: 10, bottom: 34 };
const NAMED = 5; // lines that carry their names at their ends; more have a legend
const LONGEST = 20; // letters of such a name
const ROOMY = 420; // px: a narrower chart has no place for names

export function shape(name, attributes = {}, text) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) value === null || made.setAttribute(key, value);
  made.append(...children.filter((one) => one !== null && one !== undefined));
  return made;
}
export const swatch = (color) => {
  const made = element("span", { class: "swatch" });
  made.style.background = color;
  return made;
};
// The key of a line, with its stroke and dots, as it is drawn.
export function key(line) {
  const made = shape("svg", { class: "key", viewBox: "0 0 22 8", width: 22, height: 8, "aria-hidden": "true" });
  const stroke = shape("line", { x1: 0, x2: 22, y1: 4, y2: 4, stroke: line.color, "stroke-width": 2 });
  if (line.dash) stroke.setAttribute("stroke-dasharray", line.dash);
  made.append(stroke);
  if (line.dots) made.append(shape("circle", { cx: 11, cy: 4, r: 2.6, fill: line.color }));
  return made;
}

export class Chart {
  constructor(spec, hub) {
    this.spec = spec;
    this.hub = hub; // hears of cursors and of ranges to look at
    this.lines = [];
    this.now = element("span", { class: "now" });
    this.title = element("span", {}, spec.title);
    this.plot = shape("svg", { class: "plot", tabindex: "0", role: "img", "aria-label": spec.title });
    this.legend = element("ul", { class: "legend" });
    this.root = element("figure", { class: `card ${spec.size ?? ""} ${spec.stack ? "stacked" : ""}`, id: `chart-${spec.id}`, hidden: "" },
      element("h3", {}, this.title, this.now), this.plot, this.legend);
    new ResizeObserver(() => this.paint()).observe(this.plot);
    this.listen();
  }

  draw(lines, view) {
    this.lines = this.spec.stack ? stacked(lines.map((line) => held(line, view.end))) : lines;
    this.view = view;
    this.title.textContent = this.spec.title + (this.spec.unit ? `, ${this.spec.unit()}` : "");
    this.root.hidden = !this.lines.some((line) => pointsIn(line, view) >= (this.spec.least ?? 1));
    if (this.root.hidden) return;
    this.names = !this.spec.stack && lines.length > 1 && lines.length <= NAMED && nameable(lines, view);
    const told = lines.length > 1 || this.spec.means; // a colour that means something says what
    const items = lines.map((line) => element("li", {}, this.spec.stack ? swatch(line.color) : key(line), line.label));
    this.legend.replaceChildren(...(told ? items : []), ...(lines[0]?.note ? [element("li", {}, lines[0].note)] : []));
    this.tellNow(null);
    this.paint();
  }

  tellNow(step) {
    const parts = this.lines.slice(0, this.spec.stack ? 0 : 3).map((line) => {
      const at = step === null ? lastKnown(line.mean) : valueAt(line, step);
      return at < 0 ? "–" : this.spec.format(line.mean[at]);
    });
    if (this.spec.stack && this.lines.length) {
      const top = this.lines[this.lines.length - 1];
      const at = step === null ? top.high.length - 1 : nearest(top.steps, step);
      parts.push(at < 0 ? "–" : this.spec.format(top.high[at]));
    }
    this.now.textContent = parts.join("  ·  ");
    this.plot.setAttribute("aria-label", `${this.spec.title}: ${this.lines.map((line, i) => `${line.label} ${parts[i] ?? ""}`).join(", ")}. Arrow keys read values, plus and minus zoom, Escape shows all.`);
  }

  // The picture, from scratch: a few hundred points redraw in a millisecond or two.
  paint() {
    const { width, height } = this.plot.getBoundingClientRect();
    if (!width || !this.view || this.root.hidden) return;
    this.width = width;
    this.height = height;
    const named = this.names && width >= ROOMY;
    this.legend.hidden = named;
    this.right = named ? 20 + 6.2 * Math.max(...this.lines.map((line) => line.label.length)) : EDGE.right;
    this.setScales();
    const parts = [...this.axes(), this.within(this.lines.flatMap((line) => this.curve(line))), ...this.limit(), ...this.marks(), ...(named ? this.endNames() : [])];
    this.plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.plot.replaceChildren(...parts);
    this.cursor(this.hub.step);
  }

  setScales() {
    const { first, last } = this.view;
    const inner = this.width - EDGE.left - this.right;
    this.x = (step) => EDGE.left + (last > first ? (step - first) / (last - first) : 0.5) * inner;
    this.stepAt = (x) => first + Math.min(1, Math.max(0, (x - EDGE.left) / inner)) * (last - first);
    let [low, high] = extent(this.lines);
    const limit = this.spec.limit?.();
    if (limit && high > limit * 0.4) high = Math.max(high, limit * 1.04);
    this.log = this.spec.log?.() && low > 0;
    if (this.spec.zero && low >= 0) low = 0;
    if (low === high) { low -= Math.abs(low) * 0.1 || 0.5; high += Math.abs(high) * 0.1 || 0.5; }
    const pad = this.log ? 0 : (high - low) * 0.05;
    this.low = this.spec.zero && low === 0 ? 0 : this.log ? low * 0.97 : low - pad;
    this.high = this.log ? high * 1.03 : high + pad;
    const tall = this.height - EDGE.top - EDGE.bottom;
    const position = this.log
      ? (value) => (Math.log(value) - Math.log(this.low)) / (Math.log(this.high) - Math.log(this.low))
      : (value) => (value - this.low) / (this.high - this.low);
    this.y = (value) => EDGE.top + tall * (1 - Math.min(1.02, Math.max(-0.02, position(value))));
  }

  axes() {
    const rows = Math.max(2, Math.floor(this.height / 42));
    const values = this.log ? logTicks(this.low, this.high) : (this.spec.format === bytes ? byteTicks : ticks)(this.low, this.high, rows);
    const text = distinct(values, this.spec.format);
    const made = values.flatMap((value, index) => [
      shape("line", { class: "gridline", x1: EDGE.left, x2: this.width - this.right, y1: this.y(value), y2: this.y(value) }),
      shape("text", { x: EDGE.left - 8, y: this.y(value) + 4, "text-anchor": "end" }, text[index]),
    ]);
    const bottom = this.height - EDGE.bottom;
    made.push(shape("line", { class: "axis", x1: EDGE.left, x2: this.width - this.right, y1: bottom, y2: bottom }));
    for (const step of ticks(this.view.first, this.view.last, Math.max(2, this.width / 110)).filter((one) => Number.isInteger(one)))
      made.push(shape("text", { x: this.x(step), y: bottom + 15, "text-anchor": "middle" }, step >= 1e5 ? short(step) : whole(step)));
    made.push(shape("text", { class: "unit", x: (EDGE.left + this.width - this.right) / 2, y: this.height - 4, "text-anchor": "middle" }, "step"));
    return made;
  }

  // Curves end at the edges of the plot: a device may have been read after the last step.
  within(curves) {
    const [left, width, height] = [EDGE.left - 3, this.width - this.right - EDGE.left + 6, this.height - EDGE.bottom + 3];
    const made = shape("svg", { class: "within", x: left, y: 0, width, height, viewBox: `${left} 0 ${width} ${height}` });
    made.append(...curves);
    return made;
  }

  curve(line) {
    const at = (values, index) => `${this.x(line.steps[index]).toFixed(1)},${this.y(values[index]).toFixed(1)}`;
    if (this.spec.stack) return [shape("path", { class: "area", fill: line.color, d: outline(line, at) })];
    const made = [];
    if (line.band) made.push(shape("path", { class: "band", fill: line.color, d: outline(line, at) }));
    const look = { class: "mean", stroke: line.color, d: path(line.mean, at) };
    if (line.dash) look["stroke-dasharray"] = line.dash;
    made.push(shape("path", look));
    if (line.dots || line.steps.length < 2)
      line.mean.forEach((value, index) => value !== null && made.push(shape("circle", { cx: this.x(line.steps[index]), cy: this.y(value), r: 2.6, fill: line.color })));
    return made;
  }

  // Each line's name at its end, moved apart where they would lie on each other.
  endNames() {
    const ends = this.lines.map((line) => ({ line, at: lastKnown(line.mean) })).filter((one) => one.at >= 0)
      .map(({ line, at }) => ({ line, y: this.y(line.mean[at]) + 4 })).sort((a, b) => a.y - b.y);
    ends.forEach((one, index) => { if (index) one.y = Math.max(one.y, ends[index - 1].y + 13); });
    const over = ends.length ? Math.max(0, ends[ends.length - 1].y - (this.height - EDGE.bottom)) : 0;
    return ends.map(({ line, y }) => {
      const made = shape("text", { class: "name", x: this.width - this.right + 7, y: y - over }, line.label);
      made.style.fill = line.color;
      return made;
    });
  }

  limit() {
    const value = this.spec.limit?.();
    if (!value || value > this.high) return [];
    const y = this.y(value);
    return [
      shape("line", { class: "limit", x1: EDGE.left, x2: this.width - this.right, y1: y, y2: y }),
      shape("text", { class: "name", x: this.width - this.right - 4, y: y - 5, "text-anchor": "end" }, `limit ${this.spec.format(value)}`),
    ];
  }

  marks() {
    if (!this.spec.events) return [];
    const bottom = this.height - EDGE.bottom;
    return this.view.events.filter((one) => one.step >= this.view.first && one.step <= this.view.last).map((one) =>
      shape("line", { class: "mark", stroke: one.color, x1: this.x(one.step), x2: this.x(one.step), y1: bottom - 7, y2: bottom + 2 }));
  }

  cursor(step) {
    this.plot.querySelector(".cursor")?.remove();
    if (step === null || !this.view || this.root.hidden || !this.x || step < this.view.first || step > this.view.last) return;
    this.plot.append(shape("line", { class: "cursor", x1: this.x(step), x2: this.x(step), y1: EDGE.top, y2: this.height - EDGE.bottom }));
  }

  // The rows of a tooltip: each curve's value at a step.
  values(step) {
    const rows = this.lines.map((line) => {
      const at = valueAt(line, step);
      if (at < 0) return null;
      const wide = line.band && line.low[at] !== null && line.high[at] > line.low[at];
      const range = wide ? `  (${this.spec.format(line.low[at])} – ${this.spec.format(line.high[at])})` : "";
      const value = this.spec.stack ? line.high[at] - line.low[at] : line.mean[at];
      const where = line.steps[at] === step ? "" : ` at ${whole(line.steps[at])}`;
      return { line, stack: this.spec.stack, label: line.label + where, text: this.spec.format(value) + range };
    });
    return (this.spec.stack ? rows.reverse() : rows).filter(Boolean);
  }

  listen() {
    const plot = this.plot;
    plot.addEventListener("pointermove", (event) => this.pointer(event));
    plot.addEventListener("pointerleave", () => this.hub.point(null));
    plot.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") { this.from = this.local(event); plot.setPointerCapture(event.pointerId); } });
    plot.addEventListener("pointerup", (event) => this.release(event));
    plot.addEventListener("dblclick", () => this.hub.look(null));
    plot.addEventListener("keydown", (event) => this.key(event));
    plot.addEventListener("blur", () => this.hub.point(null));
  }

  local(event) { return event.clientX - this.plot.getBoundingClientRect().left; }

  pointer(event) {
    if (!this.stepAt) return;
    this.hub.point(this.snap(this.stepAt(this.local(event))), this, event);
    this.plot.querySelector(".brush")?.remove();
    if (this.from === undefined) return;
    const [left, right] = [this.from, this.local(event)].sort((a, b) => a - b);
    this.plot.append(shape("rect", { class: "brush", x: left, width: right - left, y: EDGE.top, height: this.height - EDGE.top - EDGE.bottom }));
  }

  release(event) {
    const from = this.from;
    this.from = undefined;
    this.plot.querySelector(".brush")?.remove();
    if (from === undefined || Math.abs(this.local(event) - from) < 6) return;
    const [first, last] = [this.stepAt(from), this.stepAt(this.local(event))].sort((a, b) => a - b);
    this.hub.look([Math.floor(first), Math.ceil(last)]);
  }

  // Steps at which some line has a value, in the range that is shown.
  steps() {
    const { first, last } = this.view;
    return [...new Set(this.lines.flatMap((line) => line.steps))].filter((one) => one >= first && one <= last).sort((a, b) => a - b);
  }

  snap(step) {
    const steps = this.steps();
    return steps.length ? steps[nearest(steps, step)] : Math.round(step);
  }

  key(event) {
    const steps = this.steps();
    const at = this.hub.step === null ? steps.length - 1 : nearest(steps, this.hub.step);
    const jump = event.shiftKey ? 20 : 1;
    const moves = { ArrowLeft: at - jump, ArrowRight: this.hub.step === null ? at : at + jump, Home: 0, End: steps.length - 1 };
    if (event.key in moves && steps.length) {
      this.hub.point(steps[Math.min(steps.length - 1, Math.max(0, moves[event.key]))], this, null);
    } else if (event.key === "Escape") this.hub.look(null);
    else if ("+=-".includes(event.key)) this.zoom(event.key === "-" ? 2 : 0.5, steps[at]);
    else return;
    event.preventDefault();
  }

  zoom(factor, around) {
    const { first, last } = this.view;
    const half = Math.max(2, ((last - first) * factor) / 2);
    this.hub.look([Math.max(0, Math.floor(around - half)), Math.ceil(around + half)]);
  }
}

function path(values, at) {
  let drawn = "", pen = "M";
  values.forEach((value, index) => {
    if (value === null) { pen = "M"; return; }
    drawn += pen + at(values, index);
    pen = "L";
  });
  return drawn;
}
// Around the band from its highest edge to its lowest, part by part where there are holes.
function outline(line, at) {
  let drawn = "", part = [];
  const close = () => {
    if (part.length) drawn += `M${part.map((i) => at(line.high, i)).join("L")}L${part.reverse().map((i) => at(line.low, i)).join("L")}Z`;
    part = [];
  };
  line.steps.forEach((_, index) => (line.low[index] === null ? close() : part.push(index)));
  close();
  return drawn;
}
// A peak lasts until another is recorded: on to the last step of the run.
function held(line, end) {
  const last = line.steps.length - 1;
  if (last < 0 || line.steps[last] >= end) return line;
  const on = (values) => [...values, values[last]];
  return { ...line, steps: [...line.steps, end], mean: on(line.mean), low: on(line.low), high: on(line.high) };
}
// One owner on top of the other; a hole counts as nothing held.
function stacked(lines) {
  const floor = new Map();
  return lines.map((line) => {
    const low = line.steps.map((step) => floor.get(step) ?? 0);
    const high = line.mean.map((value, index) => low[index] + (value ?? 0));
    line.steps.forEach((step, index) => floor.set(step, high[index]));
    return { ...line, low, high };
  });
}
function extent(lines) {
  let low = Infinity, high = -Infinity;
  for (const line of lines)
    line.steps.forEach((_, index) => {
      if (line.low[index] === null || line.low[index] === undefined) return;
      low = Math.min(low, line.low[index]);
      high = Math.max(high, line.high[index]);
    });
  return low <= high ? [low, high] : [0, 1];
}
function lastKnown(values) {
  for (let index = values.length - 1; index >= 0; index -= 1) if (values[index] !== null) return index;
  return -1;
}
const pointsIn = (line, view) => line.steps.filter((step, index) => step >= view.first && step <= view.last && line.mean[index] !== null).length;
// Where a line is read at a step: at its nearest point; -1 where it began later, or ended before.
export function valueAt(line, step) {
  const at = nearest(line.steps, step);
  const inside = at >= 0 && step >= line.steps[0] && step <= line.steps[line.steps.length - 1];
  return inside && line.mean[at] !== null ? at : -1;
}
// Numbers beside an axis, with as many digits as tell them apart, all with a power of ten or none.
function distinct(values, format) {
  const powers = format === short && values.some((value) => short(value).includes("e-"));
  for (const digits of [3, 4, 5, 6]) {
    const text = values.map((value) => (powers ? exponential(value, digits) : format(value, digits)));
    if (new Set(text).size === text.length || digits === 6) return text;
  }
}
// Whether names have room beside the ends of lines, and the lines end there.
function nameable(lines, view) {
  const near = view.last - 0.05 * (view.last - view.first);
  return lines.every((line) => line.label.length <= LONGEST && line.steps.at(-1) >= near);
}
export function nearest(steps, step) {
  let low = 0, high = steps.length - 1;
  if (high < 0) return -1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1; else high = middle;
  }
  return low > 0 && step - steps[low - 1] < steps[low] - step ? low - 1 : low;
}
