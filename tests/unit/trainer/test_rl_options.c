/* The options of rl: what is derived, what is passed on, what is refused and with which words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "trainer/options/rl_options.h"
#include "trainer/rollout/rollout_int.h"

#define BASE                                                                                                           \
    "--run r --hf-checkpoint m --prompt-data p --rollout-batch-size 8 --rollout-max-response-len 16 "                  \
    "--n-samples-per-prompt 2 "

/* Parses words separated by blanks. */
static enum clime_err parse(const char *words, struct clime_rl_options *o, struct clime_error *e) {
    static char text[2048];
    static char name[] = "rl";
    char *argv[128] = {name};
    int argc = 1;
    CHECK(strlen(words) < sizeof text);
    memcpy(text, words, strlen(words) + 1);
    for (char *at = text; *at;) {
        argv[argc++] = at;
        at += strcspn(at, " ");
        while (*at == ' ') *at++ = 0;
    }
    argv[argc] = NULL;
    *o = (struct clime_rl_options){0};
    return clime_rl_options_parse(argc, argv, o, e);
}

static void test_batch_is_derived(void **state) {
    static const struct {
        const char *words;
        int64_t batch, steps; /* 0 = refused */
        const char *says;
    } cases[] = {
        {"--num-rollout 1 --n-samples-per-prompt 4", 32, 1},
        {"--num-rollout 1 --n-samples-per-prompt 4 --global-batch-size 16", 16, 2},
        {"--num-rollout 1 --n-samples-per-prompt 4 --num-steps-per-rollout 4", 8, 4},
        {"--num-rollout 1 --global-batch-size 16 --num-steps-per-rollout 1", 16, 1},
        {"--num-rollout 1 --n-samples-per-prompt 4 --global-batch-size 16 --num-steps-per-rollout 1", 0, 0,
         "must equal"},
        {"--num-rollout 1 --num-steps-per-rollout 3", 0, 0, "no multiple of num-steps-per-rollout 3"},
        {"--num-rollout 1 --global-batch-size 5", 0, 0, "no multiple of global-batch-size 5"},
    };
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_rl_options o;
        struct clime_error e;
        char words[512];
        snprintf(words, sizeof words, BASE "%s", cases[i].words);
        enum clime_err rc = parse(words, &o, &e);
        assert_int_equal(rc, cases[i].batch ? CLIME_OK : CLIME_ERR_INPUT);
        if (rc)
            assert_non_null(strstr(e.msg, cases[i].says));
        else
            assert_true(o.global_batch_size == cases[i].batch && o.num_steps_per_rollout == cases[i].steps);
        clime_rl_options_free(&o);
    }
}

static void test_defaults_follow_others(void **state) {
    struct clime_rl_options o;
    struct clime_error e;
    (void)state;
    assert_int_equal(parse(BASE "--n-samples-per-prompt 1 --disable-rewards-normalization "
                                "--num-rollout 1 --eps-clip 0.3 --rollout-top-p 0.9 --rollout-max-context-len 64 "
                                "--label-key a --reward-key score --eval-temperature 0",
                           &o, &e),
                     CLIME_OK);
    assert_true(o.learner.objective.eps_clip_high == 0.3);
    assert_int_equal(o.rollout_max_prompt_len, 63);
    assert_true(o.eval_sampling.temperature == 0 && o.eval_sampling.top_p == 0.9);
    assert_int_equal(o.eval_sampling.max_response_len, 16);
    assert_string_equal(o.eval_label_key, "a");
    assert_string_equal(o.eval_reward_key, "score");
    assert_true(o.learner.objective.disable_grpo_std_normalization); /* one sample a prompt */
    clime_rl_options_free(&o);
}

static void test_words_for_servers_and_router(void **state) {
    struct clime_rl_options o;
    struct clime_error e;
    (void)state;
    assert_int_equal(parse(BASE "--num-rollout 1 --sglang-mem-fraction-static 0.7 --vllm-a --server-b=3 "
                                "--server-list 1 2 3 --router-policy random --sglang-server-concurrency 9",
                           &o, &e),
                     CLIME_OK);
    static const char *const server[] = {"--mem-fraction-static", "0.7", "--a", "--b=3", "--list", "1", "2", "3"};
    assert_int_equal(o.server_args.n, CLIME_COUNT(server));
    for (size_t i = 0; i < CLIME_COUNT(server); i++) assert_string_equal(o.server_args.items[i], server[i]);
    assert_int_equal(o.router_args.n, 2);
    assert_string_equal(o.router_args.items[0], "--policy");
    assert_int_equal(o.server_concurrency, 9);
    clime_rl_options_free(&o);
}

