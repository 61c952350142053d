/* clime-router: load balancer for a fleet of servers. main follows its phases; all work is on other threads. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/http/client.h"
#include "common/http/port.h"
#include "common/log.h"
#include "common/options/options.h"
#include "common/os/malloc_limits.h"
#include "common/os/process.h"
#include "router/connections.h"
#include "router/discovery.h"
#include "router/policy/policy.h"
#include "router/queue.h"
#include "router/router.h"

#define GIVE_BACK_BYTES (8 << 20) /* larger freed blocks go back to the system; lower, 1 MiB bodies cost 25% more */
#define MAX_KEPT 256              /* idle connections to workers */
#define DRAIN_LOOK_US 20000

struct options {
    const char *host, *port_file, *api_key, *key_file, *admin_key, *admin_host, *worker_key, *tls_certificate,
        *ca_certificate;
    int64_t port, health_port, admin_port, parent_fd, http_threads, max_in_flight, queue_size, max_retries, max_body,
        max_body_memory, replay_memory, fail_threshold, ok_threshold;
    const char *worker_file;
    double discovery_interval, max_worker_load, replay_wait, request_timeout, queue_timeout, control_timeout,
        drain_timeout, probe_interval, probe_timeout, suspect_after, evict_after, session_ttl, session_slack;
    int policy, log_level; /* CHOICE */
    struct clime_opt_list workers, worker_names, cors_origins;
    bool print_routes;
};

