/* The options table of clime-server. Called by main before any thread starts; owns nothing (strings point into argv).
 *
 * Invariant: every field of clime_server_options is in the table, and every field is used.
 */
#include "server/server_options.h"

#include <stdlib.h>
#include <string.h>

#include "common/group/place.h"
#include "common/http/server.h"
#include "text/output/output_parser.h"

const char *const clime_device_names[] = {"auto", "cpu", "cuda"};
const char *const clime_dtype_names[] = {"auto", "bf16", "f32", "bf16", "f32"};

#define MAX_OPTIONS (CLIME_SERVER_MAX_INERT + 80)
#define MOST_GPU 63

static int make_table(struct clime_server_options *o, struct clime_opt *t) {
    const struct clime_opt table[] = {
        {"Model", CLIME_OPT_SECTION},
        {"model-path", CLIME_OPT_STRING, &o->model_path, NULL, "DIR", "Hugging Face folder of the policy (required)",
         .alias = "model", .first = true},
        {"served-model-name", CLIME_OPT_LIST, &o->served_model_names, NULL, "NAME",
         "names that requests may ask for; replies and metrics carry the first where none is asked for (default: the "
         "folder's name). With * among them any other name stands for the first",
         .first = true},
        {"weight-version", CLIME_OPT_STRING, &o->weight_version, "default", "LABEL",
         "label of the weights loaded at start"},
        {"load-format", CLIME_OPT_CHOICE, &o->load_format, "auto", "auto|none",
         "none: start without weights; generation answers 503 until a full update brings them"},
        {"context-length", CLIME_OPT_INT, &o->context_length, "0", "N",
         "longest sequence in tokens (0: what the model was made for)", 0, 1 << 24, .alias = "max-model-len",
         .first = true},
        {"random-seed", CLIME_OPT_INT, &o->random_seed, "-1", "N",
         "makes the seeds of requests that have none, in the order of their arrival (-1: at random)", -1,
         9007199254740992.0, .alias = "seed"},
        {"chat-template", CLIME_OPT_STRING, &o->chat_template, NULL, "FILE",
         "Jinja file instead of the folder's own template"},
        {"reasoning-parser", CLIME_OPT_STRING, &o->reasoning_parser, "auto",
         "auto|none|qwen3|deepseek-r1|glm45|kimi|kimi_k2",
         "how replies tell reasoning from content (auto: as the chat template shows)", .first = true},
        {"tool-call-parser", CLIME_OPT_STRING, &o->tool_call_parser, "auto",
         "auto|none|hermes|qwen3_coder|glm4|glm45|llama3|deepseekv3|deepseekv31|kimi_k2|pythonic|mistral",
         "how tool calls are told from content where a request has tools; SGLang's and vLLM's names too (auto: as the "
         "chat template shows)",
         .first = true},
        {"Device and memory", CLIME_OPT_SECTION},
        {"device", CLIME_OPT_CHOICE, &o->device, "auto", "auto|cpu|cuda", "where the model runs", .first = true},
        {"dtype", CLIME_OPT_CHOICE, &o->dtype, "auto", "auto|bf16|f32|bfloat16|float32",
         "type of weights and activations (auto: the checkpoint's)", .first = true},
        {"threads", CLIME_OPT_INT, &o->threads, "0", "N", "compute threads on the CPU (0: all cores)", 0, 1024,
         .first = true},
        {"isa", CLIME_OPT_STRING, &o->isa, NULL, "generic|avx2|avx512|amx",
         "instruction set on the CPU (default: the best there is)"},
        {"gpu", CLIME_OPT_STRING, &o->gpus, "0", "N[,N...]",
         "index of the CUDA device; with --tp-size the first, which the others follow, or all of them: 0,2",
         .alias = "base-gpu-id", .first = true},
        {"tp-size", CLIME_OPT_INT, &o->tp_size, "1", "N",
         "devices that share the model, a process each, which this one starts: the same bits on any number of them "
         "(docs/devices.md)",
         1, CLIME_GROUP_MAX, .alias = "tensor-parallel-size"},
        {"tp", CLIME_OPT_INT, &o->tp_size, "1", "N", "the same", 1, CLIME_GROUP_MAX},
        {"ep-size", CLIME_OPT_INT, &o->ep_size, "1", "N",
         "as --tp-size: every expert lies whole on one of the devices; 1: of every expert each has rows. The same bits "
         "(docs/devices.md)",
         1, CLIME_GROUP_MAX, .alias = "expert-parallel-size"},
        {"ep", CLIME_OPT_INT, &o->ep_size, "1", "N", "the same", 1, CLIME_GROUP_MAX},
        {"enable-expert-parallel", CLIME_OPT_BOOL, &o->expert_parallel, NULL, NULL, "--ep-size of what --tp-size is"},
        {"dist-timeout", CLIME_OPT_DOUBLE, &o->dist_timeout, "60", "SECONDS",
         "a device that the others wait for longer ends the server, which names it", 0.1, 1e6},
        {"deterministic", CLIME_OPT_BOOL, &o->deterministic, "true", NULL,
         "results do not depend on the batch; off only to measure what that costs on a GPU"},
        {"max-total-tokens", CLIME_OPT_INT, &o->max_total_tokens, "0", "N",
         "KV memory in tokens (0: from --mem-fraction-static)", 0, 1e9, .first = true},
        {"mem-fraction-static", CLIME_OPT_DOUBLE, &o->mem_fraction, "0", "F",
         "part of the device memory free at start for weights and KV together (0: 0.85 on a GPU; 0.5 on the CPU, where "
         "it is for KV alone, at most 4 GiB)",
         0, 0.98, .alias = "mem-fraction", .first = true},
        {"Scheduling", CLIME_OPT_SECTION},
        {"max-running-requests", CLIME_OPT_INT, &o->max_running_requests, "0", "N",
         "sequences that run together (0: 256 on a GPU, 64 on the CPU)", 0, 4096, .alias = "max-num-seqs",
         .first = true},
        {"chunked-prefill-size", CLIME_OPT_INT, &o->chunked_prefill_size, "0", "N",
         "prompt tokens computed in one step (0: 8192 on a GPU of 64 GiB, 4096 of 32, 2048 below; 512 on the CPU)", 0,
         1 << 20, .alias = "max-num-batched-tokens"},
        {"max-prefill-tokens", CLIME_OPT_INT, &o->max_prefill_tokens, "16384", "N",
         "upper bound of the above, as SGLang has both", 1, 1 << 20},
        {"max-queued-requests", CLIME_OPT_INT, &o->max_queued_requests, "4096", "N",
         "requests that may wait; beyond it 429 (-1: no limit)", -1, 1e9},
        {"max-queue-seconds", CLIME_OPT_INT, &o->max_queue_seconds, "1800", "N",
         "503 for a request that has waited so long and not begun (0: no limit)", 0, 1e9},
        {"speculative-algorithm", CLIME_OPT_CHOICE, &o->speculative, "none", "none|NGRAM",
         "NGRAM: guess tokens from what followed the same few before, in the sequence's own text or another sample's "
         "of its prompt, and compute them in one step; the same replies to the bit (docs/rollouts.md)"},
        {"speculative-num-draft-tokens", CLIME_OPT_INT, &o->speculative_draft_tokens, "8", "N",
         "with NGRAM, rows of one sequence in a step: its last token and guesses; all rows of a step together are at "
         "most --max-running-requests, and 256",
         2, 64},
        {"speculative-adaptive", CLIME_OPT_BOOL, &o->speculative_adaptive, "true", NULL,
         "with NGRAM, only as many guesses as pay, by how many were right and by what steps take; off: all that there "
         "is room for, to measure with"},
        {"disable-radix-cache", CLIME_OPT_BOOL, &o->disable_radix_cache, NULL, NULL,
         "do not share prompts between requests"},
        {"enable-return-routed-experts", CLIME_OPT_BOOL, &o->return_routed_experts, NULL, NULL,
         "keep which experts every position chose, for /generate's return_routed_experts: 2 bytes of host memory a "
         "layer and chosen expert for each position of KV"},
        {"cuda-graph-bs", CLIME_OPT_LIST, &o->cuda_graph_bs, NULL, "N",
         "batch sizes, at most 256, at which a CUDA device replays recorded decode steps; smaller batches are padded "
         "(default: some, up to --max-running-requests)"},
        {"disable-cuda-graph", CLIME_OPT_BOOL, &o->disable_cuda_graph, NULL, NULL,
         "record no decode steps: each launches its kernels one by one"},
        {"disable-overlap-schedule", CLIME_OPT_BOOL, &o->disable_overlap_schedule, NULL, NULL,
         "start no step before the results of the one before are read; a CPU never does"},
        {"debug-checks", CLIME_OPT_BOOL, &o->debug_checks, NULL, NULL, "recount every KV page after every step (slow)"},
        {"HTTP", CLIME_OPT_SECTION},
        {"host", CLIME_OPT_STRING, &o->host, "127.0.0.1", "ADDRESS", "address to listen on", .first = true},
        {"port", CLIME_OPT_INT, &o->port, "30000", "N", "port to listen on (0: any free one)", 0, 65535, .first = true},
        {"port-file", CLIME_OPT_STRING, &o->port_file, NULL, "FILE", "write the port here when ready"},
        {"health-port", CLIME_OPT_INT, &o->health_port, "-1", "N",
         "serve health and metrics here too, on threads of their own (-1: no)", -1, 65535},
        {"max-concurrent-requests", CLIME_OPT_INT, &o->max_concurrent_requests, "1024", "N",
         "generating requests at a time, each of which holds a thread; more get 429", 1, 32000},
        {"http-threads", CLIME_OPT_INT, &o->http_threads, "0", "N",
         "connections served at a time, at least 2 (0: 64 more than --max-concurrent-requests); a quarter, at most 64, "
         "never generate",
         0, 32768},
        {"text-threads", CLIME_OPT_INT, &o->text_threads, "1", "N", "threads that tokenise and render templates", 1,
         256},
        {"emitter-threads", CLIME_OPT_INT, &o->emitter_threads, "1", "N", "threads that detokenise and write streams",
         1, 64},
        {"max-body", CLIME_OPT_BYTES, &o->max_body, "64m", "BYTES", "largest request (weights excepted)", 1024, 1e10},
        {"stream-heartbeat", CLIME_OPT_INT, &o->stream_heartbeat, "0", "SECONDS",
         "an OpenAI stream that is silent for so long sends a comment, for proxies that cut idle connections (0: "
         "never)",
         0, 86400},
        {"max-logprob-bytes", CLIME_OPT_BYTES, &o->max_logprob_bytes, "1g", "BYTES",
         "host memory that the log-probabilities, sampling masks and routed experts of a request may take, counted "
         "before "
         "it runs",
         1 << 20, 1e12},
        {"return-sampling-mask", CLIME_OPT_BOOL, &o->return_sampling_mask, NULL, NULL,
         "replies of /inference/v1/generate have sampling_mask where top_k or top_p cut, asked for or not"},
        {"max-body-memory", CLIME_OPT_BYTES, &o->max_body_memory, "1g", "BYTES",
         "of all bodies over 64 KiB together, a quarter of it while they come in; past it 429", 1024, 1e12},
        {"incremental-streaming-output", CLIME_OPT_BOOL, &o->incremental_streaming_output, NULL, NULL,
         "streams of /generate carry only what is new"},
        {"strict-fields", CLIME_OPT_BOOL, &o->strict_fields, NULL, NULL,
         "refuse requests with unknown fields (otherwise they are logged once and counted)", .first = true},
        {"api-key", CLIME_OPT_KEY, &o->api_key, NULL, "CLIME_API_KEY",
         "bearer key for every endpoint but health and metrics", .first = true},
        {"api-keys", CLIME_OPT_STRING, &o->key_file, NULL, "FILE",
         "more keys of clients, a line each: NAME KEY [concurrent=N] [per-minute=N]; needs --admin-api-key"},
        {"admin-api-key", CLIME_OPT_KEY, &o->admin_api_key, NULL, "CLIME_ADMIN_API_KEY",
         "bearer key for everything that changes the server", .first = true},
        {"cors-origin", CLIME_OPT_LIST, &o->cors_origins, NULL, "ORIGIN",
         "web pages that may ask, such as https://chat.example; * = all"},
        {"tls-certificate", CLIME_OPT_STRING, &o->tls_certificate, NULL, "FILE",
         "PEM with certificate and key: serve HTTPS"},
        {"ca-certificate", CLIME_OPT_STRING, &o->ca_certificate, NULL, "FILE",
         "PEM with who vouches for an https:// router, in place of the system's"},
        {"files-under", CLIME_OPT_LIST, &o->file_roots, NULL, "DIR",
         "requests may name files in these folders alone: weights on disk, traces (default: --admin-api-key's holder "
         "may name any)"},
        {"weight-relay-memory", CLIME_OPT_BYTES, &o->relay_bytes, "1g", "BYTES",
         "packed weights that were pulled and are kept for other servers to pull from this one; 0 = none", 0, 1e13},
        {"router", CLIME_OPT_STRING, &o->router, NULL, "URL",
         "register with this router when ready, and leave it at the end", .first = true},
        {"router-api-key", CLIME_OPT_KEY, &o->router_api_key, NULL, "CLIME_ROUTER_API_KEY",
         "bearer key for the router, if it wants one"},
        {"advertise-url", CLIME_OPT_STRING, &o->advertise_url, NULL, "URL",
         "how the router reaches this server (default: http://HOST:PORT, of all addresses the one that leads to the "
         "router)"},
        {"Process", CLIME_OPT_SECTION},
        {"parent-fd", CLIME_OPT_INT, &o->parent_fd, "-1", "N", "end when this pipe's other end is closed", -1, 1 << 20},
        {"drain-timeout", CLIME_OPT_INT, &o->drain_timeout, "30", "SECONDS",
         "how long requests may go on after SIGTERM", 0, 86400},
        {"log-level", CLIME_OPT_CHOICE, &o->log_level, "info", "debug|info|warn|error",
         "what is logged to standard error"},
        {"log-requests", CLIME_OPT_BOOL, &o->log_requests, NULL, NULL,
         "a line in the log for each generated output (/configure_logging switches it while the server runs)",
         .alias = "enable-log-requests"},
        {"log-requests-level", CLIME_OPT_INT, &o->log_requests_level, "2", "N",
         "what it holds: 0 counts and times, 1 sampling parameters too, 2 the beginning of prompt and text too, 3 all "
         "of them and of the ids",
         0, 3},
        {"print-routes", CLIME_OPT_BOOL, &o->print_routes, NULL, NULL, "print the endpoints as JSON and exit"},
        {"Options of SGLang's and vLLM's launchers: inert or refused", CLIME_OPT_SECTION},
    };
    _Static_assert(CLIME_COUNT(table) + CLIME_SERVER_MAX_INERT <= MAX_OPTIONS, "the table outgrew its array");
    memcpy(t, table, sizeof table);
    return (int)CLIME_COUNT(table) + clime_server_inert_rows(o, t + CLIME_COUNT(table));
}

