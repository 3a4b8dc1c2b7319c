"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const W = 250, H = 42, GX = 46, GY = 30, PAD = 16, HEAD = 30, MOST_BOXES = 4000, MOST_HITS = 200, FEW_BOXES = 24,
  READABLE = 0.45, FARTHEST = 0.1; // zoom
const stage = document.getElementById("stage"), side = document.getElementById("side");
const search = document.getElementById("search"), root = document.getElementById("root");
const colours = document.getElementById("colours"), legend = document.getElementById("legend");
const framed = window.parent !== window; // as a part of a report
const tip = document.getElementById("tip"), note = document.getElementById("note");
const opened = new Set();
let drawn = new Map(), edges = [], chosen = "", size = [1, 1], view = { x: 0, y: 0, k: 1 }, began = {}, layer = null;
let hits = [], hit = -1;
const after = { draw: [], choose: [], help: [], pick: [], explain: [] }; // what other pages do then
const KINDS = [["input", "input"], ["weighted", "has weights"], ["integer", "quantized"], ["move", "moves data only"],
  ["other", "other"], ["fold", "opens"]];

const svg = (tag, attributes, parent) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
};
const html = (tag, text, parent) => {
  const made = document.createElement(tag);
  made.textContent = text;
  if (parent) parent.append(made);
  return made;
};
const short = (text, limit) => (text.length > limit ? text.slice(0, limit - 1) + "…" : text);

// A box is known by its way from the outermost graph: "0/4/1". Rows and columns come with the data; sizes depend on
// what is open.
function measure(index, key) {
  const graph = data.graphs[index], widths = [], heights = [], boxes = [];
  graph.nodes.forEach((node, i) => {
    const own = key + "/" + i;
    const inner = node.graph !== null && opened.has(own) ? measure(node.graph, own) : null;
    const box = { node, key: own, inner, w: W, h: H };
    if (inner) { box.w = Math.max(W, inner.w); box.h = HEAD + inner.h; }
    widths[node.column] = Math.max(widths[node.column] || 0, box.w);
    heights[node.row] = Math.max(heights[node.row] || 0, box.h);
    boxes.push(box);
  });
  const lefts = [], tops = [];
  let x = PAD, y = PAD;
  for (let c = 0; c < widths.length; c++) { lefts[c] = x; x += (widths[c] || 0) + GX; }
  for (let r = 0; r < heights.length; r++) { tops[r] = y; y += (heights[r] || 0) + GY; }
  for (const box of boxes) {
    const { row, column } = box.node;
    Object.assign(box, { x: lefts[column] + (widths[column] - box.w) / 2, y: tops[row],
      lane: lefts[column] + widths[column], bottom: tops[row] + heights[row] });
  }
  return { graph, boxes, tops, key, w: Math.max(x - GX + PAD + 18, W), h: Math.max(y - GY + PAD, H) };
}

function edgePath(a, b, graph, tops, i) {
  const x0 = a.x + a.w / 2, y0 = a.y + a.h, x1 = b.x + b.w / 2, y1 = b.y, turn = tops[b.node.row] - GY;
  const between = (n) => n.column === a.node.column && n.row > a.node.row && n.row < b.node.row;
  const last = graph.last[a.node.column] ?? 0;
  const free = b.node.row - a.node.row < 2 || last <= a.node.row || !graph.nodes.some(between);
  if (free) return `M${x0},${y0} V${turn} C${x0},${turn + GY / 2} ${x1},${y1 - GY / 2} ${x1},${y1}`;
  const x = a.lane + 8 + (i % 5) * 6, leave = a.bottom;
  return `M${x0},${y0} V${leave} C${x0},${leave + GY / 2} ${x},${leave + GY / 4} ${x},${leave + GY} V${turn} ` +
    `C${x},${turn + GY / 2} ${x1},${y1 - GY / 2} ${x1},${y1}`;
}

