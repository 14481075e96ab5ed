// Formats a ratio of probabilities for people: 1.3, 25, 30 million, > 1 trillion.

const MAX = 1e12; // larger factors are not more informative

export function factorText(factor, language) {
  const digits = factor < 10 ? 1 : 0;
  const options = { maximumFractionDigits: digits, notation: factor >= 1e6 ? "compact" : "standard", compactDisplay: "long" };
  return (factor > MAX ? "> " : "") + Math.min(factor, MAX).toLocaleString(language, options);
}
