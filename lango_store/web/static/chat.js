// One loop follows the open conversation: it sends what the outbox has, opens the stream of the answer, reads the messages
// and then the stream, and begins again. A request stays in the outbox until the service confirms it; repeats are harmless.
"use strict";

const $ = (id) => document.getElementById(id);
const newId = () => crypto.getRandomValues(new Uint32Array(4)).join("-");
const at = (id, rest = "") => `/${encodeURIComponent(id)}${rest}`;
const begun = () => messages.filter(({ metadata }) => !metadata?.dueAt); // without reminders, which come last
const timeOf = (time) => new Date(time).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
const textOf = ({ parts }) => parts.map(({ type, text }) => (type === "text" ? text : "")).filter(Boolean).join("\n\n");
const wake = () => { isWoken = true; endSleep(); };
const sleep = (ms) => isWoken || new Promise((done) => { endSleep = done; setTimeout(done, ms); });
const again = () => { seen = null; link.abort(); wake(); };
const tools = (window.langoTools ??= {}); // what the page runs: functions from the input of a call to its output
const outbox = JSON.parse(sessionStorage.outbox ?? "[]"), otherTabs = new BroadcastChannel("lango-store");
const started = new Set(), MOST_BYTES = 1_000_000;
let link = new AbortController(), endSleep = () => {}, isWoken = false; // of the loop
let chat = null, messages = [], live = null, editing = null, failure = "", pages = 1, canShare = false;
let seen = null; // the state of the conversation whose messages are shown

function make(tag, fields, ...children) {
  const element = Object.assign(document.createElement(tag), fields);
  element.append(...children);
  return element;
}

// Replace only the children whose items have changed, so that the focus and open details stay.
function draw(parent, items, show) {
  items.forEach((item, n) => {
    const old = parent.children[n], drawn = JSON.stringify(item), now = old?.drawn === drawn ? old : show(item, old);
    if (!old) parent.append(now);
    else if (now !== old) old.replaceWith(Object.assign(now, { open: now.open || old.open }));
    now.drawn = drawn;
  });
  while (parent.children.length > items.length) parent.lastChild.remove();
}

function paint() {
  const log = $("log"), isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  draw(log, messages, showMessage);
  const toEnd = () => (log.scrollTop = log.scrollHeight);
  if (!isAtEnd) return;
  toEnd();
  requestAnimationFrame(() => requestAnimationFrame(toEnd)); // only what is in view has its real height
}

function showMessage({ id, role, parts, metadata }, old) {
  const { alternatives, dueAt, ...marks } = metadata ?? {};
  const isQuestion = role === "user", ariaLabel = isQuestion ? "You" : "Answer";
  const button = make("button", { type: "button", className: "quiet", onclick: () => edit(id) }, "Edit");
  const item = old?.key === id ? old : make("article", { key: id, ariaLabel }, make("div", {}), isQuestion ? button : "");
  item.querySelector("nav")?.remove();
  if (alternatives) item.append(showAlternatives(alternatives));
  item.className = [role, ...Object.keys(marks)].join(" ");
  draw(item.firstChild, dueAt ? [{ type: "reminder", dueAt, id }, ...parts] : parts, showPart);
  return item;
}

function showReminder(dueAt, message) {
  const onclick = () => attempt(() => request(at(chat, "/drop"), { method: "POST", body: { message } }));
  const button = make("button", { type: "button", className: "quiet", onclick }, "Drop");
  return make("small", {}, `Reminder for ${timeOf(dueAt)}`, button);
}

function showAlternatives({ ids, shown }) {
  const go = (n) => attempt(() => request(at(chat, "/switch"), { method: "POST", body: { alternative: ids[n] } }));
  const button = (text, ariaLabel, n) =>
    make("button", { type: "button", className: "quiet", ariaLabel, disabled: !(n in ids), onclick: () => go(n) }, text);
  const buttons = [button("‹", "Previous version", shown - 1), button("›", "Next version", shown + 1)];
  return make("nav", { ariaLabel: "Versions" }, buttons[0], `${shown + 1}/${ids.length}`, buttons[1]);
}

