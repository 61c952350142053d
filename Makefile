# clime: build. `make help` lists the targets. Everything that is made lands in $(O).
O       ?= build
CC      ?= gcc
WARN     = -Wall -Wextra -Wshadow -Wundef -Wmissing-prototypes -Wstrict-prototypes -Wwrite-strings -Wvla -Wno-missing-field-initializers -Werror
# -ffp-contract=off: the bits of a result must not depend on what the compiler inlines (docs/numerics.md).
CFLAGS  ?= -O2 -g
CFLAGS_ALL = -std=c11 -D_GNU_SOURCE $(WARN) -I. -pthread -fno-strict-aliasing -ffp-contract=off -MMD -MP $(SAN) $(CFLAGS)
LDLIBS   = -lcivetweb -lcurl -lcjson -lsqlite3 -lpcre2-8 -lutf8proc -lyaml -lz -lzstd -ldl -lm -pthread

# Sources: every .c of a folder belongs to it; *_main.c and main.c are programs.
src      = $(filter-out %/main.c %_main.c,$(wildcard $(addsuffix /*.c,$(patsubst %/,%,$(1)))))
COMMON   = $(call src,common $(wildcard common/*/))
KERNELS  = $(call src,kernels kernels/cpu)
TEXT     = $(call src,text text/template/value text/template text/output text/grammar text/chat)
GRADE    = $(call src,grade $(wildcard grade/*/))
MODEL    = $(call src,model/config model/weights model/context model/packet model)
SERVER   = $(call src,server $(wildcard server/*/))
ROUTER   = $(call src,router $(wildcard router/*/))
TRAINER  = $(call src,trainer $(wildcard trainer/*/ trainer/*/*/))
ifneq ($(shell uname -m),x86_64)
KERNELS := $(filter-out %_avx2.c %_avx512.c %_amx.c,$(KERNELS))
endif

include $(wildcard scripts/cuda.mk)

obj      = $(patsubst %.c,$(O)/obj/%.o,$(1))
PROGRAMS = $(if $(wildcard server/main.c),clime-server) $(if $(wildcard router/main.c),clime-router) \
           $(if $(wildcard trainer/main.c),clime-train) $(if $(wildcard text/tok_main.c),clime-tok)
UNIT     = $(patsubst tests/unit/%.c,$(O)/unit/%,$(wildcard tests/unit/*/test_*.c))

all: $(addprefix $(O)/,$(PROGRAMS)) ## build the programs (default)
.DEFAULT_GOAL := all
.PHONY: all unit unit-build test quickstart clients lint format layers asan tsan fuzz fuzz-run chaos bench help clean

%_avx2.o:   ISA = -mavx2 -mfma -mf16c
%_avx512.o: ISA = -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mavx2 -mfma -mf16c
%_amx.o:    ISA = -mamx-tile -mamx-bf16 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mavx2 -mfma -mf16c
$(O)/obj/kernels/%.o: OPT = -O3
$(O)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(OPT) $(ISA) -c -o $@ $<

# The pages' files are taken in by these (.incbin), which the compiler's list of includes does not name.
$(O)/obj/trainer/watch/page/assets.o: $(wildcard trainer/watch/page/assets/*)
$(O)/obj/server/page/page.o: $(wildcard server/page/assets/*)
$(O)/obj/common/page/assets.o: $(wildcard common/page/*)

# BARE=1: the programs compute with operations that have no sanitizer in them and are as fast as ever; only the unit tests
# have instrumented ones. Those visit every operation and odd shape, and through the programs the same loops would take
# ten times as long: they were most of what `make asan` took.
BARE_OBJ = $(if $(BARE),$(patsubst %.c,$(O)/bare/%.o,$(filter-out kernels/cpu/cpu_%.c,$(filter kernels/cpu/%.c,$(KERNELS)))))
$(O)/bare/%.o: override SAN =
$(O)/bare/%.o: override OPT = -O3
$(O)/bare/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(OPT) $(ISA) -c -o $@ $<

# One archive a layer, so that a program links only what it uses.
define archive
$(O)/lib$(1).a: $(call obj,$(2))
	@rm -f $$@
	ar rcs $$@ $$^
endef
$(eval $(call archive,common,$(COMMON)))
$(eval $(call archive,kernels,$(KERNELS)))
$(eval $(call archive,text,$(TEXT)))
$(eval $(call archive,grade,$(GRADE)))
$(eval $(call archive,model,$(MODEL)))
$(eval $(call archive,server,$(SERVER)))
$(eval $(call archive,router,$(ROUTER)))
$(eval $(call archive,trainer,$(TRAINER)))

LIB_MODEL = $(O)/libmodel.a $(O)/libtext.a $(O)/libkernels.a $(O)/libcommon.a
$(O)/clime-server: $(O)/obj/server/main.o $(O)/libserver.a $(BARE_OBJ) $(LIB_MODEL)
$(O)/clime-router: $(O)/obj/router/main.o $(O)/librouter.a $(O)/libtext.a $(O)/libcommon.a
$(O)/clime-train:  $(O)/obj/trainer/main.o $(O)/libtrainer.a $(O)/libgrade.a $(BARE_OBJ) $(LIB_MODEL)
$(O)/clime-tok:    $(O)/obj/text/tok_main.o $(O)/libtext.a $(O)/libcommon.a
$(addprefix $(O)/,$(PROGRAMS)):
	$(CC) $(SAN) -o $@ $^ $(CUDA_LDLIBS) $(LDLIBS) -rdynamic

# The contracts of openapi/ are in the programs that keep them, as JSON (common/http/openapi.h).
$(O)/openapi-embed: $(O)/obj/common/http/openapi_main.o $(O)/libcommon.a
	$(CC) $(SAN) -o $@ $^ $(LDLIBS)
$(O)/openapi/%.c: openapi/%.yaml $(O)/openapi-embed
	@mkdir -p $(@D)
	$(O)/openapi-embed $< $* > $@.new && mv $@.new $@
$(O)/openapi/%.o: $(O)/openapi/%.c
	$(CC) $(CFLAGS_ALL) -c -o $@ $<
.PRECIOUS: $(O)/openapi/%.c
$(O)/libserver.a: $(O)/openapi/server.o
$(O)/librouter.a: $(O)/openapi/router.o
$(O)/libtrainer.a: $(O)/openapi/trainer.o $(O)/openapi/page.o

# What CivetWeb's TLS lacks with OpenSSL 3, as a library inside the programs (common/http/tls.h).
$(O)/libssl.so: common/http/libssl/peer_certificate.c
	@mkdir -p $(@D)
	$(CC) $(WARN) -O2 -shared -fPIC -nostdlib -o $@ $< -Wl,-soname,libssl.so -l:libssl.so.3
$(O)/obj/common/http/libssl.o: $(O)/libssl.so
	@mkdir -p $(@D)
	cd $(O) && ld -r -b binary -z noexecstack -o obj/common/http/libssl.o libssl.so
$(O)/libcommon.a: $(O)/obj/common/http/libssl.o

# Unit tests: tests/unit/<folder>/test_x.c -> $(O)/unit/<folder>/test_x, linked with that folder's layer and below.
unit_libs = $(if $(filter server,$(1)),$(O)/libserver.a) $(if $(filter router,$(1)),$(O)/librouter.a) \
            $(if $(filter trainer,$(1)),$(O)/libtrainer.a $(O)/libgrade.a) $(if $(filter common router text,$(1)),,$(O)/libmodel.a) $(if $(filter common,$(1)),,$(O)/libtext.a) \
            $(if $(filter common router text,$(1)),,$(O)/libkernels.a) $(O)/libcommon.a
.SECONDEXPANSION:
$(O)/unit/%: tests/unit/%.c $$(call unit_libs,$$(word 1,$$(subst /, ,$$*)))
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -MF $@.d -o $@ $(filter %.c %.a,$^) $(CUDA_LDLIBS) -lcmocka $(LDLIBS)
unit-build: $(UNIT)
$(O)/bench_grammar: tests/bench/bench_grammar.c $(O)/libtext.a $(O)/libcommon.a
	$(CC) $(CFLAGS_ALL) -MF $@.d -o $@ $(filter %.c %.a,$^) $(LDLIBS)
$(O)/bench_kernels: tests/bench/bench_kernels.c $(O)/libkernels.a $(O)/libcommon.a
	$(CC) $(CFLAGS_ALL) -MF $@.d -o $@ $(filter %.c %.a,$^) $(CUDA_LDLIBS) -lm -pthread
$(O)/bench_routing: tests/bench/bench_routing.c $(O)/librouter.a $(O)/libcommon.a
	$(CC) $(CFLAGS_ALL) -MF $@.d -o $@ $(filter %.c %.a,$^) $(LDLIBS)
# Instrumented code brings false warnings and takes minutes at -O3, so sanitizer builds have options of their own.
# Reports go to files beside the programs: a child's report counts, whoever started it and wherever its output went.
# Locals that asan moves to the heap (gcc 13's default) lose an alignment of 64 bytes, and AVX-512 stores end in SIGSEGV.
# Of gcc's libasan and libubsan as shared libraries only the first heeds log_path; as static ones both do.
ASAN     = CUDA=0 BARE=1 SAN="-fsanitize=address,undefined -static-libasan -static-libubsan -fno-sanitize-recover=undefined -fno-omit-frame-pointer" CFLAGS="-O1 -g -Wno-error" OPT=
TSAN     = CUDA=0 SAN="-fsanitize=thread" CFLAGS="-O1 -g -Wno-error" OPT=
REPORT   = log_path=$(abspath $(O)/report):exitcode=99
.PHONY: suite
suite:
	@mkdir -p $(O) && rm -f $(O)/report.*
	@export CLIME_BUILD=$(O) CLIME_KILLS=2 CLIME_SLOW=5 ASAN_OPTIONS=detect_stack_use_after_return=0:$(REPORT) UBSAN_OPTIONS=print_stacktrace=1:$(REPORT) \
	  TSAN_OPTIONS=$(REPORT); scripts/test $(if $(ONLY),-k "$(ONLY)"); status=$$?; \
	  ! cat $(O)/report.* 2>/dev/null && exit $$status

unit: $(UNIT) ## build and run the unit tests
	@CLIME_BUILD=$(O) python3 tests/run.py --unit

test: ## set up, build, run every test (the same as scripts/test)
	scripts/test
quickstart: ## set up, build, train a small policy (the same as scripts/quickstart)
	scripts/quickstart
# Other people's packages, too heavy for the tests' own environment; and with them other versions of OpenAI's and Anthropic's.
clients: all ## other people's clients, each in its own version (tests/e2e/clients/rows.txt), against server, router and sessions
	scripts/setup test
	scripts/setup clients
	CLIME_BUILD=$(O) build/venv/bin/python -m pytest -q -p no:cacheprovider -rs tests/e2e/test_clients_table.py
	CLIME_BUILD=$(O) build/clients/bin/python -m pytest -q -p no:cacheprovider tests/e2e/test_clients_agents.py tests/e2e/test_clients_lm_eval.py \
	    tests/e2e/test_tool_loops.py tests/e2e/test_server_openai.py tests/e2e/test_tools.py tests/e2e/test_responses.py tests/e2e/test_messages.py
lint: ## clang-format, banned functions
	scripts/lint
format: ## rewrite the sources with clang-format
	git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs clang-format -i
layers: all ## no file includes a layer or a room above its own, no new circle by calls, no folder is crowded
	O=$(O) scripts/layers
asan: ## run every test against a build with the address and undefined sanitizers, in $(O)/asan
	+$(MAKE) O=$(O)/asan $(ASAN) suite
tsan: ## run the unit tests and two end-to-end tests against a build with the thread sanitizer, in $(O)/tsan
	+$(MAKE) O=$(O)/tsan $(TSAN) ONLY="test_two_rollouts or test_many_clients_at_once" suite
fuzz: ## run the fuzzers under the address and undefined sanitizers (MINUTES=24: of a processor each, SEED=1)
	$(MAKE) O=$(O)/asan $(ASAN) fuzz-run
FUZZ = $(patsubst tests/fuzz/%.c,$(O)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
$(O)/fuzz/%: tests/fuzz/%.c tests/fuzz/fuzz.c $$(if $$(filter fuzz_request fuzz_pickle,$$*),$(O)/libserver.a) \
             $$(if $$(filter fuzz_reward fuzz_trainer fuzz_ledger fuzz_checkpoint,$$*),$(O)/libtrainer.a $(O)/libgrade.a) $$(if $$(filter fuzz_router,$$*),$(O)/librouter.a) \
             $$(if $$(filter fuzz_json,$$*),,$(O)/libmodel.a $(O)/libkernels.a $(O)/libtext.a) $(O)/libcommon.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -MF $@.d -o $@ $(filter %.c %.a,$^) $(CUDA_LDLIBS) $(LDLIBS)
fuzz-run: $(FUZZ) all
	@for t in $(FUZZ); do $$t --seed $(or $(SEED),1) $(if $(MINUTES),--cpu-minutes $(MINUTES)) || exit 1; done
	scripts/setup test
	CLIME_BUILD=$(O) build/venv/bin/python tests/fuzz/fuzz_http.py --seed $(or $(SEED),1) $(if $(MINUTES),--cpu-minutes $(MINUTES))
chaos: all ## 100 rounds (ROUNDS=N) of a run whose programs are killed, frozen, cut off and lied to, by SEED=1
	scripts/setup test
	CLIME_BUILD=$(O) build/venv/bin/python tests/chaos/chaos.py --rounds $(or $(ROUNDS),100) --seed $(or $(SEED),1)
bench: all ## measure server, training step and kernels beside their ceilings and peers
	scripts/bench
help: ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile scripts/cuda.mk | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 20
clean: ## remove what was made
	rm -rf $(O)

-include $(shell find $(O) -path $(O)/clients-rows -prune -o -type f -name '*.d' -print 2>/dev/null)
