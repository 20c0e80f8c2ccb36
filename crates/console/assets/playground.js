// The playground: runs the conversation on the screen through the API, and shows it as code. Nothing is stored.

import { outwardLink, parseSources } from "./answer.js";
import { Conversation } from "./conversation.js";
import { snippet } from "./snippets.js";

const PARAMETERS = ["temperature", "max_tokens"];
const part = (id) => document.getElementById(id);
const form = part("playground");
const { dataset } = form;
const limits = {
  messages: Number(dataset.maxMessages), chars: Number(dataset.maxChars), total: Number(dataset.maxTotal),
};
const seconds = (began) => (performance.now() - began) / 1000;

/** Aborts the running request. */
let running = null;
/** Whether leaving the page would lose unsent text. */
let isUnsent = false;

const conversation = new Conversation(part("turns"), part("turn"), limits);
conversation.changed = changed;
/** The request that ran last, until something on the screen is changed. */
let ran = null;

/** The request on the screen. An empty parameter is not sent, so the API's default applies. */
function request() {
  const messages = conversation.sent.map((turn) => turn.message);
  const set = PARAMETERS.map((name) => [name, form.elements[name]]).filter(([, field]) => field.value !== "");
  return { model: dataset.model, messages, ...Object.fromEntries(set.map(([name, field]) => [name, field.valueAsNumber])) };
}

function changed() {
  ran = null;
  show();
}

function show() {
  const { text, chars } = conversation.size();
  part("size").textContent = text;
  part("size").classList.toggle("problem", chars > limits.total);
  part("add").disabled = conversation.isFull || running !== null;
  part("undo").hidden = !conversation.canUndo;
  const language = form.elements.language.value;
  const template = form.querySelector(`template[data-language="${language}"]`).content.textContent;
  part("code").textContent = snippet(language, template, ran ?? request());
}

/** Shows a problem with the whole request, with a link if there is one. */
function showProblem(text, link = null) {
  part("problem").replaceChildren(text, ...(link ? [" ", link] : []));
  part("problem").hidden = !text;
}

function showParameterProblem(name, text) {
  const problem = form.querySelector(`[data-for="${name}"]`);
  problem.textContent = text;
  problem.hidden = !text;
  form.elements[name].setAttribute("aria-invalid", text ? "true" : "false");
}

/** Whether each parameter is empty or valid. The first invalid one gets the focus. */
function checkParameters() {
  const wrong = PARAMETERS.filter((name) => {
    const { validity, min, max } = form.elements[name];
    const isInteger = name === "max_tokens";
    const isWrong = validity.badInput || validity.rangeUnderflow || validity.rangeOverflow || (isInteger && validity.stepMismatch);
    showParameterProblem(name, isWrong ? `${isInteger ? "A whole number" : "A number"} from ${min} to ${max}, or empty.` : "");
    return isWrong;
  });
  if (wrong.length > 0) form.elements[wrong[0]].focus();
  return wrong.length === 0;
}

/** Shows an error of the API beside the part of the request that it names. */
function showError({ message, request_id: id }) {
  const at = /messages\[(\d+)\]/.exec(message);
  const turn = at && conversation.sent[Number(at[1])];
  const parameter = PARAMETERS.find((name) => message.startsWith(`\`${name}\``));
  if (turn) { turn.tell(message); turn.focus(); }
  else if (parameter) { showParameterProblem(parameter, message); form.elements[parameter].focus(); }
  else showProblem(message, outwardLink(id, `/requests/${id}`));
}

/** An error whose message is shown unchanged. */
class Problem extends Error {}

function send(body, signal) {
  const headers = { "content-type": "application/json", "x-form-token": dataset.token };
  return fetch("/playground", { method: "POST", headers, body, signal });
}

const sources = ({ headers }) => parseSources(headers.get("link"), headers.get("x-source-scores"));
const isJson = (response) => response.headers.get("content-type")?.startsWith("application/json");

/** The API's response. A new sign-in in another tab changes the CSRF token, which is then read from a fresh page. */
async function complete(body, signal) {
  const response = await send(body, signal);
  if (isJson(response)) return response;
  const page = await fetch("/playground", { signal });
  const fresh = new DOMParser().parseFromString(await page.text(), "text/html").getElementById("playground");
  if (!fresh) throw new Problem("You are signed out. Sign in in another tab, then run again: the conversation stays here.");
  dataset.token = fresh.dataset.token;
  const again = await send(body, signal);
  if (!isJson(again)) throw new Problem(`The console responded with status ${again.status}. Run again to retry.`);
  return again;
}

/** Sends a request; returns a function that shows the outcome. */
async function attempt(sent, began, signal) {
  try {
    const response = await complete(JSON.stringify(sent), signal);
    const body = await response.json();
    const took = seconds(began);
    return () => (response.ok ? answered(sent, body, sources(response), took) : showError(body.error));
  } catch (error) {
    if (signal.aborted) return () => showProblem(`Stopped after ${seconds(began).toFixed(1)} s. Nothing was added.`);
    return () => showProblem(error instanceof Problem ? error.message : "The service did not respond. Run again to retry.");
  }
}

async function run() {
  if (running) return;
  showProblem("");
  const { isSound, problem } = conversation.check();
  if (problem) showProblem(problem);
  if (!isSound || !checkParameters()) return;
  const began = performance.now();
  const end = start(began);
  const showOutcome = await attempt(request(), began, running.signal);
  end();
  showOutcome();
}

/** Shows that a request is running; the returned function shows that it has ended. */
function start(began) {
  running = new AbortController();
  const timer = setInterval(() => { part("elapsed").textContent = `${seconds(began).toFixed(1)} s`; }, 100);
  const before = document.activeElement;
  const set = (isRunning) => {
    part("run").disabled = isRunning;
    part("clear").disabled = isRunning;
    part("turns").inert = isRunning;
    part("stop").hidden = !isRunning;
  };
  set(true);
  part("stop").focus();
  part("announcement").textContent = "Running";
  show();
  return () => {
    clearInterval(timer);
    running = null;
    part("elapsed").textContent = "";
    part("announcement").textContent = "";
    const hasFocus = document.activeElement === part("stop");
    set(false);
    if (hasFocus) (before.isConnected ? before : part("run")).focus();
    show();
  };
}

/** Adds the answer, and the message that comes next. The code stays that of the request that ran. */
function answered(sent, completion, sources, took) {
  isUnsent = false;
  const turn = conversation.add("assistant");
  turn.answer(completion, sources, took);
  part("announcement").textContent = `The model answered: ${turn.answered}`;
  if (conversation.isFull) showProblem(`A request can have at most ${limits.messages} messages. Remove some to continue.`);
  else conversation.add("user").focus();
  ran = sent;
  show();
}

form.addEventListener("submit", (event) => { event.preventDefault(); run(); });
form.addEventListener("input", (event) => {
  if (event.target.name === "content") isUnsent = true;
  if (PARAMETERS.includes(event.target.name)) showParameterProblem(event.target.name, "");
  if (event.target.name === "language") show();
  else if (!event.target.closest("li.turn")) changed(); // the conversation calls it for its own changes
});
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); }
  if (event.key === "Escape") running?.abort();
});
part("stop").addEventListener("click", () => running?.abort());
part("add").addEventListener("click", () => conversation.addNext().focus());
part("clear").addEventListener("click", () => { showProblem(""); isUnsent = false; conversation.clear(); });
part("undo").addEventListener("click", () => conversation.undo());
addEventListener("beforeunload", (event) => { if (isUnsent && conversation.sent.length > 0) event.preventDefault(); });

part("run").disabled = false;
part("clear").disabled = false;
show();
