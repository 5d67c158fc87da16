#!/bin/sh
# Each header compiles alone: whoever includes it needs to know nothing else. Prints a count that tools/run_checks.py reads.
pass=0 fail=0
for h in $(find include src -name '*.h' | sort); do
  if out=$(${CC:-cc} -std=c11 -Wall -Wextra -Werror -Iinclude -Isrc -D_GNU_SOURCE -DPCRE2_CODE_UNIT_WIDTH=8 -fsyntax-only -x c "$h" 2>&1); then
    pass=$((pass + 1))
  else
    fail=$((fail + 1)); echo "$h does not compile alone:"; echo "$out"
  fi
done
echo "$pass passed, $fail failed"
[ "$fail" = 0 ]
