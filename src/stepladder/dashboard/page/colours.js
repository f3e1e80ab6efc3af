// Colours by their meaning; palette.css, which the server makes, has their values.
const HUES = 10;
const defined = (name) => getComputedStyle(document.documentElement).getPropertyValue(name) !== "";

// Runs and ranks by their numbers: no two have one colour.
export const series = (index) => (index < HUES ? `var(--series-${Math.max(0, index)})` : `hsl(${Math.round(index * 137.5) % 360} 50% 48%)`);

// An owner, a cause, a collective, a pass or an event; what the palette does not know gets one of a series.
export function meaning(kinds, name, place) {
  const word = String(name).replace(/\W+/g, "_");
  const kind = kinds.find((one) => defined(`--${one}-${word}`));
  return kind ? `var(--${kind}-${word})` : series(HUES + place);
}

// Lines of one run: its colour, then tones of it that are still told from another run's.
const TONES = ["", "var(--text)", "var(--soft)"];
export const tone = (colour, place) => (place % 3 ? `color-mix(in oklab, ${colour} 68%, ${TONES[place % 3]})` : colour);
