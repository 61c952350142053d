/* Model configuration, read from a Hugging Face config.json. A family is a line here, a row in config.c and a map of
 * tensor names (model/weights/layout.c). Immutable after loading; any thread. */
#ifndef CLIME_MODEL_CONFIG_CONFIG_H
#define CLIME_MODEL_CONFIG_CONFIG_H

#include <stdint.h>

#include "common/err.h"
#include "common/json/facts.h"
#include "kernels/kernels.h"

/* Every family: its constant, and config.json's model_type and architecture. config.c has its facts. */
#define CLIME_FAMILIES(row)                                                                                            \
    row(CLIME_QWEN3, "qwen3", "Qwen3ForCausalLM") row(CLIME_QWEN2, "qwen2", "Qwen2ForCausalLM")                        \
        row(CLIME_LLAMA, "llama", "LlamaForCausalLM") row(CLIME_GLM4, "glm4", "Glm4ForCausalLM")                       \
            row(CLIME_QWEN3_MOE, "qwen3_moe", "Qwen3MoeForCausalLM")                                                   \
                row(CLIME_QWEN2_MOE, "qwen2_moe", "Qwen2MoeForCausalLM")                                               \
                    row(CLIME_GLM4_MOE, "glm4_moe", "Glm4MoeForCausalLM")                                              \
                        row(CLIME_DEEPSEEK_V3, "deepseek_v3", "DeepseekV3ForCausalLM")                                 \
                            row(CLIME_GLM4_MOE_LITE, "glm4_moe_lite", "Glm4MoeLiteForCausalLM")

#define CLIME_FAMILY_ID(id, model_type, architecture) id,
enum clime_family { CLIME_FAMILIES(CLIME_FAMILY_ID) };

struct clime_family_names {
    const char *model_type, *architecture;
};
extern const struct clime_family_names clime_families[]; /* by enum clime_family */

/* What a family fixes, and what transformers' configuration class assumes when a key is absent. */
struct clime_family_facts {
    int head_dim; /* 0 = hidden_size / num_attention_heads */
    int max_pos;
    float eps;
    double rotary_factor;
    bool partial; /* may be less than 1 */
    bool qk_norm, post_norms, fused_gate_up;
    bool interleaved;     /* latent attention: unless rope_interleave says otherwise */
    bool qkv_bias;        /* when bias_key is absent or NULL */
    const char *bias_key; /* the key for a bias on q, k and v; NULL: none */
    bool o_bias;          /* also on the output projection */
    bool latent;          /* latent attention */
    bool experts;
    bool sigmoid;     /* DeepSeek's router: a bias for the choice only, groups; and a shared expert */
    bool shared_gate; /* a shared expert with its own width and gate */
};
const struct clime_family_facts *clime_family_facts(enum clime_family f);

/* "qwen3|qwen2|...", in the same order. */
#define CLIME_FAMILY_WORD(id, model_type, architecture) "|" model_type
#define CLIME_FAMILY_WORDS (CLIME_FAMILIES(CLIME_FAMILY_WORD) + 1)

#define CLIME_MAX_EOS 8
#define CLIME_MAX_LAYERS 1024
#define CLIME_MAX_POSITIONS (1 << 22) /* of a sequence */

struct clime_config {
    enum clime_family family;
    char architecture[64]; /* "Qwen3ForCausalLM" */
    char model_type[32];   /* "qwen3" */
    int D, L, H, HK, Dh, F, V;
    int max_pos; /* max_position_embeddings */
    float eps;
    bool tied;          /* lm_head is the embedding */
    bool qkv_bias;      /* Qwen2 always, others by attention_bias */
    bool o_bias;        /* Llama and Qwen3 with attention_bias: on the output projection too */
    bool qk_norm;       /* Qwen3, some GLM-4.5 */
    bool post_norms;    /* GLM-4: norms after attention and MLP too */
    bool fused_gate_up; /* GLM-4: the checkpoint holds gate_up_proj */
    /* Experts: every layer except the dense ones has router.E; 0 = a dense family. */
    struct clime_router router;
    int F_expert, F_shared; /* widths of one expert and of the shared one (0 = none) */
    bool shared_gate;       /* Qwen2: the shared expert's output is multiplied by sigmoid(w . x) */
    bool router_bias;       /* a bias is added to the scores for the choice only */
    int n_next;             /* layers after the last that predict further tokens: skipped */
    uint8_t dense[CLIME_MAX_LAYERS];
    struct clime_latent latent; /* R = 0: attention has its own keys and values. Else HK = H, Dh = Dn + Dr of a query */
    int q_rank;                 /* width of latent attention's compressed query; 0 = not compressed */
    double rope_theta;
    int rope_rot; /* rotated dimensions of a head (partial_rotary_factor) */
    bool rope_interleaved;
    struct { /* rope_scaling of type llama3 or yarn; factor 0 = none. Other types are refused by name. */
        double factor, low_freq, high_freq;
        int original_max_pos;
        bool yarn;                     /* then not low_freq, high_freq, but: */
        double beta_fast, beta_slow;   /* turns over original_max_pos: faster ones are kept, slower ones scaled */
        double mscale, mscale_all_dim; /* 0 = absent */
    } rope_scaling;
    bool fp8;               /* the checkpoint's matrices are FP8 in blocks; written ones are not */
    enum clime_dtype dtype; /* of the checkpoint according to config.json; fp16 is read as fp32 */
    int bos_id, pad_id;     /* -1 = none */
    int eos_ids[CLIME_MAX_EOS], n_eos;
};

static inline bool clime_config_has_experts(const struct clime_config *c, int layer) {
    return c->router.E > 0 && !c->dense[layer];
}

/* Reads DIR/config.json. CLIME_ERR_INPUT names the unknown field or architecture. */
enum clime_err clime_config_load(const char *dir, struct clime_config *out, struct clime_error *e);

/* Checks a configuration that was constructed, not loaded: load accepts what save would write. CLIME_ERR_INPUT names
 * the field that is out of range. */
enum clime_err clime_config_check(const struct clime_config *c, struct clime_error *e);

/* Writes DIR/config.json so that transformers loads it. dtype: the type of the weights next to it. */
enum clime_err clime_config_save(const char *dir, const struct clime_config *c, enum clime_dtype dtype,
                                 struct clime_error *e);

/* Everything that affects results, by the keys of config.json; those of rope_scaling as "rope_scaling.KEY". */
void clime_config_facts(const struct clime_config *c, struct clime_facts *out);
/* Whether two configurations compute the same: CLIME_ERR_INPUT with the first key that differs and both values. */
enum clime_err clime_config_compare(const char *a_name, const struct clime_config *a, const char *b_name,
                                    const struct clime_config *b, struct clime_error *e);

#endif
