// A request as a program: fills the templates of `snippets.rs`. Pure. Each program sends exactly the
// messages, whatever they contain: their text is only in literals of the language.

/** Characters that are invisible or change the direction of text, so that a program would not read as it runs. */
const HIDDEN = /[\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

/** A JSON string literal, which is also one of JavaScript and Python. */
export function jsonText(text) {
  const escaped = (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return JSON.stringify(text).replace(HIDDEN, escaped);
}

/** A Rust string literal: some escapes differ from JSON, and there are no lone surrogates. */
export function rustText(text) {
  const short = { b: "\\u{8}", f: "\\u{c}" };
  return jsonText(text).replace(/\\(?:u(\w{4})|(.))/g, (escape, code, letter) => {
    if (code) return /^d[89a-f]/.test(code) ? "\\u{fffd}" : `\\u{${code}}`;
    return short[letter] ?? escape;
  });
}

/** Within single quotes, a shell takes everything literally but the single quote. */
const shellQuoted = (text) => text.replaceAll("'", "'\\''");

function message({ role, content }, text) {
  return `{"role": ${text(role)}, "content": ${text(content)}}`;
}

/** A JSON object, or the same syntax in another language, with strings written by `text`. */
function object(request, text) {
  const messages = request.messages.map((each) => `\n    ${message(each, text)}`).join(",");
  const members = Object.entries(request).map(([name, value]) => {
    const written = name === "messages" ? `[${messages}\n  ]` : typeof value === "string" ? text(value) : value;
    return `\n  "${name}": ${written}`;
  });
  return `{${members.join(",")}\n}`;
}

function pythonArguments(request) {
  const messages = request.messages.map((each) => `\n        ${message(each, jsonText)},`).join("");
  const named = Object.entries(request).map(([name, value]) => {
    const written = name === "messages" ? `[${messages}\n    ]` : typeof value === "string" ? jsonText(value) : value;
    return `    ${name}=${written},`;
  });
  return named.join("\n");
}

const REQUEST = {
  curl: (request) => shellQuoted(object(request, jsonText)),
  Python: pythonArguments,
  JavaScript: (request) => object(request, jsonText),
  Rust: (request) => object(request, rustText).replaceAll("\n", "\n    "),
};

/** The program in that language. */
export function snippet(language, template, request) {
  return template.replace(/\{request\}|\{arguments\}/, () => REQUEST[language](request));
}
