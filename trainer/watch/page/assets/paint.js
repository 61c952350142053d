// Token colours: the value that each mode reads from a token, and the colour of a value.

const WARM = [217, 102, 10], COLD = [53, 88, 212], PLAIN = [125, 132, 145];
const rgba = ([r, g, b], a) => `rgba(${r}, ${g}, ${b}, ${Math.max(0, Math.min(1, a)).toFixed(3)})`;
const HUES = [[53, 88, 212], [217, 102, 10], [15, 138, 92], [184, 49, 143], [11, 127, 149], [116, 72, 216]];

// t: a sample from the API; finds the value of response token i for each stream.
export class Tokens {
  constructor(t) {
    this.t = t;
    this.n = t.sample.n_response;
    this.n_prompt = t.sample.n_prompt;
    this.streams = t.streams;
    this.version = [];
    for (const [v, n] of t.sample.versions || []) for (let i = 0; i < n; i++) this.version.push(v);
    this.order = [...new Set(this.version)];
  }

  has = (name) => Array.isArray(this.streams[name]) && this.streams[name].length === this.n;
  at = (name, i) => (this.has(name) ? this.streams[name][i] : undefined);
  trained = (i) => !this.has("mask") || this.streams.mask[i] === 1;

  // A trained token without its own advantage uses its step's.
  advantage(i) {
    if (this.has("advantages")) return this.streams.advantages[i];
    return this.t.sample.step !== null && this.trained(i) ? this.t.sample.advantage : undefined;
  }

  most(name) {
    this.peak = this.peak || {};
    if (!(name in this.peak)) {
      let m = 0;
      for (let i = 0; i < this.n; i++) m = Math.max(m, Math.abs((name === "advantage" ? this.advantage(i) : this.at(name, i)) || 0));
      this.peak[name] = m || 1;
    }
    return this.peak[name];
  }
}

const surprise = (name) => (t, i) => { const v = t.at(name, i); return v === undefined || !t.trained(i) ? null : rgba(WARM, (-v / 6) * 0.85); };
const signed = (value, name) => (t, i) => { const v = value(t, i); return v === undefined || v === null ? null : rgba(v < 0 ? WARM : COLD, (Math.abs(v) / t.most(name)) * 0.6); };
const gap = (name) => (t, i) => { const a = t.at("logp", i), b = t.at(name, i); return a === undefined || b === undefined ? null : rgba(b > a ? COLD : WARM, Math.min(1, Math.abs(a - b) / 2) * 0.7); };

const unsure = (t, i) => { const v = t.at("entropy", i); return v === undefined || v === null ? null : rgba(COLD, (v / t.most("entropy")) * 0.7); };

// [name, label, legend, needs(tokens), colour(tokens, i) or null]
export const WAYS = [
  ["logp", "log-probability", "the stronger, the less likely the token was", (t) => t.has("logp"), surprise("logp")],
  ["advantage", "advantage", "blue: pushed up; orange: pushed down", (t) => t.t.sample.step !== null || t.has("advantages"), signed((t, i) => t.advantage(i), "advantage")],
  ["version", "version", "a colour for each version of the weights that sampled a part", (t) => t.version.length > 0, (t, i) => (t.version[i] === undefined ? null : rgba(HUES[t.order.indexOf(t.version[i]) % HUES.length], 0.28))],
  ["mask", "mask", "blue: sampled and trained on; grey: context", (t) => t.has("mask"), (t, i) => (t.trained(i) ? rgba(COLD, 0.2) : rgba(PLAIN, 0.3))],
  ["old_logp", "trainer's change", "orange: the trainer found it less likely than the server's weights did; blue: more", (t) => t.has("old_logp"), gap("old_logp")],
  ["teacher_logp", "teacher", "orange: the teacher finds it less likely; blue: more", (t) => t.has("teacher_logp"), gap("teacher_logp")],
  ["returns", "returns", "blue: above 0; orange: below", (t) => t.has("returns"), signed((t, i) => t.at("returns", i), "returns")],
  ["old_values", "values", "of the critic; blue: above 0, orange: below", (t) => t.has("old_values"), signed((t, i) => t.at("old_values", i), "old_values")],
  ["entropy", "entropy", "the stronger, the less sure the policy was of what comes", (t) => t.has("entropy"), unsure],
  ["none", "none", "", () => true, () => null],
];
