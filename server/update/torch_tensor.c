/* Reads torch tensors. Called by tensor.c. rebuild_cuda_tensor's arguments keep their order since torch 1.x. */
#include "server/update/torch_tensor.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SIZE = 1,
    STRIDE,
    OFFSET,
    DTYPE = 5,
    DEVICE,
    HANDLE,
    STORAGE_BYTES,
    STORAGE_AT,
    COUNTER = 11,
    COUNTER_AT,
    EVENT,
    EVENT_NEEDED,
    N_ARGUMENTS
};

#define COUNTERS_FROM 64 /* preceded by the mapping's own count (at::RefcountedMapAllocator) */

static const struct {
    const char *module, *name;
} rebuilds[] = {{"torch.multiprocessing.reductions", "rebuild_cuda_tensor"},
                {"sglang.srt.utils.patch_torch", "_rebuild_cuda_tensor_modified"},
                {"sglang.srt.patch_torch", "_rebuild_cuda_tensor_modified"}};

static enum clime_err not_read(struct clime_error *e, const char *what) {
    return clime_fail(e, CLIME_ERR_INPUT, "a tensor of the pickle is not read: %s", what);
}

enum clime_err clime_torch_shape(const struct clime_pickle_value *v, int64_t dim[CLIME_ST_MAX_DIMS], int *n,
                                 struct clime_error *e) {
    if (v && v->kind == CLIME_PICKLE_CALL && clime_pickle_is(v->items[0], "torch", "Size") && v->items[1]->n == 1)
        v = v->items[1]->items[0];
    if (!v || (v->kind != CLIME_PICKLE_TUPLE && v->kind != CLIME_PICKLE_LIST) || v->n > CLIME_ST_MAX_DIMS)
        return not_read(e, "its shape is no short tuple");
    *n = v->n;
    for (int i = 0; i < v->n; i++) {
        if (v->items[i]->kind != CLIME_PICKLE_INT || v->items[i]->number < 0)
            return not_read(e, "its shape has something else than whole numbers");
        dim[i] = v->items[i]->number;
    }
    return CLIME_OK;
}

struct clime_str clime_torch_dtype(const struct clime_pickle_value *v) {
    bool good = v && v->kind == CLIME_PICKLE_GLOBAL && clime_str_is(v->text, "torch");
    return good ? v->name : (struct clime_str){"", 0};
}

size_t clime_torch_width(struct clime_str dtype) {
    if (clime_str_is(dtype, "uint8")) return 1;
    if (clime_str_is(dtype, "bfloat16") || clime_str_is(dtype, "float16")) return 2;
    return clime_str_is(dtype, "float32") ? 4 : 0;
}

/* Number of elements; -1 when the tensor is not contiguous or a size is invalid. */
static int64_t contiguous(const struct clime_torch_tensor *t, const int64_t *stride, int n_stride) {
    int64_t n = 1;
    if (n_stride != t->n_dim) return -1;
    for (int i = t->n_dim - 1; i >= 0; i--) {
        if (t->dim[i] > 1 && stride[i] != n) return -1;
        if (__builtin_mul_overflow(n, t->dim[i], &n) || n > INT64_MAX / 8) return -1;
    }
    return n;
}

/* torch puts a version and a letter before CUDA's handle; 'c' = cudaMalloc memory. */
static enum clime_err read_handle(const struct clime_pickle_value *v, const uint8_t **out, struct clime_error *e) {
    if (v->kind != CLIME_PICKLE_BYTES) return not_read(e, "its memory has no handle");
    const uint8_t *p = (const uint8_t *)v->text.ptr;
    size_t n = v->text.len;
    if (n > 2 && n != CLIME_SHARE_BYTES && p[1] == 'e')
        return not_read(
            e, "its memory is of an expandable segment (PYTORCH_CUDA_ALLOC_CONF); only cudaMalloc's is mapped");
    if (n == CLIME_SHARE_BYTES + 2 && p[1] == 'c') {
        p += 2;
        n -= 2;
    }
    if (n != CLIME_SHARE_BYTES) return not_read(e, "its memory's handle is none of CUDA's");
    *out = p;
    return CLIME_OK;
}

static bool is_int(const struct clime_pickle_value *v) {
    return v->kind == CLIME_PICKLE_INT && v->number >= 0 && v->number < INT64_MAX / 4;
}

