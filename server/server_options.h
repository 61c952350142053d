/* The command line of clime-server: one table, SGLang's names where SGLang has the option. Immutable after parsing. */
#ifndef CLIME_SERVER_SERVER_OPTIONS_H
#define CLIME_SERVER_SERVER_OPTIONS_H

#include <stdint.h>

#include "common/options/inert.h"

#define CLIME_SERVER_MAX_INERT 128

struct clime_server_options {
    /* model */
    const char *model_path, *weight_version, *chat_template, *reasoning_parser, *tool_call_parser;
    struct clime_opt_list served_model_names;
    int64_t context_length, random_seed;
    int load_format; /* choice auto|none */
    /* device */
    int device; /* choice auto|cpu|cuda */
    int dtype;  /* of clime_dtype_names */
    const char *isa;
    const char *gpus;       /* "4", "4,6" */
    int gpu;                /* the first */
    uint64_t gpus_left_out; /* bit i: skip GPU gpu + i */
    int64_t threads, tp_size, ep_size;
    bool expert_parallel; /* ep_size = tp_size */
    double dist_timeout;  /* seconds */
    double mem_fraction;
    int64_t max_total_tokens;
    bool deterministic;
    /* scheduling */
    int64_t max_running_requests, chunked_prefill_size, max_prefill_tokens, max_queued_requests, max_queue_seconds;
    int speculative; /* choice none|NGRAM */
    int64_t speculative_draft_tokens;
    bool speculative_adaptive;
    bool disable_radix_cache, debug_checks, disable_cuda_graph, disable_overlap_schedule;
    struct clime_opt_list cuda_graph_bs;
    /* http */
    const char *host, *port_file, *api_key, *admin_api_key, *key_file, *tls_certificate, *ca_certificate;
    const char *router, *router_api_key, *advertise_url;
    struct clime_opt_list cors_origins, file_roots;
    int64_t port, health_port, max_concurrent_requests, http_threads, text_threads, emitter_threads, max_body,
        max_body_memory, relay_bytes, parent_fd, drain_timeout;
    int64_t stream_heartbeat;  /* seconds */
    int64_t max_logprob_bytes; /* per request */
    bool incremental_streaming_output, strict_fields, log_requests, return_sampling_mask, return_routed_experts;
    int64_t log_requests_level;
    int log_level;
    bool print_routes;
    struct clime_inert_given inert[CLIME_SERVER_MAX_INERT]; /* by name in inert.c */
};

/* Parses and checks; CLIME_ERR_INPUT names the option. --print-routes needs no model. */
enum clime_err clime_server_options_parse(int argc, char **argv, struct clime_server_options *o, struct clime_error *e);

/* Sets the options left at 0 (chosen by device): prefill tokens per step, running sequences, memory fraction.
 * own_memory, total_bytes: the device's. */
void clime_server_options_fit(struct clime_server_options *o, bool own_memory, size_t total_bytes);

/* server/inert.c: rows for the options table (returns how many), their check, and the list of those set. */
int clime_server_inert_rows(struct clime_server_options *o, struct clime_opt *out);
enum clime_err clime_server_inert_check(const struct clime_server_options *o, struct clime_error *e);
void clime_server_inert_list(const struct clime_server_options *o, struct clime_buf *out);

extern const char *const clime_device_names[]; /* by the index of `device` */
extern const char *const clime_dtype_names[];

#endif