function paint(made, parent, x, y) {
  const { graph, boxes, tops } = made;
  graph.edges.forEach(([from, to], i) => {
    const path = svg("path", { class: "edge", d: edgePath(boxes[from], boxes[to], graph, tops, i),
      transform: `translate(${x},${y})` }, parent);
    edges.push([boxes[from].key, boxes[to].key, path]);
  });
  for (const box of boxes) {
    const { node, key } = box, left = x + box.x, top = y + box.y;
    const kind = "box" + (node.output ? " output" : "") + (node.graph !== null ? " folds" : "") +
      (node.outside ? " outside" : "");
    const g = svg("g", { class: kind, tabindex: 0, role: "button", "data-key": key }, parent);
    if (node.graph !== null) g.setAttribute("aria-expanded", box.inner !== null);
    g.setAttribute("aria-label", node.title + " " + node.name);
    svg("rect", { x: left, y: top, width: box.w, height: box.h, rx: 6,
      style: `fill: ${box.inner ? "var(--open)" : fill(node)}` }, g);
    const sign = node.graph === null ? "" : box.inner ? "▾ " : "▸ ";
    const middle = box.inner ? { x: left + 10 } : { x: left + box.w / 2, "text-anchor": "middle" };
    const title = svg("text", { ...middle, y: top + (box.inner ? 19 : 17), class: "title" }, g);
    title.textContent = sign + caption(node, box.inner ? box.w : W);
    if (!box.inner) svg("text", { ...middle, y: top + 32, class: "below" }, g).textContent = short(below(node), 40);
    drawn.set(key, { node, g, x: left, y: top, w: box.w, h: box.h, sheet: made });
    if (box.inner) paint(box.inner, parent, left, top + HEAD);
  }
}

// What is called, and as much of the name as there is room for: its end tells more than its beginning.
function caption(node, width) {
  const room = Math.max(Math.floor(width / 7.5) - node.title.length - 2, 6);
  const name = node.name.length <= room ? node.name : "…" + node.name.slice(1 - room);
  return short(node.title, Math.floor(width / 7) - name.length - 2) + "  " + name;
}

const total = () => data.graphs[Number(root.value)].nodes.reduce((sum, node) => sum + node[colours.value], 0);
const share = (node) => (colours.value === "noise" ? (node.noise ?? 0) ** 2 : colours.value in node ? node[colours.value] / (total() || 1) : 0);
function fill(node) {
  if (colours.value === "kind") return `var(--${node.kind})`;
  return `color-mix(in srgb, var(--heat) ${(100 * Math.sqrt(share(node))).toFixed(1)}%, var(--other))`;
}
function below(node) {
  if (colours.value === "noise") return node.ratio ?? node.spec;
  if (colours.value === "kind" || !node[colours.value]) return node.spec;
  return `${(100 * share(node)).toPrecision(3)} % of the ${colours.selectedOptions[0].textContent}`;
}

function draw() {
  const made = measure(Number(root.value), root.value);
  drawn = new Map(); edges = [];
  const picture = svg("svg", { "aria-label": "graph" });
  layer = svg("g", {}, picture);
  paint(made, layer, 0, 0);
  size = [made.w, made.h];
  stage.replaceChildren(picture);
  survey();
  place(); mark();
  for (const hear of after.draw) hear();
}

function place() {
  layer.setAttribute("transform", `translate(${view.x},${view.y}) scale(${view.k})`);
  frame();
}

function mark() {
  const found = new Set(hits.map((one) => one.key));
  for (const [key, { g, node }] of drawn) {
    g.classList.toggle("chosen", key === chosen);
    const holds = node.graph !== null && !opened.has(key) && hits.some((one) => one.key.startsWith(key + "/"));
    g.classList.toggle("found", found.has(key) || holds);
  }
  for (const [from, to, path] of edges) path.classList.toggle("near", from === chosen || to === chosen);
}

// All of it where it can be read then; else the chosen box, or the beginning, and the overview shows the rest.
function fit() {
  const { clientWidth: w, clientHeight: h } = stage, whole = Math.min(1.5, (w - 16) / size[0], (h - 16) / size[1]);
  view.k = Math.max(READABLE, whole);
  view.x = Math.max(8, (w - size[0] * view.k) / 2); view.y = Math.max(8, (h - size[1] * view.k) / 2);
  const box = whole < READABLE && drawn.get(chosen);
  if (box) look(box.x + box.w / 2, box.y + Math.min(box.h, 200) / 2);
  else place();
}

// A point of the drawing in the middle of the stage.
function look(x, y) {
  view.x = stage.clientWidth / 2 - x * view.k; view.y = stage.clientHeight / 2 - y * view.k;
  place();
}

