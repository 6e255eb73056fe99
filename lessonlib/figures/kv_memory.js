// Figure 3: KV memory, contiguous against paged. The page replays what the allocators did; it allocates nothing itself.

const LOOKS = { A: "blue", B: "orange", C: "green", D: "purple", E: "red", F: "grey" };
const shown = (name) => (name === "F" ? "A2" : name);

// The tree of runs (see kv_memory.py): a node is note, then children "s>…", "a>…", "f>…", then ";".
const parsed = (source) => {
  let at = 0;
  const node = () => {
    const note = /[^;>]*?(?=[saf]>|;)/y;
    note.lastIndex = at;
    const [words] = note.exec(source);
    at += words.length;
    const made = { note: words };
    while (source[at] !== ";") {
      const action = source[at];
      at += 2;
      made[action] = node();
    }
    at += 1;
    return made;
  };
  return node();
};

// What each sequence holds after a node: by default one token more after a step, the same otherwise.
const after = (before, note, stepped) => {
  const state = {};
  for (const [name, [length, table]] of Object.entries(before)) state[name] = [length + stepped, table];
  for (const [, name, length, table] of note.split("|")[0].matchAll(/([A-F])([0-9a-z-])([0-9a-z]*)/g)) {
    if (length === "-") delete state[name];
    else state[name] = [parseInt(length, 36), [...table].map((digit) => parseInt(digit, 36))];
  }
  return state;
};

const reached = (data, mode, path) => {
  data.trees ??= { paged: parsed(data.paged), contiguous: parsed(data.contiguous) };
  let node = data.trees[mode];
  let state = after({}, node.note, 0);
  let events = [];
  const waiting = new Set();
  for (const action of path) {
    if (!node[action]) break;
    node = node[action];
    state = after(state, node.note, action === "s" ? 1 : 0);
    events = (node.note.split("|")[1] || "").split(",").filter(Boolean).map((i) => data.events[mode][i]);
    for (const [kind, name] of events.map((event) => event.split(" "))) {
      if (kind === "wait" || kind === "preempt") waiting.add(name);
      if (kind === "start") waiting.delete(name);
    }
  }
  return { node, state, events, waiting };
};

// Per block: who holds it, and how many of its slots hold a token.
const pool = (data, state) => {
  const blocks = Array.from({ length: data.n_blocks }, () => ({ holders: [], filled: 0 }));
  for (const [name, [length, table]] of Object.entries(state)) {
    table.forEach((block, i) => {
      blocks[block].holders.push(name);
      blocks[block].filled = Math.max(blocks[block].filled, Math.min(data.block, Math.max(0, length - data.block * i)));
    });
  }
  return blocks;
};

const usedShare = (data, state) => {
  const taken = pool(data, state).filter((block) => block.holders.length);
  return taken.reduce((sum, block) => sum + block.filled, 0) / (taken.length * data.block);
};

const SAYINGS = {
  start: (name) => `${shown(name)} starts: its prompt gets its room.`,
  wait: (name) => `No room: ${name} waits.`,
  fork: () => "A2 is a fork of A.",
  nofork: () => "No room for a copy of A: the fork fails.",
  copy: (name, from, to) => `Copy-on-write: ${shown(name)} was to write into block ${from}, which others hold too, and got a copy of its own, block ${to}.`,
  preempt: (name) => `No free block: ${shown(name)}, the newest, is preempted. It gives all its blocks back and waits.`,
  done: (name) => `${name} is done: its blocks are free for anyone.`,
  broken: (...words) => `The run stops here. ${words.join(" ")}`,
};
const QUIET = {
  s: { paged: "One token more for each. A new block is taken only when the last one is full.", contiguous: "One token more for each, inside the 16 slots reserved at the start." },
  "": { paged: "Three requests are running. Every token sits in a block of its request's table.", contiguous: "Three requests are running. Each reserved 16 slots, its maximum length." },
};