static enum clime_err find_arguments(const struct clime_pickle_value *v, struct clime_pickle_value ***out,
                                     struct clime_error *e) {
    bool known = false;
    if (!v || v->kind != CLIME_PICKLE_CALL || v->items[0]->kind != CLIME_PICKLE_GLOBAL)
        return not_read(e, "it is none");
    const struct clime_pickle_value *by = v->items[0];
    for (size_t i = 0; i < CLIME_COUNT(rebuilds); i++)
        known = known || clime_pickle_is(by, rebuilds[i].module, rebuilds[i].name);
    if (!known)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "a tensor of the pickle is not read: it is made by %.*s.%.*s; tensors of GPU memory "
                          "(rebuild_cuda_tensor) are read, and safetensors in base64",
                          (int)(by->text.len < 100 ? by->text.len : 100), by->text.ptr,
                          (int)(by->name.len < 100 ? by->name.len : 100), by->name.ptr);
    if (v->items[1]->n != N_ARGUMENTS) return not_read(e, "it has not the arguments of rebuild_cuda_tensor");
    *out = v->items[1]->items;
    return CLIME_OK;
}

enum clime_err clime_torch_tensor_read(const struct clime_pickle_value *v, struct clime_torch_tensor *out,
                                       struct clime_error *e) {
    struct clime_pickle_value **a = NULL;
    int64_t stride[CLIME_ST_MAX_DIMS];
    int n_stride;
    *out = (struct clime_torch_tensor){0};
    enum clime_err err = find_arguments(v, &a, e);
    if (err || (err = clime_torch_shape(a[SIZE], out->dim, &out->n_dim, e)) ||
        (err = clime_torch_shape(a[STRIDE], stride, &n_stride, e)) || (err = read_handle(a[HANDLE], &out->handle, e)))
        return err;
    out->dtype = clime_torch_dtype(a[DTYPE]);
    size_t width = clime_torch_width(out->dtype);
    if (!width) return not_read(e, "its type is none of uint8, bfloat16, float16 and float32");
    int64_t n = contiguous(out, stride, n_stride);
    if (n < 0) return not_read(e, "it is not contiguous");
    out->n_bytes = (size_t)n * width;
    if (!is_int(a[OFFSET]) || !is_int(a[STORAGE_BYTES]) || !is_int(a[STORAGE_AT]))
        return not_read(e, "its place in its storage is no number");
    uint64_t end;
    if (__builtin_mul_overflow((uint64_t)a[OFFSET]->number, width, &end) ||
        __builtin_add_overflow(end, out->n_bytes, &end) || end > (uint64_t)a[STORAGE_BYTES]->number)
        return not_read(e, "it lies outside of its storage");
    out->at = (size_t)a[STORAGE_AT]->number + (size_t)a[OFFSET]->number * width;
    if (a[DEVICE]->kind == CLIME_PICKLE_TEXT) out->unit = a[DEVICE]->text;
    if (a[COUNTER]->kind == CLIME_PICKLE_BYTES && is_int(a[COUNTER_AT])) {
        out->counter = a[COUNTER]->text;
        out->counter_at = a[COUNTER_AT]->number;
    }
    bool needed = a[EVENT_NEEDED]->kind == CLIME_PICKLE_BOOL && a[EVENT_NEEDED]->number;
    if (needed && (a[EVENT]->kind != CLIME_PICKLE_BYTES || a[EVENT]->text.len != CLIME_SHARE_BYTES))
        return not_read(e, "its event has no handle");
    if (needed) out->event = (const uint8_t *)a[EVENT]->text.ptr;
    return CLIME_OK;
}

void clime_torch_tensor_release(const struct clime_torch_tensor *t) {
    static const char start[] = "/torch_";
    char name[256];
    struct stat st;
    if (t->counter.len >= sizeof name || t->counter.len < sizeof start) return;
    memcpy(name, t->counter.ptr, t->counter.len);
    name[t->counter.len] = '\0';
    if (strncmp(name, start, sizeof start - 1) != 0 || strchr(name + 1, '/')) return;
    int fd = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    size_t need = COUNTERS_FROM + ((size_t)t->counter_at + 1) * sizeof(int64_t);
    if (fd < 0) return;
    if (fstat(fd, &st) == 0 && t->counter_at < (1 << 24) && st.st_size >= (off_t)need) {
        char *p = mmap(NULL, need, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (p != MAP_FAILED) {
            atomic_fetch_sub((_Atomic int64_t *)(void *)(p + COUNTERS_FROM + (size_t)t->counter_at * sizeof(int64_t)),
                             1);
            munmap(p, need);
        }
    }
    close(fd);
}