static void test_inert_and_refused(void **state) {
    static const struct {
        const char *words;
        const char *says; /* NULL = accepted */
    } cases[] = {
        {"--tensor-model-parallel-size 1 --sequence-parallel --kl-coef 0.00 --attention-backend flash", NULL},
        {"--num-layers 36 --swiglu --norm-epsilon 1e-6 --optimizer adam --hidden-dropout 0.0", NULL},
        {"--over-sampling-batch-size 8 --update-weights-interval 1 --balance-data", NULL},
        {"--over-sampling-batch-size 64 --dynamic-sampling-filter-path a.check_reward_nonzero_std "
         "--n-samples-per-prompt 2 "
         "--global-batch-size 16",
         NULL},
        {"--partial-rollout --mask-offpolicy-in-partial-rollout --buffer-filter pop_first", NULL},
        {"--partial-rollout --accept-order prompt", "timing decides"},
        {"--fully-async --max-staleness 2 --update-weights-interval 2", NULL},
        {"--fully-async --environment --rollout-max-context-len 9", NULL},
        {"--use-rollout-routing-replay", NULL},
        {"--use-rollout-routing-replay --load-debug-rollout-data x", "takes no experts over"},
        {"--fully-async --accept-order prompt", "timing decides"},
        {"--async --max-staleness 0", "--max-staleness 0 is below"},
        {"--update-weights-interval 2", "--update-weights-interval 2 needs --async: "},
        {"--update-weight-transport ipc --colocate",
         "--update-weight-transport ipc cannot be honoured with --colocate: "},
        {"--update-weight-transport nccl --update-weight-disk-dir d", "needs --update-weight-transport pull: "},
        {"--update-weight-transport pull --update-weight-disk-dir d", NULL},
        {"--page-control --page-port -1", "--page-control cannot be honoured with --page-port -1: "},
        {"--page-control --page-port 7", NULL},
        {"--fleet-api-key secret", "--fleet-api-key needs --router-url: "},
        {"--async --colocate", "they cannot generate meanwhile"},
        {"--async --update-weight-transport ipc", NULL},
        {"--n-samples-per-prompt 1 --dynamic-sampling-filter-path check_reward_nonzero_std", "no deviation"},
        {"--tensor-model-parallel-size 2", "--tensor-model-parallel-size 2 cannot be honoured"},
        {"--advantage-estimator gspo --kl-coef 0.1 --eps-clip-c 3 --use-tis --tis-clip-low 0.5 --opsm-delta 1", NULL},
        {"--advantage-estimator reinforce_plus_plus --normalize-advantages --gamma 0.9", NULL},
        {"--use-tis --custom-tis-function-path slime.backends.megatron_utils.loss.icepop_function", NULL},
        {"--use-rollout-logprobs --use-opsm", NULL},
        {"--advantage-estimator ppo --lambd 0.95 --gamma 0.99 --critic-lr 1 --num-critic-only-steps 2", NULL},
        {"--lambd 0.9", "--lambd has no meaning"},
        {"--num-critic-only-steps 1", "--num-critic-only-steps has no meaning"},
        {"--critic-load x", "--critic-load has no meaning"},
        {"--critic-lr 1e-3", "--critic-lr has no meaning"},
        {"--value-clip 0.2", "--value-clip has no meaning"},
        {"--advantage-estimator ppo --value-clip 0.3", NULL},
        {"--advantage-estimator gpro", "gpro is unknown: there are grpo"},
        {"--advantage-estimator reinforce_plus_plus", "needs --normalize-advantages"},
        {"--advantage-estimator rloo --n-samples-per-prompt 1", "compares a sample with others"},
        {"--n-samples-per-prompt 1", "every advantage would be 0"},
        {"--n-samples-per-prompt 1 --advantage-estimator reinforce_plus_plus_baseline --normalize-advantages",
         "every advantage would be 0"},
        {"--n-samples-per-prompt 1 --disable-rewards-normalization", NULL},
        {"--n-samples-per-prompt 1 --use-opd --opd-teacher-url http://x", NULL},
        {"--n-samples-per-prompt 1 --advantage-estimator reinforce_plus_plus --normalize-advantages", NULL},
        {"--n-samples-per-prompt 1 --debug-rollout-only", NULL},
        {"--gamma 0.9", "--gamma has no meaning"},
        {"--advantage-estimator rloo --n-samples-per-prompt 2 --disable-rewards-normalization",
         "subtracts no group mean"},
        {"--eps-clip-c 1", "--eps-clip-c must be above 1"},
        {"--kl-coef 0.1 --use-kl-loss --kl-loss-coef 0.1", "in the reward (--kl-coef) or in the loss"},
        {"--calculate-per-token-loss --loss-token-divisor 5", "one of --calculate-per-token-loss"},
        {"--use-tis --custom-tis-function-path mis.compute", "mis.compute cannot be honoured"},
        {"--use-tis --tis-clip 0.5 --tis-clip-low 0.5", "lower bound"},
        {"--use-tis --use-rollout-logprobs", "--use-rollout-logprobs: --use-tis"},
        {"--over-sampling-batch-size 4", "below --rollout-batch-size 8"},
        {"--rollout-sample-hook-path x.py", "Python"},
        {"--custom-generate-function-path x.so",
         "--custom-generate-function-path x.so needs --rollout-max-context-len"},
        {"--custom-generate-function-path x.so --rollout-max-context-len 9 --group-rm",
         "--group-rm cannot be honoured"},
        {"--custom-generate-function-path x.so --environment", "give one of"},
        {"--custom-generate-function-path x.so --rollout-max-context-len 9 --replay y --replay-generate",
         "--replay-generate cannot be honoured with --custom-generate-function-path"},
        {"--optimizer sgd", "--optimizer sgd"},
        {"--rollout-temperature 0", "--rollout-temperature: 0 is not between 1e-06 and"},
        {"--rollout-top-p 0.9 --rollout-top-k 20", NULL},
        {"--rollout-top-k 0", NULL},
        {"--eval-top-p 0.9 --eval-top-k 20", NULL},
        {"--allow-truncated-loss", "unknown option"},
        {"--use-dynamic-batch-size", "--max-tokens-per-gpu"},
        {"--eval-interval 3", "--eval-prompt-data"},
        {"--num-epoch 3", "one of --num-rollout and --num-epoch"},
        {"--n-sample-per-prompt 3", "did you mean --n-samples-per-prompt"},
        {"--router-url http://x --server-threads 2", "--threads is for servers that the trainer starts"},
    };
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_rl_options o;
        struct clime_error e = {0};
        char words[512];
        snprintf(words, sizeof words, BASE "--num-rollout 1 %s", cases[i].words);
        assert_int_equal(parse(words, &o, &e), cases[i].says ? CLIME_ERR_INPUT : CLIME_OK);
        if (cases[i].says) assert_non_null(strstr(e.msg, cases[i].says));
        clime_rl_options_free(&o);
    }
}