/* On an H200 prefill runs at 51.5k tokens/s in chunks of 512 and at 60.9k in chunks of 8192 (0.14 s each). A chunk's
 * scratch is some 100 KB a row at 4 B parameters, which smaller devices need for KV. */
void clime_server_options_fit(struct clime_server_options *o, bool own_memory, size_t total_bytes) {
    size_t gib = total_bytes >> 30;
    int64_t chunk = !own_memory ? 512 : gib >= 64 ? 8192 : gib >= 32 ? 4096 : 2048;
    if (o->chunked_prefill_size == 0) o->chunked_prefill_size = chunk;
    if (o->max_running_requests == 0) o->max_running_requests = own_memory ? 256 : 64;
    if (o->mem_fraction == 0) o->mem_fraction = own_memory ? 0.85 : 0.5;
}

static enum clime_err check_parsers(const struct clime_server_options *o, struct clime_error *e) {
    bool reasoning = strcmp(o->reasoning_parser, "auto") == 0 || clime_output_parser_find(o->reasoning_parser);
    bool calls = strcmp(o->tool_call_parser, "auto") == 0 || strcmp(o->tool_call_parser, "none") == 0 ||
                 clime_call_format_find(o->tool_call_parser);
    struct clime_buf names;
    enum clime_err err = CLIME_OK;
    clime_buf_init(&names, 4096);
    if (!reasoning) {
        clime_output_parser_names(&names);
        err =
            clime_fail(e, CLIME_ERR_INPUT, "--reasoning-parser %s: there are auto|%s", o->reasoning_parser, names.data);
    } else if (!calls) {
        clime_call_format_names(&names);
        err = clime_fail(e, CLIME_ERR_INPUT, "--tool-call-parser %s: there are auto|none|%s", o->tool_call_parser,
                         names.data);
    }
    clime_buf_free(&names);
    return err;
}