function showPart({ type, text, url, title, filename = "file", ...call }) {
  if (type === "reminder") return showReminder(call.dueAt, call.id);
  if (type === "text") return make("p", { dir: "auto" }, text);
  if (type === "reasoning") return make("details", {}, make("summary", {}, "Thinking"), make("p", {}, text));
  if (type.startsWith("tool-")) return showTool(type.slice(5), call);
  if (/^data:image\/(png|jpeg|gif|webp);/.test(url)) return make("img", { src: url, alt: filename });
  if (!/^(https?|data):/.test(url)) return make("span", {}, url ?? "");
  return make("a", { href: url, rel: "noreferrer", download: type === "file" ? filename : "" }, title ?? filename);
}

function showTool(name, { state, approval, input, output, errorText, toolCallId }) {
  const isAsked = state === "approval-requested", isDecided = state === "approval-responded";
  const className = isDecided ? (approval.approved ? "approved" : "denied") : state;
  const card = make("details", { open: isAsked }, make("summary", {}, name, make("span", { className })));
  for (const [title, value] of Object.entries({ input, result: output ?? errorText, reason: approval?.reason })) {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    if (text) card.append(make("small", {}, title), make("pre", { dir: "auto" }, text));
  }
  const why = make("input", { ariaLabel: "Reason", placeholder: "Reason (optional)" });
  const decide = (approved) => answer(toolCallId, "approval-responded", { id: approval.id, approved, reason: why.value });
  const button = (text, yes) => make("button", { type: "button", className: text, onclick: () => decide(yes) }, text);
  const question = make("p", {}, approval?.requestReason ?? "Run this tool?");
  const form = make("div", { className: "decide" }, question, why, button("Approve", true), button("Deny", false));
  card.append(isAsked ? form : "");
  return card;
}

function say(text, kind = "") {
  if ($("status").textContent !== text) $("status").textContent = text;
  document.body.className = kind;
  $("log").ariaBusy = kind === "busy";
  $("again").hidden = kind === "busy" || begun().at(-1)?.role !== "assistant";
}

async function request(path, { body, ...options } = {}) {
  const json = body && { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  const response = await fetch(`api/chat${path}`, { ...options, ...json });
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  throw Object.assign(new Error(error ?? response.statusText), { isFinal: response.status < 500 });
}

function push(body) {
  if (body) failure = "", outbox.push({ id: chat, ...body });
  try { sessionStorage.outbox = JSON.stringify(outbox); } catch { delete sessionStorage.outbox; } // it is too large
}

async function deliver(signal) {
  const response = await request("", { method: "POST", body: outbox[0], signal }).catch((error) => {
    if (!error.isFinal) throw error;
    failure = error.message;
    if (outbox[0].trigger === "submit-message") $("text").value ||= textOf(outbox[0].messages[0]);
  });
  response?.body?.cancel(); // the loop reads the stream of the answer
  otherTabs.postMessage(outbox.shift().id);
  push();
}

async function refresh(signal) {
  messages = await (await request(at(chat, "/messages"), { signal })).json();
  const earlier = messages.slice(0, messages.findLastIndex(({ role, metadata }) => role === "user" && !metadata?.waiting));
  for (const part of earlier.flatMap(({ parts }) => parts)) if (part.state === "input-available") part.state = "unfinished";
}

async function follow() {
  for (let pause = 500; ; ) {
    const { signal } = (link = new AbortController());
    isWoken = false; // what wakes the loop during its requests ends the next sleep
    try {
      while (outbox.length) await deliver(signal);
      const state = await list(signal);
      const stream = chat && (await request(at(chat, "/stream"), { signal })), isBusy = stream?.status === 200;
      if (chat && (isBusy || !state || state !== seen)) await refresh(signal); // after the stream, which may just have ended
      paint();
      seen = isBusy ? null : state;
      if (isBusy) await read(stream.body, signal);
      else await sleep(idle());
      pause = 500;
    } catch (error) {
      if (signal.aborted) continue;
      say(error.isFinal ? failure || error.message : navigator.onLine ? "No connection. Trying again…" : "Offline.", "bad");
      await sleep(error.isFinal ? 1e9 : pause);
      pause = Math.min(2 * pause, 10_000);
    }
  }
}

function idle() {
  const { parts = [], metadata } = begun().at(-1) ?? {};
  const isAsked = parts.some(({ state }) => state === "approval-requested");
  if (failure) say(`Failed: ${failure}`, "bad");
  else say(isAsked ? "Waiting for your decision." : metadata?.interrupted ? "Stopped." : "");
  for (const { type, state, toolCallId: id, input } of parts) {
    const tool = Object.hasOwn(tools, type.slice(5)) && tools[type.slice(5)];
    if (!tool || state !== "input-available" || started.has(id)) continue;
    started.add(id);
    const failed = (error) => answer(id, "output-error", `${error}`);
    Promise.resolve(input).then(tool).then((output) => answer(id, "output-available", output ?? null), failed);
  }
  return document.hidden ? 60_000 : 5000; // until the page looks for what other browsers have changed
}

// Send the result of a call, or the decision about all calls that an approval is for.
function answer(id, state, value) {
  const fields = { state, [{ "output-available": "output", "output-error": "errorText" }[state] ?? "approval"]: value };
  const isOf = (part) => part.toolCallId === id || (fields.approval && part.approval?.id === value.id);
  const message = messages.findLast(({ parts }) => parts.some(({ toolCallId }) => toolCallId === id));
  const parts = message?.parts.map((part) => (isOf(part) ? { ...part, ...fields } : part));
  if (message) push({ messages: [{ ...message, parts }] });
  again();
}

async function read(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  say("Waiting for a worker…", "busy");
  for (let rest = ""; ; paint()) {
    const silence = setTimeout(again, 45_000);
    const { value, done } = await reader.read().finally(() => clearTimeout(silence));
    if (done) throw new Error("the stream was cut");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.filter((each) => each.startsWith("data: "))) {
      if (line === "data: [DONE]") return;
      await apply(JSON.parse(line.slice(6)), signal);
    }
  }
}

