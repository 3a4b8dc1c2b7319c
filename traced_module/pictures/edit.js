// The edits: a copy of the graph, checks, and the primitive changes that the log of edits holds. Values and expressions
// are known by their places in the lists of the data; inputs that edits put in come behind them.
const EDIT = data.edit;
class Refusal extends Error {}
const refuse = (text) => { throw new Refusal(text); };

function untouched() {
  const exprs = EDIT.exprs.map((expr) => ({ ...expr, in: [...expr.in], alive: true, moved: false }));
  const maker = [];
  exprs.forEach((expr, i) => expr.out.forEach((value) => { maker[value] = i; }));
  return {
    exprs, maker, names: EDIT.values.map((value) => value.name), values: [...EDIT.values], inputs: [...EDIT.inputs],
    outputs: [...EDIT.outputs], counts: [...EDIT.counts], dropped: new Set(), alias: new Map(), entries: new Map(),
    excluded: new Set(exprs.flatMap((expr, i) => (expr.meta[0]?.[2].float === true ? [i] : []))),
  };
}

// What stands in the place of a value now.
function current(state, value) {
  while (state.alias.has(value)) value = state.alias.get(value);
  return value;
}
const isTensor = (state, value) => "shape" in state.values[value];
const lives = (state, value) => state.exprs[state.maker[value]].alive;
const named = (state, values) => values.map((value) => state.names[value]);
const exprName = (state, expr) => state.names[expr.out[0]];
const taken = (state) => new Set(state.names.filter((_, value) => lives(state, value)));
const change = (edits, kind, rest, graph = EDIT.graph) => edits.push({ do: kind, graph, ...rest });

function unlink(state, edits, expr) {
  const kept = !expr.moved && [...expr.in, ...expr.out].every((v) => state.names[v] === EDIT.values[v]?.name);
  change(edits, "unlink", { expr: exprName(state, expr), ...(kept ? { was: expr.text } : {}) });
  expr.alive = false;
}

function countUses(state) {
  const uses = state.values.map(() => 0);
  for (const expr of state.exprs) if (expr.alive) for (const value of expr.in) uses[value]++;
  for (const value of state.outputs) uses[value]++;
  return uses;
}

// Calls that no result needs, users first; then layers that nothing reads.
function removeDead(state, edits) {
  const uses = countUses(state);
  for (const expr of [...state.exprs].reverse()) {
    if (!expr.alive || expr.kind === "Input" || expr.stays || expr.out.some((value) => uses[value])) continue;
    unlink(state, edits, expr);
    for (const value of expr.in) uses[value]--;
  }
  for (const { name, was, readers } of EDIT.attributes) {
    if (state.dropped.has(name) || readers.some((i) => state.exprs[i].alive)) continue;
    state.dropped.add(name);
    change(edits, "drop", { path: EDIT.graph[0], name, was });
  }
}

function setOutputs(state, edits, values) {
  change(edits, "outputs", { was: named(state, state.outputs), nodes: named(state, values) });
  state.outputs = values;
  const nodes = values.map((value) => ({ node: state.names[value] }));
  if (EDIT.calls) change(edits, "result", { value: nodes.length === 1 ? nodes[0] : { tuple: nodes } });
}

function setInputs(state, edits, inputs) {
  change(edits, "inputs", { was: named(state, state.inputs), nodes: named(state, inputs) });
  state.inputs = inputs;
}

function takeInputs(state, edits) {
  if (!EDIT.calls) return;
  const args = state.inputs.filter((value) => isTensor(state, value)).map((value) => ({ node: state.names[value] }));
  change(edits, "call", { args, kwargs: {} });
  change(edits, "owner", {});
}

// The users of a value use another one.
function replaceUses(state, edits, old, value) {
  for (const expr of state.exprs) {
    const places = expr.alive ? expr.in.flatMap((one, i) => (one === old ? [i] : [])) : [];
    if (!places.length) continue;
    const names = (one) => places.map(() => state.names[one]);
    change(edits, "use", { expr: exprName(state, expr), places, was: names(old), inputs: names(value) });
    for (const place of places) expr.in[place] = value;
    expr.moved = true;
  }
}

function check(state, values) {
  if (!values.length) refuse("select a box first");
  for (const value of values) {
    if (!lives(state, value)) refuse(`${state.names[value]} is not in the graph any more; undo brings it back`);
    if (!isTensor(state, value)) refuse(`${state.names[value]} is a layer, not a value`);
  }
}