const inWords = (events, last, mode, shared) => {
  if (!events.length) return QUIET[last][mode];
  const words = events.map((event) => {
    const [kind, ...rest] = event.split(" ");
    return SAYINGS[kind](...rest);
  });
  if (events.includes("fork")) words.push(mode === "paged" ? `Both tables name the same ${shared} blocks (×2): no copy is made.` : "It reserves 16 slots and copies the tokens.");
  return words.join(" ");
};

const poolPicture = (data, blocks, width, columns) => {
  const wide = width / columns;
  const cell = (wide - 14) / data.block;
  return blocks.map(({ holders, filled }, b) => {
    const [x, y] = [(b % columns) * wide, Math.floor(b / columns) * 62];
    let svg = rect(x, y, wide - 6, 54, "card") + text(x + 5, y + 14, `block ${b}`, "soft");
    if (holders.length > 1) svg += text(x + wide - 11, y + 14, `×${holders.length}`, "bold", "end");
    for (let slot = 0; slot < data.block; slot++) {
      const full = slot < filled;
      if (!full) svg += rect(x + 4 + slot * cell, y + 21, cell - 2, 27, holders.length ? "empty" : "frame");
      // A shared slot has the colours of all its holders.
      else svg += holders.map((name, i) => rect(x + 4 + slot * cell, y + 21 + (27 * i) / holders.length, cell - 2, 27 / holders.length, LOOKS[name])).join("");
      if (full && holders.length === 1) svg += text(x + 3 + (slot + 0.5) * cell, y + 39, shown(holders[0]), "on", "middle");
    }
    return svg;
  }).join("");
};

const figure = {
  controls: [
    { key: "mode", label: "Memory", options: () => [["contiguous", "contiguous"], ["paged", "paged"]] },
    ...[["s", "Step"], ["a", "Add request"], ["f", "Fork oldest"]].map(([action, words]) => ({
      button: words,
      press: (state) => (state.path += action),
      off: (state, data) => !reached(data, state.mode, state.path).node[action],
    })),
    { button: "Back", press: (state) => (state.path = state.path.slice(0, -1)), off: (state) => !state.path },
  ],
  draw(data, state, width) {
    const { state: held, events, waiting } = reached(data, state.mode, state.path);
    const shares = ["paged", "contiguous"].map((mode) => usedShare(data, reached(data, mode, state.path).state));
    const blocks = pool(data, held);
    const columns = width >= 560 ? 6 : 3;
    const rows = data.n_blocks / columns;
    const below = rows * 62 + 16;
    const shared = blocks.filter((block) => block.holders.length > 1).length;
    const each = width >= 560 ? width / 3 : width / 2;
    let svg = poolPicture(data, blocks, width, columns);
    svg += keys(0, below, width, [["empty", "taken but empty"], ["frame", "free"]]);
    svg += text(0, below + 24, state.mode === "paged" ? "Block tables" : "Reserved buffers", "head");
    const names = Object.keys(held).sort();
    [...names, ...waiting].forEach((name, i) => {
      const per = width >= 560 ? 3 : 2;
      const [x, y] = [(i % per) * each, below + 44 + Math.floor(i / per) * 18];
      const words = held[name] ? `${held[name][0]} tokens in ${held[name][1].join(" ")}` : "waits for room";
      svg += rect(x, y - 9, 10, 10, held[name] ? LOOKS[name] : "empty") + text(x + 15, y, `${shown(name)}: ${words}`);
    });
    const taken = blocks.filter((block) => block.holders.length).length;
    const broken = events.some((event) => event.startsWith("broken"));
    return {
      svg,
      height: below + (width >= 560 ? 70 : 88),
      readings: [
        ["paged", "Used share, paged", fixed(100 * shares[0]) + "%", shares[0]],
        ["contiguous", "Used share, contiguous", fixed(100 * shares[1]) + "%", shares[1]],
        ["taken", "Blocks taken", `${taken} of ${data.n_blocks}`, taken],
        ["tokens", "Tokens held", fixed(names.reduce((sum, name) => sum + held[name][0], 0)), names.reduce((sum, name) => sum + held[name][0], 0)],
      ],
      says: inWords(events, state.path.slice(-1), state.mode, shared) + (data.yours ? " Run by your BlockAllocator." : ""),
      differs: broken,
    };
  },
};
