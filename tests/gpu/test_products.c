/* The library's products against clime's plain kernel, every output of them: at the shapes of real models, at more
 * shapes than a table would hold, and over a library that errs where tiles are many (erring_lt.c). An operand that is
 * not aligned to 16 bytes leaves the plain kernel alone. */
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/log.h"
#include "tests/gpu/gpu_test.h"

#define ERRING "CLIME_REAL_CUBLASLT"

enum { ASIDE = 8 }; /* bytes that put an operand off the library's alignment */

/* n values on the GPU alone, twice: aligned and aside. */
struct twice {
    char *aligned, *aside;
};

static struct twice twice_noise(struct gpu_test *t, size_t n, double scale) {
    enum { BLOCK = (1 << 20) - 296 };
    struct twice w = {side_alloc(&t->gpu, n * 2), side_alloc(&t->gpu, n * 2 + ASIDE)};
    struct both block = both_random(t, n < BLOCK ? n : BLOCK, CLIME_BF16, scale);
    for (size_t at = 0; at < n; at += BLOCK)
        t->gpu.ops->copy(t->gpu.dev, w.aligned + at * 2, block.gpu, (n - at < BLOCK ? n - at : BLOCK) * 2);
    w.aside += ASIDE;
    t->gpu.ops->copy(t->gpu.dev, w.aside, w.aligned, n * 2);
    both_free(t, &block);
    return w;
}

static void twice_free(struct gpu_test *t, struct twice *w) {
    t->gpu.ops->free(t->gpu.dev, w->aligned);
    t->gpu.ops->free(t->gpu.dev, w->aside - ASIDE);
}

/* The four products of a layer's matrix of N x K over T rows; loss rows have fp32 outputs. */
static void compare_shape(struct gpu_test *t, int T, int N, int K) {
    const struct clime_ops *ops = t->gpu.ops;
    struct clime_dev *d = t->gpu.dev;
    size_t TN = (size_t)T * (size_t)N, TK = (size_t)T * (size_t)K, NK = (size_t)N * (size_t)K;
    size_t most = 4 * (TN > TK ? TN > NK ? TN : NK : TK > NK ? TK : NK);
    struct twice x = twice_noise(t, TK, 1), dy = twice_noise(t, TN, 1);
    struct twice w = twice_noise(t, NK, 0.05);
    char *want = side_alloc(&t->gpu, most), *got = side_alloc(&t->gpu, most), what[64];
    struct clime_matrix m = {N, K, w.aligned, NULL};
    for (int f32 = 0; f32 < 2; f32++) {
        enum clime_dtype out = f32 ? CLIME_F32 : CLIME_BF16;
        ops->gemm(d, out, T, x.aside, &m, want);
        ops->gemm(d, out, T, x.aligned, &m, got);
        snprintf(what, sizeof what, "T %d N %d K %d, %s:", T, N, K, f32 ? "fp32" : "bf16");
        same_bits(t, what, want, got, TN * (f32 ? 4 : 2));
    }
    ops->gemm_dx(d, T, dy.aside, &m, want);
    ops->gemm_dx(d, T, dy.aligned, &m, got);
    snprintf(what, sizeof what, "T %d N %d K %d, dX:", T, N, K);
    same_bits(t, what, want, got, TK * 2);
    ops->zero(d, want, NK * 4);
    ops->zero(d, got, NK * 4);
    ops->gemm_dw(d, T, N, K, dy.aside, x.aside, true, (float *)want);
    ops->gemm_dw(d, T, N, K, dy.aligned, x.aligned, true, (float *)got);
    snprintf(what, sizeof what, "T %d N %d K %d, dW:", T, N, K);
    same_bits(t, what, want, got, NK * 4);
    ops->free(d, want);
    ops->free(d, got);
    twice_free(t, &x);
    twice_free(t, &dy);
    twice_free(t, &w);
}

/* Most and fewest rows of a bucket, one between, and a shape whose tiles are about two waves. */
static void test_real_shapes(struct gpu_test *t) {
    static const int SHAPES[][3] = {{8192, 6144, 2560},  {4097, 6144, 2560}, {5000, 2560, 9728}, {1100, 4608, 4096},
                                    {2048, 4096, 13696}, {250, 1280, 8192},  {500, 640, 25600},  {300, 151936, 2560}};
    for (size_t i = 0; i < CLIME_COUNT(SHAPES); i++) {
        printf("every output, T %d N %d K %d\n", SHAPES[i][0], SHAPES[i][1], SHAPES[i][2]);
        compare_shape(t, SHAPES[i][0], SHAPES[i][1], SHAPES[i][2]);
    }
}

static int count_lines(const char *path, const char *with) {
    FILE *f = fopen(path, "r");
    char line[512];
    int n = 0;
    while (f && fgets(line, sizeof line, f)) n += strstr(line, with) != NULL;
    if (f) fclose(f);
    return n;
}

