/* Experts that lie whole on one of two ranks each, on GPUs: the logits of a GPU alone, bit for bit, in prefill by
 * pieces and decode, with experts chosen evenly and all rows one rank's; with rows that go home by ranges which the
 * devices read (kernels/cuda/links/home.cu) and by NCCL, where the host waits for them; and rows of every expert on
 * both ranks, beside them. tests/gpu/gap.py has the same of the programs, steps recorded.
 *
 * Two ranks on one GPU where there is no second. CUDA does not live through fork: every group is a family of its own.
 */
#include <sys/mman.h>

#include "common/log.h"
#include "tests/unit/model/shared_model.h"

struct shared { /* what a rank 0 has said; memory of all families */
    float logits[MAX_LOGITS];
    int n;
};

static int wait_for(pid_t pid) {
    int status;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

static int count_gpus(void) {
    int n = 0;
    for (; n < 2; n++) {
        pid_t pid = fork();
        if (pid == 0) {
            const struct clime_dev_options o = {.dt = CLIME_BF16, .gpu = n};
            const struct clime_ops *ops;
            struct clime_dev *d;
            if (clime_ops_choose("cuda", &ops, NULL) || ops->open(&o, &d, NULL)) _exit(1);
            ops->close(d);
            _exit(0);
        }
        if (wait_for(pid)) break;
    }
    return n;
}

static int family(struct run *r, int world) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        struct ranks all;
        ranks_fork(&all, world, shared_model, r);
        int own = shared_model(&all.place, r), bad = 0;
        for (int i = 1; own && i < world; i++) kill(all.pid[i], SIGKILL); /* they may wait for this one */
        for (int i = 1; i < world; i++) bad |= ranks_end(&all, i);
        _exit(own || bad);
    }
    return wait_for(pid);
}

int main(void) {
    static const char *const models[] = {"qwen3_moe", "glm4_moe", "deepseek_v3"};
    static const struct {
        const char *name;
        int world;
        bool whole;
        enum clime_links_way links;
    } ways[] = {{"alone", 1, false, CLIME_LINKS_AUTO},
                {"over 2 ranks", 2, false, CLIME_LINKS_MAPPED},
                {"over 2 ranks, whole experts", 2, true, CLIME_LINKS_MAPPED},
                {"over 2 ranks by NCCL, whole experts", 2, true, CLIME_LINKS_NCCL}};
    int n_gpus = count_gpus(), failed = 0;
    if (!n_gpus) return 77;
    clime_log_open("test", CLIME_LOG_ERROR);
    struct shared *of = mmap(NULL, 2 * sizeof *of, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(of != MAP_FAILED);
    for (size_t i = 0; i < CLIME_COUNT(models); i++) {
        for (size_t k = 0; k < CLIME_COUNT(ways); k++) {
            struct shared *said = &of[k > 0];
            struct run r = {models[i], "cuda", "bf16", n_gpus, ways[k].whole, ways[k].links, said->logits, &said->n};
            if (ways[k].links == CLIME_LINKS_NCCL && n_gpus < 2) continue; /* which takes a GPU once */
            said->n = 0;
            int status = family(&r, ways[k].world), first = 0;
            while (first < of[0].n && memcmp(&of[0].logits[first], &said->logits[first], sizeof(float)) == 0) first++;
            bool same = !status && said->n > 0 && said->n == of[0].n && first == of[0].n;
            failed += !same;
            printf("%s: %s %s: %d logits\n", same ? "ok" : "FAILED", models[i], ways[k].name, said->n);
            if (!same) printf("  ended with %d; the first of %d that differs: %d\n", status, of[0].n, first);
        }
    }
    printf("%d failed, on %d GPUs\n", failed, n_gpus);
    return failed ? 1 : 0;
}
