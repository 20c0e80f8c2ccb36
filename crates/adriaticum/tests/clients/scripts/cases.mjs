// Shared by all JavaScript scripts: reads cases from standard input, and writes their results to standard output.

import { readFileSync } from 'node:fs';

/** Runs all cases at the same time; `ask` returns the text and the tokens of prompt, completion and both. */
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
