# CUDA, where nvcc is: included by the Makefile. `make CUDA=0` builds without; `make cuda-check` prints what was found.
# Adds the objects of kernels/cuda to libkernels.a and -DCLIME_CUDA to kernels/table.o. cudart is linked statically and
# cuBLASLt opened at run time, so a program built here starts where no GPU, driver or CUDA library is.
CUDA_ARCHS ?= 90a
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc) $(wildcard /opt/cuda/bin/nvcc))
CUDA_HOME = $(patsubst %/bin/nvcc,%,$(NVCC))
CUDA_LIB  = $(firstword $(wildcard $(addprefix $(CUDA_HOME)/,lib64 targets/x86_64-linux/lib targets/sbsa-linux/lib lib)))
CUDA_HAS  = $(and $(NVCC),$(wildcard $(CUDA_LIB)/libcudart_static.a),$(wildcard $(addsuffix /cublasLt.h,$(CUDA_HOME)/include $(CUDA_HOME)/targets/x86_64-linux/include)))

ifneq ($(CUDA),0)
ifneq ($(CUDA_HAS),)
# -fmad=false: as -ffp-contract=off for C; a fused multiply-add is one that is written (docs/numerics.md).
NVCC_FLAGS  = -std=c++17 -O3 -lineinfo -fmad=false -I. -Xcompiler -Wall,-Wno-unused-function,-fno-threadsafe-statics,-fno-exceptions \
              $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) -MMD -MP
CUDA_SRC    = $(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu)
CUDA_LDLIBS = -L$(CUDA_LIB) -lcudart_static -lrt -ldl -lpthread
KERNELS    += kernels/cuda/cuda_table.c
CUDA_OBJ    = $(patsubst %.cu,$(O)/obj/%.o,$(CUDA_SRC))
$(O)/libkernels.a: $(CUDA_OBJ)
$(O)/obj/kernels/table.o: CFLAGS_ALL += -DCLIME_CUDA
$(O)/obj/%.o: %.cu
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) -c -o $@ $<
endif
endif

# table.o is made again when the answer changes (another machine's nvcc, CUDA=0).
CUDA_STATE := $(if $(CUDA_SRC),built in,left out)
$(shell mkdir -p $(O); [ "$$(cat $(O)/cuda.state 2>/dev/null)" = "$(CUDA_STATE)" ] || echo "$(CUDA_STATE)" >$(O)/cuda.state)
$(O)/obj/kernels/table.o: $(O)/cuda.state

.PHONY: cuda-check
cuda-check: ## what the build found of CUDA
	@echo "nvcc:       $(or $(NVCC),not found: the CUDA table is left out)"
	@echo "cudart:     $(or $(wildcard $(CUDA_LIB)/libcudart_static.a),not found)"
	@echo "cuBLASLt:   $(or $(wildcard $(CUDA_LIB)/libcublasLt.so.13),not beside nvcc; looked for again when a program starts)"
	@echo "built in:   $(if $(CUDA_SRC),yes for sm_$(CUDA_ARCHS),no)"

# tests/gpu: plain programs without a test framework, for a machine with a GPU and little else.
GPU_TESTS = $(patsubst tests/gpu/%.c,$(O)/gpu/%,$(wildcard tests/gpu/test_*.c tests/gpu/bench_*.c tests/gpu/dump_*.c))
$(O)/gpu/%: tests/gpu/%.c $(O)/libserver.a $(O)/libmodel.a $(O)/libtext.a $(O)/libkernels.a $(O)/libcommon.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -MF $@.d -o $@ $(filter %.c %.a,$^) $(CUDA_LDLIBS) $(GPU_LDLIBS)
GPU_LDLIBS = -lpcre2-8 -lutf8proc -lcjson -lm -pthread
# A library of products that errs, for test_products.
ERRING_LT = $(O)/gpu/erring/libcublasLt.so.13
$(ERRING_LT): tests/gpu/erring_lt.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -MF $@.d -fPIC -shared $(addprefix -isystem ,$(wildcard $(CUDA_HOME)/include $(CUDA_HOME)/targets/x86_64-linux/include)) -o $@ $< $(CUDA_LDLIBS)
# What the GPUs do and when, where CUPTI is.
TIMELINE = $(if $(wildcard $(CUDA_LIB)/libcupti.so),$(O)/gpu/libtimeline.so)
$(O)/gpu/libtimeline.so: tests/gpu/timeline.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -MF $@.d -fPIC -shared $(addprefix -isystem ,$(wildcard $(CUDA_HOME)/include $(CUDA_HOME)/targets/x86_64-linux/include)) -o $@ $< -L$(CUDA_LIB) -lcupti -lpthread
.PHONY: gpu-build gpu-test
gpu-build: $(GPU_TESTS) $(if $(CUDA_SRC),$(ERRING_LT) $(TIMELINE)) ## build the GPU tests and the benchmark
gpu-test: ## everything of tests/gpu (needs a GPU)
	@O=$(O) scripts/test-gpu
