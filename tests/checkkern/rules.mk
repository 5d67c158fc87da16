# The kernel checker: every variant against the references, then (--bench) its speed. Included before the Makefile's own rules, hence the default goal.
.DEFAULT_GOAL := all
CHECKKERN := $(B)/tests/checkkern/checkkern
CHECKKERN_OBJS := $(patsubst %.c,$(B)/%.o,$(sort $(wildcard tests/checkkern/*.c)))
EXTRA_CHECKS += $(CHECKKERN)

$(CHECKKERN): $(CHECKKERN_OBJS) $(B)/libsheng.a
	$(CC) $(CFLAGS) $(BASEFLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)

-include $(CHECKKERN_OBJS:.o=.d)
