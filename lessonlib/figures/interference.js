// Figure 6: what a long prompt does to the time per token of the sequences that are decoding.

const LEAD = 0.1;
const POLICIES = [["one piece", "One piece"], ["chunked", "Chunked"], ["disaggregated", "Disaggregated"]];

// Steps that the 64 sequences see while the prompt is served, and when its first token comes.
const run = (data, policy, chunk, percent) => {
  const plain = data.decode[percent];
  if (policy === "disaggregated") {
    const ttft = data.prefill[percent];
    return { steps: Array(Math.ceil(ttft / plain)).fill(plain), ttft };
  }
  const steps = data.steps[percent][policy === "one piece" ? data.prompt : chunk];
  return { steps, ttft: steps.reduce((sum, t) => sum + t, 0) };
};

// Corners of the line: [time, TPOT], with a lead of plain steps before and after.
const corners = (steps, plain, end) => {
  const points = [[-LEAD, plain]];
  let now = 0;
  let last = plain;
  for (const t of steps) {
    if (t !== last) points.push([now, last], [now, t]);
    now += t;
    last = t;
  }
  points.push([now, last], [now, plain], [end, plain]);
  return points;
};

const figure = {
  controls: [
    { key: "policy", label: "Prefill", options: () => POLICIES },
    { key: "chunk", label: "Chunk size", stops: (data) => data.chunks, show: (n) => `${fixed(n)} tokens` },
    { key: "percent", label: "FLOP/s reached", options: () => [[100, "peak"], [50, "50% of peak"]] },
  ],
  draw(data, state, width) {
    const plain = data.decode[state.percent];
    const runs = Object.fromEntries(POLICIES.map(([policy]) => [policy, run(data, policy, state.chunk, state.percent)]));
    const here = runs[state.policy];
    const end = Math.max(...Object.values(runs).map((r) => r.ttft)) * 1.04 + 0.02;
    const [left, right, top, bottom] = [52, width - 8, 40, 236];
    const at = linear(-LEAD, end, left, right);
    const up = logarithmic(0.004, 2.5, bottom, top);
    let svg = text(0, 14, "TPOT of the 64 sequences (log scale)", "head");
    for (const t of [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2]) {
      svg += line(left, up(t), right, up(t), "rule") + text(left - 6, up(t) + 4, t < 1 ? `${t * 1e3} ms` : `${t} s`, "soft", "end");
    }
    for (const t of ticks(end, width > 500 ? 6 : 3)) {
      if (t < end) svg += text(at(t), bottom + 16, fixed(t, 2), "soft", "middle");
    }
    svg += text(right, bottom + 32, "seconds since the prompt arrived", "soft", "end");
    for (const [policy] of POLICIES) {
      const middle = up(runs[policy].steps[runs[policy].steps.length >> 1]);
      const under = policy === "disaggregated";
      if (policy !== state.policy) svg += text(at(runs["one piece"].ttft / 2), middle + (under ? 15 : -6), policy, "soft", "middle") + path(corners(runs[policy].steps, plain, end).map(([t, v]) => [at(t), up(v)]), "other");
    }
    svg += line(left, up(data.slo), right, up(data.slo), "slo") + text(at(0) + 8, up(data.slo) - 6, `SLO ${fixed(data.slo * 1e3)} ms`, "bold");
    svg += path(corners(here.steps, plain, end).map(([t, v]) => [at(t), up(v)]), "curve o");
    svg += line(at(0), top - 10, at(0), bottom, "axis") + (width > 480 ? text(at(0) + 4, top - 3, "prompt arrives", "soft") : "");
    svg += line(at(here.ttft), top - 10, at(here.ttft), bottom, "mark") + text(at(here.ttft) - 5, top - 3, `first token ${milliseconds(here.ttft)}`, "bold", "end");
    const longest = Math.max(...here.steps);
    const over = here.steps.filter((t) => t > data.slo).length;
    const links = Object.entries(data.links).map(([name, t]) => `${milliseconds(t)} at ${name}`).join(", ");
    const says = {
      "one piece": `One piece: all ${data.B} sequences wait ${milliseconds(longest)} for one token.`,
      chunked: `${here.steps.length} chunks ride along with the decodes: steps of ${milliseconds(here.steps[0])} to ${milliseconds(longest)}. The prompt pays with ${milliseconds(here.ttft)} instead of ${milliseconds(runs["one piece"].ttft)} to its first token.`,
      disaggregated: `Other GPUs prefill: the decodes never notice. Then the prompt's cache has to be sent over: ${links}.`,
    };
    return {
      svg,
      height: 272,
      readings: [
        ["longest", "Longest TPOT", milliseconds(longest), longest],
        ["spike", "Against before", three(longest / plain) + "×", longest / plain],
        ["over", "Steps over SLO", fixed(over), over],
        ["ttft", "TTFT of the prompt", milliseconds(here.ttft), here.ttft],
      ],
      says: says[state.policy],
    };
  },
};
