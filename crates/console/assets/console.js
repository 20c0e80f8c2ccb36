// What needs a script: times in the viewer's own zone, copying, stepping through charts, the playground, live refresh.
// Everything else works without it.

const minute = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });
const exact = new Intl.DateTimeFormat("en-GB", {
  day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit",
  fractionalSecondDigits: 3, timeZoneName: "short",
});
const hour = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

/** Times and names of hours in the viewer's zone. Days stay what they are: they begin at midnight UTC. */
function localize(root) {
  for (const time of root.querySelectorAll("time[data-local]")) {
    const at = new Date(time.dateTime);
    time.title = `${exact.format(at)} · ${time.dateTime}`;
    time.textContent = (at.getFullYear() === new Date().getFullYear() ? hour : minute).format(at);
  }
  for (const slice of root.querySelectorAll("[data-slice]")) {
    const name = slice.querySelector("title");
    const text = name ? name.textContent : slice.textContent;
    if (!text.includes(":")) continue; // a day
    const at = hour.format(new Date(Number(slice.dataset.slice)));
    slice.dataset.name = at;
    if (name) name.textContent = `${at}: ${slice.dataset.figures}`;
    else slice.textContent = at;
  }
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source);
    button.textContent = "Press Ctrl+C";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});

/** Shows one slice's figures in its chart's line of text. */
function tell(chart, slice) {
  chart.querySelector(".here")?.classList.remove("here");
  slice?.classList.add("here");
  chart.querySelector(".readout").textContent = slice ? slice.querySelector("title").textContent : "";
}

document.addEventListener("pointerover", (event) => {
  const slice = event.target.closest(".slice");
  if (slice) tell(slice.closest(".chart"), slice);
});

document.addEventListener("keydown", (event) => {
  const chart = event.target.closest(".chart");
  const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (!chart || step === undefined) return;
  event.preventDefault();
  const slices = [...chart.querySelectorAll(".slice")];
  const here = slices.findIndex((slice) => slice.classList.contains("here"));
  const start = here < 0 && step === -1 ? slices.length : here;
  tell(chart, slices[Math.max(0, Math.min(slices.length - 1, start + step))]);
});

/** Every fifteen seconds, while somebody looks and does nothing else with it, the live parts are fetched again. */
function live() {
  if (!document.querySelector("[data-live]")) return;
  setInterval(async () => {
    const busy = document.hidden || document.activeElement?.closest("[data-live]") || !getSelection().isCollapsed;
    if (busy) return;
    const response = await fetch(location.href, { headers: { accept: "text/html" } }).catch(() => null);
    if (!response?.ok || response.redirected) return;
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    localize(fresh);
    const [now, next] = [document, fresh].map((page) => [...page.querySelectorAll("[data-live]")]);
    if (now.length === next.length) now.forEach((part, at) => part.replaceWith(next[at]));
  }, 15_000);
}

function playground() {
  const root = document.querySelector(".playground");
  if (!root) return;
  const form = root.querySelector("form");
  const button = form.querySelector("button");
  const part = (id) => document.getElementById(id);
  button.disabled = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const field = Object.fromEntries(new FormData(form));
    const messages = [{ role: "user", content: field.user }];
    if (field.system.trim()) messages.unshift({ role: "system", content: field.system });
    const request = {
      model: root.dataset.model, messages, temperature: Number(field.temperature), max_tokens: Number(field.max_tokens),
    };
    part("sent").textContent = JSON.stringify(request, null, 2);
    part("answer").textContent = "…";
    part("figures").hidden = true;
    part("sources").hidden = true;
    button.disabled = true;
    const began = performance.now();
    try {
      const response = await fetch("/playground", {
        method: "POST",
        headers: { "content-type": "application/json", "x-form-token": root.dataset.token },
        body: JSON.stringify(request),
      });
      const took = performance.now() - began;
      const answer = await response.json();
      part("received").textContent = JSON.stringify(answer, null, 2);
      part("answer").textContent = response.ok ? answer.choices[0].message.content : answer.error.message;
      figures(response, answer, took);
      sources(response);
    } catch {
      part("answer").textContent = "No response. If you were signed out in the meantime, reload the page.";
    }
    button.disabled = false;
  });

  function figures(response, answer, took) {
    const id = response.headers.get("x-request-id");
    const count = (value) => (value === null || value === undefined ? "not measured" : value.toLocaleString("en"));
    const facts = { Status: `${response.status} ${answer.error?.code ?? "ok"}`, Latency: `${(took / 1000).toFixed(2)} s, measured in the browser` };
    if (answer.usage) {
      facts["Prompt tokens"] = count(answer.usage.prompt_tokens);
      facts["Completion tokens"] = count(answer.usage.completion_tokens);
      facts["Finish reason"] = answer.choices[0].finish_reason;
    }
    const list = part("figures");
    list.replaceChildren(...Object.entries(facts).flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
    const link = make("a", id);
    link.href = `/requests/${id}`;
    const where = make("dd", "");
    where.append(link);
    list.append(make("dt", "Request"), where);
    list.hidden = false;
  }

  // What the answer may cite, in the order of its numbers: one Link header each, which fetch gives as one text.
  function sources(response) {
    const links = response.headers.get("link") ?? "";
    const each = /<([^>]+)>; rel="cite-as"; title="([^"]*)"(?:; title\*=UTF-8''([^, ]+))?/g;
    const items = [...links.matchAll(each)].map(([, url, plain, encoded]) => {
      const title = encoded ? decodeURIComponent(encoded) : plain;
      const item = make("li", /^https?:/.test(url) ? "" : `${title} (${url})`);
      if (!item.textContent) {
        const link = make("a", title);
        link.href = url;
        link.rel = "noreferrer";
        item.append(link);
      }
      return item;
    });
    part("sources").querySelector("ol").replaceChildren(...items);
    part("sources").hidden = items.length === 0;
  }

  function make(name, text) {
    const element = document.createElement(name);
    element.textContent = text;
    return element;
  }
}

localize(document);
live();
playground();
