/* config.json: what is read, what is refused and how it is said, and that a written file reads back the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/os/atomic_file.h"
#include "model/config/config.h"

static char dir[64];

static int make_dir(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/clime_config_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    (void)state;
    char path[96];
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    return rmdir(dir);
}

static enum clime_err load(const char *json, struct clime_config *c, struct clime_error *e) {
    char path[96];
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(clime_atomic_save(path, json, strlen(json), NULL), CLIME_OK);
    return clime_config_load(dir, c, e);
}

#define SIZES                                                                                                          \
    "\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":96"
#define QWEN3 "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\"," SIZES
#define LLAMA "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\"," SIZES
#define MOE(name, type)                                                                                                \
    "{\"architectures\":[\"" name "\"],\"model_type\":\"" type "\",\"num_experts\":8,\"num_experts_per_tok\":2,"       \
    "\"moe_intermediate_size\":32," SIZES
#define QWEN3_MOE MOE("Qwen3MoeForCausalLM", "qwen3_moe")
#define QWEN2_MOE MOE("Qwen2MoeForCausalLM", "qwen2_moe")
#define GLM4_MOE                                                                                                       \
    "{\"architectures\":[\"Glm4MoeForCausalLM\"],\"model_type\":\"glm4_moe\",\"n_routed_experts\":8,"                  \
    "\"num_experts_per_tok\":3,\"moe_intermediate_size\":32," SIZES
#define ROUTED                                                                                                         \
    ",\"n_routed_experts\":8,\"num_experts_per_tok\":3,\"moe_intermediate_size\":32,\"n_shared_experts\":2,"           \
    "\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,\"n_group\":4,\"topk_group\":2"
#define LATENT                                                                                                         \
    ",\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,\"v_head_dim\":12,\"num_key_value_heads\":4"
#define DEEPSEEK(type)                                                                                                 \
    "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"" type                                            \
    "\",\"first_k_dense_replace\":1," SIZES ROUTED LATENT
#define GLM4_LITE                                                                                                      \
    "{\"architectures\":[\"Glm4MoeLiteForCausalLM\"],\"model_type\":\"glm4_moe_lite\",\"q_lora_rank\":24," SIZES       \
        ROUTED LATENT
#define YARN(more)                                                                                                     \
    ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"beta_fast\":32,\"beta_slow\":1,"                             \
    "\"original_max_position_embeddings\":4096" more "}"
#define GLM4 "{\"architectures\":[\"Glm4ForCausalLM\"],\"model_type\":\"glm4\"," SIZES
#define LLAMA3                                                                                                         \
    ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"     \
    "\"original_max_position_embeddings\":16}}"

static const struct {
    const char *json, *error; /* a part of the message */
} refused[] = {
    {"[]", "not an object"},
    {"{\"architectures\":", "config.json"},
    {"{\"architectures\":[\"MistralForCausalLM\"]," SIZES "}", "'MistralForCausalLM' is not supported"},
    {"{" SIZES "}", "(none given)"},
    {"{\"model_type\":\"llama\",\"hidden_size\":64}", "num_hidden_layers is missing"},
    {LLAMA ",\"head_dim\":15}", "head_dim 15 is odd"},
    {LLAMA ",\"head_dim\":258}", "head_dim must be an integer from 2 to 256"},
    {"{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":2,\"num_attention_"
     "heads\":4,\"vocab_size\":1048577}",
     "vocab_size must be an integer from 1 to 1048576"},
    {"{\"model_type\":\"llama\",\"hidden_size\":32776,\"intermediate_size\":128,\"num_hidden_layers\":2,\"num_"
     "attention_heads\":4,\"vocab_size\":96}",
     "hidden_size must be an integer from 1 to 32768"},
    {"{\"model_type\":\"llama\",\"hidden_size\":16388,\"intermediate_size\":128,\"num_hidden_layers\":2,\"num_"
     "attention_heads\":4,\"vocab_size\":96}",
     "hidden_size 16388 is above 16384 and no multiple of 8"},
    {"{\"model_type\":\"llama\",\"hidden_size\":2048,\"intermediate_size\":128,\"num_hidden_layers\":2,\"num_attention_"
     "heads\":4,\"vocab_size\":96}",
     "head_dim 512 is above 256"},
    {LLAMA ",\"head_dim\":\"16\"}", "head_dim must be an integer"},
    {LLAMA ",\"head_dim\":1.5}", "head_dim must be an integer"},
    {LLAMA ",\"num_key_value_heads\":3}", "no multiple of num_key_value_heads 3"},
    {LLAMA ",\"num_key_value_heads\":0}", "num_key_value_heads must be"},
    {LLAMA ",\"hidden_act\":\"gelu\"}", "hidden_act 'gelu'"},
    {LLAMA ",\"mlp_bias\":true}", "mlp_bias = true"},
    {QWEN3 ",\"use_sliding_window\":true}", "use_sliding_window"},
    {QWEN3 ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", "'sliding_attention'"},
    {QWEN3 ",\"quantization_config\":{}}", "only FP8 in blocks is read"},
    /* Kimi K2 Thinking's */
    {DEEPSEEK("kimi_k2") ",\"q_lora_rank\":8,\"quantization_config\":{\"quant_method\":\"compressed-tensors\"}}",
     "quant_method 'compressed-tensors'"},
    {LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4}}", "type 'dynamic'"},
    {LLAMA ",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4}}", "type 'linear'"},
    {LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\"}}", "factor is missing"},
    {LLAMA ",\"rope_scaling\":{\"factor\":4}}", "rope_scaling: a factor, and no rope_type that has one"},
    {QWEN3 ",\"rope_parameters\":{\"rope_type\":\"default\",\"mrope_section\":[1,2]}}", "mrope_section is not known"},
    {LLAMA ",\"rope_scaling\":3}", "rope_scaling must be"},
    {LLAMA ",\"rope_theta\":-1}", "rope_theta must be"},
    {LLAMA ",\"partial_rotary_factor\":0.5}", "partial_rotary_factor"},
    {GLM4 ",\"partial_rotary_factor\":1e-9}", "partial_rotary_factor"},
    {LLAMA ",\"torch_dtype\":\"int8\"}", "dtype 'int8'"},
    {LLAMA ",\"eos_token_id\":[1,-2]}", "eos_token_id"},
    {LLAMA ",\"eos_token_id\":[1,2,3,4,5,6,7,8,9]}", "eos_token_id"},
    {LLAMA ",\"attention_bias\":1}", "attention_bias must be"},
    {QWEN3_MOE ",\"mlp_only_layers\":[2]}", "layers from 0 to 1"},
    {QWEN3_MOE ",\"mlp_only_layers\":1}", "mlp_only_layers must be a list"},
    {QWEN3_MOE ",\"decoder_sparse_step\":0}", "decoder_sparse_step must be an integer"},
    {QWEN3_MOE ",\"norm_topk_prob\":1}", "norm_topk_prob must be"},
    {"{\"model_type\":\"qwen3_moe\"," SIZES "}", "num_experts is missing"},
    {"{\"model_type\":\"qwen3_moe\",\"num_experts\":8,\"num_experts_per_tok\":9,\"moe_intermediate_size\":8," SIZES "}",
     "num_experts_per_tok must be an integer from 1 to 8"},
    {"{\"model_type\":\"qwen3_moe\",\"num_experts\":1025,\"num_experts_per_tok\":9," SIZES "}",
     "num_experts must be an integer from 1 to 1024"},
    {QWEN3_MOE ",\"router_logit_softcapping\":30.0}", "router_logit_softcapping is not known: it may change"},
    {QWEN3_MOE ",\"zero_expert_num\":2}", "zero_expert_num is not known"},
    {QWEN3_MOE ",\"num_local_experts\":4}", "num_experts and num_local_experts differ"},
    {GLM4_MOE ",\"num_local_experts\":4}", "n_routed_experts and num_local_experts differ"},
    /* keys that another family reads */
    {QWEN3_MOE ",\"n_group\":4,\"topk_group\":2}",
     "n_group: Qwen3MoeForCausalLM has no such setting, and computes as with 1"},
    {QWEN3_MOE ",\"routed_scaling_factor\":2.5}", "routed_scaling_factor: Qwen3MoeForCausalLM has no such setting"},
    {QWEN3_MOE ",\"n_shared_experts\":1}", "n_shared_experts: Qwen3MoeForCausalLM has no such setting"},
    {QWEN3_MOE ",\"first_k_dense_replace\":1}", "first_k_dense_replace: Qwen3MoeForCausalLM has no such setting"},
    {QWEN3_MOE ",\"shared_expert_intermediate_size\":48}",
     "shared_expert_intermediate_size: Qwen3MoeForCausalLM has no"},
    {QWEN3_MOE ",\"use_qk_norm\":false}",
     "use_qk_norm: Qwen3MoeForCausalLM has no such setting, and computes as with 1"},
    {QWEN3_MOE ",\"qkv_bias\":true}", "qkv_bias: Qwen3MoeForCausalLM has no such setting, and computes as with 0"},
    {GLM4_MOE ",\"decoder_sparse_step\":2}", "decoder_sparse_step: Glm4MoeForCausalLM has no such setting"},
    {GLM4_MOE ",\"mlp_only_layers\":[1]}", "mlp_only_layers: Glm4MoeForCausalLM has no such setting"},
    {GLM4_MOE ",\"num_experts\":4}", "num_experts: Glm4MoeForCausalLM has no such setting, and computes as with 8"},
    {DEEPSEEK("deepseek_v3") ",\"q_lora_rank\":8,\"use_qk_norm\":true}",
     "use_qk_norm: DeepseekV3ForCausalLM has no such"},
    {QWEN2_MOE "}", "shared_expert_intermediate_size is missing"},
    {GLM4_MOE ",\"n_group\":3}", "n_group 3 does not divide the 8 experts"},
    {GLM4_MOE ",\"n_group\":4,\"topk_group\":5}", "topk_group must be an integer from 1 to 4"},
    {GLM4_MOE ",\"n_group\":4,\"topk_group\":1}", "topk_group 1 leaves 2 experts of each of 4 groups for 3 of a token"},
    {GLM4_MOE ",\"n_group\":8,\"topk_group\":4}", "topk_group 4 leaves 1 experts"},
    {GLM4_MOE ",\"first_k_dense_replace\":3}", "first_k_dense_replace must be an integer from 0 to 2"},
    {GLM4_MOE ",\"routed_scaling_factor\":-1}", "routed_scaling_factor must be a positive number"},
    {GLM4_MOE ",\"scoring_func\":\"softmax\"}", "scoring_func is not known"},
    {GLM4_MOE ",\"kv_lora_rank\":32}", "kv_lora_rank is not known"},
    {DEEPSEEK("deepseek_v3") "}", "q_lora_rank is missing"},
    {DEEPSEEK("deepseek_v3") ",\"q_lora_rank\":0}", "q_lora_rank must be an integer from 1"},
    {DEEPSEEK("deepseek_v3") ",\"q_lora_rank\":8,\"scoring_func\":\"softmax\"}",
     "scoring_func 'softmax' is not supported"},
    {DEEPSEEK("deepseek_v3") ",\"q_lora_rank\":8,\"topk_method\":\"greedy\"}", "topk_method 'greedy' is not supported"},
    {DEEPSEEK("deepseek_v3") ",\"q_lora_rank\":8,\"moe_layer_freq\":2}", "moe_layer_freq must be"},
    {DEEPSEEK("deepseek_v3") ",\"q_lora_rank\":8,\"attention_bias\":true}", "attention_bias = true is not supported"},
    {DEEPSEEK("deepseek_v3") ",\"q_lora_rank\":8,\"rope_interleave\":null}", "rope_interleave is null"},
    {DEEPSEEK("deepseek_v3") ",\"q_lora_rank\":8,\"index_topk\":2048}", "index_topk is not known"},
    {DEEPSEEK("deepseek_v3") ",\"q_lora_rank\":8,\"mlp_layer_types\":[\"dense\",\"sparse\"]}",
     "mlp_layer_types is not known"},
    {DEEPSEEK("deepseek_v3") ",\"q_lora_rank\":8" YARN(",\"attention_factor\":1.0") "}",
     "attention_factor is not supported"},
    {DEEPSEEK("deepseek_v3") ",\"q_lora_rank\":8" YARN(",\"temperature\":2") "}",
     "rope_scaling: temperature is not known"},
    {DEEPSEEK("deepseek_v3") ",\"q_lora_rank\":8" YARN(",\"mscale\":-1") "}", "mscale must be a positive number"},
    {"{\"model_type\":\"deepseek_v3\",\"q_lora_rank\":8," SIZES LATENT "}", "norm_topk_prob is missing"},
    {"{\"model_type\":\"deepseek_v3\",\"q_lora_rank\":8," SIZES ROUTED LATENT "}", "first_k_dense_replace is missing"},
    {"{\"model_type\":\"deepseek_v3\",\"kv_lora_rank\":9,\"qk_nope_head_dim\":4,\"qk_rope_head_dim\":4,"
     "\"v_head_dim\":4,\"q_lora_rank\":null," SIZES "}",
     "kv_lora_rank is odd"},
    {"{\"model_type\":\"deepseek_v3\",\"kv_lora_rank\":8,\"qk_nope_head_dim\":4,\"qk_rope_head_dim\":4,"
     "\"v_head_dim\":4,\"q_lora_rank\":null,\"num_key_value_heads\":2," SIZES "}",
     "num_key_value_heads 2: latent attention has as many as heads, 4"},
    {GLM4_LITE ",\"mlp_layer_types\":[\"dense\"]}", "mlp_layer_types must be a list of 2 words"},
    {GLM4_LITE ",\"mlp_layer_types\":[\"dense\",\"full\"]}", "'full' is neither dense nor sparse"},
    {LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}", "original_max_position_embeddings is missing"},
    {LLAMA ",\"rope_scaling\":{},\"rope_parameters\":[1]}", "rope_parameters must be an object or null"},
    {QWEN3 ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\",\"rope_theta\":5e5}}}",
     "rope_parameters: 'full_attention' has settings of its own"},
    {GLM4 ",\"partial_rotary_factor\":null}", "partial_rotary_factor is null: say a number, such as 0.5"},
    {QWEN2_MOE ",\"shared_expert_intermediate_size\":48,\"is_causal\":false}", "is_causal must be true"},
    {LLAMA ",\"rms_norm_eps\":1e-60}", "rms_norm_eps must be a positive number within fp32's range"},
    {GLM4_MOE ",\"routed_scaling_factor\":1e60}",
     "routed_scaling_factor must be a positive number within fp32's range"},
    {LLAMA ",\"rope_theta\":1e6,\"vocab_size\":96}", "vocab_size is given twice"},
    {LLAMA ",\"rope_parameters\":{\"rope_theta\":1e6,\"rope_theta\":1e4}}", "rope_theta is given twice"},
    {LLAMA ",\"is_causal\":null}", "is_causal must be true"},
    {QWEN3 ",\"layer_types\":\"full_attention\"}", "layer_types must be a list of 2 words"},
    {QWEN3 ",\"layer_types\":[\"full_attention\"]}", "layer_types must be a list of 2 words"},
};