static enum clime_err parse(int argc, char **argv, struct options *o, struct clime_error *e) {
    const struct clime_opt table[] = {
        {"Fleet", CLIME_OPT_SECTION},
        {"worker-urls", CLIME_OPT_LIST, &o->workers, NULL, "URL",
         "servers known at start; others register at /workers"},
        {"worker-file", CLIME_OPT_STRING, &o->worker_file, NULL, "FILE",
         "more servers, a line each: a URL or an object as of POST /workers; followed when it changes"},
        {"worker-dns", CLIME_OPT_LIST, &o->worker_names, NULL, "NAME:PORT",
         "more servers: every address of the name; followed when they change"},
        {"discovery-interval", CLIME_OPT_DOUBLE, &o->discovery_interval, "5", "S",
         "how often the file and the names are looked at", 0.01, 86400},
        {"policy", CLIME_OPT_CHOICE, &o->policy, "least_tokens", CLIME_POLICY_NAMES, "how a worker is chosen"},
        {"session-ttl", CLIME_OPT_DOUBLE, &o->session_ttl, "7200", "S", "an idle session is forgotten after this", 1,
         1e9},
        {"session-slack", CLIME_OPT_DOUBLE, &o->session_slack, "2", "X",
         "a session leaves a worker with more than X times the mean of tokens to do", 1, 1e6},
        {"max-worker-load", CLIME_OPT_DOUBLE, &o->max_worker_load, "0", "X",
         "a worker gets no more than X times the tokens that its KV holds by its own word; when all have that, 429 "
         "(0: no limit)",
         0, 1e6},
        {"max-retries", CLIME_OPT_INT, &o->max_retries, "5", "N", "further workers tried before the first byte", 0,
         CLIME_WORKERS_MAX},
        {"replay-wait", CLIME_OPT_DOUBLE, &o->replay_wait, "30", "S",
         "how long a stream whose worker was lost waits for another one that goes on with it", 0, 1e6},
        {"replay-memory", CLIME_OPT_BYTES, &o->replay_memory, "1g", "BYTES",
         "for what streams have told so far; without room a stream ends with its worker", 0, 1e12},
        {"request-timeout", CLIME_OPT_DOUBLE, &o->request_timeout, "14400", "S", "longest generation", 1, 1e6},
        {"control-timeout", CLIME_OPT_DOUBLE, &o->control_timeout, "600", "S", "longest control call to a worker", 1,
         1e6},
        {"drain-timeout", CLIME_OPT_DOUBLE, &o->drain_timeout, "20", "S",
         "at SIGTERM, what requests in flight get to finish; then 503", 0, 1e6},
        {"Health", CLIME_OPT_SECTION},
        {"health-check-interval", CLIME_OPT_DOUBLE, &o->probe_interval, "2", "S", "pause between rounds of probes",
         0.01, 3600},
        {"health-check-timeout", CLIME_OPT_DOUBLE, &o->probe_timeout, "5", "S", "longest probe", 0.01, 600},
        {"health-suspect-after", CLIME_OPT_DOUBLE, &o->suspect_after, "3", "S",
         "a worker whose probe is open for so long, and that has sent nothing else while another has, is asked "
         "nothing, and streams that can go on elsewhere do; until it says something (0: never)",
         0, 600},
        {"health-failure-threshold", CLIME_OPT_INT, &o->fail_threshold, "3", "N",
         "failures in a row that take a worker out", 1, 1000},
        {"health-success-threshold", CLIME_OPT_INT, &o->ok_threshold, "2", "N", "probes in a row that bring it back", 1,
         1000},
        {"evict-after", CLIME_OPT_DOUBLE, &o->evict_after, "3600", "S",
         "a worker that was added over HTTP and has said nothing for so long, while others have, is out until it "
         "registers again (0: never)",
         0, 1e9},
        {"HTTP", CLIME_OPT_SECTION},
        {"host", CLIME_OPT_STRING, &o->host, "127.0.0.1", "ADDR", "address to listen on"},
        {"port", CLIME_OPT_INT, &o->port, "30000", "N", "0 = any free port", 0, 65535},
        {"port-file", CLIME_OPT_STRING, &o->port_file, NULL, "FILE", "where to write the port once it serves"},
        {"parent-fd", CLIME_OPT_INT, &o->parent_fd, "-1", "FD", "exit when this pipe closes", -1, 1 << 20},
        {"health-port", CLIME_OPT_INT, &o->health_port, "-1", "N",
         "serve health and metrics here too, on threads of their own (-1: no)", -1, 65535},
        {"admin-port", CLIME_OPT_INT, &o->admin_port, "-1", "N",
         "take control calls here alone, and the others too (-1: on --port with them)", -1, 65535},
        {"admin-host", CLIME_OPT_STRING, &o->admin_host, NULL, "ADDR", "address of --admin-port (default: --host)"},
        {"max-concurrent-requests", CLIME_OPT_INT, &o->max_in_flight, "1024", "N",
         "generating requests at a time, each of which holds a thread; more wait, or get 429", 1, 32000},
        {"queue-size", CLIME_OPT_INT, &o->queue_size, "0", "N",
         "further ones that wait, each on a thread, for those or for workers that are full (--max-worker-load); more "
         "get 429",
         0, 32000},
        {"queue-timeout", CLIME_OPT_DOUBLE, &o->queue_timeout, "60", "S", "longest wait in the queue, then 429", 0.01,
         1e6},
        {"http-threads", CLIME_OPT_INT, &o->http_threads, "0", "N",
         "connections served at a time, at least 2 (0: 64 more than --max-concurrent-requests and --queue-size); a "
         "quarter, at most 64, never generate",
         0, 32768},
        {"max-payload-size", CLIME_OPT_BYTES, &o->max_body, "512m", "BYTES", "largest request and answer", 1024,
         (double)((int64_t)1 << 40)},
        {"max-body-memory", CLIME_OPT_BYTES, &o->max_body_memory, "2g", "BYTES",
         "of all bodies over 64 KiB together, a quarter of it while they come in; past it 429", 1024, 1e12},
        {"cors-origin", CLIME_OPT_LIST, &o->cors_origins, NULL, "ORIGIN",
         "web pages that may ask, such as https://chat.example; * = all"},
        {"api-key", CLIME_OPT_KEY, &o->api_key, NULL, "CLIME_API_KEY", "asked of clients"},
        {"api-keys", CLIME_OPT_STRING, &o->key_file, NULL, "FILE",
         "more keys of clients, a line each: NAME KEY [concurrent=N] [per-minute=N]; needs --admin-api-key"},
        {"admin-api-key", CLIME_OPT_KEY, &o->admin_key, NULL, "CLIME_ADMIN_API_KEY", "asked for control calls"},
        {"worker-api-key", CLIME_OPT_KEY, &o->worker_key, NULL, "CLIME_WORKER_API_KEY",
         "sent to workers instead of the client's"},
        {"tls-certificate", CLIME_OPT_STRING, &o->tls_certificate, NULL, "FILE",
         "PEM with certificate and key: serve HTTPS"},
        {"ca-certificate", CLIME_OPT_STRING, &o->ca_certificate, NULL, "FILE",
         "PEM with who vouches for https:// workers, in place of the system's"},
        {"log-level", CLIME_OPT_CHOICE, &o->log_level, "info", "debug|info|warn|error", "what is logged"},
        {"print-routes", CLIME_OPT_BOOL, &o->print_routes, NULL, NULL, "print the route table and exit"},
    };
    enum clime_err err = clime_options_parse(table, (int)CLIME_COUNT(table), argc, argv, NULL, 0,
                                             "clime-router [options]\nBalances generation requests over servers.", e);
    if (o->http_threads == 0) o->http_threads = clime_http_threads((int)(o->max_in_flight + o->queue_size));
    if (!err && o->http_threads < 2) err = clime_fail(e, CLIME_ERR_INPUT, "--http-threads must be at least 2");
    if (!err && o->admin_host && o->admin_port < 0)
        err = clime_fail(e, CLIME_ERR_INPUT, "--admin-host is the address of --admin-port, which is not given");
    return err;
}