/* Parses --gpu: one GPU, or every GPU that shares the model. */
static enum clime_err read_gpus(struct clime_server_options *o, struct clime_error *e) {
    int n = 0, last = -1;
    for (const char *at = o->gpus; at; n++) {
        char *end;
        const long gpu = strtol(at, &end, 10);
        if (end == at || (*end && *end != ',') || gpu <= last || gpu > MOST_GPU)
            return clime_fail(e, CLIME_ERR_INPUT, "--gpu %.60s: numbers from 0 to %d, in ascending order, are needed",
                              o->gpus, MOST_GPU);
        if (!n) o->gpu = (int)gpu;
        for (int i = last + 1; n && i < gpu; i++) o->gpus_left_out |= UINT64_C(1) << (i - o->gpu);
        last = (int)gpu;
        at = *end ? end + 1 : NULL;
    }
    if (n == 1 || n == o->tp_size) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "--gpu %.60s names %d devices, --tp-size says %d", o->gpus, n,
                      (int)o->tp_size);
}

enum clime_err clime_server_options_parse(int argc, char **argv, struct clime_server_options *o,
                                          struct clime_error *e) {
    struct clime_opt table[MAX_OPTIONS];
    *o = (struct clime_server_options){0};
    int n = make_table(o, table);
    enum clime_err err =
        clime_options_parse(table, n, argc, argv, NULL, 0,
                            "clime-server --model-path DIR [options]\nServes one policy from paged KV memory.", e);
    if (err || (err = clime_server_inert_check(o, e)) || (err = read_gpus(o, e))) return err;
    if (o->http_threads == 0) o->http_threads = clime_http_threads((int)o->max_concurrent_requests);
    if (o->http_threads < 2) return clime_fail(e, CLIME_ERR_INPUT, "--http-threads must be at least 2");
    if ((err = check_parsers(o, e))) return err;
    if (o->expert_parallel && o->ep_size == 1) o->ep_size = o->tp_size;
    if (o->ep_size > 1 && o->ep_size != o->tp_size)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--ep-size %d of --tp-size %d: experts lie whole on one device each (as many as --tp-size "
                          "says), or each device has rows of all (1)",
                          (int)o->ep_size, (int)o->tp_size);
    if (o->speculative && o->max_running_requests == 1)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--speculative-algorithm needs --max-running-requests of 2 or more: guesses "
                          "take the place of sequences in a step");
    if (!o->model_path && !o->print_routes) return clime_fail(e, CLIME_ERR_INPUT, "--model-path is required");
    return CLIME_OK;
}
