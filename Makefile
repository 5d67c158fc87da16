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
LIBS := $(PKG_LIBS) -lz -lm -pthread

SRCS := $(sort $(wildcard src/*.c src/*/*.c src/*/*/*.c))
OBJS := $(SRCS:%.c=$(B)/%.o)
LIBOBJS := $(filter-out $(B)/src/main.o,$(OBJS))
UNIT_SRCS := $(sort $(wildcard tests/unit/*.c tests/unit/*/*.c tests/unit/*/*/*.c))
UNITS := $(UNIT_SRCS:%.c=$(B)/%)
FUZZ_SRCS := $(sort $(wildcard tests/fuzz/fuzz_*.c))

.PHONY: all clean
all: sheng

sheng: $(B)/sheng
	@cmp -s $< $@ || cp -f $< $@

$(B)/sheng: $(OBJS)
	$(CC) $(CFLAGS) $(BASEFLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)

$(B)/libsheng.a: $(LIBOBJS)
	@rm -f $@
	$(AR) rcs $@ $^

# each instruction set has its own flags; everything else is baseline x86-64
$(B)/src/kernels/x86/%_avx2.o: ISA := -mavx2 -mfma -mf16c -mbmi2

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(BASEFLAGS) $(ISA) -c -o $@ $<

$(B)/tests/unit/%: tests/unit/%.c $(B)/libsheng.a
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) -Itests $(CFLAGS) $(BASEFLAGS) $(LDFLAGS) -o $@ $< $(B)/libsheng.a -lcmocka $(LIBS)

clean:
	rm -rf build sheng

-include $(OBJS:.o=.d) $(UNITS:%=%.d)
