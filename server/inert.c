/* Options of SGLang's and vLLM's launchers that have no effect here, and those that would need what clime does not
 * have.
 *
 * Called by the parser of the server's options. A pure table. A row says which values are accepted, and why that is
 * enough and any other value is refused.
 */
#include "server/server_options.h"

#define ONE_DEVICE "a server's devices share every layer's matrices (--tp-size)"
#define SAME_BITS "results do not depend on the batch in any case"
#define ONE_ATTENTION "there is one attention, the trainer's"
#define FOLDER "a model is a folder; nothing is downloaded"
#define NO_CODE "no code is taken from a model's folder"
#define NO_GRAMMAR "there is one way to follow a grammar (docs/protocol.md)"
#define NO_LORA "there are no adapters"
#define NO_DRAFT "--speculative-algorithm NGRAM guesses from text; there is no draft model"
#define ALWAYS_TOOLS "always: --tool-call-parser says how"
#define NO_MEDIA "text models only"
#define METRICS "/metrics is there in any case"
#define LENT "memory is lent on request in any case (/release_memory_occupation)"
#define TLS "give one PEM file with certificate and key to --tls-certificate"
#define UNQUANTISED "weights are bfloat16 or float32"

static const struct clime_inert rows[] = {
    /* devices and processes */
    {"pp-size", false, "1", ONE_DEVICE},
    {"pipeline-parallel-size", false, "1", ONE_DEVICE},
    {"dp-size", false, "1", ONE_DEVICE},
    {"data-parallel-size", false, "1", ONE_DEVICE},
    {"enable-dp-attention", true, "", ONE_DEVICE},
    {"nnodes", false, "1", ONE_DEVICE},
    {"node-rank", false, "0", ONE_DEVICE},
    {"gpu-id-step", false, NULL, ONE_DEVICE},
    {"dist-init-addr", false, NULL, ONE_DEVICE},
    {"nccl-port", false, NULL, ONE_DEVICE},
    {"distributed-executor-backend", false, NULL, ONE_DEVICE},
    {"disable-custom-all-reduce", true, NULL, ONE_DEVICE},
    {"enable-nccl-nvls", true, NULL, ONE_DEVICE},
    {"enable-p2p-check", true, NULL, ONE_DEVICE},
    {"disaggregation-mode", false, "null", "prefill and decode run on the same server"},
    /* the model */
    {"trust-remote-code", true, NULL, NO_CODE},
    {"tokenizer-path", false, "", "the tokenizer is that of the model's folder"},
    {"tokenizer", false, "", "the tokenizer is that of the model's folder"},
    {"tokenizer-mode", false, "auto", "there is one tokenizer"},
    {"skip-tokenizer-init", true, "", "the tokenizer is always there"},
    {"revision", false, NULL, FOLDER},
    {"download-dir", false, NULL, FOLDER},
    {"hf-overrides", false, "{}", "config.json is taken as it is"},
    {"json-model-override-args", false, "{}", "config.json is taken as it is"},
    {"quantization", false, "", UNQUANTISED},
    {"kv-cache-dtype", false, "auto", "KV has the type of the activations"},
    {"generation-config", false, "auto", "generation_config.json is read from the model's folder"},
    {"sampling-defaults", false, "model", "generation_config.json is read from the model's folder"},
    {"override-generation-config", false, "{}", "send sampling parameters with the requests"},
    {"preferred-sampling-params", false, "{}", "send sampling parameters with the requests"},
    {"limit-mm-per-prompt", false, NULL, NO_MEDIA},
    {"enable-multimodal", true, "", NO_MEDIA},
    {"enable-lora", true, "", NO_LORA},
    {"lora-paths", false, "", NO_LORA},
    {"max-loras-per-batch", false, NULL, NO_LORA},
    {"max-lora-rank", false, NULL, NO_LORA},
    {"speculative-config", false, "", NO_DRAFT},
    {"speculative-num-steps", false, NULL, "--speculative-num-draft-tokens bounds how far a guess goes"},
    {"speculative-eagle-topk", false, NULL, "a guess is one chain of tokens"},
    /* how it computes */
    {"attention-backend", false, NULL, ONE_ATTENTION},
    {"prefill-attention-backend", false, NULL, ONE_ATTENTION},
    {"decode-attention-backend", false, NULL, ONE_ATTENTION},
    {"sampling-backend", false, NULL, "there is one sampler"},
    {"enable-deterministic-inference", true, NULL, SAME_BITS},
    {"rl-on-policy-target", false, NULL, SAME_BITS},
    {"enforce-eager", true, NULL, "recorded steps give the same bits; --disable-cuda-graph turns them off"},
    {"cuda-graph-max-bs", false, NULL, "recorded batch sizes go up to --max-running-requests (--cuda-graph-bs)"},
    {"enable-torch-compile", true, NULL, "kernels are compiled ahead"},
    {"torch-compile-max-bs", false, NULL, "kernels are compiled ahead"},
    {"compilation-config", false, NULL, "kernels are compiled ahead"},
    {"async-scheduling", true, NULL, "the next step is always prepared ahead (--disable-overlap-schedule)"},
    {"enable-mixed-chunk", true, NULL, "prefill and decode share steps in any case"},
    {"enable-chunked-prefill", true, NULL, "long prompts are computed in chunks in any case"},
    {"num-continuous-decode-steps", false, NULL, "the scheduler looks at requests in every step"},
    {"schedule-policy", false, "fcfs", "first come, first served"},
    {"scheduling-policy", false, "fcfs", "first come, first served"},
    {"schedule-conservativeness", false, NULL, "sequences that outgrow KV memory are computed again later"},
    {"stream-interval", false, "1", "send stream_interval with the requests"},
    {"page-size", false, NULL, "pages of KV have 64 tokens"},
    {"block-size", false, NULL, "pages of KV have 64 tokens"},
    {"radix-eviction-policy", false, "lru", "prefixes leave the cache by age"},
    {"enable-prefix-caching", true, NULL, "prefixes are shared in any case"},
    {"no-enable-prefix-caching", true, "", "use --disable-radix-cache"},
    {"enable-hierarchical-cache", true, "", "the prefix cache has one level"},
    {"gpu-memory-utilization", false, "", "use --mem-fraction-static, a part of what is free at start"},
    {"swap-space", false, NULL, "sequences are computed again, never swapped"},
    {"cpu-offload-gb", false, "0", "weights lie on the device"},
    {"enable-memory-saver", true, NULL, LENT},
    {"enable-sleep-mode", true, NULL, LENT},
    {"enable-weights-cpu-backup", true, "", "released weights come back by a full update"},
    /* requests and replies */
    {"enable-auto-tool-choice", true, "", ALWAYS_TOOLS},
    {"grammar-backend", false, NULL, NO_GRAMMAR},
    {"guided-decoding-backend", false, NULL, NO_GRAMMAR},
    {"enable-custom-logit-processor", true, "", "Python cannot be called"},
    {"allow-auto-truncate", true, "", "send truncate_prompt_tokens with the requests"},
    {"chat-template-content-format", false, NULL, "it is found from the template"},
    {"max-logprobs", false, NULL, "256 a position; --max-logprob-bytes bounds a request"},
    {"sampling-mask-max-tokens", false, "4096", "a sampling mask has 4096 ids at most"},
    {"enable-cache-report", true, NULL, "replies have cached_tokens in any case"},
    {"ssl-certfile", false, "", TLS},
    {"ssl-keyfile", false, "", TLS},
    {"root-path", false, "", "paths begin at /"},
    {"fastapi-root-path", false, "", "paths begin at /"},
    {"tokenizer-worker-num", false, NULL, "see --text-threads"},
    {"api-server-count", false, NULL, "one process serves all connections"},
    /* watching it */
    {"enable-metrics", true, NULL, METRICS},
    {"disable-log-stats", true, NULL, METRICS},
    {"decode-log-interval", false, NULL, METRICS},
    {"disable-log-requests", true, NULL, "they are logged with --log-requests only"},
    {"no-enable-log-requests", true, NULL, "they are logged with --log-requests only"},
    {"log-level-http", false, NULL, "there is one --log-level"},
    {"uvicorn-log-level", false, NULL, "there is one --log-level"},
    {"watchdog-timeout", false, NULL, "/health says when the engine is dead, and the server ends"},
    {"skip-server-warmup", true, NULL, "kernels are prepared at start, without requests"},
    {"sleep-on-idle", true, NULL, "an idle server sleeps in any case"},
    {"crash-dump-folder", false, NULL, "the system's core dumps"},
};

_Static_assert(CLIME_COUNT(rows) <= CLIME_SERVER_MAX_INERT, "raise CLIME_SERVER_MAX_INERT");

int clime_server_inert_rows(struct clime_server_options *o, struct clime_opt *out) {
    clime_inert_options(rows, CLIME_COUNT(rows), o->inert, out);
    return (int)CLIME_COUNT(rows);
}

enum clime_err clime_server_inert_check(const struct clime_server_options *o, struct clime_error *e) {
    return clime_inert_check(rows, CLIME_COUNT(rows), o->inert, e);
}

void clime_server_inert_list(const struct clime_server_options *o, struct clime_buf *out) {
    clime_inert_list(rows, CLIME_COUNT(rows), o->inert, out);
}
