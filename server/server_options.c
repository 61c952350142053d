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
        {.name = "Model", .type = CLIME_OPT_SECTION},
        {.name = "model-path",
         .first = true,
         .alias = "model",
         .type = CLIME_OPT_STRING,
         .value = &o->model_path,
         .choices = "DIR",
         .help = "Hugging Face folder of the policy (required)"},
        {.name = "served-model-name",
         .first = true,
         .type = CLIME_OPT_LIST,
         .value = &o->served_model_names,
         .choices = "NAME",
         .help = "names that requests may ask for; replies and metrics carry the first where none is asked for "
                 "(default: the folder's name)"},
        {.name = "weight-version",
         .type = CLIME_OPT_STRING,
         .value = &o->weight_version,
         .def = "default",
         .choices = "LABEL",
         .help = "label of the weights loaded at start"},
        {.name = "load-format",
         .type = CLIME_OPT_CHOICE,
         .value = &o->load_format,
         .def = "auto",
         .choices = "auto|none",
         .help = "none: start without weights; generation answers 503 until a full update brings them"},
        {.name = "context-length",
         .first = true,
         .alias = "max-model-len",
         .type = CLIME_OPT_INT,
         .value = &o->context_length,
         .def = "0",
         .choices = "N",
         .max = 1 << 24,
         .help = "longest sequence in tokens (0: what the model was made for)"},
        {.name = "random-seed",
         .alias = "seed",
         .type = CLIME_OPT_INT,
         .value = &o->random_seed,
         .def = "-1",
         .choices = "N",
         .min = -1,
         .max = 9007199254740992.0,
         .help = "makes the seeds of requests that have none, in the order of their arrival (-1: at random)"},
        {.name = "chat-template",
         .type = CLIME_OPT_STRING,
         .value = &o->chat_template,
         .choices = "FILE",
         .help = "Jinja file instead of the folder's own template"},
        {.name = "reasoning-parser",
         .first = true,
         .type = CLIME_OPT_STRING,
         .value = &o->reasoning_parser,
         .def = "auto",
         .choices = "auto|none|qwen3|deepseek-r1|glm45|kimi|kimi_k2",
         .help = "how replies tell reasoning from content (auto: as the chat template shows)"},
        {.name = "tool-call-parser",
         .first = true,
         .type = CLIME_OPT_STRING,
         .value = &o->tool_call_parser,
         .def = "auto",
         .choices = "auto|none|hermes|qwen3_coder|glm4|glm45|llama3|deepseekv3|deepseekv31|kimi_k2|pythonic|mistral",
         .help =
             "how tool calls are told from content where a request has tools; SGLang's and vLLM's names too (auto: as "
             "the chat template shows)"},
        {.name = "Device and memory", .type = CLIME_OPT_SECTION},
        {.name = "device",
         .first = true,
         .type = CLIME_OPT_CHOICE,
         .value = &o->device,
         .def = "auto",
         .choices = "auto|cpu|cuda",
         .help = "where the model runs"},
        {.name = "dtype",
         .first = true,
         .type = CLIME_OPT_CHOICE,
         .value = &o->dtype,
         .def = "auto",
         .choices = "auto|bf16|f32|bfloat16|float32",
         .help = "type of weights and activations (auto: the checkpoint's)"},
        {.name = "threads",
         .first = true,
         .type = CLIME_OPT_INT,
         .value = &o->threads,
         .def = "0",
         .choices = "N",
         .max = 1024,
         .help = "compute threads on the CPU (0: all cores)"},
        {.name = "isa",
         .type = CLIME_OPT_STRING,
         .value = &o->isa,
         .choices = "generic|avx2|avx512|amx",
         .help = "instruction set on the CPU (default: the best there is)"},
        {.name = "gpu",
         .first = true,
         .alias = "base-gpu-id",
         .type = CLIME_OPT_STRING,
         .value = &o->gpus,
         .def = "0",
         .choices = "N[,N...]",
         .help = "index of the CUDA device; with --tp-size the first, which the others follow, or all of them: 0,2"},
        {.name = "tp-size",
         .alias = "tensor-parallel-size",
         .type = CLIME_OPT_INT,
         .value = &o->tp_size,
         .def = "1",
         .choices = "N",
         .min = 1,
         .max = CLIME_GROUP_MAX,
         .help = "devices that share the model, a process each, which this one starts: the same bits on any number of "
                 "them (docs/devices.md)"},
        {.name = "tp",
         .type = CLIME_OPT_INT,
         .value = &o->tp_size,
         .def = "1",
         .choices = "N",
         .min = 1,
         .max = CLIME_GROUP_MAX,
         .help = "the same"},
        {.name = "ep-size",
         .alias = "expert-parallel-size",
         .type = CLIME_OPT_INT,
         .value = &o->ep_size,
         .def = "1",
         .choices = "N",
         .min = 1,
         .max = CLIME_GROUP_MAX,
         .help = "as --tp-size: every expert lies whole on one of the devices; 1: of every expert each has rows. The "
                 "same bits (docs/devices.md)"},
        {.name = "ep",
         .type = CLIME_OPT_INT,
         .value = &o->ep_size,
         .def = "1",
         .choices = "N",
         .min = 1,
         .max = CLIME_GROUP_MAX,
         .help = "the same"},
        {.name = "enable-expert-parallel",
         .type = CLIME_OPT_BOOL,
         .value = &o->expert_parallel,
         .help = "--ep-size of what --tp-size is"},
        {.name = "dist-timeout",
         .type = CLIME_OPT_DOUBLE,
         .value = &o->dist_timeout,
         .def = "60",
         .choices = "SECONDS",
         .min = 0.1,
         .max = 1e6,
         .help = "a device that the others wait for longer ends the server, which names it"},
        {.name = "deterministic",
         .type = CLIME_OPT_BOOL,
         .value = &o->deterministic,
         .def = "true",
         .help = "results do not depend on the batch; off only to measure what that costs on a GPU"},
        {.name = "max-total-tokens",
         .first = true,
         .type = CLIME_OPT_INT,
         .value = &o->max_total_tokens,
         .def = "0",
         .choices = "N",
         .max = 1e9,
         .help = "KV memory in tokens (0: from --mem-fraction-static)"},
        {.name = "mem-fraction-static",
         .first = true,
         .alias = "mem-fraction",
         .type = CLIME_OPT_DOUBLE,
         .value = &o->mem_fraction,
         .def = "0",
         .choices = "F",
         .max = 0.98,
         .help = "part of the device memory free at start for weights and KV together (0: 0.85 on a GPU; 0.5 on the "
                 "CPU, where it is for KV alone, at most 4 GiB)"},
        {.name = "Scheduling", .type = CLIME_OPT_SECTION},
        {.name = "max-running-requests",
         .first = true,
         .alias = "max-num-seqs",
         .type = CLIME_OPT_INT,
         .value = &o->max_running_requests,
         .def = "0",
         .choices = "N",
         .max = 4096,
         .help = "sequences that run together (0: 256 on a GPU, 64 on the CPU)"},
        {.name = "chunked-prefill-size",
         .alias = "max-num-batched-tokens",
         .type = CLIME_OPT_INT,
         .value = &o->chunked_prefill_size,
         .def = "0",
         .choices = "N",
         .max = 1 << 20,
         .help =
             "prompt tokens computed in one step (0: 8192 on a GPU of 64 GiB, 4096 of 32, 2048 below; 512 on the CPU)"},
        {.name = "max-prefill-tokens",
         .type = CLIME_OPT_INT,
         .value = &o->max_prefill_tokens,
         .def = "16384",
         .choices = "N",
         .min = 1,
         .max = 1 << 20,
         .help = "upper bound of the above, as SGLang has both"},
        {.name = "max-queued-requests",
         .type = CLIME_OPT_INT,
         .value = &o->max_queued_requests,
         .def = "4096",
         .choices = "N",
         .min = -1,
         .max = 1e9,
         .help = "requests that may wait; beyond it 429 (-1: no limit)"},
        {.name = "max-queue-seconds",
         .type = CLIME_OPT_INT,
         .value = &o->max_queue_seconds,
         .def = "1800",
         .choices = "N",
         .max = 1e9,
         .help = "503 for a request that has waited so long and not begun (0: no limit)"},
        {.name = "speculative-algorithm",
         .type = CLIME_OPT_CHOICE,
         .value = &o->speculative,
         .def = "none",
         .choices = "none|NGRAM",
         .help =
             "NGRAM: guess tokens from what followed the same few before, in the sequence's own text or another "
             "sample's of its prompt, and compute them in one step; the same replies to the bit (docs/rollouts.md)"},
        {.name = "speculative-num-draft-tokens",
         .type = CLIME_OPT_INT,
         .value = &o->speculative_draft_tokens,
         .def = "8",
         .choices = "N",
         .min = 2,
         .max = 64,
         .help = "with NGRAM, rows of one sequence in a step: its last token and guesses; all rows of a step together "
                 "are at most --max-running-requests, and 256"},
        {.name = "speculative-adaptive",
         .type = CLIME_OPT_BOOL,
         .value = &o->speculative_adaptive,
         .def = "true",
         .help = "with NGRAM, only as many guesses as pay, by how many were right and by what steps take; off: all "
                 "that there is room for, to measure with"},
        {.name = "disable-radix-cache",
         .type = CLIME_OPT_BOOL,
         .value = &o->disable_radix_cache,
         .help = "do not share prompts between requests"},
        {.name = "enable-return-routed-experts",
         .type = CLIME_OPT_BOOL,
         .value = &o->return_routed_experts,
         .help =
             "keep which experts every position chose, for /generate's return_routed_experts: 2 bytes of host memory "
             "a layer and chosen expert for each position of KV"},
        {.name = "cuda-graph-bs",
         .type = CLIME_OPT_LIST,
         .value = &o->cuda_graph_bs,
         .choices = "N",
         .help = "batch sizes, at most 256, at which a CUDA device replays recorded decode steps; smaller batches are "
                 "padded (default: some, up to --max-running-requests)"},
        {.name = "disable-cuda-graph",
         .type = CLIME_OPT_BOOL,
         .value = &o->disable_cuda_graph,
         .help = "record no decode steps: each launches its kernels one by one"},
        {.name = "disable-overlap-schedule",
         .type = CLIME_OPT_BOOL,
         .value = &o->disable_overlap_schedule,
         .help = "start no step before the results of the one before are read; a CPU never does"},
        {.name = "debug-checks",
         .type = CLIME_OPT_BOOL,
         .value = &o->debug_checks,
         .help = "recount every KV page after every step (slow)"},
        {.name = "HTTP", .type = CLIME_OPT_SECTION},
        {.name = "host",
         .first = true,
         .type = CLIME_OPT_STRING,
         .value = &o->host,
         .def = "127.0.0.1",
         .choices = "ADDRESS",
         .help = "address to listen on"},
        {.name = "port",
         .first = true,
         .type = CLIME_OPT_INT,
         .value = &o->port,
         .def = "30000",
         .choices = "N",
         .max = 65535,
         .help = "port to listen on (0: any free one)"},
        {.name = "port-file",
         .type = CLIME_OPT_STRING,
         .value = &o->port_file,
         .choices = "FILE",
         .help = "write the port here when ready"},
        {.name = "health-port",
         .type = CLIME_OPT_INT,
         .value = &o->health_port,
         .def = "-1",
         .choices = "N",
         .min = -1,
         .max = 65535,
         .help = "serve health and metrics here too, on threads of their own (-1: no)"},
        {.name = "max-concurrent-requests",
         .type = CLIME_OPT_INT,
         .value = &o->max_concurrent_requests,
         .def = "1024",
         .choices = "N",
         .min = 1,
         .max = 32000,
         .help = "generating requests at a time, each of which holds a thread; more get 429"},
        {.name = "http-threads",
         .type = CLIME_OPT_INT,
         .value = &o->http_threads,
         .def = "0",
         .choices = "N",
         .max = 32768,
         .help = "connections served at a time, at least 2 (0: 64 more than --max-concurrent-requests); a quarter, at "
                 "most 64, never generate"},
        {.name = "text-threads",
         .type = CLIME_OPT_INT,
         .value = &o->text_threads,
         .def = "1",
         .choices = "N",
         .min = 1,
         .max = 256,
         .help = "threads that tokenise and render templates"},
        {.name = "emitter-threads",
         .type = CLIME_OPT_INT,
         .value = &o->emitter_threads,
         .def = "1",
         .choices = "N",
         .min = 1,
         .max = 64,
         .help = "threads that detokenise and write streams"},
        {.name = "max-body",
         .type = CLIME_OPT_BYTES,
         .value = &o->max_body,
         .def = "64m",
         .choices = "BYTES",
         .min = 1024,
         .max = 1e10,
         .help = "largest request (weights excepted)"},
        {.name = "stream-heartbeat",
         .type = CLIME_OPT_INT,
         .value = &o->stream_heartbeat,
         .def = "0",
         .choices = "SECONDS",
         .max = 86400,
         .help =
             "an OpenAI stream that is silent for so long sends a comment, for proxies that cut idle connections (0: "
             "never)"},
        {.name = "max-logprob-bytes",
         .type = CLIME_OPT_BYTES,
         .value = &o->max_logprob_bytes,
         .def = "1g",
         .choices = "BYTES",
         .min = 1 << 20,
         .max = 1e12,
         .help =
             "host memory that the log-probabilities and sampling masks of a request may take, counted before it runs"},
        {.name = "return-sampling-mask",
         .type = CLIME_OPT_BOOL,
         .value = &o->return_sampling_mask,
         .help = "replies of /inference/v1/generate have sampling_mask where top_k or top_p cut, asked for or not"},
        {.name = "max-body-memory",
         .type = CLIME_OPT_BYTES,
         .value = &o->max_body_memory,
         .def = "1g",
         .choices = "BYTES",
         .min = 1024,
         .max = 1e12,
         .help = "of all bodies over 64 KiB together, a quarter of it while they come in; past it 429"},
        {.name = "incremental-streaming-output",
         .type = CLIME_OPT_BOOL,
         .value = &o->incremental_streaming_output,
         .help = "streams of /generate carry only what is new"},
        {.name = "strict-fields",
         .first = true,
         .type = CLIME_OPT_BOOL,
         .value = &o->strict_fields,
         .help = "refuse requests with unknown fields (otherwise they are logged once and counted)"},
        {.name = "api-key",
         .first = true,
         .type = CLIME_OPT_KEY,
         .value = &o->api_key,
         .choices = "CLIME_API_KEY",
         .help = "bearer key for every endpoint but health and metrics"},
        {.name = "api-keys",
         .type = CLIME_OPT_STRING,
         .value = &o->key_file,
         .choices = "FILE",
         .help = "more keys of clients, a line each: NAME KEY [concurrent=N] [per-minute=N]; needs --admin-api-key"},
        {.name = "admin-api-key",
         .first = true,
         .type = CLIME_OPT_KEY,
         .value = &o->admin_api_key,
         .choices = "CLIME_ADMIN_API_KEY",
         .help = "bearer key for everything that changes the server"},
        {.name = "cors-origin",
         .type = CLIME_OPT_LIST,
         .value = &o->cors_origins,
         .choices = "ORIGIN",
         .help = "web pages that may ask, such as https://chat.example; * = all"},
        {.name = "tls-certificate",
         .type = CLIME_OPT_STRING,
         .value = &o->tls_certificate,
         .choices = "FILE",
         .help = "PEM with certificate and key: serve HTTPS"},
        {.name = "ca-certificate",
         .type = CLIME_OPT_STRING,
         .value = &o->ca_certificate,
         .choices = "FILE",
         .help = "PEM with who vouches for an https:// router, in place of the system's"},
        {.name = "files-under",
         .type = CLIME_OPT_LIST,
         .value = &o->file_roots,
         .choices = "DIR",
         .help = "requests may name files in these folders alone: weights on disk, traces (default: --admin-api-key's "
                 "holder may name any)"},
        {.name = "weight-relay-memory",
         .type = CLIME_OPT_BYTES,
         .value = &o->relay_bytes,
         .def = "1g",
         .choices = "BYTES",
         .max = 1e13,
         .help = "packed weights that were pulled and are kept for other servers to pull from this one; 0 = none"},
        {.name = "router",
         .first = true,
         .type = CLIME_OPT_STRING,
         .value = &o->router,
         .choices = "URL",
         .help = "register with this router when ready, and leave it at the end"},
        {.name = "router-api-key",
         .type = CLIME_OPT_KEY,
         .value = &o->router_api_key,
         .choices = "CLIME_ROUTER_API_KEY",
         .help = "bearer key for the router, if it wants one"},
        {.name = "advertise-url",
         .type = CLIME_OPT_STRING,
         .value = &o->advertise_url,
         .choices = "URL",
         .help = "how the router reaches this server (default: http://HOST:PORT, of all addresses the one that leads "
                 "to the router)"},
        {.name = "Process", .type = CLIME_OPT_SECTION},
        {.name = "parent-fd",
         .type = CLIME_OPT_INT,
         .value = &o->parent_fd,
         .def = "-1",
         .choices = "N",
         .min = -1,
         .max = 1 << 20,
         .help = "end when this pipe's other end is closed"},
        {.name = "drain-timeout",
         .type = CLIME_OPT_INT,
         .value = &o->drain_timeout,
         .def = "30",
         .choices = "SECONDS",
         .max = 86400,
         .help = "how long requests may go on after SIGTERM"},
        {.name = "log-level",
         .type = CLIME_OPT_CHOICE,
         .value = &o->log_level,
         .def = "info",
         .choices = "debug|info|warn|error",
         .help = "what is logged to standard error"},
        {.name = "log-requests",
         .alias = "enable-log-requests",
         .type = CLIME_OPT_BOOL,
         .value = &o->log_requests,
         .help = "a line in the log for each generated output (/configure_logging switches it while the server runs)"},
        {.name = "log-requests-level",
         .type = CLIME_OPT_INT,
         .value = &o->log_requests_level,
         .def = "2",
         .choices = "N",
         .max = 3,
         .help =
             "what it holds: 0 counts and times, 1 sampling parameters too, 2 the beginning of prompt and text too, "
             "3 all of them and of the ids"},
        {.name = "print-routes",
         .type = CLIME_OPT_BOOL,
         .value = &o->print_routes,
         .help = "print the endpoints as JSON and exit"},
        {.name = "Options of SGLang's and vLLM's launchers: inert or refused", .type = CLIME_OPT_SECTION},
    };
    _Static_assert(CLIME_COUNT(table) + CLIME_SERVER_MAX_INERT <= MAX_OPTIONS, "the table outgrew its array");
    memcpy(t, table, sizeof table);
    return (int)CLIME_COUNT(table) + clime_server_inert_rows(o, t + CLIME_COUNT(table));
}

/* On an H200 prefill runs at 51.5k tokens/s in chunks of 512 and at 60.9k in chunks of 8192, which take 0.14 s; what a
 * chunk takes of scratch, some 100 KB a row at 4 B parameters, smaller devices need for KV. */
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

/* One GPU, or each of those that share the model. */
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
