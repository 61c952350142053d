/* Decode and prefill over several GPUs as the server runs them, leader and followers, beside one GPU in the same run;
 * of a model with experts also with whole ones:
 *
 *     build/gpu/bench_ranks [RANKS [LAYERS [qwen3-32b|qwen3-30b-a3b|moonlight]]]
 *
 * Random weights, 16 of the layers unless told otherwise (all of qwen3-32b's fit one H200). CUDA
 * does not live through fork, so this process never opens a GPU: every number of ranks is a family of its own. */
#include "common/log.h"
#include "server/engine/obey.h"
#include "tests/gpu/bench_decode.h"
#include "tests/gpu/bench_shapes.h"
#include "tests/unit/ranks.h"

static struct clime_config shape;

static void open_dev(int gpu) {
    const struct clime_dev_options o = {.dt = CLIME_BF16, .gpu = gpu, .deterministic = true};
    struct clime_error e;
    clime_log_open("bench", CLIME_LOG_WARN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (clime_ops_choose("cuda", &ops, &e) || ops->open(&o, &dev, &e)) {
        printf("%s\n", e.msg);
        exit(1);
    }
}

static int lead(struct clime_model *m, struct clime_group *g, struct clime_links *links, int64_t limit_us) {
    struct clime_followers *f = xcalloc(1, sizeof *f);
    *f = (struct clime_followers){.group = g, .links = links, .model = m, .world = m->ranks.n, .limit_us = limit_us};
    clime_buf_init(&f->wire, CLIME_FOLLOW_BYTES);
    bench_decode(m, f, true, true, "overlapped");
    clime_followers_close(f);
    return 0;
}

static int one_of_them(const struct clime_place *p, void *whole_experts) {
    const struct clime_group_options o = ranks_options(p, RANKS_LONG_US);
    struct clime_error e;
    struct clime_group *g;
    struct clime_links *links;
    open_dev(p->rank);
    if (p->rank == 0) bench_ceilings();
    struct clime_model *m = make_model(&shape, p->rank, p->world, *(bool *)whole_experts);
    if (clime_group_meet(&o, &g, &e) || clime_links_open(ops, dev, g, &links, &e)) {
        printf("%s\n", e.msg);
        return 1;
    }
    clime_model_link(m, links);
    if (p->rank == 0) return lead(m, g, links, RANKS_LONG_US);
    int rc = clime_follow_obey(m, open_runner(m, true, (int)CLIME_COUNT(DECODED)), g, &e) != CLIME_OK;
    if (rc) printf("rank %d: %s\n", p->rank, e.msg);
    if (rc) clime_group_fail(g, &e);
    return rc;
}

static int alone(void) {
    open_dev(0);
    bench_ceilings();
    struct clime_model *m = make_model(&shape, 0, 1, false);
    bench_decode(m, NULL, true, true, "overlapped");
    return 0;
}

static int family(int world, bool whole_experts) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        struct ranks r;
        int bad = 0;
        if (world == 1) exit(alone());
        ranks_fork(&r, world, one_of_them, &whole_experts);
        int own = one_of_them(&r.place, &whole_experts);
        for (int i = 1; i < world; i++) bad |= ranks_end(&r, i);
        exit(own || bad);
    }
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

int main(int argc, char **argv) {
    int most = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2, failed = 0;
    const char *name = argc > 3 ? argv[3] : "qwen3-32b";
    shape = !strcmp(name, "moonlight") ? MOONLIGHT : !strcmp(name, "qwen3-30b-a3b") ? QWEN3_30B_A3B : QWEN3_32B;
    shape.L = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 16;
    for (int world = 1; world <= most; world *= 2)
        for (int whole = 0; whole <= (world > 1 && shape.router.E > 0); whole++) {
            printf("%s, %d GPU%s%s, %d layers\n", name, world, world > 1 ? "s" : "", whole ? ", whole experts" : "",
                   shape.L);
            fflush(stdout);
            failed += family(world, whole) != 0;
        }
    return failed ? 1 : 0;
}
