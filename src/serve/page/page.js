// SPDX-License-Identifier: Apache-2.0
// Fills the server's own page: what /health and /metrics report, every second, and a chat. Text of
// users and models is only ever set as text.
"use strict";

const kSeconds = 120;
const byId = (id) => document.getElementById(id);

// Parses Prometheus' text format into {name: [{labels, value}]}.
function parseMetrics(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const match = /^([a-z_]+)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, key, value] of (match[2] || "").matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g))
      labels[key] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    (found[match[1]] ||= []).push({ labels, value: Number(match[3]) });
  }
  return found;
}

const value = (metrics, name) => metrics[name]?.[0]?.value ?? 0;
// Returns {label: value} for a metric whose entries differ in one label.
const byLabel = (metrics, name, label) => Object.fromEntries((metrics[name] || []).map((m) => [m.labels[label], m.value]));

// Returns the quantile `share` of the values that a histogram got since `before`, interpolated
// between the bounds of a bucket.
function quantile(now, before, name, share) {
  const counts = (metrics) =>
    (metrics?.[`${name}_bucket`] || []).map((b) => ({ most: b.labels.le === "+Inf" ? Infinity : Number(b.labels.le), count: b.value }));
  const old = counts(before);
  const buckets = counts(now).map((b, i) => ({ most: b.most, count: b.count - (old[i]?.count ?? 0) }));
  const all = buckets.at(-1)?.count ?? 0;
  if (!all) return null;
  const at = buckets.findIndex((b) => b.count >= share * all);
  const low = at > 0 ? buckets[at - 1] : { most: 0, count: 0 };
  if (buckets[at].most === Infinity) return low.most;
  const width = buckets[at].count - low.count;
  return low.most + (buckets[at].most - low.most) * (width ? (share * all - low.count) / width : 1);
}

const seconds = (s) => (s === null ? "–" : s < 1 ? `${(1000 * s).toFixed(s < 0.01 ? 1 : 0)} ms` : `${s.toFixed(2)} s`);
const number = (n, digits = 0) => n.toLocaleString("en", { maximumFractionDigits: digits });
const gigabytes = (n) => `${number(n / 1e9, n < 1e10 ? 2 : 1)} GB/s`;
const bytes = (n) => (n < 1e9 ? `${number(n / 1e6, 1)} MB` : `${number(n / 1e9, 1)} GB`);

function make(kind, text = "", name = "") {
  const element = document.createElement(kind);
  element.textContent = text;
  if (name) element.className = name;
  return element;
}

function showTiles(tiles) {
  byId("tiles").replaceChildren(
    ...tiles.map(([told, what]) => {
      const tile = make("div", "", "tile");
      tile.append(make("b", told), make("span", what));
      return tile;
    }),
  );
}

function bar(name, share, told) {
  const row = make("div", "", "bar");
  const back = make("i");
  const front = make("b", "", share > 0.95 ? "full" : "");
  front.style.width = `${Math.min(100, 100 * share)}%`;
  back.append(front);
  row.append(make("span", name), back, make("span", told));
  return row;
}

// Shows the traffic of swapped layers, whose KV is loaded to the GPU when it is needed.
function layerSwaps(metrics) {
  const moved = value(metrics, "spillway_kv_layer_swap_bytes_total");
  if (!moved) return [];
  const waits = number(value(metrics, "spillway_kv_layer_swap_waits_total"));
  const waited = seconds(value(metrics, "spillway_kv_layer_swap_wait_seconds_total"));
  const ahead = number(value(metrics, "spillway_kv_layer_swap_ahead_total"));
  const early = number(value(metrics, "spillway_kv_layer_swap_early_total"));
  const changes = number(value(metrics, "spillway_kv_layer_swap_changes_total"));
  const changing = seconds(value(metrics, "spillway_kv_layer_swap_change_seconds_total"));
  return [make("p", `Layer swapping moved ${bytes(moved)}; ${waits} waits for a layer, ${waited} in all; ${early} of ${ahead} that came ahead of their step were early; ${changes} changes of how many are swapped, ${changing} in all.`)];
}

