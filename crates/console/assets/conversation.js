// The conversation on the screen: a list of messages that can be edited, inserted and removed. It is kept only in the
// page's elements.

import { figures, sourceItems, withMarks } from "./answer.js";

const PLACEHOLDERS = {
  system: "Instructions for the model (optional)",
  user: "Ask something",
  assistant: "An answer from the model",
};
const hasFieldSizing = CSS.supports("field-sizing", "content");
const number = (count) => count.toLocaleString("en");

/** As the API counts: Unicode code points. */
function countChars(text) {
  let count = 0;
  for (const _ of text) count += 1;
  return count;
}

/** One message. */
class Turn {
  static #answers = 0;

  constructor(item) {
    this.item = item;
    this.role = item.querySelector("select");
    this.field = item.querySelector("textarea");
    this.grow();
  }

  part(name) { return this.item.querySelector(`[data-part="${name}"]`); }
  button(name) { return this.item.querySelector(`[data-action="${name}"]`); }
  get message() { return { role: this.role.value, content: this.field.value }; }
  get chars() { return countChars(this.field.value); }

  /** Labels for screen readers. */
  label(at) {
    this.role.setAttribute("aria-label", `Role of message ${at}`);
    this.field.setAttribute("aria-label", `Message ${at}`);
    for (const button of this.item.querySelectorAll("[data-action]")) {
      button.setAttribute("aria-label", `${button.textContent}, message ${at}`);
    }
    this.part("problem").id = `problem-${at}`;
    this.field.setAttribute("aria-describedby", `problem-${at}`);
    this.field.placeholder = PLACEHOLDERS[this.role.value];
  }

  /** Shows a problem with the message; an empty string hides it. */
  tell(problem) {
    this.part("problem").textContent = problem;
    this.part("problem").hidden = !problem;
    this.field.setAttribute("aria-invalid", problem ? "true" : "false");
  }

  showCount(max) {
    const { chars } = this;
    this.part("count").textContent = chars > 0.8 * max ? `${number(chars)} of ${number(max)} characters` : "";
  }

