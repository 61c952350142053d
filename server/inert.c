/* Options of SGLang's and vLLM's launchers that have no effect or no support here.
 *
 * Called by the server's option parser. A pure table. A row lists the accepted values and the reason why others are
 * rejected.
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
    {WORDS("pp-size", "pipeline-parallel-size", "dp-size", "data-parallel-size", "nnodes"), false, "1", ONE_DEVICE},
    {WORDS("enable-dp-attention"), true, "", ONE_DEVICE},
    {WORDS("node-rank"), false, "0", ONE_DEVICE},
    {WORDS("gpu-id-step", "dist-init-addr", "nccl-port", "distributed-executor-backend"), false, NULL, ONE_DEVICE},
    {WORDS("disable-custom-all-reduce", "enable-nccl-nvls", "enable-p2p-check"), true, NULL, ONE_DEVICE},
    {WORDS("disaggregation-mode"), false, "null", "prefill and decode run on the same server"},
    /* the model */
    {WORDS("trust-remote-code"), true, NULL, NO_CODE},
    {WORDS("tokenizer-path", "tokenizer"), false, "", "the tokenizer is that of the model's folder"},
    {WORDS("tokenizer-mode"), false, "auto", "there is one tokenizer"},
    {WORDS("skip-tokenizer-init"), true, "", "the tokenizer is always there"},
    {WORDS("revision", "download-dir"), false, NULL, FOLDER},
    {WORDS("hf-overrides", "json-model-override-args"), false, "{}", "config.json is taken as it is"},
    {WORDS("quantization"), false, "", UNQUANTISED},
    {WORDS("kv-cache-dtype"), false, "auto", "KV has the type of the activations"},
    {WORDS("generation-config"), false, "auto", "generation_config.json is read from the model's folder"},
    {WORDS("sampling-defaults"), false, "model", "generation_config.json is read from the model's folder"},
    {WORDS("override-generation-config", "preferred-sampling-params"), false, "{}",
     "send sampling parameters with the requests"},
    {WORDS("limit-mm-per-prompt"), false, NULL, NO_MEDIA},
    {WORDS("enable-multimodal"), true, "", NO_MEDIA},
    {WORDS("enable-lora"), true, "", NO_LORA},
    {WORDS("lora-paths"), false, "", NO_LORA},
    {WORDS("max-loras-per-batch", "max-lora-rank"), false, NULL, NO_LORA},
    {WORDS("speculative-config"), false, "", NO_DRAFT},
    {WORDS("speculative-num-steps"), false, NULL, "--speculative-num-draft-tokens bounds how far a guess goes"},
    {WORDS("speculative-eagle-topk"), false, NULL, "a guess is one chain of tokens"},
    /* how it computes */
    {WORDS("attention-backend", "prefill-attention-backend", "decode-attention-backend"), false, NULL, ONE_ATTENTION},
    {WORDS("sampling-backend"), false, NULL, "there is one sampler"},
    {WORDS("enable-deterministic-inference"), true, NULL, SAME_BITS},
    {WORDS("rl-on-policy-target"), false, NULL, SAME_BITS},
    {WORDS("enforce-eager"), true, NULL, "recorded steps give the same bits; --disable-cuda-graph turns them off"},
    {WORDS("cuda-graph-max-bs"), false, NULL, "recorded batch sizes go up to --max-running-requests (--cuda-graph-bs)"},
    {WORDS("enable-torch-compile"), true, NULL, "kernels are compiled ahead"},
    {WORDS("torch-compile-max-bs", "compilation-config"), false, NULL, "kernels are compiled ahead"},
    {WORDS("async-scheduling"), true, NULL, "the next step is always prepared ahead (--disable-overlap-schedule)"},
    {WORDS("enable-mixed-chunk"), true, NULL, "prefill and decode share steps in any case"},
    {WORDS("enable-chunked-prefill"), true, NULL, "long prompts are computed in chunks in any case"},
    {WORDS("num-continuous-decode-steps"), false, NULL, "the scheduler looks at requests in every step"},
    {WORDS("schedule-policy", "scheduling-policy"), false, "fcfs", "first come, first served"},
    {WORDS("schedule-conservativeness"), false, NULL, "sequences that outgrow KV memory are computed again later"},
    {WORDS("stream-interval"), false, "1", "send stream_interval with the requests"},
    {WORDS("page-size", "block-size"), false, NULL, "pages of KV have 64 tokens"},
    {WORDS("radix-eviction-policy"), false, "lru", "prefixes leave the cache by age"},
    {WORDS("enable-prefix-caching"), true, NULL, "prefixes are shared in any case"},
    {WORDS("no-enable-prefix-caching"), true, "", "use --disable-radix-cache"},
    {WORDS("enable-hierarchical-cache"), true, "", "the prefix cache has one level"},
    {WORDS("gpu-memory-utilization"), false, "", "use --mem-fraction-static, a part of what is free at start"},
    {WORDS("swap-space"), false, NULL, "sequences are computed again, never swapped"},
    {WORDS("cpu-offload-gb"), false, "0", "weights lie on the device"},
    {WORDS("enable-memory-saver", "enable-sleep-mode"), true, NULL, LENT},
    {WORDS("enable-weights-cpu-backup"), true, "", "released weights come back by a full update"},
    /* requests and replies */
    {WORDS("enable-auto-tool-choice"), true, "", ALWAYS_TOOLS},
    {WORDS("grammar-backend", "guided-decoding-backend"), false, NULL, NO_GRAMMAR},
    {WORDS("enable-custom-logit-processor"), true, "", "Python cannot be called"},
    {WORDS("allow-auto-truncate"), true, "", "send truncate_prompt_tokens with the requests"},
    {WORDS("chat-template-content-format"), false, NULL, "it is found from the template"},
    {WORDS("max-logprobs"), false, NULL, "256 a position; --max-logprob-bytes bounds a request"},
    {WORDS("sampling-mask-max-tokens"), false, "4096", "a sampling mask has 4096 ids at most"},
    {WORDS("enable-cache-report"), true, NULL, "replies have cached_tokens in any case"},
    {WORDS("ssl-certfile", "ssl-keyfile"), false, "", TLS},
    {WORDS("root-path", "fastapi-root-path"), false, "", "paths begin at /"},
    {WORDS("tokenizer-worker-num"), false, NULL, "see --text-threads"},
    {WORDS("api-server-count"), false, NULL, "one process serves all connections"},
    /* monitoring */
    {WORDS("enable-metrics", "disable-log-stats"), true, NULL, METRICS},
    {WORDS("decode-log-interval"), false, NULL, METRICS},
    {WORDS("disable-log-requests", "no-enable-log-requests"), true, NULL, "they are logged with --log-requests only"},
    {WORDS("log-level-http", "uvicorn-log-level"), false, NULL, "there is one --log-level"},
    {WORDS("watchdog-timeout"), false, NULL, "/health says when the engine is dead, and the server ends"},
    {WORDS("skip-server-warmup"), true, NULL, "kernels are prepared at start, without requests"},
    {WORDS("sleep-on-idle"), true, NULL, "an idle server sleeps in any case"},
    {WORDS("crash-dump-folder"), false, NULL, "the system's core dumps"},
};

int clime_server_inert_rows(struct clime_server_options *o, struct clime_opt *out) {
    return clime_inert_options(rows, CLIME_COUNT(rows), false, CLIME_SERVER_MAX_INERT, o->inert, out);
}

enum clime_err clime_server_inert_check(const struct clime_server_options *o, struct clime_error *e) {
    return clime_inert_check(rows, CLIME_COUNT(rows), o->inert, e);
}

void clime_server_inert_list(const struct clime_server_options *o, struct clime_buf *out) {
    clime_inert_list(rows, CLIME_COUNT(rows), o->inert, out);
}