static void test_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(refused); i++) {
        struct clime_config c;
        struct clime_error e = {0};
        assert_int_not_equal(load(refused[i].json, &c, &e), CLIME_OK);
        if (!strstr(e.msg, refused[i].error)) fail_msg("case %zu: '%s' lacks '%s'", i, e.msg, refused[i].error);
        if (!strstr(e.msg, "config.json")) fail_msg("case %zu: '%s' does not name the file", i, e.msg);
    }
    struct clime_config c;
    assert_int_equal(clime_config_load("/nonexistent", &c, NULL), CLIME_ERR_NOT_FOUND);
}

static const struct {
    const char *json;
    struct clime_config want; /* the fields compared below */
} accepted[] = {
    {QWEN3 ",\"num_key_value_heads\":2,\"head_dim\":32,\"rope_theta\":1000000,\"tie_word_embeddings\":true,"
           "\"torch_dtype\":\"bfloat16\",\"eos_token_id\":3,\"rms_norm_eps\":1e-06}",
     {.family = CLIME_QWEN3,
      .HK = 2,
      .Dh = 32,
      .tied = true,
      .qk_norm = true,
      .rope_theta = 1e6,
      .rope_rot = 32,
      .dtype = CLIME_BF16,
      .n_eos = 1,
      .bos_id = -1,
      .eps = 1e-6f,
      .max_pos = 32768}},
    {QWEN3 ",\"attention_bias\":true}",
     {.family = CLIME_QWEN3,
      .HK = 4,
      .Dh = 128,
      .qkv_bias = true,
      .o_bias = true,
      .qk_norm = true,
      .rope_theta = 1e4,
      .rope_rot = 128,
      .bos_id = -1,
      .eps = 1e-6f,
      .max_pos = 32768}},
    {"{\"model_type\":\"qwen2\"," SIZES ",\"bos_token_id\":7,\"max_position_embeddings\":99}",
     {.family = CLIME_QWEN2,
      .HK = 4,
      .Dh = 16,
      .qkv_bias = true,
      .rope_theta = 1e4,
      .rope_rot = 16,
      .bos_id = 7,
      .eps = 1e-6f,
      .max_pos = 99}},
    {LLAMA ",\"head_dim\":null,\"rms_norm_eps\":1e-05,\"eos_token_id\":[1,2]" LLAMA3,
     {.family = CLIME_LLAMA,
      .HK = 4,
      .Dh = 16,
      .rope_theta = 1e4,
      .rope_rot = 16,
      .bos_id = -1,
      .n_eos = 2,
      .eps = 1e-5f,
      .max_pos = 2048,
      .rope_scaling = {8, 1, 4, 16}}},
    {LLAMA ",\"dtype\":\"float16\",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500000.0}}",
     {.family = CLIME_LLAMA,
      .HK = 4,
      .Dh = 16,
      .rope_theta = 5e5,
      .rope_rot = 16,
      .bos_id = -1,
      .eps = 1e-6f,
      .max_pos = 2048}},
    /* said in two places: as transformers 5 takes it */
    {LLAMA ",\"rope_theta\":500000,\"rope_parameters\":{\"rope_type\":\"default\"},\"is_causal\":true}",
     {.family = CLIME_LLAMA,
      .HK = 4,
      .Dh = 16,
      .rope_theta = 5e5,
      .rope_rot = 16,
      .bos_id = -1,
      .eps = 1e-6f,
      .max_pos = 2048}},
    {LLAMA ",\"original_max_position_embeddings\":32,\"rope_theta\":3,\"rope_parameters\":{\"rope_theta\":7},"
           "\"rope_scaling\":{\"rope_theta\":5,\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
           "\"high_freq_factor\":4,\"original_max_position_embeddings\":16}}",
     {.family = CLIME_LLAMA,
      .HK = 4,
      .Dh = 16,
      .rope_theta = 5,
      .rope_rot = 16,
      .bos_id = -1,
      .eps = 1e-6f,
      .max_pos = 2048,
      .rope_scaling = {8, 1, 4, 32}}},
    {LLAMA ",\"rope_theta\":3,\"rope_scaling\":{\"type\":\"default\"},\"rope_parameters\":{\"rope_theta\":7}}",
     {.family = CLIME_LLAMA,
      .HK = 4,
      .Dh = 16,
      .rope_theta = 3,
      .rope_rot = 16,
      .bos_id = -1,
      .eps = 1e-6f,
      .max_pos = 2048}},
    /* 30 / 88 * 88 is less than 30 */
    {GLM4 ",\"head_dim\":88,\"attention_bias\":false,\"partial_rotary_factor\":0.35}",
     {.family = CLIME_GLM4,
      .HK = 4,
      .Dh = 88,
      .post_norms = true,
      .fused_gate_up = true,
      .rope_theta = 1e4,
      .rope_rot = 30,
      .rope_interleaved = true,
      .bos_id = -1,
      .eps = 1.5625e-7f,
      .max_pos = 131072}},
    {GLM4 ",\"head_dim\":16,\"num_key_value_heads\":2,\"attention_bias\":false}",
     {.family = CLIME_GLM4,
      .HK = 2,
      .Dh = 16,
      .post_norms = true,
      .fused_gate_up = true,
      .rope_theta = 1e4,
      .rope_rot = 8,
      .rope_interleaved = true,
      .bos_id = -1,
      .eps = 1.5625e-7f,
      .max_pos = 131072}},
    {GLM4 ",\"rope_parameters\":{\"rope_theta\":10000.0,\"partial_rotary_factor\":0.25}}",
     {.family = CLIME_GLM4,
      .HK = 4,
      .Dh = 128,
      .post_norms = true,
      .fused_gate_up = true,
      .qkv_bias = true,
      .rope_theta = 1e4,
      .rope_rot = 32,
      .rope_interleaved = true,
      .bos_id = -1,
      .eps = 1.5625e-7f,
      .max_pos = 131072}},
    {QWEN3_MOE ",\"head_dim\":16,\"norm_topk_prob\":true,\"max_window_layers\":48,\"router_aux_loss_coef\":0.001,"
               "\"sliding_window\":null,\"unheard_of\":false,\"output_router_logits\":false}",
     {.family = CLIME_QWEN3_MOE,
      .H = 4,
      .HK = 4,
      .Dh = 16,
      .F = 128,
      .max_pos = 32768,
      .eps = 1e-6f,
      .qk_norm = true,
      .router = {.E = 8, .k = 2, .renormalize = true, .scale = 1, .n_groups = 1, .k_groups = 1},
      .F_expert = 32,
      .rope_theta = 1e4,
      .rope_rot = 16,
      .dtype = CLIME_F32,
      .bos_id = -1}},
    {QWEN3_MOE ",\"decoder_sparse_step\":2}",
     {.family = CLIME_QWEN3_MOE,
      .H = 4,
      .HK = 4,
      .Dh = 16,
      .F = 128,
      .max_pos = 32768,
      .eps = 1e-6f,
      .qk_norm = true,
      .router = {.E = 8, .k = 2, .scale = 1, .n_groups = 1, .k_groups = 1},
      .F_expert = 32,
      .dense = {1, 0},
      .rope_theta = 1e4,
      .rope_rot = 16,
      .dtype = CLIME_F32,
      .bos_id = -1}},
    /* what Qwen3-Coder says besides, and what transformers 4.48 to 4.50 write */
    {QWEN3_MOE
     ",\"shared_expert_intermediate_size\":0,\"qkv_bias\":false,\"use_qk_norm\":true,\"n_shared_experts\":null,"
     "\"num_local_experts\":8,\"_attn_implementation_autoset\":true}",
     {.family = CLIME_QWEN3_MOE,
      .H = 4,
      .HK = 4,
      .Dh = 16,
      .F = 128,
      .max_pos = 32768,
      .eps = 1e-6f,
      .qk_norm = true,
      .router = {.E = 8, .k = 2, .scale = 1, .n_groups = 1, .k_groups = 1},
      .F_expert = 32,
      .rope_theta = 1e4,
      .rope_rot = 16,
      .dtype = CLIME_F32,
      .bos_id = -1}},
    {QWEN2_MOE ",\"shared_expert_intermediate_size\":48,\"mlp_only_layers\":[1],\"qkv_bias\":true}",
     {.family = CLIME_QWEN2_MOE,
      .H = 4,
      .HK = 4,
      .Dh = 16,
      .F = 128,
      .max_pos = 32768,
      .eps = 1e-6f,
      .qkv_bias = true,
      .router = {.E = 8, .k = 2, .scale = 1, .n_groups = 1, .k_groups = 1},
      .F_expert = 32,
      .F_shared = 48,
      .shared_gate = true,
      .dense = {0, 1},
      .rope_theta = 1e4,
      .rope_rot = 16,
      .dtype = CLIME_F32,
      .bos_id = -1}},
    {GLM4_MOE
     ",\"n_shared_experts\":2,\"routed_scaling_factor\":2.5,\"n_group\":4,\"topk_group\":2,\"use_qk_norm\":true,"
     "\"attention_bias\":true,\"num_nextn_predict_layers\":1}",
     {.family = CLIME_GLM4_MOE,
      .H = 4,
      .HK = 4,
      .Dh = 16,
      .F = 128,
      .max_pos = 131072,
      .eps = 1e-5f,
      .qk_norm = true,
      .qkv_bias = true,
      .router = {.E = 8, .k = 3, .sigmoid = true, .renormalize = true, .scale = 2.5f, .n_groups = 4, .k_groups = 2},
      .F_expert = 32,
      .F_shared = 64,
      .router_bias = true,
      .n_next = 1,
      .dense = {1, 0},
      .rope_theta = 1e4,
      .rope_rot = 8,
      .dtype = CLIME_F32,
      .bos_id = -1}},
    /* DeepSeek-V3's own keys; model_type as Kimi K2 has it */
    {DEEPSEEK("kimi_k2") ",\"q_lora_rank\":24,\"num_nextn_predict_layers\":1,\"scoring_func\":\"sigmoid\",\"topk_"
                         "method\":\"noaux_tc\","
                         "\"moe_layer_freq\":1,\"aux_loss_alpha\":0.001,\"seq_aux\":true,\"ep_size\":1,\"auto_map\":{"
                         "\"a\":\"b\"},"
                         "\"pretraining_tp\":1,\"max_position_embeddings\":163840" YARN(
                             ",\"mscale\":1.0,\"mscale_all_dim\":0.5,\"finetuned\":true") "}",
     {.family = CLIME_DEEPSEEK_V3,
      .HK = 4,
      .Dh = 24,
      .max_pos = 163840,
      .eps = 1e-6f,
      .latent = {32, 16, 8, 12},
      .q_rank = 24,
      .router = {.E = 8, .k = 3, .sigmoid = true, .renormalize = true, .scale = 2.5f, .n_groups = 4, .k_groups = 2},
      .F_expert = 32,
      .F_shared = 64,
      .router_bias = true,
      .n_next = 1,
      .dense = {1, 0},
      .rope_theta = 1e4,
      .rope_rot = 8,
      .rope_interleaved = true,
      .rope_scaling = {.factor = 40,
                       .original_max_pos = 4096,
                       .yarn = true,
                       .beta_fast = 32,
                       .beta_slow = 1,
                       .mscale = 1,
                       .mscale_all_dim = 0.5},
      .dtype = CLIME_F32,
      .bos_id = -1}},
    /* Moonlight, and what transformers writes besides */
    {DEEPSEEK("deepseek_v3") ",\"q_lora_rank\":null,\"head_dim\":8,\"qk_head_dim\":24,\"rope_interleave\":false}",
     {.family = CLIME_DEEPSEEK_V3,
      .HK = 4,
      .Dh = 24,
      .max_pos = 4096,
      .eps = 1e-6f,
      .latent = {32, 16, 8, 12},
      .router = {.E = 8, .k = 3, .sigmoid = true, .renormalize = true, .scale = 2.5f, .n_groups = 4, .k_groups = 2},
      .F_expert = 32,
      .F_shared = 64,
      .router_bias = true,
      .dense = {1, 0},
      .rope_theta = 1e4,
      .rope_rot = 8,
      .dtype = CLIME_F32,
      .bos_id = -1}},
    {GLM4_LITE ",\"mlp_layer_types\":[\"sparse\",\"dense\"],\"first_k_dense_replace\":1,\"rope_theta\":1000000,"
               "\"partial_rotary_factor\":1.0,\"topk_method\":\"noaux_tc\"}",
     {.family = CLIME_GLM4_MOE_LITE,
      .HK = 4,
      .Dh = 24,
      .max_pos = 202752,
      .eps = 1e-5f,
      .latent = {32, 16, 8, 12},
      .q_rank = 24,
      .router = {.E = 8, .k = 3, .sigmoid = true, .renormalize = true, .scale = 2.5f, .n_groups = 4, .k_groups = 2},
      .F_expert = 32,
      .F_shared = 64,
      .router_bias = true,
      .dense = {0, 1},
      .rope_theta = 1e6,
      .rope_rot = 8,
      .rope_interleaved = true,
      .dtype = CLIME_F32,
      .bos_id = -1}},
};

