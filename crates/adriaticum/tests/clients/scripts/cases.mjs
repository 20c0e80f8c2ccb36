// What all scripts in JavaScript have in common: cases come by standard input, how each ended goes to standard output.

import { readFileSync } from 'node:fs';

/** Asks for each case at once; `ask` returns the text and the tokens of prompt, completion and both. */
export async function run(ask, describe) {
  const cases = JSON.parse(readFileSync(0, 'utf8'));
  const ends = await Promise.all(cases.map(end));
  ends.forEach((end) => console.log(JSON.stringify(end)));

  async function end({ name, ...given }) {
    try {
      const [text, tokens] = await ask(given);
      return { case: name, text, tokens: tokens.map((count) => count ?? null) };
    } catch (error) {
      return { case: name, said: String(error), ...describe(error) };
    }
  }
}
