// Figure 2: the same requests under static and continuous batching.

const POLICIES = ["static", "continuous"];

// A slot's runs of one request: [request or null, first step, number of steps].
const runsOf = (word) => {
  const runs = [];
  let step = 0;
  for (let i = 0; i < word.length; i += 2) {
    const n = parseInt(word[i + 1], 36);
    runs.push([word[i] === "." ? null : parseInt(word[i], 36), step, n]);
    step += n;
  }
  return runs;
};

const chart = (run, policy, top, total, width, n_slots) => {
  const at = linear(0, total, 40, width - 4);
  const cell = at(1) - at(0);
  const seen = new Set();
  let svg = text(0, top, `${policy === "static" ? "Static" : "Continuous"}: ${fixed(run.n_steps)} steps`, "head");
  const slots = run.slots.map(runsOf);
  slots.forEach((runs, slot) => {
    const y = top + 8 + slot * 26;
    svg += text(0, y + 16, `slot ${slot}`, "soft");
    for (const [request, step, n] of runs) {
      const [x, wide] = [at(step), n * cell - 1];
      if (request === null) svg += rect(x + 0.5, y + 0.5, wide - 1, 22, "empty");
      else {
        svg += rect(x, y, wide, 23, "blue");
        const first = !seen.has(request);
        if (first) svg += rect(x, y, cell - 1, 23, "orange");
        seen.add(request);
        // The request's number stands in its prefill, or in the rest of it where that is too narrow.
        const [from, room] = first && cell > 15 ? [x, cell] : first ? [x + cell, wide - cell] : [x, wide];
        if (room > 15) svg += text(from + (room - 1) / 2, y + 16, request, "on", "middle");
      }
    }
  });
  if (run.right) svg += line(at(run.right[0]), top - 8, at(run.right[0]), top + 8 + n_slots * 26, "ghost") + text(at(run.right[0]) - 6, top, "reference", "differs", "end");
  const end = at(run.n_steps);
  return svg + line(end, top + 2, end, top + 8 + n_slots * 26, "mark");
};

const figure = {
  controls: [
    { key: "longest", label: "Longest output", stops: (data) => data.longest, show: (n) => `${n} tokens` },
    { button: "New random requests", press: (state, data) => (state.set = (state.set + 1) % data.sets) },
  ],
  draw(data, state, width) {
    const pair = data.runs[state.longest][state.set];
    const length = (run) => runsOf(run.slots[0]).reduce((sum, [, , n]) => sum + n, 0);
    const total = Math.max(...pair.map((run) => Math.max(run.n_steps, length(run), run.right ? run.right[0] : 0)), 1);
    const at = linear(0, total, 40, width - 4);
    let svg = keys(0, 12, width, [["orange", "prefill"], ["blue", "decode"], ["empty", "idle"]]);
    pair.forEach((run, i) => (svg += chart(run, POLICIES[i], 40 + i * 138, total, width, data.n_slots)));
    for (const t of ticks(total, width > 500 ? 8 : 4)) if (t <= total) svg += text(at(t), 308, fixed(t), "soft", "middle");
    svg += text(width - 4, 324, "step", "soft", "end");
    const [fixedBatch, flowing] = pair;
    const wrong = pair.findIndex((run) => run.right);
    const slower = fixedBatch.n_steps / flowing.n_steps;
    let says = slower === 1
      ? "Here both need the same number of steps: the last request decides."
      : `Static needs ${three(slower)} times the steps: a slot that is done idles until the longest of its batch ends.`;
    if (wrong >= 0) {
      const { n_steps, slot_use, mean_latency, right } = pair[wrong];
      says = `Your simulate gives ${fixed(n_steps)} steps, slot use ${fixed(100 * slot_use)}% and mean latency ${fixed(mean_latency, 1)} for ${POLICIES[wrong]}; the reference ${fixed(right[0])}, ${fixed(100 * right[1])}% and ${fixed(right[2], 1)}.`;
    } else if (data.yours) says += " Run by your simulate.";
    const both = (key, label, show) => [key, label, pair.map((run) => show(run[key])).join(" vs "), pair.map((run) => run[key])];
    return {
      svg,
      height: 328,
      readings: [
        both("n_steps", "Steps", (v) => fixed(v)),
        both("slot_use", "Slot use", (v) => fixed(100 * v) + "%"),
        both("mean_latency", "Mean latency, steps", (v) => fixed(v, 1)),
      ],
      says,
      differs: wrong >= 0,
    };
  },
};
