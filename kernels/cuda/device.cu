/* The CUDA context: open, memory, copies, sync. Called by the context's owner thread.
 *
 * All memory comes from cudaMalloc (CUDA IPC needs it for weights). A device older than sm_90 is refused: its library's
 * GEMMs are not row-invariant (docs/numerics.md). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/links.cuh"
#include "kernels/cuda/ops.h"

extern "C" {
#include "common/log.h"
}

enum { STAGE_BYTES = 32 << 20 }; /* enough for two steps' sets of ids of 64 sequences */

bool clime_cuda_ok(struct clime_dev *d, cudaError_t rc, const char *what) {
    if (rc == cudaSuccess) return d->failure.code == CLIME_OK;
    if (d->failure.code == CLIME_OK)
        clime_fail(&d->failure, CLIME_ERR_DEVICE, "CUDA failed in %s: %s", what, cudaGetErrorString(rc));
    return false;
}

/* Waits until the work before the event has run, or with NULL all work. */
static bool wait_for(struct clime_dev *d, cudaEvent_t event) {
    if (d->links) return clime_cuda_links_wait(d->links, event);
    return event ? CU(d, cudaEventSynchronize(event)) : CU(d, cudaStreamSynchronize(d->stream));
}

bool clime_cuda_wait(struct clime_dev *d) {
    return wait_for(d, NULL);
}

/* A graph may hold its address: then it is kept. */
static void drop_scratch(struct clime_dev *d) {
    CHECK(!d->recording); /* recorded operations have run before */
    if (d->links) clime_cuda_links_drain(d->links);
    clime_cuda_wait(d);
    CHECK(d->n_outgrown < (int)CLIME_COUNT(d->outgrown));
    if (d->n_graphs > 0)
        d->outgrown[d->n_outgrown++] = d->scratch;
    else
        cudaFree(d->scratch);
    d->scratch = NULL;
    d->scratch_bytes = 0;
}

void *clime_cuda_scratch(struct clime_dev *d, size_t bytes) {
    if (bytes <= d->scratch_bytes) return d->scratch;
    if (d->n_graphs > 0 && bytes < 2 * d->scratch_bytes) bytes = 2 * d->scratch_bytes; /* few are kept */
    drop_scratch(d);
    if (!CU(d, cudaMalloc(&d->scratch, bytes))) return NULL;
    d->scratch_bytes = bytes;
    return d->scratch;
}

static size_t stats_scratch(const struct clime_scratch_shape *s) { /* for pieces of the vocabulary */
    return (size_t)s->R * ((size_t)s->V / 1024 + 1) * sizeof(float4);
}

static size_t server_scratch(const struct clime_scratch_shape *s) {
    const size_t needs[] = {stats_scratch(s), clime_cuda_attn_scratch(&s->heads, s->n_seq, s->max_len),
                            clime_cuda_draw_scratch(s->R, s->V, s->max_len), clime_cuda_list_scratch(s->R)};
    size_t most = 0;
    for (size_t need : needs) most = need > most ? need : most;
    return most;
}

/* The upper bound of every clime_cuda_scratch call of a step, operation by operation. A request beyond the reservation
 * still succeeds while memory is left, but the plan is then wrong: tests/gpu/test_model checks this. */
size_t clime_cuda_scratch_bytes(const struct clime_scratch_shape *s) {
    if (s->n_seq > 0) return server_scratch(s);
    size_t T = (size_t)s->T, chunks = T < MOST_CHUNKS ? T : MOST_CHUNKS,
           qkv = (size_t)(s->heads.H + 2 * s->heads.HK) * (size_t)s->heads.Dh, D = (size_t)s->D;
    const size_t needs[] = {
        2 * T * qkv * sizeof(float),                  /* attention: splits, or fp32 sums and delta */
        chunks * (D > qkv ? D : qkv) * sizeof(float), /* partial sums of the weight gradients of norms and of biases */
        clime_cuda_latent_scratch(&s->heads, 0, 0),
        clime_cuda_latent_bwd_scratch(&s->heads, s->T),
        stats_scratch(s),
        clime_cuda_keep_scratch(s->R, s->V),
        (s->n / 32768 + 1) * sizeof(double), /* partial sums of the norm of the gradient */
    };
    size_t most = 0;
    for (size_t need : needs) most = need > most ? need : most;
    return most;
}