/* 600 shapes: each is tried once, has the library's algorithm or a warning of its own, and keeps it. */
static void test_many_shapes(struct gpu_test *t) {
    enum { SIDE_N = 25, SIDE_K = 24, T = 320, MOST_N = 64 + 8 * SIDE_N, MOST_K = 64 + 8 * SIDE_K };
    const struct clime_ops *ops = t->gpu.ops;
    struct clime_dev *d = t->gpu.dev;
    char path[] = "/tmp/clime_products_XXXXXX", detail[96];
    int log = mkstemp(path), terminal = dup(2), n_used[2] = {0}, n_plain[2] = {0};
    printf("%d shapes\n", SIDE_N * SIDE_K);
    struct twice x = twice_noise(t, T * MOST_K, 1), w = twice_noise(t, MOST_N * MOST_K, 0.05);
    char *want = side_alloc(&t->gpu, T * MOST_N * 4), *got = side_alloc(&t->gpu, T * MOST_N * 4);
    clime_log_open("test", CLIME_LOG_DEBUG);
    dup2(log, 2);
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < SIDE_N * SIDE_K; i++) {
            int N = 64 + 8 * (i % SIDE_N), K = 64 + 8 * (i / SIDE_N);
            struct clime_matrix m = {N, K, w.aligned, NULL};
            ops->gemm(d, CLIME_F32, T, x.aside, &m, want);
            ops->gemm(d, CLIME_F32, T, x.aligned, &m, got);
            same_bits(t, "one of many shapes:", want, got, (size_t)T * (size_t)N * 4);
        }
        n_used[again] = count_lines(path, "library algorithm");
        n_plain[again] = count_lines(path, "none of its algorithms");
    }
    dup2(terminal, 2);
    clime_log_open("test", CLIME_LOG_WARN);
    close(log);
    close(terminal);
    unlink(path);
    snprintf(detail, sizeof detail, "%d by the library, %d said to be slow", n_used[0], n_plain[0]);
    printf("%s\n", detail);
    check(t, n_used[0] + n_plain[0] == SIDE_N * SIDE_K && n_used[0] > 512, "each shape has its algorithm:", detail);
    check(t, n_used[1] == n_used[0] && n_plain[1] == n_plain[0], "no shape is tried twice:", detail);
    ops->free(d, want);
    ops->free(d, got);
    twice_free(t, &x);
    twice_free(t, &w);
}

/* In a process over erring_lt.c: the first algorithm errs in one tile of many, so the check must refuse it. */
static int over_erring_library(void) {
    static const int SHAPES[][3] = {{8192, 6144, 2560}, {2048, 19456, 2560}, {3000, 4096, 4096}};
    struct gpu_test t;
    gpu_test_open(&t);
    for (size_t i = 0; i < CLIME_COUNT(SHAPES); i++) compare_shape(&t, SHAPES[i][0], SHAPES[i][1], SHAPES[i][2]);
    void *library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_NOLOAD);
    int (*spoiled)(void) = NULL;
    if (library) *(void **)&spoiled = dlsym(library, "erring_lt_spoiled");
    int n = spoiled ? spoiled() : 0;
    printf("%d products spoiled\n", n);
    check(&t, n > 0, "the library errs where it was to", "");
    return gpu_test_close(&t);
}

/* Where the library lies that this process has open. */
static bool library_path(char *out, size_t cap) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024], *found = NULL;
    while (maps && !found && fgets(line, sizeof line, maps))
        if (strstr(line, "libcublasLt.so")) found = strchr(line, '/');
    if (found) snprintf(out, cap, "%.*s", (int)strcspn(found, "\n"), found);
    if (maps) fclose(maps);
    return found != NULL;
}

static void test_erring_library(struct gpu_test *t, const char *self) {
    char real[1024], folders[2048];
    const char *slash = strrchr(self, '/'), *others = getenv("LD_LIBRARY_PATH");
    printf("a library that errs where tiles are many\n");
    if (!library_path(real, sizeof real)) {
        check(t, false, "cuBLASLt is open", "");
        return;
    }
    snprintf(folders, sizeof folders, "%.*s/erring:%s", slash ? (int)(slash - self) : 1, slash ? self : ".",
             others ? others : "");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setenv(ERRING, real, 1);
        setenv("LD_LIBRARY_PATH", folders, 1);
        execl("/proc/self/exe", self, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    if (child > 0) waitpid(child, &status, 0);
    check(t, status == 0, "over a library that errs", "");
}

int main(int argc, char **argv) {
    (void)argc;
    if (getenv(ERRING)) return over_erring_library();
    struct gpu_test t;
    gpu_test_open(&t);
    test_real_shapes(&t);
    test_many_shapes(&t);
    test_erring_library(&t, argv[0]);
    return gpu_test_close(&t);
}
