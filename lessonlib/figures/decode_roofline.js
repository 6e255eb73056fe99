// Figure 1: what bounds a decode step.

const FORMATS = [[2, "bf16"], [1, "fp8"]];

// The formulas of lessonlib.roofline for plain attention; k is the cache per token in bytes.
const formula = (B, C, model, bytes_per_kv, gpu) => {
  const weights = model.weights;
  const caches = B * C * model.kv_numbers * bytes_per_kv;
  const n_bytes = weights + caches;
  const flops = 2 * model.n_params * B + model.attention * B * C;
  const [t_memory, t_compute] = [n_bytes / gpu.bandwidth, flops / gpu.peak_flops];
  const t_step = Math.max(t_memory, t_compute);
  return { n_bytes, flops, t_memory, t_compute, t_step, tokens_per_s: B / t_step, compute_bound: t_compute > t_memory };
};

// The largest batch whose caches fit beside the weights and the reserved share.
const room = (gpu, model, reserved) => Math.round(gpu.memory * (1 - reserved) - model.weights);
const largest = (C, model, bytes_per_kv, gpu, reserved) =>
  Math.max(0, Math.floor(room(gpu, model, reserved) / (C * model.kv_numbers * bytes_per_kv)));

const setting = (data, state) => {
  const [model, gpu] = [data.models[state.model], data.gpus[state.gpu]];
  const fits = largest(state.C, model, state.kv, gpu, data.reserved);
  return { model, gpu, fits, stops: [...data.stops.filter((B) => B < fits), Math.max(fits, 1)] };
};

// A learner's answer is stored as ratios per stop (see decode_roofline.py): bytes and FLOPs to the formula's, every
// later field to what follows from the earlier ones. No row, no difference.
const FIELDS = ["n_bytes", "flops", "t_memory", "t_compute", "t_step", "tokens_per_s", "compute_bound"];
const drawnStep = (data, state, { model, gpu, stops }, B) => {
  const right = formula(B, state.C, model, state.kv, gpu);
  const number = (options, chosen) => options.indexOf(chosen);
  const key = [number(Object.keys(data.models), state.model), number(Object.keys(data.gpus), state.gpu), number(FORMATS.map(([e]) => e), state.kv), number(data.contexts, state.C)];
  const rows = data.yours && data.yours.index[key.join(".")];
  if (!rows) return { step: right, right };
  const ratio = FIELDS.map((_, f) => (rows[f] < 0 ? 1 : data.yours.rows[rows[f]][stops.indexOf(B)]));
  const [n_bytes, flops] = [right.n_bytes * ratio[0], right.flops * ratio[1]];
  const [t_memory, t_compute] = [(n_bytes / gpu.bandwidth) * ratio[2], (flops / gpu.peak_flops) * ratio[3]];
  const t_step = Math.max(t_memory, t_compute) * ratio[4];
  const tokens_per_s = (B / t_step) * ratio[5];
  const compute_bound = t_compute > t_memory === (ratio[6] === 1);
  return { step: { n_bytes, flops, t_memory, t_compute, t_step, tokens_per_s, compute_bound }, right, differs: true };
};

const timeBars = (x, y, width, step, right, weights, bandwidth, top) => {
  const marks = ticks(top * 1e3);
  const at = linear(0, marks[marks.length - 1], x, x + width);
  const t_weights = Math.min(weights / bandwidth, step.t_memory);
  let svg = text(x, y + 12, "Time of one step: the longer bar", "head");
  svg += marks.map((t) => line(at(t), y + 24, at(t), y + 130, "rule") + text(at(t), y + 145, fixed(t, t % 1 ? 1 : 0), "soft", "middle")).join("");
  svg += text(x + width, y + 160, "ms", "soft", "end");
  svg += rect(x, y + 46, at(t_weights * 1e3) - x, 24, "blue");
  svg += rect(at(t_weights * 1e3), y + 46, (step.t_memory - t_weights) * (at(1e3) - x), 24, "orange");
  svg += rect(x, y + 98, at(step.t_compute * 1e3) - x, 24, "green");
  svg += line(at(step.t_step * 1e3), y + 46, at(step.t_step * 1e3), y + 130, "mark");
  if (right !== step) svg += line(at(right.t_step * 1e3), y + 24, at(right.t_step * 1e3), y + 130, "ghost");
  const memory = [["blue", `weights ${milliseconds(t_weights)}`], ["orange", `caches ${milliseconds(step.t_memory - t_weights)}`]];
  svg += keys(x, y + 38, width, memory) + keys(x, y + 90, width, [["green", `compute ${milliseconds(step.t_compute)}`]]);
  return svg;
};

const memoryBar = (x, y, width, B, fits, model, gpu, perSequence, reserved) => {
  const at = linear(0, gpu.memory, x, x + width);
  const start = model.weights + gpu.memory * reserved;
  const full = start + fits * perSequence;
  const used = Math.min(B, fits) * perSequence;
  let svg = text(x, y + 12, `GPU memory, ${fixed(gpu.memory / 1e9)} GB: B_max = ${fixed(fits)}`, "head");
  svg += keys(x, y + 34, width, [["blue", `weights ${gigabytes(model.weights)}`], ...(width > 330 ? [["grey", "buffers"]] : []), ["orange", `caches ${gigabytes(B * perSequence)}`]]);
  svg += rect(x, y + 42, width, 24, "empty") + rect(x, y + 42, at(model.weights) - x, 24, "blue");
  svg += rect(at(model.weights), y + 42, at(start) - at(model.weights), 24, "grey") + rect(at(start), y + 42, at(used) - x, 24, fits ? "orange" : "red");
  return svg + line(at(full), y + 38, at(full), y + 70, "mark");
};

