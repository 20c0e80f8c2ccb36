// An answer: the sources that it may cite, and its text with links to them. Text is set as text, never as HTML.

/** The sources in the order of the answer's numbers, one Link header each, which fetch joins into one string. `scores`
 *  tells how well each fits, if the service sends it. */
export function parseSources(header, scores) {
  const fits = scores?.split(", ") ?? [];
  const each = /<([^>]+)>; rel="cite-as"; title="([^"]*)"(?:; title\*=UTF-8''([^,; ]+))?/g;
  return [...(header ?? "").matchAll(each)].map(([, url, plain, encoded], at) => ({
    url, title: encoded ? decodeURIComponent(encoded) : plain, score: fits[at],
  }));
}

/** An element with that text and those properties. */
export function make(name, text, properties = {}) {
  return Object.assign(document.createElement(name), { textContent: text, ...properties });
}

/** A link that opens in a new tab, so that the conversation stays. */
export function outwardLink(text, href) {
  return make("a", text, { href, target: "_blank", rel: "noopener noreferrer" });
}

/** A source's list item. Only http and https URLs become links. */
function sourceItem({ url, title, score }, id) {
  const item = make("li", "", { id, tabIndex: -1 });
  if (/^https?:\/\//i.test(url)) item.append(outwardLink(title, url));
  else item.append(`${title} (${url})`);
  if (score) item.append(make("span", ` score ${score}`, { className: "muted" }));
  return item;
}

export function sourceItems(sources, idOf) {
  return sources.map((source, at) => sourceItem(source, idOf(at + 1)));
}

/** Code, or a citation: after a word and a space, a sentence or a bracket, and not in an expression or a link. The
 *  service recognizes citations by the same rule. */
const CODE_OR_CITATION = new RegExp(
  /`[^`]*(?:`|$)|(?<=[^\s+\-*/^=<>]\S*[^\S\n]+|[.,;!?。，；！？]|(\]))\[(\d{1,3})\]/.source +
  /(?![\p{L}\p{N}_(\]+\-*/^=<>]|[^\S\n]+[+\-*/^=<>]+(?!\S))/u.source, "gu");

/** The text, with a link from each citation to its source. */
export function withMarks(text, sources, idOf) {
  const parts = document.createDocumentFragment();
  let end = 0;
  for (const mark of text.matchAll(CODE_OR_CITATION)) {
    const number = Number(mark[2]);
    // A bracket before it must be that of another citation.
    if (!(number >= 1 && number <= sources.length) || mark[1] && mark.index !== end) continue;
    const link = make("a", mark[0], { href: `#${idOf(number)}`, title: sources[number - 1].title });
    parts.append(text.slice(end, mark.index), link);
    end = mark.index + mark[0].length;
  }
  parts.append(text.slice(end));
  return parts;
}

const tokens = (count) => (Number.isInteger(count) ? count.toLocaleString("en") : "not measured");

/** One line about an answer: tokens, seconds, finish reason, and a link to the request's page. */
export function figures(completion, seconds) {
  const { usage, choices: [{ finish_reason: reason }] } = completion;
  const ended = reason === "length" ? "length (cut off at max tokens or the end of the context)" : reason;
  const line = document.createDocumentFragment();
  line.append(
    `Prompt tokens: ${tokens(usage.prompt_tokens)} · completion tokens: ${tokens(usage.completion_tokens)} · `,
    `${seconds.toFixed(2)} s · finish reason: ${ended} · request `,
    outwardLink(completion.id, `/requests/${completion.id}`),
  );
  return line;
}