function checkName(state, value, name) {
  const fitting = name.replace(/[^0-9A-Za-z_]+/g, "_").replace(/^(?=\d|$)/, "_");
  if (name !== fitting) refuse(`${JSON.stringify(name)} is not a name: letters, digits and _; try ${fitting}`);
  if (EDIT.keywords.includes(name)) refuse(`${name} is a word of Python; try _${name}`);
  if (name !== state.names[value] && taken(state).has(name)) refuse(`${name} is the name of another value`);
}

// The ends that results are computed from, beginning at the results.
function reached(state, ends) {
  const seen = new Set(), todo = [...state.outputs];
  while (todo.length) {
    const value = todo.pop();
    if (seen.has(value)) continue;
    seen.add(value);
    if (!ends.includes(value)) todo.push(...state.exprs[state.maker[value]].in);
  }
  return seen;
}

function addInput(state, edits, old) {
  const names = taken(state), base = `${state.names[old]}_input`, value = state.values.length;
  let name = base;
  for (let i = 1; names.has(name); i++) name = `${base}_${i}`;
  const first = state.exprs.find((expr) => expr.alive && expr.kind !== "Input");
  const node = { ...state.values[old], name, id: state.counts[0], qualname: `${EDIT.qualname}.[${name}]` };
  const made = { kind: "Input", id: state.counts[1], outputs: [node], meta: {} };
  change(edits, "link", { before: first ? exprName(state, first) : null, expr: made });
  state.counts = state.counts.map((count) => count + 1);
  state.values.push(node);
  state.names.push(name);
  state.maker.push(state.exprs.length);
  state.exprs.push({ kind: "Input", text: "", in: [], out: [value], stays: false, same: null, meta: [], alive: true, moved: true });
  setInputs(state, edits, [...state.inputs, value]);
  takeInputs(state, edits);
  return value;
}

function dropUnusedInputs(state, edits) {
  const uses = countUses(state);
  const unused = state.inputs.filter((value) => isTensor(state, value) && !uses[value]);
  if (!unused.length) return;
  setInputs(state, edits, state.inputs.filter((value) => !unused.includes(value)));
  for (const value of unused) unlink(state, edits, state.exprs[state.maker[value]]);
  takeInputs(state, edits);
}

// Calls whose meta can carry the mark.
const markable = (state, exprs) => exprs.filter((i) => state.exprs[i].alive && state.exprs[i].meta.length);
// kind of an edit -> what it does; each raises a Refusal before or while it changes a copy that is thrown away then.
const ACTS = {
  rename(state, edits, { value, name }) {
    check(state, [value]);
    checkName(state, value, name);
    if (name === state.names[value]) refuse(`it is called ${name} already`);
    change(edits, "rename", { node: state.names[value], new: name });
    state.names[value] = name;
  },
  only(state, edits, { values }) {
    check(state, values);
    setOutputs(state, edits, values);
    removeDead(state, edits);
  },
  also(state, edits, { values }) {
    check(state, values);
    const twice = values.find((value) => state.outputs.includes(value));
    if (twice !== undefined) refuse(`${state.names[twice]} is returned already`);
    setOutputs(state, edits, [...state.outputs, ...values]);
  },
  unreturn(state, edits, { values }) {
    check(state, values);
    const other = values.find((value) => !state.outputs.includes(value));
    if (other !== undefined) refuse(`${state.names[other]} is not returned`);
    const rest = state.outputs.filter((value) => !values.includes(value));
    if (!rest.length) refuse("a graph returns one value or more; return another one first");
    setOutputs(state, edits, rest);
    removeDead(state, edits);
  },
  input(state, edits, { values }) {
    check(state, values);
    for (const value of values) {
      const { kind } = state.exprs[state.maker[value]];
      if (kind === "Input") refuse(`${state.names[value]} is an input already`);
      if (kind === "Constant" || kind === "GetAttr") refuse(`${state.names[value]} is a part of the model`);
      if (state.outputs.includes(value)) refuse(`${state.names[value]} is returned: nothing would be computed`);
    }
    const seen = reached(state, values), idle = values.find((value) => !seen.has(value));
    if (idle !== undefined) refuse(`no result is computed from ${state.names[idle]}${values.length > 1 ? " without the other ones" : ""}`);
    const pairs = values.map((value) => [value, addInput(state, edits, value)]);
    for (const [old, value] of pairs) replaceUses(state, edits, old, value);
    removeDead(state, edits);
    dropUnusedInputs(state, edits);
    for (const [old, value] of pairs) {
      state.alias.set(old, value);
      state.entries.set(old, value);
      if (taken(state).has(state.names[old])) continue;
      change(edits, "rename", { node: state.names[value], new: state.names[old] });
      state.names[value] = state.names[old];
    }
  },
  remove(state, edits, { values }) {
    check(state, values);
    for (const value of values) {
      const expr = state.exprs[state.maker[value]];
      if (expr.same === null) refuse(`${state.names[value]} is computed; only what passes a value on can be removed`);
      const source = current(state, expr.same), returned = state.outputs.includes(value);
      if (returned && state.exprs[state.maker[source]].kind === "Input") refuse(`the graph would return its input ${state.names[source]}`);
      replaceUses(state, edits, value, source);
      if (returned) {
        const outputs = state.outputs.map((one) => (one === value ? source : one));
        change(edits, "outputs", { was: named(state, state.outputs), nodes: named(state, outputs) });
        state.outputs = outputs;
      }
      state.alias.set(value, source);
      removeDead(state, edits);
    }
  },
  exclude(state, edits, { exprs, on }) {
    const able = markable(state, exprs);
    if (!able.length) refuse("inputs and weights have no integers of their own; select calls");
    for (const i of able) {
      state.exprs[i].meta.forEach(([graph, name, meta], n) => {
        const { float, ...rest } = meta;
        change(edits, "meta", { expr: n ? name : exprName(state, state.exprs[i]), meta: on ? { ...rest, float: true } : rest }, graph);
      });
      if (on) state.excluded.add(i); else state.excluded.delete(i);
    }
  },
};
const STEPS = { rename: "rename", only: "reset_outputs", also: "reset_outputs", unreturn: "reset_outputs", input: "extract",
  remove: "rewrite", exclude: "exclude" };

