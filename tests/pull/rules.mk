# sheng pull against a local hub (loopback only; the standard library of Python)
EXTRA_CHECKS += tests/pull/test_pull.py