static void print_routes(void) {
    struct clime_buf out;
    clime_buf_init(&out, 1 << 20);
    clime_http_routes_json(clime_router_routes, &out);
    puts(out.data);
    clime_buf_free(&out);
}

static enum clime_err add_known_workers(struct clime_router *r, const struct options *o, struct clime_error *e) {
    int64_t id;
    for (int i = 0; i < o->workers.n; i++) {
        if (clime_workers_add(r->workers, clime_str_of(o->workers.items[i]), 0, &id, e)) return e->code;
        clime_workers_name(r->workers, id);
    }
    return CLIME_OK;
}

/* Finishes requests in flight. After the limit, or when the parent is gone, the rest end with 503. */
static void drain(struct clime_router *r, enum clime_process_end why, double limit_s) {
    int64_t until = clime_now_us() + (why == CLIME_END_SIGNAL ? (int64_t)(limit_s * 1e6) : 0);
    atomic_store(&r->phase, CLIME_ROUTER_DRAINING);
    int n = atomic_load(&r->in_flight);
    LOG_INFO("stopping, %d requests in flight", n);
    while (atomic_load(&r->in_flight) > 0 && clime_now_us() < until) clime_sleep_us(DRAIN_LOOK_US);
    atomic_store(&r->phase, CLIME_ROUTER_CUTTING);
    if ((n = atomic_load(&r->in_flight)) > 0) LOG_WARN("%d requests have not finished: they are answered with 503", n);
}

static void register_metrics(struct clime_router *r) {
    static const double seconds[] = {0.001, 0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800};
    r->m_requests = clime_metric_counter("clime_router_requests_total", "", "generation requests answered");
    r->m_retries = clime_metric_counter("clime_router_retries_total", "", "attempts on a further worker");
    r->m_replays = clime_metric_counter("clime_router_replays_total", "", "streams gone on with on a further worker");
    r->m_waiting = clime_metric_gauge("clime_router_requests_waiting", "", "of those in flight, in the queue");
    r->m_evicted =
        clime_metric_counter("clime_router_evictions_total", "", "workers that were taken to be gone for good");
    r->m_in_flight = clime_metric_gauge("clime_router_requests_active", "", "generation requests in flight");
    r->m_seconds = clime_metric_histogram("clime_router_request_seconds", "", "time of a generation request", seconds,
                                          (int)CLIME_COUNT(seconds));
}

static enum clime_err open_router(const struct options *o, struct clime_router *r, struct clime_concurrency *fit,
                                  struct clime_error *e) {
    const struct clime_workers_options wo = {
        .fail_threshold = (int)o->fail_threshold,
        .ok_threshold = (int)o->ok_threshold,
        .policy = clime_policies[o->policy],
        .session_ttl_us = (int64_t)(o->session_ttl * 1e6),
        .slack = o->session_slack,
        .max_load = o->max_worker_load,
    };
    *fit = (struct clime_concurrency){
        .n_threads = (int)o->http_threads, .n_ports = 1 + (o->admin_port >= 0), .max_kept = MAX_KEPT};
    if (clime_router_fit_descriptors(fit, e)) return e->code;
    *r = (struct clime_router){
        .workers = clime_workers_new(&wo),
        .connections = clime_connections_new(fit->max_kept),
        .worker_key = o->worker_key,
        .api_key = o->api_key,
        .anyone_adds = !o->api_key && !o->admin_key && !o->key_file,
        .request_timeout_us = (int64_t)(o->request_timeout * 1e6),
        .control_timeout_us = (int64_t)(o->control_timeout * 1e6),
        .probe_interval_us = (int64_t)(o->probe_interval * 1e6),
        .probe_timeout_us = (int64_t)(o->probe_timeout * 1e6),
        .suspect_after_us = o->suspect_after > 0 ? (int64_t)(o->suspect_after * 1e6) : INT64_MAX,
        .evict_after_us = (int64_t)(o->evict_after * 1e6),
        .replay_memory = {.max = o->replay_memory},
        .replay_wait_us = (int64_t)(o->replay_wait * 1e6),
        .max_retries = (int)o->max_retries,
        .max_reply = (size_t)o->max_body,
    };
    const uint64_t who[] = {(uint64_t)clime_wall_us(), (uint64_t)getpid()};
    snprintf(r->instance, sizeof r->instance, "%016llx", (unsigned long long)clime_hash64(who, 2));
    register_metrics(r);
    const bool queues = o->queue_size > 0; /* else the HTTP server refuses requests above --max-concurrent-requests */
    const struct clime_router_queue_options qo = {.max_waiting = (int)o->queue_size,
                                                  .max_going = queues ? (int)o->max_in_flight : INT_MAX,
                                                  .timeout_us = queues ? (int64_t)(o->queue_timeout * 1e6) : 0};
    r->queue = clime_router_queue_new(&qo);
    return add_known_workers(r, o, e);
}