function wordsOf(state, { kind, value, name, values, exprs, on }) {
  const list = (names) => (names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", "));
  if (kind === "rename") return `${state.names[value]} is now called ${name}`;
  if (kind === "exclude") {
    return `${list(markable(state, exprs).map((i) => exprName(state, state.exprs[i])))} ${on ? "left in float" : "no longer left in float"}`;
  }
  const told = { only: "returns only", also: "returns also", unreturn: "no longer returns", input: "begins at", remove: "without" };
  return `${told[kind]} ${list(named(state, values))}`;
}

// The state after edits, the steps of the log, and each in words.
function replayed(actions) {
  const state = untouched(), steps = [], words = [];
  for (const action of actions) {
    const edits = [], before = [...state.counts];
    words.push(wordsOf(state, action));
    ACTS[action.kind](state, edits, action);
    steps.push({ what: STEPS[action.kind], before, after: [...state.counts], edits, tensors: [], layers: [] });
  }
  return { state, steps, words };
}

function logText(steps) {
  const { format, version } = EDIT.format;
  return JSON.stringify({ format, version }).slice(0, -1) + `, "steps": [\n${steps.map((s) => JSON.stringify(s)).join(",\n")}\n]}\n`;
}

function checksum(bytes) {
  let sum = ~0;
  for (const byte of bytes) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit++) sum = sum & 1 ? (sum >>> 1) ^ 0xedb88320 : sum >>> 1;
  }
  return ~sum >>> 0;
}

// A zip file of stored entries, all of the first day that it knows.
function zipped(entries) {
  const parts = [], heads = [], text = new TextEncoder();
  let at = 0, listed = 0;
  const numbers = (...pairs) => {
    const bytes = new DataView(new ArrayBuffer(pairs.reduce((sum, [size]) => sum + size, 0)));
    let place = 0;
    for (const [size, value] of pairs) {
      if (size === 2) bytes.setUint16(place, value, true); else bytes.setUint32(place, value, true);
      place += size;
    }
    return new Uint8Array(bytes.buffer);
  };
  for (const [name, content] of entries) {
    const title = text.encode(name), size = content.length;
    const about = [[2, 20], [2, 0], [2, 0], [2, 0], [2, 0x21], [4, checksum(content)], [4, size], [4, size], [2, title.length], [2, 0]];
    const local = numbers([4, 0x04034b50], ...about);
    heads.push(numbers([4, 0x02014b50], [2, 20], ...about, [2, 0], [2, 0], [2, 0], [4, 0], [4, at]), title);
    parts.push(local, title, content);
    at += local.length + title.length + size;
  }
  for (const part of heads) listed += part.length;
  const count = entries.length;
  const end = numbers([4, 0x06054b50], [2, 0], [2, 0], [2, count], [2, count], [4, listed], [4, at], [2, 0]);
  return new Blob([...parts, ...heads, end], { type: "application/zip" });
}

// The file of a log; its edits put in no arrays.
function logFile(steps) {
  const text = new TextEncoder(), nothing = new Uint8Array([2, 0, 0, 0, 0, 0, 0, 0, ...text.encode("{}")]);
  return zipped([[EDIT.format.log, text.encode(logText(steps))], [EDIT.format.weights, nothing]]);
}
