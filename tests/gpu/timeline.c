/* What the GPUs of a program do, and when: a library that CUDA loads into it.
 *
 *   CUDA_INJECTION64_PATH=build/gpu/libtimeline.so TIMELINE=DIR program ...     then tests/gpu/timeline.py DIR
 *
 * DIR/PID gets a line for each kernel, copy and memset of a process: nanoseconds of its begin and end, stream, bytes
 * (of a kernel its blocks of threads), name. A copy's name says who makes it: "copies" = a copy engine, "computes" =
 * the multiprocessors. What is recorded goes out five times a second, since ranks and servers are often killed.
 *
 * CUPTI calls back on threads of its own, one at a time; nothing else is shared. */
#include <cupti.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BUFFER = 1 << 20, ALIGN = 64, EVERY_US = 200000 };

static FILE *out;

static void line(uint64_t start, uint64_t end, uint32_t stream, uint64_t bytes, const char *name, const char *by) {
    if (start == 0 || end < start) return; /* it has not ended */
    fprintf(out, "%llu %llu %u %llu %s%s\n", (unsigned long long)start, (unsigned long long)end, stream,
            (unsigned long long)bytes, name, by);
}

static const char *maker(CUpti_ChannelType type) {
    return type == CUPTI_CHANNEL_TYPE_ASYNC_MEMCPY ? ", copies" : ", computes";
}

static const char *kind_of(uint8_t kind) {
    switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
        return "host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
        return "device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
        return "within the device";
    default:
        return "other copy";
    }
}

static void record(const CUpti_Activity *any) {
    switch (any->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const CUpti_ActivityKernel9 *k = (const void *)any;
        line(k->start, k->end, k->streamId, (uint64_t)k->gridX * (uint64_t)k->gridY * (uint64_t)k->gridZ, k->name, "");
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const CUpti_ActivityMemcpy5 *c = (const void *)any;
        line(c->start, c->end, c->streamId, c->bytes, kind_of(c->copyKind), maker(c->channelType));
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
        const CUpti_ActivityMemcpyPtoP4 *c = (const void *)any;
        line(c->start, c->end, c->streamId, c->bytes, "to a peer", maker(c->channelType));
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        const CUpti_ActivityMemset4 *s = (const void *)any;
        line(s->start, s->end, s->streamId, s->bytes, "memset", "");
        break;
    }
    default:
        break;
    }
}

static void CUPTIAPI wanted(uint8_t **buffer, size_t *size, size_t *most) {
    *size = BUFFER;
    *buffer = aligned_alloc(ALIGN, BUFFER);
    *most = 0;
}

static void CUPTIAPI filled(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    CUpti_Activity *next = NULL;
    (void)context, (void)stream, (void)size;
    while (cuptiActivityGetNextRecord(buffer, valid, &next) == CUPTI_SUCCESS) record(next);
    fflush(out);
    free(buffer);
}

static void *flush(void *unused) {
    for (;; usleep(EVERY_US)) cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    return unused;
}

int InitializeInjection(void);

/* CUDA calls it when it is first used; 1 = go on. */
int InitializeInjection(void) {
    static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                               CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET};
    const char *dir = getenv("TIMELINE");
    char path[4096];
    pthread_t thread;
    bool ok = true;
    snprintf(path, sizeof path, "%s/%d", dir ? dir : ".", (int)getpid());
    if (!(out = fopen(path, "w"))) {
        perror(path);
        return 1;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) ok &= cuptiActivityEnable(kinds[i]) == CUPTI_SUCCESS;
    ok &= cuptiActivityRegisterCallbacks(wanted, filled) == CUPTI_SUCCESS;
    if (!ok || pthread_create(&thread, NULL, flush, NULL)) fprintf(stderr, "timeline: CUPTI records nothing here\n");
    return 1;
}
