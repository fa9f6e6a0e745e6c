// Live pages. The server says *that* something moved; a panel listens for it on `document` and fetches itself:
// `live:TOPIC`, and `live:resync` when anything may have moved. <html data-live> and the chip say how true the page is.
const root = document.documentElement;
const chip = document.getElementById("live-chip");
const [POLL_MS, AGAIN_MS, SLOWEST_MS, OLDEST_MS] = [10_000, 5_000, 3_000, 30_000];
const WORDS = { // and the icon, where there is no dot
  live: ["Live"], reconnecting: ["Reconnecting…"], polling: ["Every 10 s", "refresh"], degraded: ["Degraded", "stale"],
  paused: ["Paused", "paused"], "signed-out": ["Signed out", "lock"],
};
const tabs = new BroadcastChannel("live");
const page = Math.random().toString(36).slice(2); // a stream of its own replaces the one before
const held = new Set(); // panels that wait until nothing in them is selected
const due = new WeakMap(); // when each panel is fetched although nothing happened
let link = "reconnecting"; // or live, degraded, paused, signed-out
let polled = false; // without a stream, the last panel that was fetched came
let missed = false; // there was a gap that the cursor may not cover
let reader; // whose page this is, and in which session
let [source, watchdog, retry, again, failures] = [null, 0, 0, 0, 0];
let [cursor, heartbeat, newsAt] = [root.dataset.liveCursor, 15_000, Date.now()];

const on = {
  hello({ heartbeat_s, user, session }) {
    if (reader && reader.user !== user) return location.reload();
    if (reader && reader.session !== session) renewForms();
    reader = { user, session };
    [heartbeat, failures, polled] = [heartbeat_s * 1000, 0, false];
    watch();
    tabs.postMessage("signed in");
    become("live");
    if (missed) tell("resync");
    missed = false;
  },
  changed: (topics) => topics.forEach(tell),
  ping() {},
  degraded: () => become("degraded"),
  resync() { become("live"); tell("resync"); },
  expired: signOut,
  bye() { close(); retry = setTimeout(open, Math.random() * 1000); },
};

function open() {
  close();
  if (document.hidden) return leave("paused");
  if (link === "paused") become("reconnecting");
  source = new EventSource(`${root.dataset.liveSrc}?since=${cursor}&page=${page}`);
  source.onerror = lose;
  for (const name in on) source.addEventListener(name, ({ data, lastEventId }) => {
    [cursor, newsAt] = [lastEventId, Date.now()];
    watch();
    on[name](JSON.parse(data));
  });
  watch();
}
function watch() { clearTimeout(watchdog); watchdog = setTimeout(lose, heartbeat * 2.5); } // a frozen server closes nothing
function close() { source?.close(); clearTimeout(watchdog); clearTimeout(retry); }
function leave(state) { close(); missed = true; if (link !== "signed-out") become(state); }
function lose() {
  leave("reconnecting");
  retry = setTimeout(open, Math.min(SLOWEST_MS, 250 * 2 ** failures++) * (0.5 + Math.random() / 2));
}
function signOut() {
  leave("signed-out");
  document.getElementById("alarm").textContent = "Signed out. Updates have stopped.";
}
async function renewForms() { // their tokens are those of a session that ended; what was typed stays
  const fresh = new DOMParser().parseFromString(await (await fetch(location)).text(), "text/html");
  document.body.setAttribute("hx-headers:inherited", fresh.body.getAttribute("hx-headers:inherited"));
  const token = fresh.querySelector("[name=csrfmiddlewaretoken]")?.value;
  for (const field of document.getElementsByName("csrfmiddlewaretoken")) field.value = token ?? field.value;
}

function tell(topic) { document.dispatchEvent(new CustomEvent(`live:${topic}`)); }
function become(state) { link = state; show(); }
function show() {
  const selecting = link === "live" && held.size;
  const state = selecting ? "paused" : link === "reconnecting" && polled ? "polling" : link;
  const age = Math.round((Date.now() - newsAt) / 1000);
  chip.querySelector(".age").textContent = selecting ? "while you select"
    : !["live", "polling", "degraded"].includes(state) ? `as of ${new Date(newsAt).toLocaleTimeString("en-GB")}`
    : age < 90 ? `${age} s ago` : `${Math.round(age / 60)} min ago`;
  if (root.dataset.live === state) return;
  root.dataset.live = state;
  chip.className = `live ${state}`;
  const [word, icon = "refresh"] = WORDS[state];
  chip.querySelector("b").textContent = word;
  const use = chip.querySelector("use");
  use.setAttribute("href", use.getAttribute("href").replace(/#.*/, `#i-${icon}`));
  document.dispatchEvent(new CustomEvent("live:state", { detail: { state } }));
}

// What the panels meet when they fetch themselves.
const isPanel = (ctx) => ctx?.sourceEvent?.type.startsWith("live:");
const isSelecting = (panel) => panel.dataset.liveFreeze && panel.isConnected && panel.querySelector(panel.dataset.liveFreeze);
function fetched({ detail: { ctx } }) {
  const came = ctx?.response?.status < 400;
  if (ctx?.response?.status === 401) return signOut();
  if (!isPanel(ctx)) return;
  due.delete(ctx.sourceElement);
  polled = came && link === "reconnecting";
  if (came) newsAt = Date.now();
  if (polled && source?.readyState === EventSource.CLOSED) open(); // the server is there again: why wait
  else if (!came && link === "live") again ||= setTimeout(() => { again = 0; tell("resync"); }, AGAIN_MS);
  show();
}
function hold(event) {
  const { ctx } = event.detail;
  if (isPanel(ctx) && isSelecting(ctx.sourceElement)) { event.preventDefault(); held.add(ctx.sourceElement); show(); }
}
function thaw() {
  const freed = [...held].filter((panel) => !isSelecting(panel) && held.delete(panel));
  if (freed.length) { show(); tell("resync"); }
}
// What changes by time alone: a panel says in how many seconds (data-live-in); none is left to grow old.
function age() {
  if (link !== "live") return;
  for (const panel of document.querySelectorAll("[hx-trigger*='live:again']")) {
    const seconds = panel.querySelector("[data-live-in]")?.dataset.liveIn ?? Infinity;
    if (!due.has(panel)) due.set(panel, Date.now() + Math.min(seconds * 1000, OLDEST_MS));
    if (due.get(panel) > Date.now()) continue;
    due.set(panel, Date.now() + OLDEST_MS);
    panel.dispatchEvent(new CustomEvent("live:again"));
  }
}

if (root.dataset.liveSrc) {
  for (const name of ["htmx:after:request", "htmx:error"]) document.addEventListener(name, fetched);
  document.addEventListener("htmx:before:request", hold);
  for (const name of ["change", "live:thaw"]) document.addEventListener(name, thaw);
  document.addEventListener("visibilitychange", open);
  addEventListener("pagehide", () => leave("paused"));
  addEventListener("pageshow", ({ persisted }) => persisted && open());
  addEventListener("online", open);
  tabs.onmessage = () => link === "signed-out" && open();
  setInterval(() => { show(); age(); }, 1_000);
  setInterval(() => ["reconnecting", "degraded"].includes(link) && tell("resync"), POLL_MS);
  open();
}