static void test_eval_explains_nothing(void **state) {
    char text[] = "eval\0--run\0r\0--hf-checkpoint\0m\0--eval-prompt-data\0p\0--eval-max-response-len\0"
                  "8\0--explain";
    char *argv[11] = {0};
    int argc = 0;
    (void)state;
    for (char *at = text; argc < 10; at += strlen(at) + 1) argv[argc++] = at;
    struct clime_rl_options o = {.evaluate = true};
    struct clime_error e = {0};
    assert_int_equal(clime_rl_options_parse(argc, argv, &o, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "--explain"));
    clime_rl_options_free(&o);
}

static void test_inert_options_are_explained(void **state) {
    struct clime_rl_options o;
    struct clime_error e;
    struct clime_buf b;
    (void)state;
    clime_buf_init(&b, 65536);
    assert_int_equal(parse(BASE "--num-rollout 1 --seed 7 --swiglu", &o, &e), CLIME_OK);
    clime_rl_inert_explain(&o, &b);
    assert_non_null(strstr(b.data, "--seed 7: "));
    assert_non_null(strstr(b.data, "--swiglu: the model's shape"));
    assert_null(strstr(b.data, "--bf16"));
    clime_buf_free(&b);
    clime_rl_options_free(&o);
}

static void test_deciding_options(void **state) {
    struct clime_rl_options a, b, c;
    struct clime_error e;
    (void)state;
    assert_int_equal(parse(BASE "--num-rollout 1", &a, &e), CLIME_OK);
    assert_int_equal(parse(BASE "--num-rollout 9 --num-servers 4 --threads 2 --save-interval 3", &b, &e), CLIME_OK);
    assert_int_equal(parse(BASE "--num-rollout 1 --lr 0.25 --use-tis --advantage-estimator cispo", &c, &e), CLIME_OK);
    assert_string_equal(a.options_json, b.options_json);
    assert_string_not_equal(a.options_json, c.options_json);
    assert_non_null(strstr(c.options_json, "\"lr\":0.25"));
    assert_non_null(strstr(c.options_json, "\"advantage-estimator\":\"cispo\""));
    assert_non_null(strstr(c.options_json, "\"use-tis\":true"));
    assert_non_null(strstr(c.options_json, "\"tis-clip\":2"));
    clime_rl_options_free(&b);
    clime_rl_options_free(&c);
    assert_int_equal(parse(BASE "--num-rollout 1 --use-rollout-routing-replay", &b, &e), CLIME_OK);
    assert_string_equal(a.options_json, b.options_json); /* no effect without in_place */
    clime_rl_options_free(&a);
    clime_rl_options_free(&b);
#define KEEPS BASE "--num-rollout 1 --fully-async --pause-generation-mode in_place "
    assert_int_equal(parse(KEEPS, &a, &e), CLIME_OK);
    assert_int_equal(parse(KEEPS "--use-rollout-routing-replay", &b, &e), CLIME_OK);
    assert_string_not_equal(a.options_json, b.options_json);
    clime_rl_options_free(&a);
    clime_rl_options_free(&b);
}