enum clime_err clime_cuda_reserve_scratch(struct clime_dev *d, size_t bytes, struct clime_error *e) {
    if (bytes <= d->scratch_bytes) return CLIME_OK;
    drop_scratch(d);
    enum clime_err rc = clime_cuda_alloc(d, bytes, "scratch", &d->scratch, e);
    if (!rc)
        d->scratch_bytes = bytes;
    else
        d->scratch = NULL;
    return rc;
}

/* With CLIME_SHARE_GPUS set GPU numbers wrap around, so that tests have more ranks than GPUs. */
static int shared_gpu(int gpu, int n) {
    const char *share = getenv("CLIME_SHARE_GPUS");
    return share && *share ? gpu % n : gpu;
}

/* prop.name and multiProcessorCount of a usable GPU, and its number. */
static enum clime_err find_gpu(int gpu, int *found, cudaDeviceProp *prop, struct clime_error *e) {
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess || n == 0)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "no GPU answers: %s",
                          rc == cudaSuccess ? "none is installed" : cudaGetErrorString(rc));
    *found = gpu = shared_gpu(gpu, n);
    if (gpu < 0 || gpu >= n) return clime_fail(e, CLIME_ERR_INPUT, "GPU %d does not exist; there are %d", gpu, n);
    if ((rc = cudaGetDeviceProperties(prop, gpu)) != cudaSuccess)
        return clime_fail(e, CLIME_ERR_DEVICE, "GPU %d does not answer: %s", gpu, cudaGetErrorString(rc));
    if (prop->major < 9)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "GPU %d is %s (sm_%d%d); clime's kernels need sm_90 or newer", gpu,
                          prop->name, prop->major, prop->minor);
    return CLIME_OK;
}

enum clime_err clime_cuda_probe(int gpu, struct clime_error *e) {
    cudaDeviceProp prop;
    int found;
    return find_gpu(gpu, &found, &prop, e);
}

/* Blocks of a decode step wait for each other's words (words.cuh), so all of them must run: a kernel needs the GPU, or
 * its time slice, for itself. Under MPS another process's blocks run between them, and two such kernels deadlock. */
static enum clime_err refuse_mps(int gpu, struct clime_error *e) {
    const cudaDeviceAttr mps_enabled = (cudaDeviceAttr)133; /* cudaDevAttrMpsEnabled, missing in old headers */
    int enabled = 0;
    if (cudaDeviceGetAttribute(&enabled, mps_enabled, gpu) != cudaSuccess) cudaGetLastError(); /* an old driver */
    if (!enabled) return CLIME_OK;
    return clime_fail(
        e, CLIME_ERR_UNAVAILABLE,
        "GPU %d is shared through CUDA MPS, where kernels of two processes that wait for their own blocks "
        "would wait for ever: stop its daemon (echo quit | nvidia-cuda-mps-control), or start this "
        "program with CUDA_MPS_PIPE_DIRECTORY=/nowhere; processes then take turns",
        gpu);
}

enum clime_err clime_cuda_open(const struct clime_dev_options *o, struct clime_dev **out, struct clime_error *e) {
    cudaDeviceProp prop;
    int gpu = 0;
    enum clime_err err = find_gpu(o->gpu, &gpu, &prop, e);
    if (err) return err;
    if (gpu != o->gpu) LOG_WARN("GPU %d is GPU %d (CLIME_SHARE_GPUS): ranks share it, for checks alone", o->gpu, gpu);
    if (o->dt != CLIME_BF16)
        return clime_fail(e, CLIME_ERR_INPUT, "the CUDA table computes in bf16; give --dtype bf16");
    if ((err = refuse_mps(gpu, e))) return err;
    cudaError_t rc = cudaSetDevice(gpu);
    if (rc != cudaSuccess)
        return clime_fail(e, CLIME_ERR_DEVICE, "GPU %d does not open: %s", gpu, cudaGetErrorString(rc));