// The top, as large as the width allows and never too small to be read.
function start() {
  const k = Math.min(1, Math.max(READABLE, stage.clientWidth / size[0]));
  view = { x: Math.max(12, (stage.clientWidth - size[0] * k) / 2), y: 8, k };
  began = { ...view };
  place();
}

function zoom(factor, x = stage.clientWidth / 2, y = stage.clientHeight / 2) {
  const k = Math.min(4, Math.max(FARTHEST, view.k * factor));
  view.x = x - (x - view.x) * (k / view.k); view.y = y - (y - view.y) * (k / view.k); view.k = k;
  place();
}

function center(key) {
  const box = drawn.get(key);
  if (!box) return;
  view.k = Math.max(view.k, 0.7);
  look(box.x + box.w / 2, box.y + Math.min(box.h, 200) / 2);
}

function toggle(key) {
  const before = drawn.get(key);
  if (!before || before.node.graph === null) return;
  if (!opened.delete(key)) opened.add(key);
  draw();
  const after = drawn.get(key); // what was clicked stays where it is
  view.x += (before.x + before.w / 2 - after.x - after.w / 2) * view.k;
  view.y += (before.y - after.y) * view.k;
  place();
  after.g.focus({ preventScroll: true });
}

function choose(key) {
  chosen = key; mark();
  const box = drawn.get(key);
  if (!box) return;
  if (framed) window.parent.postMessage({ chosen: box.node.name }, "*");
  side.replaceChildren();
  html("h2", box.node.title + "  " + box.node.name, side);
  if (box.node.graph !== null) {
    html("button", opened.has(key) ? "close" : "open", side).onclick = () => { toggle(key); choose(key); };
  }
  const list = html("dl", "", side);
  for (const [label, value] of box.node.details) { html("dt", label, list); html("dd", value, list); }
  const own = Number(key.slice(key.lastIndexOf("/") + 1)), { graph, key: sheet } = box.sheet;
  neighbours("comes from", graph.edges.filter(([, to]) => to === own).map(([from]) => from), graph, sheet);
  neighbours("goes to", graph.edges.filter(([from]) => from === own).map(([, to]) => to), graph, sheet);
  if (box.node.outside) html("button", "show where it is made", side).onclick = () => made(box.node);
  for (const hear of after.choose) hear(box.node);
}

function neighbours(label, indices, graph, sheet) {
  if (!indices.length) return;
  html("dt", label, side);
  for (const i of indices.slice(0, MOST_HITS)) {
    const button = html("button", graph.nodes[i].title + "  " + graph.nodes[i].name, side);
    button.className = "hit";
    button.onclick = () => { center(sheet + "/" + i); choose(sheet + "/" + i); };
  }
}

// From a value that comes from outside of a sheet to the box that makes it.
function made(node) {
  for (const { node: one, key } of inOrder()) {
    if (one.name === node.name && one.qualname === node.qualname && !one.outside) return show(key);
  }
}

// All boxes in the order in which they run, what one holds right behind it; a part that is used twice comes once.
function* inOrder(index = Number(root.value), way = root.value, seen = new Set([index])) {
  for (const [i, node] of data.graphs[index].nodes.entries()) {
    const key = way + "/" + i;
    yield { node, key };
    if (node.graph === null || seen.has(node.graph)) continue;
    seen.add(node.graph);
    yield* inOrder(node.graph, key, seen);
  }
}

function find() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  side.replaceChildren(); hits = []; hit = -1;
  if (!words.length) { mark(); return help(); }
  for (const one of inOrder()) {
    if (!one.node.outside && words.every((word) => one.node.text.includes(word))) hits.push(one);
  }
  html("p", hits.length > MOST_HITS ? `${hits.length} found, ${MOST_HITS} shown` : `${hits.length} found`, side);
  hits.slice(0, MOST_HITS).forEach(({ node, key }, i) => {
    const button = html("button", node.title + "  " + node.name, side);
    button.className = "hit";
    html("small", (node.qualname || node.path) + "   " + node.spec, button);
    button.onclick = () => { hit = i; show(key); };
  });
  mark();
}

// Enter in the search goes from one to the next.
function next(by) {
  if (!hits.length) return;
  hit = (hit + by + hits.length) % hits.length;
  show(hits[hit].key);
  side.prepend(html("p", `${hit + 1} of ${hits.length}`));
}