// Shows tokens that were reused instead of computed, by where their KV was.
function prefixHits(metrics) {
  const { pool = 0, host = 0, disk = 0 } = byLabel(metrics, "spillway_prefix_hit_tokens_total", "tier");
  if (!pool && !host && !disk) return [];
  return [make("p", `Tokens reused: ${number(pool)} from the pools, ${number(host)} from host memory, ${number(disk)} from disk.`)];
}

// Shows the KV blocks that are kept beyond the pools.
function storedKv(metrics) {
  const blocks = byLabel(metrics, "spillway_kv_store_blocks", "tier");
  const sizes = byLabel(metrics, "spillway_kv_store_bytes", "tier");
  const told = ["host", "disk"].filter((tier) => blocks[tier]).map((tier) => `${tier} ${number(blocks[tier])} blocks, ${bytes(sizes[tier] || 0)}`);
  if (!told.length) return [];
  const moved = byLabel(metrics, "spillway_kv_store_moved_bytes_total", "way");
  const fromDisk = moved.disk_read ? `, read from disk: ${bytes(moved.disk_read)}` : "";
  return [make("p", `KV store: ${told.join("; ")}. Brought back: ${bytes(moved.to_device || 0)}${fromDisk}.`)];
}

function showKv(metrics) {
  const tiers = new Map();
  for (const { labels, value: blocks } of metrics.spillway_kv_blocks || [])
    tiers.set(labels.tier, { ...(tiers.get(labels.tier) || {}), [labels.state]: blocks });
  const rows = [...tiers].map(([tier, { used = 0, free = 0 }]) =>
    bar(tier, used / Math.max(1, used + free), `${number(16 * used)} of ${number(16 * (used + free))} tokens`),
  );
  const swapped = value(metrics, "spillway_kv_swapped_layers");
  if (swapped) {
    const times = value(metrics, "spillway_kv_expansion").toFixed(2);
    rows.push(make("p", `${number(swapped)} layers are swapped, with all of their KV in host memory: room for ${times} times as much.`));
  }
  rows.push(...layerSwaps(metrics), ...prefixHits(metrics), ...storedKv(metrics));
  byId("kv").replaceChildren(...(rows.length ? rows : [make("p", "Nothing was computed yet.")]));
}

// Shows how much KV is predicted to be needed, and what predictions have cost.
function predictionCost(metrics, answers) {
  const wanted = value(metrics, "spillway_kv_predicted_blocks");
  if (!wanted && !answers) return [];
  const { predicting = 0, scheduling = 0, learning = 0 } = byLabel(metrics, "spillway_prediction_seconds_total", "part");
  const cost = `Predictions took ${seconds(predicting)} of predicting, ${seconds(scheduling)} of scheduling, ${seconds(learning)} of learning.`;
  return [make("p", `${number(wanted)} blocks of KV are predicted for running requests and the next. ${cost}`)];
}

// Shows how well the lengths of answers were predicted, if they are predicted at all.
function showLengths(metrics) {
  const results = byLabel(metrics, "spillway_length_predictions_total", "result");
  const all = (results.right || 0) + (results.over || 0) + (results.under || 0);
  const ahead = predictionCost(metrics, all);
  if (!all) return byId("lengths").replaceChildren(make("p", "No answer with a predicted length has ended yet."), ...ahead);
  const share = (count) => `${number(count)} of ${number(all)} answers`;
  const said = value(metrics, "spillway_length_predicted_tokens_total") / all;
  const real = value(metrics, "spillway_length_real_tokens_total") / all;
  const { dropped = 0 } = byLabel(metrics, "spillway_length_answers_total", "training");
  const exceeded = number(value(metrics, "spillway_predictions_exceeded_total"));
  const preempted = number(value(metrics, "spillway_exceeded_preemptions_total"));
  byId("lengths").replaceChildren(
    bar("right", (results.right || 0) / all, share(results.right || 0)),
    bar("too long", (results.over || 0) / all, share(results.over || 0)),
    bar("too short", (results.under || 0) / all, share(results.under || 0)),
    make("p", `${number(said, 1)} tokens predicted on average, ${number(real, 1)} real. ${exceeded} times an answer exceeded its prediction; ${preempted} of these were preempted.`),
    make("p", `${number(value(metrics, "spillway_length_answers_waiting"))} answers wait to be learned from, ${number(dropped)} were dropped.`),
    ...ahead,
  );
}