  /** Makes the field as high as its text, in browsers where the style sheet cannot. */
  grow() {
    if (hasFieldSizing) return;
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight + 2}px`;
  }

  /** Shows the model's answer. */
  answer(completion, sources, seconds) {
    this.answered = completion.choices[0].message.content;
    this.sources = sources;
    this.id = Turn.#answers += 1;
    this.field.value = this.answered;
    this.part("figures").replaceChildren(figures(completion, seconds));
    this.part("sources").querySelector("ol").replaceChildren(...sourceItems(this.sources, (at) => this.sourceId(at)));
    this.part("sources").hidden = this.sources.length === 0;
    this.part("received").textContent = JSON.stringify(completion, null, 2);
    this.button("edit").hidden = false;
    this.part("answer").hidden = false;
    this.showText();
  }

  sourceId(at) { return `answer-${this.id}-source-${at}`; }

  showText() {
    this.part("text").replaceChildren(withMarks(this.field.value, this.sources, (at) => this.sourceId(at)));
    this.part("edited").hidden = this.field.value === this.answered;
    this.edit(false);
  }

  edit(isOn) {
    this.field.hidden = !isOn;
    this.part("text").hidden = isOn;
    this.button("edit").textContent = isOn ? "Done" : "Edit";
    if (isOn) this.focus();
  }

  get isShown() { return this.field.hidden; }

  focus() {
    const target = this.field.hidden ? this.button("edit") : this.field;
    target.focus();
    target.scrollIntoView({ block: "nearest" });
  }
}

export class Conversation {
  #turns = new WeakMap();
  #before = null;

  /** `limits` are the API's; `changed` is called after each change. */
  constructor(list, template, limits, changed) {
    Object.assign(this, { list, template, limits, changed });
    list.addEventListener("beforeinput", (event) => this.#refuseTooLong(event));
    list.addEventListener("input", (event) => this.#edited(this.#turnAt(event)));
    list.addEventListener("click", (event) => this.#act(event));
    this.#update();
  }

  get turns() {
    return [...this.list.children].map((item) => {
      if (!this.#turns.has(item)) this.#turns.set(item, new Turn(item));
      return this.#turns.get(item);
    });
  }

  /** The messages that are sent. */
  get sent() { return this.turns.filter((turn) => turn.field.value !== ""); }
  get isFull() { return this.list.children.length >= this.limits.messages; }
  get canUndo() { return this.#before !== null; }

  size() {
    const { sent, limits } = this;
    const chars = sent.reduce((sum, turn) => sum + turn.chars, 0);
    const text = `${number(sent.length)} of ${number(limits.messages)} messages, `
      + `${number(chars)} of ${number(limits.total)} characters.`;
    return { chars, text };
  }

  /** A new message at the end, or before another one. */
  add(role, before = null) {
    const item = this.template.content.firstElementChild.cloneNode(true);
    this.list.insertBefore(item, before?.item ?? null);
    const turn = this.turns.find((each) => each.item === item);
    turn.role.value = role;
    this.#update();
    return turn;
  }

  /** A new message at the end, with the role that comes next. */
  addNext() {
    return this.add(this.turns.at(-1)?.role.value === "user" ? "assistant" : "user");
  }

  clear() {
    this.#remember();
    this.list.replaceChildren();
    this.add("system");
    this.add("user").focus();
  }

  /** Undoes the last removal. */
  undo() {
    this.list.replaceChildren(...this.#before);
    this.#before = null;
    this.#update();
    this.turns.at(-1).focus();
  }

  /** Finds the first problem that the API would find, and shows it beside its message or, if it is about all, returns it. */
  check() {
    const { turns, limits } = this;
    turns.forEach((turn) => turn.tell(""));
    const tooLong = turns.find((turn) => turn.chars > limits.chars);
    if (tooLong) {
      tooLong.tell(`At most ${number(limits.chars)} characters; this has ${number(tooLong.chars)}.`);
      tooLong.focus();
      return { isSound: false };
    }
    const last = turns.at(-1);
    if (!last || last.field.value === "") {
      last?.tell("Write a message first.");
      last?.focus();
      return { isSound: false, problem: last ? "" : "Add a message first." };
    }
    const { chars } = this.size();
    if (chars > limits.total) {
      const problem = `All messages together can have at most ${number(limits.total)} characters; these have ${number(chars)}.`;
      return { isSound: false, problem };
    }
    return { isSound: true };
  }

  #turnAt(event) {
    const item = event.target.closest("li.turn");
    return this.turns.find((turn) => turn.item === item);
  }

  /** Text that would make a message too long is not inserted, because truncation would go unnoticed. */
  #refuseTooLong(event) {
    const { target: field, data } = event;
    if (field.name !== "content" || !data) return;
    const max = this.limits.chars;
    const inserted = data.length > 2 * max ? data.length : countChars(data);
    const rest = field.value.slice(0, field.selectionStart) + field.value.slice(field.selectionEnd);
    const after = countChars(rest) + inserted;
    if (after <= max) return;
    event.preventDefault();
    this.#turnAt(event).tell(
      `Not inserted: a message can have at most ${number(max)} characters, and this would make ${number(after)}.`);
  }

  #edited(turn) {
    if (!turn) return;
    turn.tell("");
    turn.grow();
    this.#update();
  }

  #act(event) {
    const action = event.target.closest("[data-action]")?.dataset.action;
    if (!action) return;
    const turn = this.#turnAt(event);
    if (action === "edit" && turn.isShown) turn.edit(true);
    else if (action === "edit") { turn.showText(); turn.focus(); }
    else if (action === "insert" && !this.isFull) {
      this.add(turn.role.value === "user" ? "assistant" : "user", turn).focus();
    } else if (action === "remove") this.#remove(turn);
    this.#update();
  }

  #remove(turn) {
    const at = this.turns.indexOf(turn);
    this.#remember();
    turn.item.remove();
    if (this.list.children.length === 0) this.add("user");
    this.turns[Math.min(at, this.turns.length - 1)].focus();
  }

  #remember() { this.#before = [...this.list.children]; }

  #update() {
    this.turns.forEach((turn, at) => {
      turn.label(at + 1);
      turn.showCount(this.limits.chars);
      turn.button("insert").disabled = this.isFull;
    });
    this.changed?.();
  }
}