function show(key) {
  const parts = key.split("/");
  for (let n = 2; n < parts.length; n++) opened.add(parts.slice(0, n).join("/"));
  draw(); center(key); choose(key);
}

// Level by level, as many boxes as asked for; whole levels only, or all that fit.
function openUpTo(most, whole) {
  let level = [[Number(root.value), root.value]], count = 0;
  while (level.length) {
    const more = level.reduce((sum, [index]) => sum + data.graphs[index].nodes.length, 0);
    if (whole && count + more > most) return false;
    const below = [];
    for (const [index, key] of level) {
      count += data.graphs[index].nodes.length;
      if (count > most) return false;
      opened.add(key);
      data.graphs[index].nodes.forEach((node, i) => { if (node.graph !== null) below.push([node.graph, key + "/" + i]); });
    }
    level = below;
  }
  return true;
}

function openAll() {
  const all = openUpTo(MOST_BOXES, false);
  draw(); start();
  say(all ? "" : `more than ${MOST_BOXES} boxes: the rest stays closed, a click opens it`);
}

function say(text) {
  note.textContent = text;
  note.hidden = !text;
}

function closeAll() { opened.clear(); draw(); start(); say(""); }

function step(by) {
  const keys = [...drawn.keys()], at = keys.indexOf(chosen);
  const key = keys[Math.min(keys.length - 1, Math.max(0, at + by))];
  center(key); choose(key);
}

function help() {
  side.replaceChildren();
  html("h2", data.name, side);
  const list = html("dl", "", side);
  for (const [label, value] of data.details) { html("dt", label, list); html("dd", value, list); }
  html("dt", "keys", list);
  html("dd", "click: details; opens what folds, its head closes it\nEnter: open or close\ndrag, arrows: move\n" +
    (framed ? "wheel after a click here, + -: zoom" : "wheel, + -: zoom") + "\n/ search, Enter: next" +
    "\nf fit, h start, e open all, c close all\nn p next and previous box, l legend", list);
  for (const hear of after.help) hear();
}

const keys = { "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), f: fit, h: start, e: openAll, c: closeAll,
  l: () => { legend.hidden = !legend.hidden; },
  n: () => step(1), p: () => step(-1), "/": () => search.focus(), Escape: () => { chosen = ""; mark(); help(); },
  ArrowLeft: () => pan(80, 0), ArrowRight: () => pan(-80, 0), ArrowUp: () => pan(0, 80), ArrowDown: () => pan(0, -80),
  Enter: () => { const key = document.activeElement?.dataset?.key || chosen; toggle(key); choose(key); } };
function pan(x, y) { view.x += x; view.y += y; place(); }

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = ["INPUT", "SELECT"].includes(event.target.tagName);
  if (typing && event.key === "Escape") { search.value = ""; find(); stage.focus(); return; }
  if (typing || (event.target.tagName === "BUTTON" && event.key === "Enter") || !Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  keys[event.key]();
});
let grab = null;
stage.addEventListener("pointerdown", (event) => { grab = { x: event.clientX, y: event.clientY, moved: false }; });
// What a box is, in full, where the pointer rests on it for a while.
let waiting = 0;
stage.addEventListener("pointerover", (event) => hover(event.target.closest(".box"), event));
for (const kind of ["pointerleave", "pointerdown", "wheel"]) stage.addEventListener(kind, () => hover(null), { passive: true });
document.addEventListener("keydown", () => hover(null));
function hover(g, event) {
  const key = g && !grab ? g.dataset.key : "", box = drawn.get(key);
  for (const [from, to, path] of edges) path.classList.toggle("near", [from, to].some((end) => end === chosen || end === key));
  tip.hidden = true;
  clearTimeout(waiting);
  if (box) waiting = setTimeout(() => tell(box.node, event), 350);
}
function tell(node, event) {
  tip.hidden = false;
  const costs = [["macs", "MACs"], ["parameters", "parameters"]];
  tip.textContent = [node.title + "  " + node.name, node.path === node.title ? "" : node.path, node.spec,
    ...costs.filter(([field]) => node[field]).map(([field, label]) => `${node[field].toLocaleString("en")} ${label}`),
  ].filter(Boolean).join("\n");
  const at = stage.getBoundingClientRect(), wide = tip.offsetWidth, high = tip.offsetHeight;
  tip.style.left = Math.min(event.clientX + 14, at.right - wide - 6) + "px";
  tip.style.top = Math.min(event.clientY + 16, at.bottom - high - 6) + "px";
}
window.addEventListener("pointermove", (event) => {
  if (!grab) return;
  const dx = event.clientX - grab.x, dy = event.clientY - grab.y;
  if (!grab.moved && Math.hypot(dx, dy) < 4) return;
  Object.assign(grab, { x: event.clientX, y: event.clientY, moved: true });
  pan(dx, dy);
});
window.addEventListener("pointerup", (event) => {
  const box = grab && !grab.moved && event.target.closest(".box");
  grab = null;
  if (!box) return;
  if (after.pick.length && (event.shiftKey || event.ctrlKey || event.metaKey)) return after.pick.forEach((hear) => hear(box.dataset.key));
  const key = box.dataset.key, inHead = event.clientY - box.getBoundingClientRect().top < HEAD * view.k;
  if (!opened.has(key) || inHead) toggle(key);
  choose(key);
});
stage.addEventListener("wheel", (event) => {
  if (framed && !document.hasFocus() && !event.ctrlKey) return; // the page around scrolls
  event.preventDefault();
  const at = stage.getBoundingClientRect();
  zoom(Math.exp(-event.deltaY * 0.0015), event.clientX - at.left, event.clientY - at.top);
}, { passive: false });
search.addEventListener("input", find);
search.addEventListener("keydown", (event) => { if (event.key === "Enter") next(event.shiftKey ? -1 : 1); });
colours.onchange = () => { draw(); explain(); };

