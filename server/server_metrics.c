/* The server's metrics. Called by HTTP workers when a job is closed and on /metrics; owns the metric pointers.
 *
 * Engine gauges are read on /metrics, counters are updated as jobs close: nothing is counted twice.
 */
#include "server/server_metrics.h"

#include <stdlib.h>

#include "common/buf.h"
#include "common/metrics.h"

struct clime_server_metrics {
    struct clime_metric *running, *waiting, *used, *total, *usage, *throughput, *hit_rate, *retracted, *paused;
    struct clime_metric *guesses, *right, *accept_length, *accept_rate;
    struct clime_metric *requests, *aborted, *prompt, *generated, *cached;
    struct clime_metric *first_token, *latency, *load_time;
};

/* vLLM's names for metrics with the same meaning. */
static void give_aliases(struct clime_server_metrics *m) {
    clime_metric_alias(m->running, "vllm:num_requests_running");
    clime_metric_alias(m->waiting, "vllm:num_requests_waiting");
    clime_metric_alias(m->usage, "vllm:kv_cache_usage_perc");
    clime_metric_alias(m->prompt, "vllm:prompt_tokens_total");
    clime_metric_alias(m->prompt, "vllm:prefix_cache_queries_total");
    clime_metric_alias(m->cached, "vllm:prefix_cache_hits_total");
    clime_metric_alias(m->generated, "vllm:generation_tokens_total");
    clime_metric_alias(m->first_token, "vllm:time_to_first_token_seconds");
    clime_metric_alias(m->latency, "vllm:e2e_request_latency_seconds");
}

struct clime_server_metrics *clime_server_metrics_new(const char *model_name) {
    static const double seconds[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};
    struct clime_server_metrics *m = xcalloc(1, sizeof *m);
    struct clime_buf label;
    clime_buf_init(&label, 4096);
    clime_buf_adds(&label, "model_name=\"");
    for (const char *c = model_name; *c; c++) {
        if (*c == '"' || *c == '\\') clime_buf_addc(&label, '\\');
        if (*c != '\n') clime_buf_addc(&label, *c);
    }
    clime_buf_addc(&label, '"');
    const char *l = label.data;
    m->running = clime_metric_gauge("sglang:num_running_reqs", l, "sequences that run");
    m->waiting = clime_metric_gauge("sglang:num_queue_reqs", l, "sequences that wait");
    m->used = clime_metric_gauge("sglang:num_used_tokens", l, "KV tokens in held and cached pages");
    m->total = clime_metric_gauge("sglang:max_total_num_tokens", l, "KV tokens in all");
    m->usage = clime_metric_gauge("sglang:token_usage", l, "used part of the KV memory");
    m->throughput = clime_metric_gauge("sglang:gen_throughput", l, "sampled tokens a second");
    m->hit_rate = clime_metric_gauge("sglang:cache_hit_rate", l, "part of the prompt tokens found in the cache");
    m->retracted = clime_metric_gauge("sglang:num_retracted_reqs", l, "preemptions since start");
    m->paused = clime_metric_gauge("sglang:paused", l, "1 while generation is paused");
    m->guesses = clime_metric_counter("sglang:spec_num_proposed_drafts_total", l, "tokens guessed, of ended sequences");
    m->right = clime_metric_counter("sglang:spec_num_correct_drafts_total", l, "guessed tokens that were drawn");
    m->accept_length = clime_metric_gauge("sglang:spec_accept_length", l, "tokens a sequence and step, since start");
    m->accept_rate = clime_metric_gauge("sglang:spec_accept_rate", l, "part of the guesses that was right");
    m->requests = clime_metric_counter("sglang:num_requests_total", l, "sequences that ended");
    m->aborted = clime_metric_counter("sglang:num_aborted_requests_total", l, "sequences that were aborted");
    m->prompt = clime_metric_counter("sglang:prompt_tokens_total", l, "prompt tokens of ended sequences");
    m->generated = clime_metric_counter("sglang:generation_tokens_total", l, "sampled tokens of ended sequences");
    m->cached = clime_metric_counter("sglang:cached_tokens_total", l, "prompt tokens that needed no computing");
    m->first_token = clime_metric_histogram("sglang:time_to_first_token_seconds", l, "from receipt to the first token",
                                            seconds, (int)CLIME_COUNT(seconds));
    m->latency = clime_metric_histogram("sglang:e2e_request_latency_seconds", l, "from receipt to the last token",
                                        seconds, (int)CLIME_COUNT(seconds));
    m->load_time = clime_metric_histogram("sglang:weight_load_duration_seconds", l,
                                          "a weight update, transfer included", seconds, (int)CLIME_COUNT(seconds));
    clime_buf_free(&label);
    give_aliases(m);
    return m;
}

void clime_server_metrics_free(struct clime_server_metrics *m) {
    free(m); /* the metrics belong to the registry */
}

void clime_server_metrics_job(struct clime_server_metrics *m, const struct clime_job *j) {
    for (int i = 0; i < j->n_outs; i++) {
        const struct clime_output *o = &j->outs[i];
        clime_metric_add(m->requests, 1);
        if (o->finish.type == CLIME_FINISH_ABORT) clime_metric_add(m->aborted, 1);
        clime_metric_add(m->prompt, o->n_prompt);
        clime_metric_add(m->generated, (double)o->out.len - o->n_resumed);
        clime_metric_add(m->cached, o->cached_tokens);
        clime_metric_add(m->guesses, o->drafts.n_guesses);
        clime_metric_add(m->right, o->drafts.n_right);
        if (o->first_token_us) clime_metric_observe(m->first_token, (double)(o->first_token_us - j->received_us) / 1e6);
        clime_metric_observe(m->latency, (double)(o->finished_us - j->received_us) / 1e6);
    }
}

void clime_server_metrics_load_time(struct clime_server_metrics *m, double seconds) {
    clime_metric_observe(m->load_time, seconds);
}

void clime_server_metrics_write(struct clime_server_metrics *m, struct clime_engine *g, struct clime_buf *out) {
    struct clime_loads l;
    clime_engine_loads(g, &l);
    clime_metric_set(m->running, l.n_running);
    clime_metric_set(m->waiting, l.n_waiting);
    clime_metric_set(m->used, l.n_used_tokens);
    clime_metric_set(m->total, l.n_total_tokens);
    clime_metric_set(m->usage, (double)l.n_used_tokens / l.n_total_tokens);
    clime_metric_set(m->throughput, l.gen_throughput);
    clime_metric_set(m->hit_rate, l.hit_rate);
    clime_metric_set(m->retracted, (double)l.n_retracted);
    clime_metric_set(m->paused, l.paused);
    clime_metric_set(m->accept_length, clime_loads_accept_length(&l));
    clime_metric_set(m->accept_rate, l.n_guesses ? (double)l.n_right / (double)l.n_guesses : 0);
    clime_metrics_write(out);
}
