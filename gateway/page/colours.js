// One colour a model, the same in graph and lanes. The colours differ in lightness too, for those who cannot tell hues.

export const COLOURS = [
  "#4e8fdc",
  "#f0a03c",
  "#2fa98c",
  "#c75b9b",
  "#8d79dd",
  "#b5b03a",
  "#6fc3e8",
  "#d9694f",
  "#98a2b0",
];
const MOST = 2_000;
const numbers = new Map();

/** The colour of a model, and whether it is hatched: from the tenth model on. */
export function colourOf(model) {
  if (numbers.size >= MOST) numbers.clear();
  let number = numbers.get(model);
  if (number === undefined) {
    number = numbers.size;
    numbers.set(model, number);
  }
  return {
    colour: COLOURS[number % COLOURS.length],
    number: number % COLOURS.length,
    hatched: number % (2 * COLOURS.length) >= COLOURS.length,
  };
}

/** Show the colour of a model on an element of class `swatch`. */
export function paint(swatch, model) {
  const { number, hatched } = colourOf(model);
  const wanted = `swatch m${number}${hatched ? " hatched" : ""}`;
  if (swatch.className !== wanted) swatch.className = wanted;
}
