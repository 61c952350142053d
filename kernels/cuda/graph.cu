/* Recorded work: a CUDA graph of the queued operations. Called by the context's owner (server/engine/step_graphs.c).
 *
 * Recording uses stream capture. A graph holds addresses of the caller's arrays and of the context's scratch, which is
 * therefore not freed while graphs exist (device.cu). */
#include <stdlib.h>

#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"

struct clime_graph {
    cudaGraphExec_t exec;
};

CUDA_OP void clime_cuda_graph_begin(struct clime_dev *d) {
    CHECK(!d->recording);
    CU(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal));
    d->recording = true;
}

void clime_cuda_flush(struct clime_dev *d) {
    if (!d->recording || d->flushing) return;
    d->flushing = true;
    clime_cuda_row_end(d);
    clime_cuda_rope_end(d);
    d->flushing = false;
}

CUDA_OP enum clime_err clime_cuda_graph_end(struct clime_dev *d, struct clime_graph **out, struct clime_error *e) {
    CHECK(d->recording);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    clime_cuda_flush(d);
    clime_cuda_words_recorded(d);
    d->recording = false;
    *out = NULL;
    CU(d, cudaStreamEndCapture(d->stream, &graph));
    if (d->failure.code != CLIME_OK) {
        if (e) *e = d->failure;
        return CLIME_ERR_DEVICE;
    }
    cudaError_t rc = cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    if (rc != cudaSuccess) {
        cudaGetLastError();
        return clime_fail(e, CLIME_ERR_LIMIT, "a CUDA graph does not fit: %s", cudaGetErrorString(rc));
    }
    *out = (struct clime_graph *)xcalloc(1, sizeof **out);
    (*out)->exec = exec;
    d->n_graphs++;
    return CLIME_OK;
}

CUDA_OP void clime_cuda_graph_launch(struct clime_dev *d, struct clime_graph *g) {
    CU(d, cudaGraphLaunch(g->exec, d->stream));
}

CUDA_OP void clime_cuda_graph_free(struct clime_dev *d, struct clime_graph *g) {
    if (!g) return;
    clime_cuda_wait(d);
    CU(d, cudaGraphExecDestroy(g->exec));
    d->n_graphs--;
    free(g);
}
