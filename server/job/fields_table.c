/* Tables of known fields that the generating endpoints do not read: SGLang's, vLLM's and OpenAI's.
 *
 * A row without neutral values is rejected by name for any value but null, false or empty. Inert fields do not concern
 * the output: user, logging, placement, scheduling.
 */
#include "server/job/fields.h"

#define INERT CLIME_FIELD_INERT

const struct clime_field clime_fields_sampling[] = {
    {"guided_decoding_backend", INERT}, /* the backend, not the output */
    {"guided_whitespace_pattern", NULL},
    {"custom_params", NULL},
    {"custom_logit_processor", NULL},
    {"logits_processors", NULL},
    {"logits_processor", NULL},
    {"use_beam_search", NULL},
    {"beam_width", "1"},
    {"length_penalty", "1|1.0"},
    {"early_stopping", NULL},
    {"typical_p", "1|1.0"},
    {"top_n_tokens", "0"},
    {"logprobs", NULL}, /* in sampling_params; endpoints that support it read it themselves */
    {"prompt_logprobs", NULL},
    {"logprob_token_ids", NULL},
    {"flat_logprobs", NULL},
    {"thinking_token_budget", NULL},
    {"repetition_detection", NULL},
    {"truncate_prompt_tokens", NULL},
    {"extra_args", NULL},
    {"detokenize", "true"},
    {"spaces_between_special_tokens", INERT}, /* no tokenizer here adds any */
    {"skip_reading_prefix_cache", INERT},
    {"output_kind", INERT},
    {NULL, NULL},
};

const struct clime_field clime_fields_generate[] = {
    {"input_embeds", NULL},
    {"image_data", NULL},
    {"video_data", NULL},
    {"audio_data", NULL},
    {"modalities", "[\"text\"]"},
    {"mm_hashes", NULL},
    {"use_audio_in_video", NULL},
    {"return_flat_raw_top_logprobs", NULL},
    {"return_flat_raw_top_logprobs_b64", NULL},
    {"return_entropy", NULL},
    {"return_hidden_states", NULL},
    {"return_indexer_topk", NULL},
    {"return_bytes", NULL},
    {"session_id", CLIME_FIELD_INERT}, /* a router's: which worker */
    {"session_params", NULL},
    {"lora_path", NULL},
    {"lora_id", NULL},
    {"custom_logit_processor", NULL},
    {"bootstrap_host", NULL},
    {"bootstrap_port", NULL},
    {"bootstrap_room", NULL},
    {"decode_tp_size", "1"},
    {"disagg_prefill_dp_rank", "0"},
    {"data_parallel_rank", "0"},
    {"routed_dp_rank", "0"},
    {"require_reasoning", NULL},
    {"max_thinking_tokens", NULL},
    {"truncate_prompt_tokens", NULL},
    {"routing_key", INERT},
    {"conversation_id", INERT},
    {"priority", INERT}, /* first come, first served */
    {"background", NULL},
    {"no_logs", INERT},
    {"log_metrics", INERT},
    {"custom_labels", INERT},
    {"external_trace_header", INERT},
    {"validation_time", INERT},
    {"received_time", INERT},
    {NULL, NULL},
};

const struct clime_field clime_fields_text[] = {
    {"return_token_strs", NULL},   {"chat_template", NULL},   {"documents", NULL},
    {"mm_processor_kwargs", NULL}, {"media_io_kwargs", NULL}, {NULL, NULL},
};

/* Besides the endpoints' own; Responses and Messages put rows of their own before these. */
const struct clime_field clime_fields_openai[] = {
    {"prompt", NULL}, /* read by some endpoints only */
    {"messages", NULL},
    {"tools", NULL},
    {"tool_choice", "\"none\"|\"auto\""}, /* of /v1/completions */
    {"top_logprobs", "0"},
    {"return_sampling_mask", NULL}, /* of chat */
    {"sampling_params", NULL},      /* /generate's, like the next ones */
    {"return_logprob", NULL},
    {"logprob_start_len", "-1"},
    {"top_logprobs_num", "0"},
    {"token_ids_logprob", NULL},
    {"return_routing_hashes", NULL},
    {"resume", NULL},
    {"functions", NULL},
    {"function_call", "\"none\"|\"auto\""}, /* no functions */
    {"audio", NULL},
    {"modalities", "[\"text\"]"},
    {"moderation", NULL},
    {"prediction", NULL},
    {"web_search_options", NULL},
    {"suffix", NULL},
    {"best_of", "1"},
    {"echo", NULL},
    {"parallel_tool_calls", INERT}, /* no tools */
    {"reasoning", NULL},
    {"thinking", NULL}, /* other vendors'; here chat_template_kwargs */
    {"thinking_budget", NULL},
    {"max_thinking_tokens", NULL},
    {"task", NULL},
    {"documents", NULL},
    {"chat_template", NULL},
    {"mm_processor_kwargs", NULL},
    {"media_io_kwargs", NULL},
    {"input_embeds", NULL},
    {"prompt_embeds", NULL},
    {"lora_path", NULL},
    {"session_id", CLIME_FIELD_INERT}, /* a router's: which worker */
    {"session_params", NULL},
    {"return_hidden_states", NULL},
    {"return_routed_experts", NULL},
    {"bootstrap_host", NULL},
    {"bootstrap_port", NULL},
    {"bootstrap_room", NULL},
    {"kv_transfer_params", NULL},
    {"vllm_xargs", NULL},
    {"routed_dp_rank", "0"},
    {"data_parallel_rank", "0"},
    {"return_cached_tokens_details", INERT}, /* always returned */
    {"user", INERT},
    {"metadata", INERT},
    {"store", INERT}, /* nothing is kept */
    {"service_tier", INERT},
    {"safety_identifier", INERT},
    {"prompt_cache_key", INERT},
    {"prompt_cache_options", INERT},
    {"prompt_cache_retention", INERT},
    {"verbosity", INERT}, /* a hint, as in Responses' text */
    {"priority", INERT},  /* first come, first served */
    {"request_id", INERT},
    {NULL, NULL},
};

const struct clime_field clime_fields_responses[] = {
    {"previous_response_id", NULL}, /* nothing is kept */
    {"conversation", NULL},
    {"background", NULL},
    {"context_management", NULL},
    {"personality", NULL}, /* a style that OpenAI's models have */
    {"access_programs", INERT},
    {"background_options", NULL},
    {"image", INERT}, /* image display; there are none */
    {"client_metadata", INERT},
    {"max_tool_calls", INERT}, /* of tools that OpenAI's servers run */
    {"stream_options", INERT}, /* include_obfuscation: nothing is padded */
    {"response_format", NULL}, /* use text.format */
    {"return_token_ids", NULL},
    {NULL, NULL},
};

const struct clime_field clime_fields_messages[] = {
    {"container", NULL},
    {"context_management", INERT}, /* a hint of what the model may forget; nothing is dropped */
    {"mcp_servers", NULL},
    {"cache_control", INERT}, /* the prefix cache is always on */
    {"inference_geo", INERT},
    {"speed", "\"standard\""},
    {"betas", INERT},
    {"response_format", NULL}, /* use output_config.format */
    {"return_token_ids", NULL},
    {NULL, NULL},
};
