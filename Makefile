# sheng: one Makefile. `make` builds ./sheng; see README.md for the targets.
#   SANITIZER=address|undefined|thread   an instrumented build in its own folder (address brings undefined along)
#   DEBUG=1                              -O1 and asserts
CC ?= cc
PREFIX ?= /usr/local
SANITIZER ?=
DEBUG ?=

VARIANT := $(if $(SANITIZER),$(SANITIZER),$(if $(DEBUG),debug,release))
B := build/$(VARIANT)

DEPS := libevent_core libevent_extra libevent_pthreads libpcre2-8 libutf8proc
PKG_CFLAGS := $(shell pkg-config --cflags $(DEPS) 2>/dev/null)
PKG_LIBS := $(shell pkg-config --libs $(DEPS) 2>/dev/null)

CPPFLAGS += -Iinclude -Isrc -I$(B)/gen -D_GNU_SOURCE -DPCRE2_CODE_UNIT_WIDTH=8 $(PKG_CFLAGS)
CFLAGS ?= -O2 -g
WARN := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
# -ffp-contract=off: a fused multiply-add happens where the code says fma, and nowhere else (docs/numerics.md)
BASEFLAGS := -std=c11 -fno-strict-aliasing -ffp-contract=off -fno-math-errno -pthread $(WARN) -MMD -MP
ifeq ($(SANITIZER),address)
  BASEFLAGS += -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -DSH_DEBUG
else ifeq ($(SANITIZER),undefined)
  BASEFLAGS += -fsanitize=undefined -fno-sanitize-recover=all -O1 -DSH_DEBUG
else ifeq ($(SANITIZER),thread)
  BASEFLAGS += -fsanitize=thread -O1 -DSH_DEBUG
else ifneq ($(DEBUG),)
  BASEFLAGS += -O1 -DSH_DEBUG
else
  BASEFLAGS += -DNDEBUG
endif
# make V=1 shows whole commands
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-5s %s\n' '$(1)' '$(2)')

# Empty only when one is missing: then what builds stops here, with the packages' names, and not in the middle of a compile.
ifeq ($(PKG_LIBS),)
ifneq ($(filter-out run test setup setup-test smollm2 clean check-full style uninstall,$(or $(MAKECMDGOALS),all)),)
$(shell sh tools/setup.sh check >&2)
$(error pkg-config does not find $(DEPS). `make setup` as root installs what is missing)
endif
endif
LIBS := $(PKG_LIBS) -lz -lm -ldl -pthread