static void assert_same(const struct clime_config *a, const struct clime_config *b) {
    assert_int_equal(a->family, b->family);
    assert_int_equal(a->HK, b->HK);
    assert_int_equal(a->Dh, b->Dh);
    assert_int_equal(a->max_pos, b->max_pos);
    assert_true(a->eps == b->eps);
    assert_int_equal(a->tied, b->tied);
    assert_int_equal(a->qkv_bias, b->qkv_bias);
    assert_int_equal(a->o_bias, b->o_bias);
    assert_int_equal(a->qk_norm, b->qk_norm);
    assert_int_equal(a->post_norms, b->post_norms);
    assert_int_equal(a->fused_gate_up, b->fused_gate_up);
    assert_int_equal(a->router.E, b->router.E);
    assert_int_equal(a->router.k, b->router.k);
    assert_int_equal(a->router.sigmoid, b->router.sigmoid);
    assert_int_equal(a->router.renormalize, b->router.renormalize);
    assert_true(a->router.scale == b->router.scale);
    assert_int_equal(a->router.n_groups, b->router.n_groups);
    assert_int_equal(a->router.k_groups, b->router.k_groups);
    assert_int_equal(a->F_expert, b->F_expert);
    assert_int_equal(a->F_shared, b->F_shared);
    assert_int_equal(a->shared_gate, b->shared_gate);
    assert_int_equal(a->router_bias, b->router_bias);
    assert_int_equal(a->n_next, b->n_next);
    assert_memory_equal(a->dense, b->dense, sizeof a->dense);
    assert_memory_equal(&a->latent, &b->latent, sizeof a->latent);
    assert_int_equal(a->q_rank, b->q_rank);
    assert_true(a->rope_theta == b->rope_theta);
    assert_int_equal(a->rope_rot, b->rope_rot);
    assert_int_equal(a->rope_interleaved, b->rope_interleaved);
    assert_true(a->rope_scaling.factor == b->rope_scaling.factor);
    assert_true(a->rope_scaling.low_freq == b->rope_scaling.low_freq);
    assert_true(a->rope_scaling.high_freq == b->rope_scaling.high_freq);
    assert_int_equal(a->rope_scaling.original_max_pos, b->rope_scaling.original_max_pos);
    assert_int_equal(a->rope_scaling.yarn, b->rope_scaling.yarn);
    assert_true(a->rope_scaling.beta_fast == b->rope_scaling.beta_fast);
    assert_true(a->rope_scaling.beta_slow == b->rope_scaling.beta_slow);
    assert_true(a->rope_scaling.mscale == b->rope_scaling.mscale);
    assert_true(a->rope_scaling.mscale_all_dim == b->rope_scaling.mscale_all_dim);
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->bos_id, b->bos_id);
    assert_int_equal(a->n_eos, b->n_eos);
}