const tradeOff = (x, y, width, height, points, here, differs) => {
  const [right, all] = [x + width - 10, points.flatMap((p) => [p.step, p.right])];
  const xs = ticks(Math.max(...all.map((s) => s.t_step)) * 1e3);
  const ys = ticks(Math.max(...all.map((s) => s.tokens_per_s)));
  const [left, bottom] = [x + 46, y + height - 34];
  const at = linear(0, xs[xs.length - 1], left, right);
  const up = linear(0, ys[ys.length - 1], bottom, y + 30);
  const place = (s) => [at(s.t_step * 1e3), up(s.tokens_per_s)];
  let svg = text(x, y + 12, "Every batch: tokens/s against TPOT", "head");
  svg += ys.map((v) => line(left, up(v), right, up(v), "rule") + text(left - 6, up(v) + 4, v >= 1e4 ? fixed(v / 1e3) + "k" : fixed(v), "soft", "end")).join("");
  svg += xs.map((v) => text(at(v), bottom + 16, fixed(v, v % 1 ? 1 : 0), "soft", "middle")).join("");
  svg += text(right, bottom + 31, "TPOT = step time, ms", "soft", "end") + line(left, bottom, right, bottom, "axis");
  if (differs) svg += path(points.map((p) => place(p.right)), "ghost");
  svg += path(points.map((p) => place(p.step)), "curve");
  svg += points.map((p) => dot(...place(p.step), 3.5, p.step.compute_bound ? "green dot" : "blue dot")).join("");
  const [cx, cy] = place(here.step);
  const flip = cx > left + (right - left) * 0.6;
  svg += dot(cx, cy, 7, "orange dot");
  return svg + text(cx + (flip ? -12 : 12), cy + (flip ? -8 : 16), `B = ${fixed(here.B)}`, "bold", flip ? "end" : "start");
};

const figure = {
  controls: [
    { key: "B", label: "Batch B", stops: (data, state) => setting(data, state).stops, show: (B) => (B === 1 ? "1 sequence" : `${fixed(B)} sequences`) },
    { key: "C", label: "Context C", stops: (data) => data.contexts, show: (C) => `${fixed(C)} tokens` },
    { key: "kv", label: "KV cache", options: () => FORMATS },
    { key: "model", label: "Model", options: (data) => Object.entries(data.models).map(([name, m]) => [name, `${name} · ${m.kind}`]) },
    { key: "gpu", label: "GPU", options: (data) => Object.keys(data.gpus).map((name) => [name, name]) },
  ],
  draw(data, state, width) {
    const set = setting(data, state);
    const { model, gpu, fits, stops } = set;
    const points = stops.map((B) => ({ B, ...drawnStep(data, state, set, B) }));
    const here = points[stops.indexOf(state.B)];
    const [one, { step, right }] = [points[0].step, here];
    const differs = points.some((p) => p.differs);
    const perSequence = state.C * model.kv_numbers * state.kv;
    const wide = width >= 700;
    const column = wide ? (width - 28) / 2 : width;
    const top = Math.max(...points.flatMap((p) => [p.step.t_memory, p.step.t_compute, p.step.t_step, p.right.t_step]));
    const svg =
      timeBars(0, 0, column - 8, step, differs ? right : step, model.weights, gpu.bandwidth, top) +
      memoryBar(0, 172, column - 8, state.B, fits, model, gpu, perSequence, data.reserved) +
      (wide ? tradeOff(column + 28, 0, column, 246, points, here, differs) : tradeOff(0, 262, width, 230, points, here, differs));
    const many = `${fixed(state.B)} sequences together`;
    const gain = `${three(step.t_step / one.t_step)} times the step time of one, ${three(step.tokens_per_s / one.tokens_per_s)} times the tokens/s.`;
    const first = state.B === 1
      ? `One sequence: the GPU could compute ${three(step.t_memory / step.t_compute)} times as much while it reads.`
      : `${many}: ${gain}` + (step.compute_bound ? " The ridge is passed: more sequences bring no more tokens/s." : "");
    const none = `Not one sequence of ${fixed(state.C)} tokens fits beside the weights.`;
    const wrong = `Solid: your decode_step, ${milliseconds(step.t_step)} here. Dashed: the reference, ${milliseconds(right.t_step)}.`;
    const yours = data.yours ? " Drawn with your decode_step." : "";
    return {
      svg,
      height: wide ? 246 : 494,
      readings: [
        ["t_step", "Step time = TPOT", milliseconds(step.t_step), step.t_step],
        ["tokens_per_s", "Tokens/s", three(step.tokens_per_s), step.tokens_per_s],
        ["intensity", "FLOP/byte vs ridge", `${three(step.flops / step.n_bytes)} vs ${fixed(gpu.peak_flops / gpu.bandwidth)}`, step.flops / step.n_bytes],
        ["bound", "Bound by", step.compute_bound ? "compute" : "memory"],
        ["fits", "Sequences that fit", fixed(fits), fits],
      ],
      says: differs ? wrong : (fits ? first : none) + yours,
      differs,
    };
  },
};