function showLinks(metrics) {
  const ceilings = new Map((metrics.spillway_link_ceiling_bytes_per_second || []).map((m) => [m.labels.link, m.value]));
  const rows = [];
  for (const { labels, value: rate } of metrics.spillway_link_bytes_per_second || []) {
    const most = ceilings.get(labels.link) || 0;
    if (!rate && !most) continue;
    rows.push(bar(labels.link.replace("_", " "), most ? rate / most : 0, gigabytes(rate) + (most ? ` of ${gigabytes(most)}` : "")));
  }
  const stalled = value(metrics, "spillway_stall_share");
  rows.push(bar("waiting", stalled, `${(100 * stalled).toFixed(1)}% of the steps' time`));
  byId("links").replaceChildren(...rows);
}

function showAll(metrics) {
  const rows = [];
  for (const [name, entries] of Object.entries(metrics)) {
    if (name.endsWith("_bucket")) continue;
    for (const { labels, value: now } of entries) {
      const row = make("tr");
      const told = Object.entries(labels).map(([key, text]) => `${key}=${text}`);
      row.append(make("td", name.replace(/^spillway_/, "") + (told.length ? ` (${told.join(", ")})` : "")), make("td", number(now, 6)));
      rows.push(row);
    }
  }
  byId("all").replaceChildren(...rows);
}

const history = []; // {at, metrics} of two minutes, oldest first

function rates(name) {
  const found = [];
  for (let i = 1; i < history.length; ++i) {
    const [before, after] = [history[i - 1], history[i]];
    found.push((value(after.metrics, name) - value(before.metrics, name)) / ((after.at - before.at) / 1000));
  }
  return found;
}

function showRate() {
  const points = rates("spillway_generated_tokens_total");
  const most = Math.max(1, ...points);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  const x = (i) => 600 - ((points.length - 1 - i) * 600) / kSeconds;
  line.setAttribute("points", points.map((rate, i) => `${x(i).toFixed(1)},${(115 - (110 * rate) / most).toFixed(1)}`).join(" "));
  byId("rate").replaceChildren(line);
  byId("rate-from").textContent = "the last two minutes";
  byId("rate-most").textContent = `at most ${number(most, 1)}`;
}

function show(metrics) {
  history.push({ at: performance.now(), metrics });
  if (history.length > kSeconds + 1) history.shift();
  const before = history[Math.max(0, history.length - 31)].metrics;
  const since = history.length > 1 ? before : null;
  const last = (name) => rates(name).at(-1) ?? 0;
  const computed = value(metrics, "spillway_prompt_tokens_total");
  const reused = value(metrics, "spillway_reused_tokens_total");
  const lately = (name, share) => seconds(quantile(metrics, since, name, share) ?? quantile(metrics, null, name, share));
  showTiles([
    [number(value(metrics, "spillway_requests_running")), "requests running"],
    [number(value(metrics, "spillway_requests_waiting")), "waiting"],
    [number(last("spillway_generated_tokens_total"), 1), "tokens/s generated"],
    [number(last("spillway_prompt_tokens_total"), 1), "tokens/s of prompts"],
    [computed + reused ? `${((100 * reused) / (computed + reused)).toFixed(0)}%` : "–", "of prompts reused"],
    [lately("spillway_time_to_first_token_seconds", 0.5), "to the first token, median"],
    [lately("spillway_time_to_first_token_seconds", 0.95), "to the first token, 95%"],
    [lately("spillway_time_between_tokens_seconds", 0.5), "between tokens, median"],
    [number(value(metrics, "spillway_preemptions_total")), "preemptions"],
    [number(value(metrics, "spillway_recomputed_tokens_total")), "tokens computed again"],
  ]);
  const info = metrics.spillway_info?.[0]?.labels;
  if (info) {
    byId("model").textContent = info.model;
    byId("plan").textContent = info.plan;
  }
  showRate();
  showKv(metrics);
  showLengths(metrics);
  showLinks(metrics);
  if (document.querySelector("details").open) showAll(metrics);
}

