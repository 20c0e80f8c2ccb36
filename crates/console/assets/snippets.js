// A request as a program: fills the templates of `snippets.rs`. Pure. Whatever a message contains, each program sends
// exactly that message: text only ever stands in a literal of the language.

/** Characters that are invisible or turn the direction of text: a program with them does not read as it runs. */
const HIDDEN = /[\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

/** A string of JSON, which is one of JavaScript and Python, too. */
export function jsonText(text) {
  const escaped = (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return JSON.stringify(text).replace(HIDDEN, escaped);
}

/** A string literal of Rust, which writes some escapes of JSON in another way and has no half of a surrogate pair. */
export function rustText(text) {
  const short = { b: "\\u{8}", f: "\\u{c}" };
  return jsonText(text).replace(/\\(?:u(\w{4})|(.))/g, (escape, code, letter) => {
    if (code) return /^d[89a-f]/.test(code) ? "\\u{fffd}" : `\\u{${code}}`;
    return short[letter] ?? escape;
  });
}

/** Within single quotes, a shell reads everything as it stands but the single quote. */
const shellQuoted = (text) => text.replaceAll("'", "'\\''");

function message({ role, content }, text) {
  return `{"role": ${text(role)}, "content": ${text(content)}}`;
}

/** A JSON object, or what looks the same in another language, with strings written by `text`. */
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
