/* The router's route table; openapi/router.yaml describes it and a test compares the two. Read-only after start. */
#include "router/router.h"

const struct clime_http_route clime_router_routes[] = {
    /* generation: one worker */
    {"POST|PUT", "/generate", CLIME_HTTP_USER, clime_router_proxy, .slot = true},
    {"POST", "/inference/v1/generate", CLIME_HTTP_USER, clime_router_proxy, .slot = true},
    {"POST", "/v1/completions", CLIME_HTTP_USER, clime_router_proxy, .slot = true},
    {"POST", "/v1/chat/completions", CLIME_HTTP_USER, clime_router_proxy, .slot = true},
    {"POST", "/v1/responses", CLIME_HTTP_USER, clime_router_proxy, .slot = true},
    {"POST", "/v1/messages", CLIME_HTTP_USER, clime_router_proxy, .slot = true},
    /* the same in a session, which may so be part of a client's base URL */
    {"POST|PUT", "/sessions/{id}/generate", CLIME_HTTP_USER, clime_router_proxy, .slot = true},
    {"POST", "/sessions/{id}/inference/v1/generate", CLIME_HTTP_USER, clime_router_proxy, .slot = true},
    {"POST", "/sessions/{id}/v1/completions", CLIME_HTTP_USER, clime_router_proxy, .slot = true},
    {"POST", "/sessions/{id}/v1/chat/completions", CLIME_HTTP_USER, clime_router_proxy, .slot = true},
    {"POST", "/sessions/{id}/v1/responses", CLIME_HTTP_USER, clime_router_proxy, .slot = true},
    {"POST", "/sessions/{id}/v1/messages", CLIME_HTTP_USER, clime_router_proxy, .slot = true},
    {"POST", "/finish_session", CLIME_HTTP_USER, clime_router_finish_session},
    {"POST", "/v1/messages/count_tokens", CLIME_HTTP_USER, clime_router_proxy},
    {"POST", "/tokenize", CLIME_HTTP_USER, clime_router_proxy},
    {"POST", "/v1/tokenize", CLIME_HTTP_USER, clime_router_proxy},
    {"POST", "/detokenize", CLIME_HTTP_USER, clime_router_proxy},
    {"POST", "/v1/detokenize", CLIME_HTTP_USER, clime_router_proxy},
    {"POST", "/apply_template", CLIME_HTTP_USER, clime_router_proxy},
    {"POST", "/parse_function_call", CLIME_HTTP_USER, clime_router_proxy},
    {"POST", "/separate_reasoning", CLIME_HTTP_USER, clime_router_proxy},
    {"GET", "/tokenizer_info", CLIME_HTTP_USER, clime_router_proxy},
    {"GET", "/v1/models", CLIME_HTTP_USER, clime_router_proxy},
    {"GET", "/v1/models/{model}", CLIME_HTTP_USER, clime_router_proxy},
    {"GET", "/model_info", CLIME_HTTP_USER, clime_router_proxy},
    {"GET", "/get_model_info", CLIME_HTTP_USER, clime_router_proxy},
    {"GET", "/server_info", CLIME_HTTP_USER, clime_router_proxy},
    {"GET", "/get_server_info", CLIME_HTTP_USER, clime_router_proxy},
    {"GET", "/health_generate", CLIME_HTTP_OPEN, clime_router_proxy},
    /* control: every worker, a result for each */
    {"POST", "/abort_request", CLIME_HTTP_ADMIN, clime_router_fanout},
    {"POST", "/pause_generation", CLIME_HTTP_ADMIN, clime_router_fanout},
    {"POST", "/continue_generation", CLIME_HTTP_ADMIN, clime_router_fanout},
    {"GET|POST", "/flush_cache", CLIME_HTTP_ADMIN, clime_router_fanout},
    {"POST", "/update_weights_from_disk", CLIME_HTTP_ADMIN, clime_router_update_from_disk},
    {"GET", "/get_weight_version", CLIME_HTTP_USER, clime_router_get_version},
    {"GET", "/engine_metrics", CLIME_HTTP_USER, clime_router_engine_metrics},
    {"GET", "/v1/loads", CLIME_HTTP_USER, clime_router_loads},
    /* the fleet */
    {"GET", "/workers", CLIME_HTTP_USER, clime_router_workers_get},
    {"POST", "/workers", CLIME_HTTP_ADMIN, clime_router_workers_post},
    {"GET", "/workers/{id}", CLIME_HTTP_USER, clime_router_worker_one},
    {"PUT|PATCH|DELETE", "/workers/{id}", CLIME_HTTP_ADMIN, clime_router_worker_one},
    {"POST", "/add_worker", CLIME_HTTP_ADMIN, clime_router_add_worker},
    {"POST", "/remove_worker", CLIME_HTTP_ADMIN, clime_router_remove_worker},
    {"GET", "/list_workers", CLIME_HTTP_USER, clime_router_list_workers},
    {"PUT", "/weight_version", CLIME_HTTP_ADMIN, clime_router_put_version},
    {"GET", "/openapi.json", CLIME_HTTP_OPEN, clime_router_openapi},
    {"GET", "/liveness", CLIME_HTTP_OPEN, clime_router_liveness},
    {"GET", "/readiness", CLIME_HTTP_OPEN, clime_router_readiness},
    {"GET", "/health", CLIME_HTTP_OPEN, clime_router_health},
    {"GET", "/metrics", CLIME_HTTP_OPEN, clime_router_metrics},
    {NULL, NULL, CLIME_HTTP_OPEN, NULL},
};

/* Of the health port, with threads of its own. */
const struct clime_http_route clime_router_health_routes[] = {
    {"GET", "/liveness", CLIME_HTTP_OPEN, clime_router_liveness},
    {"GET", "/readiness", CLIME_HTTP_OPEN, clime_router_readiness},
    {"GET", "/health", CLIME_HTTP_OPEN, clime_router_health},
    {"GET", "/metrics", CLIME_HTTP_OPEN, clime_router_metrics},
    {NULL, NULL, CLIME_HTTP_OPEN, NULL},
};
