// Figure 5: rounds of speculative decoding, what they give on average, and which draft length pays.

// E[tokens per target pass] and the speed-up over plain decoding (Leviathan et al. 2023, theorem 3.8).
const expectedTokens = (alpha, gamma) => Array.from({ length: gamma + 1 }, (_, j) => alpha ** j).reduce((a, b) => a + b);
const speedup = (alpha, gamma, c) => expectedTokens(alpha, gamma) / (1 + gamma * c);

const roundRows = (x, y, width, counts, gamma, gammas) => {
  const cell = Math.min(26, (width - 44) / (gammas[gammas.length - 1] + 1));
  let svg = text(x, y + 12, "12 passes of the target", "head");
  svg += keys(x, y + 32, width, [["blue", "accepted"], ["orange", "resampled"], ["green", "bonus"]]);
  counts.forEach((n, i) => {
    const top = y + 42 + i * 17;
    svg += text(x + 14, top + 12, i + 1, "soft", "end");
    for (let j = n; j < gamma; j++) svg += rect(x + 20 + j * cell, top, cell - 2, 14, "empty");
    for (let j = 0; j < n; j++) svg += rect(x + 20 + j * cell, top, cell - 2, 14, j > gamma ? "red" : j < n - 1 ? "blue" : n === gamma + 1 ? "green" : "orange");
    svg += text(x + 24 + Math.max(n, gamma) * cell, top + 12, n, n < 1 || n > gamma + 1 ? "differs" : "bold");
  });
  return svg;
};

const tails = (x, y, width, all, alpha, gamma) => {
  const [left, bottom] = [x + 34, y + 212];
  const up = linear(0, 1, bottom, y + 42);
  const wide = (width - 34) / gamma;
  const bar = Math.min(48, wide * 0.7);
  let svg = text(x, y + 12, "P(at least j accepted)", "head") + keys(x, y + 32, width, [["sky", "αʲ"], ["green", "measured"]]);
  svg += [0, 0.5, 1].map((v) => line(left, up(v), x + width, up(v), "rule") + text(left - 6, up(v) + 4, fixed(v, 1), "soft", "end")).join("");
  for (let j = 1; j <= gamma; j++) {
    const middle = left + (j - 0.5) * wide;
    svg += rect(middle - bar / 2, up(alpha ** j), bar, bottom - up(alpha ** j), "sky");
    svg += dot(middle, up(all.filter((n) => n > j).length / all.length), 5, "green dot") + text(middle, bottom + 16, j, "soft", "middle");
  }
  return svg + text(x + width, bottom + 32, "j", "soft", "end") + line(left, bottom, x + width, bottom, "axis");
};

const speedups = (x, y, width, state, gammas, best) => {
  const [left, right, bottom] = [x + 34, x + width - 10, y + 212];
  const values = gammas.map((g) => speedup(state.alpha, g, state.c));
  const marks = ticks(Math.max(...values, 1.5), 6);
  const up = linear(0, marks[marks.length - 1], bottom, y + 42);
  const at = linear(gammas[0], gammas[gammas.length - 1], left + 8, right - 4);
  let svg = text(x, y + 12, "Speed-up S against γ", "head");
  svg += marks.map((v) => line(left, up(v), right, up(v), "rule") + text(left - 6, up(v) + 4, fixed(v, 1), "soft", "end")).join("");
  svg += gammas.map((g) => text(at(g), bottom + 16, g, "soft", "middle")).join("");
  svg += text(right, bottom + 32, "draft length γ", "soft", "end");
  svg += line(left, up(1), right, up(1), "slo") + text(right, up(1) + 15, "no gain", "", "end");
  svg += path(gammas.map((g, i) => [at(g), up(values[i])]), "curve");
  svg += dot(at(best), up(values[gammas.indexOf(best)]), 5, "green dot") + text(at(best), up(values[gammas.indexOf(best)]) - 13, "best", "", "middle");
  return svg + dot(at(state.gamma), up(speedup(state.alpha, state.gamma, state.c)), 7, "orange dot");
};

const figure = {
  controls: [
    { key: "gamma", label: "Draft length γ", stops: (data) => data.gammas, show: (v) => `${v} tokens` },
    { key: "alpha", label: "Acceptance rate α", stops: (data) => data.alphas, show: (v) => fixed(v, 2) },
    { key: "c", label: "Draft cost c", stops: (data) => data.costs, show: (v) => fixed(v, 2) },
    { button: "Simulate 12 more", press: (state, data) => (state.sets = (state.sets % data.n_sets) + 1) },
  ],
  draw(data, state, width) {
    const sets = data.rounds[state.alpha][state.gamma].slice(0, state.sets);
    const lengths = (word) => [...word].map((digit) => parseInt(digit, 36));
    const [all, last] = [lengths(sets.join("")), lengths(sets[sets.length - 1])];
    const mean = all.reduce((sum, n) => sum + n, 0) / all.length;
    const expected = expectedTokens(state.alpha, state.gamma);
    const gain = speedup(state.alpha, state.gamma, state.c);
    const best = data.gammas.reduce((a, b) => (speedup(state.alpha, b, state.c) > speedup(state.alpha, a, state.c) ? b : a));
    const wide = width >= 680;
    const column = wide ? (width - 48) / 3 : width;
    const places = wide ? [[0, 0], [column + 24, 0], [2 * column + 48, 0]] : [[0, 0], [0, 262], [0, 516]];
    return {
      svg:
        roundRows(...places[0], column, last, state.gamma, data.gammas) +
        tails(...places[1], column - 4, all, state.alpha, state.gamma) +
        speedups(...places[2], column, state, data.gammas, best),
      height: wide ? 250 : 764,
      readings: [
        ["mean", `Mean of ${all.length} rounds`, fixed(mean, 2), mean],
        ["expected", "Expected tokens", fixed(expected, 2), expected],
        ["speedup", "Speed-up S", fixed(gain, 2) + "×", gain],
        ["best", "Best γ", String(best), best],
      ],
      says: data.off || `${all.length} passes of the target gave ${all.reduce((sum, n) => sum + n, 0)} tokens: ${fixed(mean, 2)} each, ${fixed(expected, 2)} expected.` + (data.yours ? " Run by your speculative_round." : ""),
      differs: Boolean(data.off),
    };
  },
};