function showState(told, isGood) {
  byId("state").textContent = told;
  byId("state").className = `state ${isGood ? "ok" : "bad"}`;
}

// The API key, if the server asks for one. It is kept in this tab, and only until the tab is
// closed.

const kKeyName = "spillway-api-key";
let key = sessionStorage.getItem(kKeyName) || "";
const withKey = (headers = {}) => (key ? { ...headers, Authorization: `Bearer ${key}` } : headers);

// Shows the form for the key if an answer says that the key is missing or wrong.
function checkKey(answer) {
  const isRefused = answer.status === 401;
  if (isRefused && byId("unlock").hidden) byId("key-state").textContent = key ? "The key is not known here." : "";
  byId("unlock").hidden = !isRefused;
  return answer;
}

async function look() {
  try {
    const health = await (await fetch("health")).json();
    const progress = health.progress !== undefined ? ` ${Math.round(100 * health.progress)}%` : "";
    showState(health.status + progress, health.status === "ok");
    const answer = checkKey(await fetch("metrics", { headers: withKey() }));
    if (answer.ok) show(parseMetrics(await answer.text()));
  } catch {
    showState("not reached", false);
  }
  setTimeout(look, document.hidden ? 5000 : 1000);
}

// The chat is made by the following functions.

const messages = [];
let answering = null; // an AbortController while an answer is made

function say(role, text) {
  const line = byId("talk").appendChild(make("p", text, role));
  line.scrollIntoView({ block: "nearest" });
  return line;
}

// Yields the data of server-sent events.
async function* events(answer) {
  let rest = "";
  const decoder = new TextDecoder();
  const reader = answer.body.getReader();
  for (;;) {
    const { done, value: bytes } = await reader.read();
    if (done) return;
    const parts = (rest + decoder.decode(bytes, { stream: true })).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}

async function answerTo(words) {
  messages.push({ role: "user", content: words });
  say("user", words);
  const line = say("assistant", "…");
  answering = new AbortController();
  byId("send").hidden = !(byId("stop").hidden = false);
  let text = "";
  try {
    const model = byId("model").textContent;
    const answer = checkKey(
      await fetch("v1/chat/completions", {
        method: "POST",
        headers: withKey({ "Content-Type": "application/json" }),
        body: JSON.stringify({ model, messages, stream: true }),
        signal: answering.signal,
      }),
    );
    if (!answer.ok) throw new Error((await answer.json()).error?.message ?? `status ${answer.status}`);
    for await (const data of events(answer)) {
      if (data === "[DONE]") break;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      text += event.choices?.[0]?.delta?.content ?? "";
      line.textContent = text;
      line.scrollIntoView({ block: "nearest" });
    }
  } catch (problem) {
    if (problem.name !== "AbortError") say("error", problem.message);
  }
  answering = null;
  byId("send").hidden = !(byId("stop").hidden = true);
  if (text) messages.push({ role: "assistant", content: text });
  else {
    line.remove();
    messages.pop();
  }
}

byId("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  key = byId("key").value.trim();
  sessionStorage.setItem(kKeyName, key);
  byId("key").value = "";
  byId("unlock").hidden = true; // the next request tells whether it is right
});
byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const words = byId("words").value.trim();
  if (!words || answering) return;
  byId("words").value = "";
  answerTo(words);
});
byId("words").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("ask").requestSubmit();
});
byId("stop").addEventListener("click", () => answering?.abort());
byId("forget").addEventListener("click", () => {
  answering?.abort();
  messages.length = 0;
  byId("talk").replaceChildren();
});
look();