async function apply({ type, ...chunk }, signal) {
  if (type === "data-waiting") {
    const { scope, until } = chunk.data;
    return say(`The budget of ${scope} is used up. The next try is on ${timeOf(until)}.`, "busy");
  }
  if (type === "start") {
    failure = "";
    live = { id: chunk.messageId, role: "assistant", parts: [] };
    return say("Answering…", "busy");
  }
  if (type === "finish") return;
  if (!messages.includes(live)) {
    await refresh(signal); // the turn has taken the questions that waited
    const n = messages.findIndex(({ id, metadata }) => id === live.id || metadata?.waiting);
    messages.splice(n < 0 ? messages.length : n, messages[n]?.id === live.id ? 1 : 0, live);
  }
  const { parts } = live, name = chunk.toolCallId ? "toolCallId" : "id";
  const part = parts.findLast((each) => each[name] === chunk[name]);
  if (type.endsWith("-delta")) part.text += chunk.delta;
  else if (/^(text|reasoning)-start/.test(type)) parts.push({ ...chunk, type: type.slice(0, -6), text: "" });
  else if (/^(start-step|file|source.*)$/.test(type)) parts.push({ type, ...chunk });
  else if (type === "reset-step") parts.splice(parts.findLastIndex((each) => each.type === "start-step") + 1);
  else if (type === "tool-input-available") parts.push({ ...chunk, type: `tool-${chunk.toolName}`, state: "running" });
  else if (type === "data-changed" || (chunk.toolCallId && !part)) again(); // in an earlier message
  else if (type.startsWith("tool-output")) Object.assign(part, { ...chunk, state: type.slice(5) });
  else if (type === "error") failure = chunk.errorText;
}

// Show the list; return a text that changes with the open conversation, and each minute: not all changes are listed.
async function list(signal) {
  const items = [];
  let state = null;
  for (let page = 0, cursor = ""; page < pages && cursor !== null; page++) {
    const found = await (await request(`?cursor=${encodeURIComponent(cursor)}`, { signal })).json();
    items.push(...found.items.map(({ id, title }) => ({ id, title, isOpen: id === chat })));
    const changed = found.items.find(({ id }) => id === chat)?.updated_at;
    if (changed) state = `${changed} ${Math.floor(Date.now() / 60_000)}`;
    [cursor, canShare] = [found.next, found.shares];
    $("more").hidden = cursor === null;
  }
  draw($("list"), items, ({ id, title, isOpen }) =>
    make("li", {}, make("a", { href: `#${encodeURIComponent(id)}`, ariaCurrent: `${isOpen}` }, title || "Untitled")));
  const open = items.find(({ isOpen }) => isOpen);
  $("title").disabled = $("delete").hidden = !open;
  $("share").hidden = !(open && canShare);
  if (document.activeElement !== $("title")) $("title").value = open?.title ?? "";
  return state;
}

