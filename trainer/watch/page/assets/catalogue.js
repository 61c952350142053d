// Catalogue of curves: name, title, and what to look for. Other names are shown as they are.

export const sections = [
  ["Reward", [
    ["rollout/raw_reward", "Mean reward", "of the samples that are trained on"],
    ["eval/:set", "Evaluation", "mean reward on a held-out set"],
    ["rollout/zero_std/*", "Groups without a difference", "all members got the same reward: no gradient from them"],
    ["rollout/reward/*", "Reward, by part", "a part of a weighted sum"],
    ["rollout/dynamic_filter/*", "Groups that the filter dropped", "by its reason"],
    ["rollout/dropped_groups", "Dropped groups", "a member failed"],
  ]],
  ["Length", [
    ["rollout/response_len/mean", "Response length", "mean, in tokens"],
    ["rollout/response_len/max", "Longest response", "in tokens, of a rollout"],
    ["rollout/truncated_ratio", "Truncated", "share of samples that met the length limit"],
    ["rollout/repetition_frac", "Repetition", "share of samples that go round in a loop"],
  ]],
  ["Evaluation", [["eval/*", "Evaluation", ""]]],
  ["Policy", [
    ["train/entropy_loss", "Entropy", "mean over trained tokens; towards 0 the policy stops exploring"],
    ["train/grad_norm", "Gradient norm", "before clipping; a spike is a step to look at"],
    ["train/loss", "Loss", ""],
    ["train/pg_loss", "Policy loss", ""],
    ["train/pg_clipfrac", "Clipped fraction", "tokens whose ratio met the clip"],
    ["train/ppo_kl", "KL to the sampling policy", "from the step's own ratios; 0 in a first step"],
    ["train/kl_loss", "KL to the reference", ""],
    ["rollout/kl", "KL penalty", "to the reference, in the reward"],
    ["train/value_loss", "Value loss", "of the critic"],
    ["rollout/rollout_log_probs", "Log-probability", "mean of the sampled tokens"],
    ["train/lr-pg_0", "Learning rate", ""],
  ]],
  ["Server against trainer", [
    ["train/train_rollout_logprob_abs_diff", "Log-probability gap", "must be exactly 0"],
    ["train/logprob_gap_tokens", "Tokens compared", "by the gap"],
    ["train/tis", "Importance weight", "mean, where weights differ"],
    ["train/tis_clipfrac", "Importance weights clipped", ""],
    ["train/ois", "Importance ratio", "mean"],
    ["train/rs_masked_fraction", "Masked by rejection", "share of tokens"],
    ["rollout/staleness/mean", "Staleness", "steps between sampling and training, mean"],
    ["rollout/staleness/max", "Staleness, most", ""],
    ["rollout/staleness/offpolicy_frac", "Off-policy tokens", "share sampled by older weights"],
  ]],
  ["Sessions", [
    ["rollout/turns/extended", "Turns that went on exactly", "from their session's own tokens"],
    ["rollout/turns/branched", "Turns that began a branch", "the client or the template made another past"],
    ["rollout/turns/*", "Turns", "of sessions, by how they went on"],
  ]],
  ["Speed", [
    ["perf/step_time", "Time of a rollout", "all of it, in seconds"],
    ["perf/rollout_time", "Generation", "in seconds"],
    ["perf/train_time", "Training", "in seconds"],
    ["perf/train_wait_time", "Trainer waits", "for samples and for the hand-over, in seconds"],
    ["perf/update_weights_time", "Hand-over of weights", "in seconds"],
    ["perf/tokens_per_gpu_per_sec", "Tokens per second", "generated, by a GPU of the servers"],
    ["perf/actor_train_tok_per_s", "Tokens per second, training", ""],
    ["rollout/prefix_cache_hit_rate", "Prefix cache", "share of prompt tokens found there"],
    ["perf/rank/*", "Ranks", "seconds of a step"],
    ["perf/straggler_lag_time", "Slowest rank", "seconds that its packs took longer than the others'"],
    ["perf/rank_sent_bytes/*", "Ranks, sent", "bytes of a step"],
    ["perf/memory_used_bytes", "Memory in use", "of the trainer's device, since its plan was made; the Time view has the plan"],
    ["perf/memory_host_used_bytes", "Host memory in use", "by the trainer"],
    ["perf/request_tries", "Requests", "with those that were repeated"],
  ]],
];

// "x/*" matches every name with that prefix; "eval/:set" only a set's score.
function fits(name, pattern) {
  if (pattern === "eval/:set") return /^eval\/[^/]+$/.test(name) && !/-(failed|truncated_ratio|ci95)$/.test(name);
  return pattern.endsWith("*") ? name.startsWith(pattern.slice(0, -1)) : name === pattern;
}

// [[section, [{name, title, help}]]] of the existing names; the rest under "More".
export function arrange(names) {
  const left = new Set(names), out = [];
  for (const [section, rows] of sections) {
    const found = [];
    for (const [pattern, title, help] of rows) {
      const match = [...left].filter((n) => fits(n, pattern)).sort();
      for (const name of match) {
        left.delete(name);
        found.push({ name, title: /[*:]/.test(pattern) ? `${title}: ${name.slice(pattern.search(/[*:]/))}` : title, help });
      }
    }
    if (found.length) out.push([section, found]);
  }
  if (left.size) out.push(["More", [...left].sort().map((name) => ({ name, title: name, help: "" }))]);
  return out;
}
