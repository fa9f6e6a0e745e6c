// What a page does beside its panels (live.js). Without this everything still works, by links and forms.

// Ages --------------------------------------------------------------------------------------------
// The server wrote them by the database clock; from then on they are counted here, so that none looks young for ever.
const clock = document.querySelector("#clock");
const ahead = clock ? Date.parse(clock.dateTime) - Date.now() : 0;

function writeDuration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor((whole % 86400) / 3600), Math.floor((whole % 3600) / 60)];
  if (days) return hours ? `${days} d ${hours} h` : `${days} d`;
  if (hours) return minutes ? `${hours} h ${String(minutes).padStart(2, "0")} min` : `${hours} h`;
  return minutes ? `${minutes} min` : `${whole} s`;
}

function writeClock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60), whole % 60];
  const [mm, ss] = [minutes, rest].map((part) => String(part).padStart(2, "0"));
  if (hours) return `${hours} h ${mm} min ${ss} s`;
  return minutes ? `${minutes} min ${ss} s` : `${rest} s`;
}

function writeTime(time, now) {
  const passed = (now - Date.parse(time.dateTime)) / 1000;
  if ("left" in time.dataset) return passed < 0 ? `in ${writeDuration(-passed)}` : "over";
  return "clock" in time.dataset ? writeClock(passed) : writeDuration(passed);
}

function tick() {
  const now = Date.now() + ahead;
  for (const time of document.querySelectorAll("time[data-ago], time[data-left], time[data-clock]")) {
    const words = writeTime(time, now);
    if (time.textContent !== words) time.textContent = words;
  }
  const [, weekday, day, month, , hms] = new Date(now).toUTCString().match(/(\w+), (\d+) (\w+) (\d+) ([\d:]+)/);
  clock.textContent = `${weekday} ${+day} ${month} ${hms} UTC`;
}

if (clock) setInterval(tick, 1_000);

// Forms -------------------------------------------------------------------------------------------
// One press, one request. The server would refuse a second; the button says that the first is under way.
addEventListener("submit", (event) => {
  if (event.defaultPrevented || event.target.method !== "post") return;
  const button = event.submitter;
  // After the browser has read the form: a disabled button would not be sent with it.
  if (button) setTimeout(() => { button.disabled = true; button.classList.add("busy"); });
});
addEventListener("pageshow", (event) => {
  if (!event.persisted) return;
  for (const button of document.querySelectorAll("button.busy")) {
    button.disabled = false;
    button.classList.remove("busy");
  }
});

// Back and forward --------------------------------------------------------------------------------
// A page shows what its address says. htmx reloads it inside the navigation it answers, and such a reload can be lost.
let shown = location.pathname + location.search;
function follow() { if (location.pathname + location.search !== shown) location.reload(); }
for (const name of ["push", "replace"]) {
  document.addEventListener(`htmx:after:history:${name}`, () => { shown = location.pathname + location.search; });
}
document.addEventListener("htmx:before:history:restore", (event) => event.preventDefault());
addEventListener("popstate", () => setTimeout(follow));
setInterval(follow, 1_000);

// A decision that can be undone: when its time is over, so is the button.
for (const form of document.querySelectorAll("form.undo[data-until]")) {
  const left = Date.parse(form.dataset.until) - Date.now() - ahead;
  const say = form.querySelector("b");
  const timer = setInterval(() => {
    const seconds = Math.ceil((Date.parse(form.dataset.until) - Date.now() - ahead) / 1000);
    if (seconds > 0) { say.textContent = `It takes effect in ${seconds} s.`; return; }
    clearInterval(timer);
    form.remove();
  }, Math.min(1_000, Math.max(left, 100)));
}

// Dialogs, for browsers that do not know `command` yet.
if (!("commandForElement" in HTMLButtonElement.prototype)) {
  addEventListener("click", (event) => {
    const button = event.target.closest("button[commandfor]");
    const dialog = button && document.getElementById(button.getAttribute("commandfor"));
    if (dialog) button.getAttribute("command") === "show-modal" ? dialog.showModal() : dialog.close();
  });
}

// What changes without being looked at is said, rarely ---------------------------------------------
const say = document.querySelector("#say");
const nav = document.querySelector("#nav");
let saidAt = 0;

function readToDecide() {
  return parseInt(nav.querySelector(".count.person")?.textContent ?? "0", 10);
}

if (say && nav) {
  let known = readToDecide();
  new MutationObserver(() => {
    const found = readToDecide();
    if (found === known) return;
    const more = found > known ? `, ${found - known} new` : "";
    known = found;
    if (Date.now() - saidAt < 5_000) return;
    saidAt = Date.now();
    say.textContent = `Approvals: ${found} to decide${more}`;
  }).observe(nav, { childList: true, subtree: true, characterData: true });
}

// Keys: none of them acts. They can be switched off in the menu (WCAG 2.1.4) -------------------------
const OFF = "longwatch.keys";
const toggle = document.querySelector("[data-keys-toggle]");

function readKeysOff() {
  try { return localStorage.getItem(OFF) === "off"; } catch { return false; }
}

function showToggle() {
  if (toggle) toggle.querySelector("[data-keys-state]").textContent = readKeysOff() ? "off" : "on";
}

if (toggle) {
  toggle.hidden = false;
  showToggle();
  toggle.addEventListener("click", () => {
    try { readKeysOff() ? localStorage.removeItem(OFF) : localStorage.setItem(OFF, "off"); } catch { return; }
    showToggle();
  });
}

const ARRIVES_MS = 700;

function step(by) {
  const rows = [...document.querySelectorAll("table.runs tbody th a, a.ap")];
  const at = rows.indexOf(document.activeElement);
  const current = rows.findIndex((row) => row.getAttribute("aria-current"));
  const next = rows[Math.min(Math.max((at < 0 ? current : at) + by, 0), rows.length - 1)];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

addEventListener("keydown", (event) => {
  const field = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "Enter" && (event.metaKey || event.ctrlKey) && field?.form) {
    const confirm = field.form.querySelector("button.primary[type=submit], button.solid[type=submit]");
    if (confirm) { event.preventDefault(); field.form.requestSubmit(confirm); }
    return;
  }
  // From anywhere else on a card it confirms what the card's own large button says.
  const card = document.querySelector("#decide-form");
  if (event.key === "Enter" && (event.metaKey || event.ctrlKey) && card && !document.querySelector("dialog:modal")) {
    const confirm = card.querySelector("button.primary[type=submit]");
    // Not at once: the second of two presses on the card before it must decide nothing on the one that has just come.
    if (confirm && !event.repeat && performance.now() > ARRIVES_MS) { event.preventDefault(); card.requestSubmit(confirm); }
    return;
  }
  if (field || event.metaKey || event.ctrlKey || event.altKey || document.querySelector("dialog:modal") || readKeysOff()) return;
  if (event.key === "/") { event.preventDefault(); document.querySelector("#find")?.focus(); }
  if (event.key === "j") step(1);
  if (event.key === "k") step(-1);
});