function open() {
  [chat, messages] = [decodeURIComponent(location.hash.slice(1)), []];
  started.clear();
  $("form").reset();
  $("share").textContent = "Share";
  $("side").hidePopover();
  say("");
  paint();
}

function edit(id) {
  [editing, $("draft").hidden, $("text").value] = [id, false, textOf(messages.find((each) => each.id === id))];
  $("text").focus();
}

async function ask() {
  const n = messages.findIndex(({ id }) => id === editing), text = $("text").value.trim();
  const kept = n < 0 ? [] : messages[n].parts.filter(({ type }) => type === "file");
  const parts = [...kept, ...(await Promise.all([...$("files").files].map(attach)))];
  if (text) parts.push({ type: "text", text });
  if (!parts.length) return;
  if (!chat) history.pushState(null, "", `#${(chat = newId())}`);
  const question = { id: editing ?? newId(), role: "user", parts };
  messages = [...(n < 0 ? messages : messages.slice(0, n)), { ...question, metadata: { waiting: true } }];
  push({ trigger: "submit-message", messages: [question], messageId: editing ?? undefined });
  $("form").reset();
  paint();
}

function regenerate() {
  const log = begun(), from = log.findLastIndex(({ role }) => role === "user"), messageId = log.at(-1).id;
  push({ trigger: "regenerate-message", messageId, messages: log.slice(from, -1) });
}

async function attach(file) {
  if (file.size > MOST_BYTES) throw new Error(`${file.name} is larger than 1 MB`);
  const reader = new FileReader();
  await new Promise((onload, onerror) => Object.assign(reader, { onload, onerror }).readAsDataURL(file));
  return { type: "file", mediaType: file.type || "text/plain", filename: file.name, url: reader.result };
}

// Run an action of the user, then begin the loop again; show why an action has failed.
async function attempt(act) {
  failure = "";
  try { await act(); } catch (error) { failure = error.message; }
  otherTabs.postMessage(chat);
  again();
}

const on = (target, event, act) => target.addEventListener(event, (it) => attempt(() => act(it)));

on($("form"), "submit", (event) => (event.preventDefault(), ask()));
on($("again"), "click", regenerate);
on($("stop"), "click", () => request(at(chat, "/stop"), { method: "POST", body: {} }));
on($("more"), "click", () => pages++);
on($("title"), "change", () => request(at(chat), { method: "PATCH", body: { title: $("title").value } }));
on($("share"), "click", async ({ target }) => {
  const isShared = target.textContent !== "Share", method = isShared ? "DELETE" : "POST";
  const response = await request(at(chat, "/share"), { method, body: {} });
  target.textContent = isShared ? "Share" : "Stop sharing";
  if (isShared) return;
  const link = new URL((await response.json()).path, location.href.split("#")[0]).href;
  const isCopied = await navigator.clipboard?.writeText(link).then(() => true, () => false);
  prompt(`Who has this link${isCopied ? ", which was copied," : ""} can read the conversation so far:`, link);
});
on($("delete"), "click", async () => {
  if (!confirm("Delete this conversation with all its messages?")) return;
  await request(at(chat), { method: "DELETE", body: {} });
  location.hash = "";
});
on(window, "hashchange", open);
on(window, "offline", () => {});
for (const event of ["online", "visibilitychange"]) addEventListener(event, () => wake());
otherTabs.onmessage = () => wake();
$("form").onreset = () => ([editing, $("draft").hidden, $("count").textContent] = [null, true, ""]);
$("files").onchange = () => ($("count").textContent = $("files").files.length || "");
$("text").onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("form").requestSubmit();
};
open();
follow();
