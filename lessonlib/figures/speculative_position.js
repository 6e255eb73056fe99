// Figure 4: one position of speculative sampling. The kept part of the draft and the resampled part add up to the target.

// Draft of quality λ: λ · target + (1 − λ) · poor draft.
const formula = (target, poor, quality) => {
  const draft = target.map((p, i) => quality * p + (1 - quality) * poor[i]);
  const kept = target.map((p, i) => Math.min(p, draft[i]));
  const acceptance = kept.reduce((sum, v) => sum + v, 0);
  return { draft, kept, resampled: target.map((p, i) => p - kept[i]), acceptance };
};

const group = (x, width, base, up, word, p, parts, i, counts, n) => {
  const bar = Math.min(100, width * 0.36);
  const gap = Math.min(12, width * 0.06);
  const [left, right] = [x + width / 2 - bar - gap / 2, x + width / 2 + gap / 2];
  const [kept, draft] = [parts.kept[i], parts.draft[i]];
  let svg = rect(left, up(kept), bar, base - up(kept), "blue") + rect(left, up(draft), bar, up(kept) - up(draft), "empty");
  svg += rect(right, up(kept), bar, base - up(kept), "blue") + rect(right, up(p), bar, up(kept) - up(p), "orange");
  svg += line(right - 5, up(p), right + bar + 5, up(p), "mark");
  svg += text(left + bar / 2, up(draft) - 6, fixed(draft, 2), "soft", "middle") + text(right + bar / 2, up(p) - 13, fixed(p, 2), "bold", "middle");
  if (up(kept) - up(draft) > 15) svg += text(left + bar / 2, up((draft + kept) / 2) + 4, "−" + fixed(draft - kept, 2), "", "middle");
  if (up(kept) - up(p) > 15) svg += text(right + bar / 2, up((p + kept) / 2) + 4, "+" + fixed(p - kept, 2), "on", "middle");
  svg += text(left + bar / 2, base + 15, "draft", "soft", "middle") + text(right + bar / 2, base + 15, "output", "soft", "middle");
  svg += text(x + width / 2, base + 33, `“${word}”`, "head", "middle");
  if (counts) svg += dot(right + bar / 2, up((counts[0][i] + counts[1][i]) / n), 6, "green dot");
  return svg;
};

const figure = {
  controls: [
    { key: "quality", label: "Draft quality λ", stops: (data) => data.qualities, show: (v) => fixed(v, 2) },
    { key: "tokens", label: "Vocabulary", options: () => [[2, "2 tokens"], [4, "4 tokens"]] },
    { button: "Sample 2,000", press: (state, data) => (state.sample = (state.sample % data.samples) + 1) },
  ],
  draw(data, state, width) {
    const { words, target, poor, draws } = data.vocabularies[state.tokens];
    const parts = formula(target, poor, state.quality);
    const counts = state.sample ? draws[data.qualities.indexOf(state.quality)][state.sample - 1] : null;
    const [base, height] = [258, 300];
    const marks = ticks(Math.max(...target, ...poor));
    const up = linear(0, marks[marks.length - 1], base, 50);
    const each = Math.min(300, (width - 34) / words.length);
    const left = 34 + (width - 34 - each * words.length) / 2;
    const entries = [["blue", "kept: min(p, q)"], ["empty", "rejected"], ["orange", "resampled"], ...(counts ? [["green", "2,000 draws"]] : [])];
    let svg = keys(34, 14, width - 34, entries);
    svg += marks.map((v) => line(34, up(v), width, up(v), "rule") + text(28, up(v) + 4, fixed(v, 2), "soft", "end")).join("");
    svg += words.map((word, i) => group(left + i * each, each, base, up, word, target[i], parts, i, counts, data.n)).join("");
    svg += line(34, base, width, base, "axis");
    const measured = counts ? counts[0].reduce((sum, v) => sum + v, 0) / data.n : undefined;
    const off = counts ? Math.max(...target.map((p, i) => Math.abs((counts[0][i] + counts[1][i]) / data.n - p))) : undefined;
    return {
      svg,
      height,
      readings: [
        ["acceptance", "Accepted: Σ min(p, q)", fixed(parts.acceptance, 3), parts.acceptance],
        ["reject", "Rejected = resampled", fixed(1 - parts.acceptance, 3), 1 - parts.acceptance],
        ["measured", "Accepted of 2,000", counts ? fixed(measured, 3) : "–", measured],
        ["off", "Largest gap to p", counts ? fixed(off, 3) : "–", off],
      ],
      says: counts
        ? `2,000 random draws (set ${state.sample} of ${data.samples}): every token's share is within ${fixed(off, 3)} of the target, though ${fixed((1 - measured) * 100)}% of the drafts were rejected.`
        : "Where the draft gives too much, the excess is rejected; exactly that mass fills the gaps elsewhere. The output is the target for every λ.",
    };
  },
};