function explain() {
  legend.replaceChildren();
  const row = (style, text) => {
    const line = html("div", "", legend);
    html("i", "", line).style = style;
    html("span", text, line);
  };
  if (colours.value === "kind") {
    const used = new Set(data.graphs.flatMap((graph) => graph.nodes.map((node) => node.kind)));
    for (const [kind, text] of KINDS) if (used.has(kind)) row(`background: var(--${kind})`, text);
  } else if (colours.value === "noise") {
    for (const ratio of [0, 20, 40, 60]) {
      row(`background: color-mix(in srgb, var(--heat) ${100 * (1 - ratio / 60)}%, var(--other))`, `SQNR ${ratio} dB`);
    }
  } else {
    for (const part of [1, 0.25, 0.05, 0]) {
      row(`background: color-mix(in srgb, var(--heat) ${100 * Math.sqrt(part)}%, var(--other))`, `${100 * part} %`);
    }
  }
  row("background: var(--other); border: 2px solid var(--result)", "an output of its graph");
  if (data.graphs.some((graph) => graph.nodes.some((node) => node.outside))) row("border-style: dashed", "made outside of this module");
  for (const hear of after.explain) hear(row);
}
document.getElementById("fit").onclick = fit;
document.getElementById("all").onclick = openAll;
document.getElementById("none").onclick = closeAll;

document.title = data.name;
document.getElementById("name").textContent = data.name;
document.getElementById("totals").textContent = data.totals;
for (const graph of data.graphs) {
  graph.last = [];
  for (const node of graph.nodes) {
    graph.last[node.column] = Math.max(graph.last[node.column] ?? 0, node.row);
    node.text = [node.title, node.name, node.qualname, node.path, node.spec,
      ...node.details.filter(([label]) => ["source", "passes"].includes(label)).map(([, value]) => value)].join(" ").toLowerCase();
  }
}
for (const index of data.roots) html("option", data.graphs[index].name, root).value = index;
root.hidden = data.roots.length < 2;
root.onchange = () => { opened.clear(); openUpTo(FEW_BOXES, true); chosen = ""; draw(); start(); find(); };
if (data.graphs.some((graph) => graph.nodes.some((node) => "noise" in node))) { // as a report knows it
  html("option", "noise", colours).value = "noise";
  colours.value = "noise";
}
openUpTo(FEW_BOXES, true); draw(); start(); explain(); help();
// The page around may ask for a box by its name, and hears which one was chosen.
window.addEventListener("message", (event) => {
  if (!framed || event.source !== window.parent || typeof event.data?.show !== "string") return;
  for (const { node, key } of inOrder()) if (node.name === event.data.show) return show(key);
});
if (framed) window.parent.postMessage({ ready: true }, "*");
