/* Finds NVIDIA's libraries at program start: by the linker's rules, in the toolkit's folders, then in Python packages'
 * folders. Called once per library (lt.cu, nccl.cu), any thread; opened libraries stay open. */
#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/cuda_int.cuh"

void *clime_cuda_library(const char *soname, const char *package) {
    const char *venv = getenv("VIRTUAL_ENV");
    char places[5][1024];
    snprintf(places[0], sizeof places[0], "/usr/local/cuda/lib64/%s", soname);
    snprintf(places[1], sizeof places[1], "/usr/lib/x86_64-linux-gnu/%s", soname);
    snprintf(places[2], sizeof places[2], "/usr/local/lib/python3*/*-packages/nvidia/%s/lib/%s", package, soname);
    snprintf(places[3], sizeof places[3], "/usr/lib/python3*/*-packages/nvidia/%s/lib/%s", package, soname);
    snprintf(places[4], sizeof places[4], "%s/lib/python3*/site-packages/nvidia/%s/lib/%s",
             venv ? venv : "/nonexistent", package, soname);
    void *library = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < CLIME_COUNT(places) && !library; i++) {
        glob_t found = {};
        if (glob(places[i], 0, NULL, &found) == 0) library = dlopen(found.gl_pathv[0], RTLD_NOW | RTLD_LOCAL);
        globfree(&found);
    }
    return library;
}
