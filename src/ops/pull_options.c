/* The options of `sheng pull`: one table, from which parsing, --help and the docs page come. */
#include "ops/pull.h"

#include <stddef.h>

#define AT(field) offsetof(sh_pull_options, field)
#define WHAT "What to download"
#define WHERE "Where to"
#define HOW "How"
#define HUBS "Hubs and tokens (give tokens by their variables: a command line can be seen by other users)"

const sh_opt sh_pull_option_table[] = {
    {"from", NULL, SH_OPT_STR, AT(from), 0, 0, NULL, "SHENG_PULL_FROM", WHAT, "HUB",
     "huggingface, modelscope, modelers, or the address of any hub with Hugging Face's API"},
    {"revision", NULL, SH_OPT_STR, AT(revision), 0, 0, NULL, NULL, WHAT, "REV",
     "branch, tag or commit; by default the hub's main branch (main, at ModelScope master)"},
    {"include", NULL, SH_OPT_LIST, AT(include), 0, 0, NULL, NULL, WHAT, "PATTERN",
     "only the files that match one of these patterns (quoted: '*Q4_K_M*'); by default what serving needs: config, tokenizer, template, "
     "safetensors, or the repository's one GGUF"},
    {"local-dir", NULL, SH_OPT_STR, AT(local_dir), 0, 0, NULL, NULL, WHERE, "DIR", "this folder in place of the store"},
    {"home", NULL, SH_OPT_STR, AT(home), 0, 0, NULL, "SHENG_HOME", WHERE, "DIR",
     "the store; by default ~/.cache/sheng (or $XDG_CACHE_HOME/sheng). Models are in its folder models/"},
    {"jobs", "j", SH_OPT_INT, AT(jobs), 1, 32, NULL, NULL, HOW, "N", "connections at the same time"},
    {"part-size", NULL, SH_OPT_SIZE, AT(part_size), 65536, 1 << 30, NULL, NULL, HOW, "SIZE",
     "larger files come in parts of this size, several at a time"},
    {"retries", NULL, SH_OPT_INT, AT(retries), 0, 1000, NULL, NULL, HOW, "N",
     "tries after a failure before giving up; counted anew when bytes have come"},
    {"stall-timeout", NULL, SH_OPT_INT, AT(stall_timeout), 1, 3600, NULL, NULL, HOW, "SECONDS",
     "a connection over which nothing comes for so long is given up and tried again"},
    {"dry-run", NULL, SH_OPT_FLAG, AT(dry_run), 0, 0, NULL, NULL, HOW, "", "print the plan and stop"},
    {"verify", NULL, SH_OPT_FLAG, AT(verify), 0, 0, NULL, NULL, HOW, "",
     "compute the checksums of files that are there already, even when they were found right before"},
    {"ca-file", NULL, SH_OPT_STR, AT(ca_file), 0, 0, NULL, "CURL_CA_BUNDLE", HOW, "FILE",
     "certificates to trust, in place of the system's"},
    {"libcurl", NULL, SH_OPT_STR, AT(libcurl), 0, 0, NULL, "SHENG_LIBCURL", HOW, "FILE", "the libcurl to use, in place of the system's"},
    {"hf-endpoint", NULL, SH_OPT_STR, AT(hf_endpoint), 0, 0, NULL, "HF_ENDPOINT", HUBS, "URL", "Hugging Face, or a mirror of it"},
    {"hf-token", NULL, SH_OPT_STR, AT(hf_token), 0, 0, NULL, "HF_TOKEN", HUBS, "TOKEN", "token for --from huggingface"},
    {"modelscope-endpoint", NULL, SH_OPT_STR, AT(modelscope_endpoint), 0, 0, NULL, "MODELSCOPE_ENDPOINT", HUBS, "URL", "ModelScope"},
    {"modelscope-token", NULL, SH_OPT_STR, AT(modelscope_token), 0, 0, NULL, "MODELSCOPE_API_TOKEN", HUBS, "TOKEN",
     "token for --from modelscope"},
    {"modelers-endpoint", NULL, SH_OPT_STR, AT(modelers_endpoint), 0, 0, NULL, "OPENMIND_HUB_ENDPOINT", HUBS, "URL", "Modelers"},
    {"modelers-token", NULL, SH_OPT_STR, AT(modelers_token), 0, 0, NULL, "MODELERS_TOKEN", HUBS, "TOKEN", "token for --from modelers"},
    {"hub-token", NULL, SH_OPT_STR, AT(hub_token), 0, 0, NULL, "SHENG_HUB_TOKEN", HUBS, "TOKEN", "token for --from URL"},
    {0},
};

const sh_pull_options sh_pull_option_defaults = {
    .from = "huggingface",
    .jobs = 4,
    .part_size = 32 << 20,
    .retries = 6,
    .stall_timeout = 30,
    .hf_endpoint = "https://huggingface.co",
    .modelscope_endpoint = "https://modelscope.cn",
    .modelers_endpoint = "https://modelers.cn",
};
