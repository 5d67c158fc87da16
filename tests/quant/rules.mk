# tests/quant drives a unit test's program, which writes the folders. Included before the Makefile's own rules, hence the default goal.
.DEFAULT_GOAL := all
http: $(B)/tests/unit/quant/layouts_test