SRCS := $(sort $(wildcard src/*.c src/*/*.c src/*/*/*.c))
OBJS := $(SRCS:%.c=$(B)/%.o)
LIBOBJS := $(filter-out $(B)/src/main.o,$(OBJS))
UNIT_SRCS := $(sort $(wildcard tests/unit/*.c tests/unit/*/*.c tests/unit/*/*/*.c))
UNITS := $(UNIT_SRCS:%.c=$(B)/%)
FUZZ_SRCS := $(sort $(wildcard tests/fuzz/fuzz_*.c))
# programs that are no cmocka units (the kernel checker) add themselves here
EXTRA_CHECKS :=
-include $(wildcard tests/*/rules.mk)

.PHONY: all run setup setup-test check test check-full units fuzz install uninstall style clean
all: sheng

sheng: $(B)/sheng
	@cmp -s $< $@ || cp -f $< $@

$(B)/sheng: $(OBJS)
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS) $(BASEFLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)

$(B)/libsheng.a: $(LIBOBJS)
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

# each instruction set has its own flags; everything else is baseline x86-64
$(B)/src/kernels/x86/%_avx2.o: ISA := -mavx2 -mfma -mf16c -mbmi2

# the texts inside the program (.incbin)
$(B)/src/quant/texts.o: src/quant/texts/calibration.jsonl src/quant/texts/evaluation.jsonl

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(BASEFLAGS) $(ISA) -c -o $@ $<

$(B)/tests/unit/%: tests/unit/%.c $(B)/libsheng.a
	@mkdir -p $(@D)
	$(call say,TEST,$<)
	$(Q)$(CC) $(CPPFLAGS) -Itests $(CFLAGS) $(BASEFLAGS) $(LDFLAGS) -o $@ $< $(B)/libsheng.a -lcmocka $(LIBS)

$(B)/tests/quant/dump: tests/quant/dump.c $(B)/libsheng.a
	@mkdir -p $(@D)
	$(call say,TEST,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(BASEFLAGS) $(LDFLAGS) -o $@ $< $(B)/libsheng.a $(LIBS)

# --- The two commands of the README ---------------------------------------------------------------------------------------------------------------------
MODEL ?= models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
SMOLLM2 := models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
HOST ?= 127.0.0.1
PORT ?= 8000
ARGS ?=

# A recursive make: the packages that pkg-config describes may have been installed a moment ago.
run: setup
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@$(if $(filter $(SMOLLM2),$(MODEL)),python3 tools/fetch_smollm2.py models/smollm2)
	@exec ./sheng serve $(MODEL) $(if $(filter $(SMOLLM2),$(MODEL)),--served-model-name SmolLM2-135M-Instruct) --host $(HOST) --port $(PORT) $(ARGS)

# The real model comes first, for tests of `check` and of `http` use it; without a network they are skipped, and the line says so.
test: setup-test
	@$(MAKE) --no-print-directory smollm2
	@$(MAKE) --no-print-directory all
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory http

setup:
	@sh tools/setup.sh

setup-test:
	@sh tools/setup.sh test

# --- Tests ----------------------------------------------------------------------------------------------------------------------------------------------
units: $(UNITS) $(EXTRA_CHECKS)

.PHONY: smollm2
smollm2:
	@python3 tools/fetch_smollm2.py models/smollm2 || echo "make: without $(SMOLLM2) the tests of the real model are skipped" >&2

# no network and no download; SHENG_SMOLLM2 adds the tests of the real model when its file is there
check: sheng units
	@$(if $(wildcard $(SMOLLM2)),SHENG_SMOLLM2=$${SHENG_SMOLLM2-$(SMOLLM2)}) SHENG_BIN=$(B)/sheng SHENG_TEST_QUICK=$(if $(SANITIZER),1,$(SHENG_TEST_QUICK)) \
	  python3 tools/run_checks.py --jobs 2 --timeout 900 $(foreach u,$(UNITS) $(EXTRA_CHECKS),$(u) --) sh tools/check_headers.sh -- python3 tools/style.py

VENV := build/venv
$(VENV)/ready: tests/http/requirements.txt
	@python3 -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.PHONY: http
http: sheng $(B)/tests/quant/dump $(VENV)/ready smollm2
	@SHENG_BIN=$(B)/sheng SHENG_SMOLLM2=$$(ls $(SMOLLM2) 2>/dev/null) $(VENV)/bin/python -m pytest -q tests/http tests/eval tests/quant $(PYTEST_ARGS)

# everything that takes long: sanitizers over the unit and HTTP tests, fuzz corpora and a bounded run of every driver
check-full: setup-test
	@$(MAKE) --no-print-directory test
	@for s in address thread; do for t in check http; do $(MAKE) --no-print-directory SANITIZER=$$s $$t || exit 1; done; done
	@$(MAKE) --no-print-directory SANITIZER=address fuzz

FUZZ_BINS := $(FUZZ_SRCS:%.c=$(B)/%)
FUZZ_ITERATIONS ?= 20000
$(B)/tests/fuzz/fuzz_%: tests/fuzz/fuzz_%.c tests/fuzz/standalone_main.c $(B)/libsheng.a
	@mkdir -p $(@D)
	$(call say,FUZZ,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(BASEFLAGS) $(LDFLAGS) -o $@ $< tests/fuzz/standalone_main.c $(B)/libsheng.a $(LIBS)

fuzz: $(FUZZ_BINS)
	@for f in $(FUZZ_BINS); do n=$${f##*/fuzz_}; echo "$$f"; $$f tests/fuzz/corpus/$$n $(FUZZ_ITERATIONS) 1 || exit 1; done

style:
	@python3 tools/style.py

# --- Installing -----------------------------------------------------------------------------------------------------------------------------------------
install: sheng
	install -D -m 755 sheng $(DESTDIR)$(PREFIX)/bin/sheng
	install -D -m 644 LICENSE $(DESTDIR)$(PREFIX)/share/doc/sheng/LICENSE
	for f in models/sheng-small/*; do [ ! -f $$f ] || install -D -m 644 $$f $(DESTDIR)$(PREFIX)/share/sheng/$$f; done
	for f in README.md README.zh-CN.md CHANGES.md bench/*.md docs/*.md docs/images/*; do install -D -m 644 $$f $(DESTDIR)$(PREFIX)/share/doc/sheng/$$f; done

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/sheng
	rm -rf $(DESTDIR)$(PREFIX)/share/doc/sheng $(DESTDIR)$(PREFIX)/share/sheng

clean:
	rm -rf build sheng

-include $(OBJS:.o=.d) $(UNITS:%=%.d)