    struct clime_dev *d = (struct clime_dev *)xcalloc(1, sizeof *d);
    d->head.ops = &clime_cuda_ops;
    d->head.dt = o->dt;
    snprintf(d->head.name, sizeof d->head.name, "cuda %.56s", prop.name);
    clime_cuda_unit(&prop, d->head.unit);
    d->gpu = gpu;
    d->n_sm = prop.multiProcessorCount;
    d->deterministic = o->deterministic;
    d->links_way = o->links;
    CU(d, cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
    for (cudaEvent_t &mark : d->copied) CU(d, cudaEventCreateWithFlags(&mark, cudaEventDisableTiming));
    CU(d, cudaMallocHost((void **)&d->h_stage, STAGE_BYTES));
    clime_cuda_gemm_small_open(d);
    clime_cuda_words_open(d);
    clime_cuda_row_open(d);
    clime_cuda_grouped_tiles_open(d);
    clime_cuda_grouped_rows_open(d);
    clime_cuda_rope_open(d);
    clime_cuda_attn_open(d);
    clime_cuda_attn_bwd_open(d);
    clime_cuda_heads_open(d);
    clime_lt_open(d);
    if (d->failure.code != CLIME_OK) {
        if (e) *e = d->failure;
        clime_cuda_close(d);
        return CLIME_ERR_DEVICE;
    }
    *out = d;
    return CLIME_OK;
}

void clime_cuda_close(struct clime_dev *d) {
    if (!d) return;
    clime_lt_close(d);
    clime_cuda_row_close(d);
    clime_cuda_words_close(d);
    cudaFree(d->ended);
    clime_cuda_rope_close(d);
    for (int i = 0; i < d->n_outgrown; i++) cudaFree(d->outgrown[i]);
    cudaFree(d->scratch);
    cudaFree(d->ticket);
    cudaFreeHost(d->h_stage);
    free(d->h_draw);
    for (cudaEvent_t mark : d->copied)
        if (mark) cudaEventDestroy(mark);
    if (d->stream) cudaStreamDestroy(d->stream);
    free(d);
}

enum clime_err clime_cuda_alloc(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                struct clime_error *e) {
    (void)d;
    cudaError_t rc = cudaMalloc(out, bytes ? bytes : 1);
    if (rc == cudaSuccess) return CLIME_OK;
    size_t free_bytes = 0, total = 0;
    cudaGetLastError(); /* an allocation that does not fit is no device failure */
    cudaMemGetInfo(&free_bytes, &total);
    return clime_fail(e, CLIME_ERR_LIMIT, "%s needs %.2f GiB of GPU memory and %.2f of %.2f GiB are free", what,
                      (double)bytes / (1 << 30), (double)free_bytes / (1 << 30), (double)total / (1 << 30));
}

void clime_cuda_free(struct clime_dev *d, void *p) {
    if (d->links) clime_cuda_links_drain(d->links);
    clime_cuda_wait(d);
    if (!clime_cuda_free_fixed(d, p)) CU(d, cudaFree(p));
}

const void *clime_cuda_stage(struct clime_dev *d, const void *h_src, size_t bytes) {
    size_t at = d->staged % STAGE_BYTES;
    CHECK(bytes <= STAGE_BYTES);
    if (at + bytes > STAGE_BYTES) { /* no wrap-around within a copy */
        d->staged += STAGE_BYTES - at;
        at = 0;
    }
    if (d->staged + bytes > d->unstaged + STAGE_BYTES) {
        if (!clime_cuda_wait(d)) return NULL;
        d->unstaged = d->staged;
    }
    memcpy(d->h_stage + at, h_src, bytes);
    d->staged += (bytes + 63) / 64 * 64;
    return d->h_stage + at;
}

/* A copy of pageable memory blocks in the driver, forever if a rank is lost. */
static void before_pageable(struct clime_dev *d) {
    if (d->links) clime_cuda_wait(d);
}

/* A server's step copies a few small arrays and grammar masks, 19 KB per row: through pinned memory they do not
 * block. */
void clime_cuda_copy_in(struct clime_dev *d, void *dst, const void *h_src, size_t bytes) {
    for (const size_t most = STAGE_BYTES / 8; bytes > most && bytes <= STAGE_BYTES; bytes -= most) {
        const void *at = clime_cuda_stage(d, h_src, most);
        if (!at || !CU(d, cudaMemcpyAsync(dst, at, most, cudaMemcpyHostToDevice, d->stream))) return;
        dst = (char *)dst + most;
        h_src = (const char *)h_src + most;
    }
    if (bytes > STAGE_BYTES / 8) {
        before_pageable(d);
        CU(d, cudaMemcpyAsync(dst, h_src, bytes, cudaMemcpyHostToDevice, d->stream));
        clime_cuda_wait(d);
        return;
    }
    const void *at = clime_cuda_stage(d, h_src, bytes);
    if (at) CU(d, cudaMemcpyAsync(dst, at, bytes, cudaMemcpyHostToDevice, d->stream));
}

void clime_cuda_copy_out(struct clime_dev *d, void *h_dst, const void *src, size_t bytes) {
    before_pageable(d);
    CU(d, cudaMemcpyAsync(h_dst, src, bytes, cudaMemcpyDeviceToHost, d->stream));
    clime_cuda_wait(d);
}

enum clime_err clime_cuda_host_alloc(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                     struct clime_error *e) {
    (void)d;
    if (cudaMallocHost(out, bytes ? bytes : 1) == cudaSuccess) return CLIME_OK;
    cudaGetLastError(); /* no device failure */
    *out = NULL;
    return clime_fail(e, CLIME_ERR_LIMIT, "%s: %.2f GiB of page-locked host memory are not to be had", what,
                      (double)bytes / (1 << 30));
}

void clime_cuda_host_free(struct clime_dev *d, void *p) {
    clime_cuda_wait(d);
    cudaFreeHost(p);
}

void clime_cuda_copy_out_start(struct clime_dev *d, void *h_dst, const void *src, size_t bytes, int mark) {
    CU(d, cudaMemcpyAsync(h_dst, src, bytes, cudaMemcpyDeviceToHost, d->stream));
    CU(d, cudaEventRecord(d->copied[mark], d->stream));
    d->staged_at[mark] = d->staged;
}

static enum clime_err state_of(struct clime_dev *d, struct clime_error *e) {
    if (d->failure.code == CLIME_OK) return CLIME_OK;
    if (e) *e = d->failure;
    return d->failure.code;
}

enum clime_err clime_cuda_copy_wait(struct clime_dev *d, int mark, struct clime_error *e) {
    wait_for(d, d->copied[mark]);
    if (d->staged_at[mark] > d->unstaged) d->unstaged = d->staged_at[mark];
    return state_of(d, e);
}

void clime_cuda_copy_in_start(struct clime_dev *d, void *dst, const void *h_src, size_t bytes) {
    CU(d, cudaMemcpyAsync(dst, h_src, bytes, cudaMemcpyHostToDevice, d->stream));
}

void clime_cuda_copy_in_rows_start(struct clime_dev *d, int n, size_t bytes, void *dst, size_t dst_step,
                                   const void *h_src, size_t src_step) {
    CU(d, cudaMemcpy2DAsync(dst, dst_step, h_src, src_step, bytes, (size_t)n, cudaMemcpyHostToDevice, d->stream));
}

void clime_cuda_copy(struct clime_dev *d, void *dst, const void *src, size_t bytes) {
    clime_cuda_flush(d);
    CU(d, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, d->stream));
}

void clime_cuda_zero(struct clime_dev *d, void *p, size_t bytes) {
    clime_cuda_flush(d);
    CU(d, cudaMemsetAsync(p, 0, bytes, d->stream));
}

enum clime_err clime_cuda_sync(struct clime_dev *d, struct clime_error *e) {
    clime_cuda_wait(d);
    d->unstaged = d->staged;
    return state_of(d, e);
}

void clime_cuda_memory(struct clime_dev *d, size_t *free_bytes, size_t *total_bytes) {
    CU(d, cudaMemGetInfo(free_bytes, total_bytes));
}
