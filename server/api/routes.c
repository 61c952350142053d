/* The route table: every endpoint, in the order of openapi/server.yaml; tests compare the two. */
#include "server/server.h"

#define USER CLIME_HTTP_USER
#define ADMIN CLIME_HTTP_ADMIN
#define OPEN CLIME_HTTP_OPEN

const struct clime_http_route clime_server_routes[] = {
    {.methods = "POST|PUT", .path = "/generate", .auth = USER, .handler = clime_handle_generate, .slot = true},
    {.methods = "POST",
     .path = "/inference/v1/generate",
     .auth = USER,
     .handler = clime_handle_inference,
     .slot = true},
    {.methods = "POST", .path = "/v1/completions", .auth = USER, .handler = clime_handle_completions, .slot = true},
    {.methods = "POST", .path = "/v1/chat/completions", .auth = USER, .handler = clime_handle_chat, .slot = true},
    {.methods = "POST", .path = "/v1/responses", .auth = USER, .handler = clime_handle_responses, .slot = true},
    {.methods = "POST", .path = "/v1/messages", .auth = USER, .handler = clime_handle_messages, .slot = true},
    {.methods = "POST", .path = "/v1/messages/count_tokens", .auth = USER, .handler = clime_handle_count_tokens},
    {.methods = "GET", .path = "/v1/models", .auth = USER, .handler = clime_handle_models},
    {.methods = "GET", .path = "/v1/models/{model}", .auth = USER, .handler = clime_handle_model},
    {.methods = "POST", .path = "/tokenize", .auth = USER, .handler = clime_handle_tokenize},
    {.methods = "POST", .path = "/v1/tokenize", .auth = USER, .handler = clime_handle_tokenize},
    {.methods = "POST", .path = "/detokenize", .auth = USER, .handler = clime_handle_detokenize},
    {.methods = "POST", .path = "/v1/detokenize", .auth = USER, .handler = clime_handle_detokenize},
    {.methods = "POST", .path = "/apply_template", .auth = USER, .handler = clime_handle_apply_template},
    {.methods = "POST", .path = "/parse_function_call", .auth = USER, .handler = clime_handle_parse_function_call},
    {.methods = "POST", .path = "/separate_reasoning", .auth = USER, .handler = clime_handle_separate_reasoning},
    {.methods = "GET", .path = "/tokenizer_info", .auth = USER, .handler = clime_handle_tokenizer_info},

    {.methods = "GET", .path = "/openapi.json", .auth = OPEN, .handler = clime_handle_openapi},
    {.methods = "GET", .path = "/", .auth = OPEN, .handler = clime_handle_page},
    {.methods = "GET", .path = "/assets/{name}", .auth = OPEN, .handler = clime_handle_page_asset},

    {.methods = "GET", .path = "/health", .auth = OPEN, .handler = clime_handle_health},
    {.methods = "GET", .path = "/health_generate", .auth = OPEN, .handler = clime_handle_health_generate},
    {.methods = "GET|POST", .path = "/ping", .auth = OPEN, .handler = clime_handle_health},
    {.methods = "GET", .path = "/version", .auth = OPEN, .handler = clime_handle_version},
    {.methods = "GET", .path = "/metrics", .auth = OPEN, .handler = clime_handle_metrics},
    {.methods = "GET", .path = "/model_info", .auth = USER, .handler = clime_handle_model_info},
    {.methods = "GET", .path = "/get_model_info", .auth = USER, .handler = clime_handle_model_info},
    {.methods = "GET", .path = "/server_info", .auth = USER, .handler = clime_handle_server_info},
    {.methods = "GET", .path = "/get_server_info", .auth = USER, .handler = clime_handle_server_info},
    {.methods = "GET", .path = "/get_weight_version", .auth = USER, .handler = clime_handle_weight_version},
    {.methods = "GET", .path = "/weight_version", .auth = USER, .handler = clime_handle_weight_version},
    {.methods = "GET", .path = "/v1/loads", .auth = USER, .handler = clime_handle_loads},
    {.methods = "GET", .path = "/get_load", .auth = USER, .handler = clime_handle_get_load},
    {.methods = "GET", .path = "/load", .auth = USER, .handler = clime_handle_load},

    {.methods = "POST", .path = "/abort_request", .auth = ADMIN, .handler = clime_handle_abort},
    {.methods = "POST", .path = "/pause_generation", .auth = ADMIN, .handler = clime_handle_pause},
    {.methods = "POST", .path = "/continue_generation", .auth = ADMIN, .handler = clime_handle_continue},
    {.methods = "GET|POST", .path = "/flush_cache", .auth = ADMIN, .handler = clime_handle_flush},
    {.methods = "GET|POST", .path = "/start_profile", .auth = ADMIN, .handler = clime_handle_start_profile},
    {.methods = "GET|POST", .path = "/stop_profile", .auth = ADMIN, .handler = clime_handle_stop_profile},
    {.methods = "POST", .path = "/configure_logging", .auth = ADMIN, .handler = clime_handle_configure_logging},
    {.methods = "POST", .path = "/weights_checker", .auth = ADMIN, .handler = clime_handle_weights_checker},
    {.methods = "POST", .path = "/release_memory_occupation", .auth = ADMIN, .handler = clime_handle_release_memory},
    {.methods = "POST", .path = "/resume_memory_occupation", .auth = ADMIN, .handler = clime_handle_resume_memory},
    {.methods = "PUT",
     .path = "/weights/{version}",
     .auth = ADMIN,
     .handler = clime_handle_put_weights,
     .stream_body = true},
    {.methods = "POST", .path = "/update_weights_from_disk", .auth = ADMIN, .handler = clime_handle_update_from_disk},
    {.methods = "POST", .path = "/update_weights_from_ipc", .auth = ADMIN, .handler = clime_handle_update_from_ipc},
    {.methods = "POST", .path = "/init_weights_update_group", .auth = ADMIN, .handler = clime_handle_init_group},
    {.methods = "POST", .path = "/destroy_weights_update_group", .auth = ADMIN, .handler = clime_handle_destroy_group},
    {.methods = "POST",
     .path = "/update_weights_from_distributed",
     .auth = ADMIN,
     .handler = clime_handle_update_from_distributed},
    {.methods = "POST", .path = "/init_weight_transfer_engine", .auth = ADMIN, .handler = clime_handle_init_transfer},
    {.methods = "POST", .path = "/start_weight_update", .auth = ADMIN, .handler = clime_handle_start_update},
    {.methods = "POST", .path = "/update_weights", .auth = ADMIN, .handler = clime_handle_update_weights},
    {.methods = "POST", .path = "/finish_weight_update", .auth = ADMIN, .handler = clime_handle_finish_update},
    {0}};

/* Of the health port, with threads of its own. */
const struct clime_http_route clime_health_routes[] = {
    {.methods = "GET", .path = "/health", .auth = OPEN, .handler = clime_handle_health},
    {.methods = "GET", .path = "/health_generate", .auth = OPEN, .handler = clime_handle_health_generate},
    {.methods = "GET", .path = "/metrics", .auth = OPEN, .handler = clime_handle_metrics},
    {0}};