/* As mis.py has them: a mask without a lower bound ends at 1 / upper; a geometric mean has no mean over the batch. */
static void test_bounds_of_importance_weights(void **state) {
    static const struct {
        const char *words;
        double low; /* -1 = refused */
    } cases[] = {
        {"--use-tis", 0},
        {"--use-tis --tis-mode icepop", 0},
        {"--use-tis --tis-mode mask --tis-clip 4", 0.25},
        {"--use-tis --tis-mode mask --tis-clip 4 --tis-clip-low 0", 0},
        {"--use-tis --tis-mode mask --tis-clip 0.5", -1},
        {"--use-tis --tis-level sequence --tis-batch-normalize", 0},
        {"--use-tis --tis-level geometric --tis-batch-normalize", -1},
    };
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_rl_options o;
        struct clime_error e;
        char words[512];
        snprintf(words, sizeof words, BASE "--num-rollout 1 %s", cases[i].words);
        assert_int_equal(parse(words, &o, &e), cases[i].low < 0 ? CLIME_ERR_INPUT : CLIME_OK);
        if (cases[i].low >= 0) assert_true(o.learner.objective.correction.tis_low == cases[i].low);
        clime_rl_options_free(&o);
    }
}

/* A lease is over half an hour after its sample was sent, however many wait for their rewards: with 2 x 4,096 in flight
 * and 30 s for each of them it was 34 hours. */
static void test_times_of_a_lease(void **state) {
    (void)state;
    struct clime_rl_options o;
    struct clime_error e;
    int64_t made_us, graded_us;
    assert_int_equal(parse(BASE "--num-rollout 1 --server-concurrency 4096", &o, &e), CLIME_OK);
    clime_lease_times(&o, &made_us, &graded_us);
    assert_int_equal(made_us, 1810 * INT64_C(1000000));
    assert_int_equal(graded_us, 70 * INT64_C(1000000));
    clime_rl_options_free(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_is_derived),
        cmocka_unit_test(test_defaults_follow_others),
        cmocka_unit_test(test_words_for_servers_and_router),
        cmocka_unit_test(test_inert_and_refused),
        cmocka_unit_test(test_eval_explains_nothing),
        cmocka_unit_test(test_inert_options_are_explained),
        cmocka_unit_test(test_deciding_options),
        cmocka_unit_test(test_bounds_of_importance_weights),
        cmocka_unit_test(test_times_of_a_lease),
    };
    return cmocka_run_group_tests_name("rl_options", tests, NULL, NULL);
}
