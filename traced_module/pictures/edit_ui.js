// What is seen of the edits: buttons, keys, selected boxes, and what became of each box.
const done = [], undone = [], picked = new Set();
let state = untouched(), steps = [], words = [], saved = 0;
const bar = document.createElement("span");
bar.id = "edits";
document.querySelector("header").append(bar);
const button = (text, title, parent, act) => {
  const made = html("button", text, parent);
  made.title = title;
  made.onclick = act;
  return made;
};
const undoButton = button("undo", "u", bar, () => undo()), redoButton = button("redo", "y", bar, () => redo());
const saveButton = button("save log", "w", bar, () => save());

// What a value is called and whether it is there may change with every edit.
function settle(actions) {
  ({ state, steps, words } = replayed(actions));
  for (const i of picked) if (!shownValues([i]).some((value) => lives(state, value))) picked.delete(i);
  for (const graph of data.graphs) {
    for (const node of graph.nodes) {
      if (node.exprs.length !== 1) continue;
      const values = shownValues(node.exprs), before = node.name;
      node.name = state.names[values[0]];
      node.output = !node.outside && values.some((value) => state.outputs.includes(value));
      if (node.name !== before) node.text += ` ${node.name.toLowerCase()}`;
    }
  }
  for (const line of data.details) {
    if (line[0] in { inputs: 0, outputs: 0 }) line[1] = named(state, state[line[0]].filter((value) => isTensor(state, value))).join("\n");
  }
  undoButton.disabled = !done.length; redoButton.disabled = !undone.length; saveButton.disabled = !done.length;
  saveButton.textContent = done.length ? `save log (${done.length})` : "save log";
  draw();
  if (chosen) choose(chosen); else help();
}

// The values of expressions; of one that became an input, that input.
const shownValues = (exprs) => exprs.flatMap((i) => state.exprs[i].out.map((value) => state.entries.get(value) ?? value));
const isEntry = (i) => shownValues([i]).some((value) => value >= EDIT.values.length && lives(state, value));

function act(action) {
  try {
    replayed([...done, action]);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    say(error.message);
    return false;
  }
  done.push(action); undone.length = 0;
  say("");
  settle(done);
  return true;
}
function undo() { if (done.length) { undone.push(done.pop()); say(""); settle(done); } }
function redo() { if (undone.length) { done.push(undone.pop()); say(""); settle(done); } }

function save() {
  if (!done.length) return say("there are no edits yet");
  const link = document.createElement("a"), address = URL.createObjectURL(logFile(steps));
  link.href = address;
  link.download = `${data.name.replace(/[^\w.-]+/g, "_")}.log`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
  saved = done.length;
}
window.addEventListener("beforeunload", (event) => { if (done.length !== saved) event.preventDefault(); });

// The selected boxes or, without any, the one whose details are shown.
const selected = () => (picked.size ? [...picked].sort((a, b) => a - b) : drawn.get(chosen)?.node.exprs ?? []);
const selectedValues = () => shownValues(selected()).filter((value) => isTensor(state, value));
function pick(key) {
  const exprs = drawn.get(key)?.node.exprs ?? [], all = exprs.every((i) => picked.has(i));
  for (const i of exprs) if (all) picked.delete(i); else picked.add(i);
  chosen = key; mark(); choose(key); decorate();
}
after.pick.push(pick);

const onValues = (kind) => () => act({ kind, values: selectedValues() });
function toggleExcluded() {
  const exprs = selected();
  act({ kind: "exclude", exprs, on: !exprs.filter((i) => state.exprs[i].meta.length).every((i) => state.excluded.has(i)) });
}
Object.assign(keys, {
  u: undo, y: redo, w: save, o: onValues("only"), a: onValues("also"), d: onValues("unreturn"), i: onValues("input"),
  x: toggleExcluded, Delete: onValues("remove"),
  r: () => document.getElementById("newname")?.select(),
  s: () => { const key = document.activeElement?.dataset?.key || chosen; if (key) pick(key); },
  Escape: () => { picked.clear(); chosen = ""; mark(); decorate(); help(); say(""); },
});
document.addEventListener("keydown", (event) => {
  if (!(event.ctrlKey || event.metaKey) || event.altKey || event.target.tagName === "INPUT") return;
  const able = { z: event.shiftKey ? redo : undo, Z: redo, y: redo, s: save }[event.key];
  if (able) { event.preventDefault(); able(); }
});

