/* `sheng bench`: measurements, by their modes. */
#ifndef SH_CLI_BENCH_H
#define SH_CLI_BENCH_H

int sh_cmd_bench(int argc, char **argv);

#endif
