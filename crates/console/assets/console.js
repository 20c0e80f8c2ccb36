// Features that need a script: local times, copying, stepping through charts, `/` for the filter, live refresh.
// Everything else works without it. The playground has separate scripts.

const dateAndTime = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" };
const thisYear = new Intl.DateTimeFormat("en-GB", dateAndTime);
const anyYear = new Intl.DateTimeFormat("en-GB", { ...dateAndTime, year: "numeric" });
const toMillisecond = { ...dateAndTime, year: "numeric", second: "2-digit", fractionalSecondDigits: 3, timeZoneName: "short" };
const exact = new Intl.DateTimeFormat("en-GB", toMillisecond);
const exactUtc = new Intl.DateTimeFormat("en-GB", { ...toMillisecond, timeZone: "UTC" });
const timeDistance = new Intl.RelativeTimeFormat("en");
const UNITS = [["year", 31_557_600], ["month", 2_629_800], ["day", 86_400], ["hour", 3_600], ["minute", 60]];
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric", timeZone: "UTC" });

/** `3 minutes ago`, `in 30 days`. */
function relativeTime(at, now) {
  const seconds = (at - now) / 1000;
  const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? ["minute", 60];
  if (seconds <= 0 && seconds > -60) return "just now";
  // Past times are rounded down. Future times are rounded, but are at least one unit away.
  return timeDistance.format(seconds < 0 ? Math.trunc(seconds / size) : Math.max(1, Math.round(seconds / size)), unit);
}

/** Writes times for the viewer: relative, or in the viewer's zone; the exact time and UTC on hover. */
function writeTimes(root) {
  const now = new Date();
  for (const time of root.querySelectorAll("time[data-time]")) {
    const at = new Date(time.dateTime);
    const [own, utc] = [exact.format(at), exactUtc.format(at)];
    const format = at.getFullYear() === now.getFullYear() ? thisYear : anyYear;
    time.title = own === utc ? utc : `${own} · ${utc}`;
    time.textContent = time.dataset.time === "relative" ? relativeTime(at, now) : format.format(at);
  }
}

/** Writes times and names of hours for the viewer. Days are not converted: they begin at midnight UTC. */
function localize(root) {
  writeTimes(root);
  for (const slice of root.querySelectorAll("[data-slice]")) {
    if (!slice.textContent.includes(":")) continue; // a day
    slice.textContent = thisYear.format(new Date(Number(slice.dataset.slice)));
  }
}

/** Shows the time zone, and keeps times up to date while the page is open. */
function keepTimes() {
  const zone = document.getElementById("zone"); // not on pages for visitors
  const { timeZone } = exact.resolvedOptions();
  const offset = exact.formatToParts(new Date()).find(({ type }) => type === "timeZoneName").value;
  if (zone && timeZone !== "UTC") {
    zone.textContent = `Times are in your time zone, ${timeZone} (${offset}). Each shows UTC on hover.`;
  }
  setInterval(() => writeTimes(document), 20_000);
  document.addEventListener("visibilitychange", () => writeTimes(document));
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

/** Shows the figures of one slice in its chart's readout, and marks the slice. */
function showSlice(chart, at) {
  const figures = chart.dataset.figures.split("|");
  const [first, step] = [chart.dataset.start, chart.dataset.step].map(Number);
  const slice = Math.max(0, Math.min(figures.length - 1, at));
  const start = new Date(first + slice * step);
  const name = step < 86_400_000 ? thisYear.format(start) : `${day.format(start)} (UTC)`;
  const cursor = chart.querySelector(".cursor");
  cursor.setAttribute("x", slice * cursor.width.baseVal.value);
  cursor.classList.add("here");
  cursor.dataset.slice = start.getTime();
  cursor.dataset.at = slice;
  chart.querySelector(".readout").textContent = `${name}: ${figures[slice]}`;
}

document.addEventListener("pointermove", (event) => {
  const svg = event.target.closest?.(".chart svg");
  if (!svg) return;
  const chart = svg.closest(".chart");
  const { left, width } = svg.getBoundingClientRect();
  showSlice(chart, Math.floor(((event.clientX - left) / width) * chart.dataset.figures.split("|").length));
});

document.addEventListener("keydown", (event) => {
  const chart = event.target.closest(".chart");
  const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (!chart || step === undefined) return;
  event.preventDefault();
  const here = Number(chart.querySelector(".cursor").dataset.at ?? (step === -1 ? Infinity : -1));
  showSlice(chart, here + step);
});

/** `/` focuses the filter of a list. */
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, textarea, select, [contenteditable]");
  const filter = document.querySelector("form[role=search] input[type=search]");
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || isTyping || !filter) return;
  event.preventDefault();
  filter.focus();
  filter.select();
});

/** Fetches the live parts again every fifteen seconds, while the page is visible and not in use. */
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

localize(document);
keepTimes();
live();