after.choose.push((node) => {
  const exprs = selected(), values = selectedValues(), panel = document.createElement("section");
  panel.id = "panel";
  side.querySelector("h2").after(panel);
  if (!exprs.length) return html("p", "a part of a submodule; --flatten puts its calls into the graph that is edited", panel);
  if (picked.size) html("p", `${picked.size} selected`, panel);
  if (values.length === 1) renamer(values[0], panel);
  else if (exprs.length === 1) for (const value of values) renamer(value, panel);
  const row = html("div", "", panel), removable = exprs.every((i) => state.exprs[i].same !== null);
  const few = values.length > 0 && (picked.size > 0 || exprs.length === 1);
  const offer = (text, key, able, run) => { button(text, key, row, run).disabled = !able; };
  const returned = values.length > 0 && values.every((value) => state.outputs.includes(value));
  offer("return only this", "o", few, keys.o);
  offer(returned ? "no longer return" : "return this too", returned ? "d" : "a", few, returned ? keys.d : keys.a);
  offer("begin here", "i", few, keys.i);
  const able = exprs.filter((i) => state.exprs[i].meta.length), out = able.every((i) => state.excluded.has(i));
  offer(able.length && out ? "quantize again" : "leave in float", "x", able.length, keys.x);
  offer("remove", removable ? "Delete" : "only what passes its value on can be removed", few && removable, keys.Delete);
});

function renamer(value, panel) {
  const row = html("form", "", panel), field = document.createElement("input");
  if (!document.getElementById("newname")) field.id = "newname";
  field.value = state.names[value];
  field.setAttribute("aria-label", "name");
  row.append(field);
  html("button", "rename", row).title = "r";
  row.onsubmit = (event) => { event.preventDefault(); act({ kind: "rename", value, name: field.value.trim() }); };
}

after.help.push(() => {
  const above = document.createElement("section"), list = document.createElement("ol");
  html("h2", words.length ? "edits" : "no edits yet: a click on a box offers them", above);
  for (const text of words) html("li", text, list);
  above.append(list);
  side.prepend(above);
  if (EDIT.line) {
    html("p", "the saved log is replayed by", above);
    html("p", EDIT.line, above).className = "line";
  }
  const keysList = html("dl", "", side);
  html("dt", "keys of edits", keysList);
  html("dd", "shift-click, s: select several\no return only this, a also, d no longer\ni begin here, x leave in float\n" +
    "r rename, Delete remove\nu undo, y redo, w save the log", keysList);
});

function decorate() {
  for (const { g, node, w } of drawn.values()) {
    const entry = node.exprs.length === 1 && isEntry(node.exprs[0]);
    const alive = node.exprs.filter((i) => state.exprs[i].alive || isEntry(i));
    g.classList.toggle("gone", node.exprs.length > 0 && !alive.length);
    g.classList.toggle("entry", entry);
    if (entry && !node.outside) g.querySelector(".title").textContent = caption({ ...node, title: "input" }, w);
    g.classList.toggle("picked", node.exprs.length > 0 && node.exprs.every((i) => picked.has(i)));
    const able = alive.filter((i) => state.exprs[i].meta.length);
    g.classList.toggle("excluded", able.length > 0 && able.every((i) => state.excluded.has(i)));
  }
  for (const [from, to, path] of edges) {
    const [a, b] = [from, to].map((key) => drawn.get(key).g.classList);
    path.classList.toggle("gone", a.contains("gone") || b.contains("gone") || b.contains("entry"));
  }
}
after.draw.push(decorate);
after.explain.push((row) => {
  row("border: 2px dashed var(--heat)", "left in float");
  row("background: var(--input); border: 2px solid var(--mark)", "begins here");
  row("border: 1px dashed; opacity: .4", "removed");
});
explain();
settle(done);