static void test_accepted(void **state) {
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(accepted); i++) {
        struct clime_config c, again;
        struct clime_error e = {0};
        if (load(accepted[i].json, &c, &e)) fail_msg("case %zu: %s", i, e.msg);
        assert_int_equal(c.D, 64);
        assert_int_equal(c.V, 96);
        assert_same(&c, &accepted[i].want);
        assert_int_equal(clime_config_check(&c, &e), CLIME_OK);
        assert_int_equal(clime_config_save(dir, &c, c.dtype, &e), CLIME_OK);
        if (clime_config_load(dir, &again, &e)) fail_msg("case %zu, written: %s", i, e.msg);
        assert_same(&c, &again);
    }
}

/* Put together by hand: what could not be read again is refused before it is written. */
static void test_check(void **state) {
    (void)state;
    struct clime_config c, good;
    struct clime_error e = {0};
    assert_int_equal(load(GLM4 "}", &good, &e), CLIME_OK);
    c = good;
    c.rope_rot = 25;
    assert_int_equal(clime_config_check(&c, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "25 rotating dimensions of 128"));
    c = good;
    c.eps = 0;
    assert_int_equal(clime_config_check(&c, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "rms_norm_eps must be a positive number"));
}

/* What is computed with is compared by the keys of config.json; how a folder stores it is not. */
static void test_compare(void **state) {
    (void)state;
    struct clime_config c, good;
    struct clime_error e = {0};
    for (size_t i = 0; i < CLIME_COUNT(accepted); i++) {
        assert_int_equal(load(accepted[i].json, &good, &e), CLIME_OK);
        c = good;
        c.dtype = c.dtype == CLIME_F32 ? CLIME_BF16 : CLIME_F32;
        c.max_pos++;
        c.n_eos = 0;
        c.bos_id = c.pad_id = -1;
        assert_int_equal(clime_config_compare("a", &c, "b", &good, &e), CLIME_OK);
        c.eps = 0.25f;
        assert_int_equal(clime_config_compare("a", &c, "b", &good, &e), CLIME_ERR_INPUT);
        assert_non_null(strstr(e.msg, "a has rms_norm_eps 0.25, b has "));
        c = good;
        c.rope_theta = 300;
        assert_int_equal(clime_config_compare("a", &c, "b", &good, &e), CLIME_ERR_INPUT);
        assert_non_null(strstr(e.msg, "a has rope_theta 300.0, b has "));
        c = good;
        c.rope_scaling.factor += 2;
        assert_int_equal(clime_config_compare("a", &c, "b", &good, &e), CLIME_ERR_INPUT);
        assert_non_null(strstr(e.msg, "rope_scaling"));
        if (!good.router.E) continue;
        c = good;
        c.router.k++;
        assert_int_equal(clime_config_compare("a", &c, "b", &good, &e), CLIME_ERR_INPUT);
        assert_non_null(strstr(e.msg, "num_experts_per_tok"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused), cmocka_unit_test(test_accepted),
                                       cmocka_unit_test(test_check), cmocka_unit_test(test_compare)};
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
