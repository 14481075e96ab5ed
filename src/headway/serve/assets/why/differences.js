// The words in which two texts differ.

import { make } from "../dom.js";
import { wordSpans } from "../translate/words.js";

/** Returns, for each word in two lists, whether it is not part of their longest common subsequence. */
export function differences(ours, theirs) {
  const common = Array.from({ length: ours.length + 1 }, () => new Uint16Array(theirs.length + 1));
  for (let i = ours.length - 1; i >= 0; i--) {
    for (let j = theirs.length - 1; j >= 0; j--) {
      const same = ours[i] === theirs[j];
      common[i][j] = same ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  const inOurs = ours.map(() => true), inTheirs = theirs.map(() => true);
  for (let i = 0, j = 0; i < ours.length && j < theirs.length; ) {
    if (ours[i] === theirs[j]) inOurs[i++] = inTheirs[j++] = false;
    else if (common[i + 1][j] >= common[i][j + 1]) i += 1;
    else j += 1;
  }
  return [inOurs, inTheirs];
}

/** Returns nodes that show `text`, in which the words that `other` does not contain are marked. */
export function marked(text, other, language) {
  const spans = wordSpans(text, language), words = spans.map((span) => text.slice(...span));
  const [differs] = differences(words, wordSpans(other, language).map((span) => other.slice(...span)));
  const children = [];
  let from = 0;
  spans.forEach(([start, end], at) => {
    if (!differs[at]) return;
    children.push(text.slice(from, start), make("mark", {}, text.slice(start, end)));
    from = end;
  });
  return [...children, text.slice(from)];
}