static enum clime_err open_http(const struct options *o, struct clime_router *r, int n_threads,
                                struct clime_http_server **http, struct clime_error *e) {
    const char *admin_host = o->admin_host ? o->admin_host : o->host;
    if (clime_http_port_check("port", "host", o->host, (int)o->port, e) ||
        clime_http_port_check("health-port", "host", o->host, (int)o->health_port, e) ||
        clime_http_port_check("admin-port", o->admin_host ? "admin-host" : "host", admin_host, (int)o->admin_port, e) ||
        clime_http_client_trust(o->ca_certificate, e))
        return e->code;
    const struct clime_http_options ho = {
        .host = o->host,
        .port = (int)o->port,
        .n_threads = n_threads,
        .fewer = "max-concurrent-requests",
        .n_slots = (int)(o->max_in_flight + o->queue_size),
        .max_body = (size_t)o->max_body,
        .max_body_memory = (size_t)o->max_body_memory,
        .api_key = o->api_key,
        .tls_certificate = o->tls_certificate,
        .admin_key = o->admin_key,
        .key_file = o->key_file,
        .has_admin_port = o->admin_port >= 0,
        .admin_port = (int)o->admin_port,
        .admin_host = admin_host,
        .cors_origins = o->cors_origins.items,
        .n_cors_origins = o->cors_origins.n,
        .routes = clime_router_routes,
        .health_routes = o->health_port < 0 ? NULL : clime_router_health_routes,
        .health_port = (int)o->health_port,
        .context = r,
    };
    return clime_http_server_start(&ho, http, e);
}

/* The system may have chosen any of the ports. */
static void log_ports(const struct options *o, const struct clime_http_server *http) {
    LOG_INFO("serving on %s:%d, policy %s", o->host, clime_http_server_port(http), clime_policies[o->policy]->name);
    if (o->admin_port >= 0)
        LOG_INFO("control calls on %s:%d", o->admin_host ? o->admin_host : o->host, clime_http_server_admin_port(http));
    if (o->health_port >= 0) LOG_INFO("health on %s:%d", o->host, clime_http_server_health_port(http));
}

int main(int argc, char **argv) {
    struct clime_error e = {0};
    struct options o = {0};
    struct clime_http_server *http = NULL;
    struct clime_discovery *discovery = NULL;
    struct clime_router r = {0};
    struct clime_concurrency fit;

    clime_malloc_limits(argv, GIVE_BACK_BYTES);
    clime_log_open("router", CLIME_LOG_INFO);
    if (parse(argc, argv, &o, &e)) goto failed;
    if (o.print_routes) {
        print_routes();
        return 0;
    }
    clime_log_open("router", (enum clime_log_level)o.log_level);
    if (clime_process_begin(&e)) goto failed;
    clime_http_client_global_init();
    if (open_router(&o, &r, &fit, &e)) goto failed;
    const struct clime_discovery_options discover = {.file = o.worker_file,
                                                     .names = o.worker_names.items,
                                                     .n_names = o.worker_names.n,
                                                     .interval_us = (int64_t)(o.discovery_interval * 1e6)};
    if (clime_discovery_start(&discover, r.workers, &discovery, &e)) goto failed;
    if (open_http(&o, &r, fit.n_threads, &http, &e)) goto failed;
    r.prober = clime_prober_start(&r);
    if (clime_port_file_write(o.port_file, clime_http_server_port(http), (int)o.parent_fd, &e)) goto failed;
    log_ports(&o, http);

    drain(&r, clime_process_wait((int)o.parent_fd), o.drain_timeout);
failed:
    if (http) clime_http_server_stop(http);
    clime_prober_stop(r.prober);
    clime_router_queue_free(r.queue);
    clime_connections_free(r.connections);
    if (clime_discovery_stop(discovery)) clime_workers_free(r.workers);
    free(o.worker_names.items);
    free(o.workers.items);
    free(o.cors_origins.items);
    if (e.code) LOG_ERROR("%s", e.msg);
    return e.code ? 1 : 0;
}
