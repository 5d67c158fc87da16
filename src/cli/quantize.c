/* `sheng quantize`: makes a 4- or 8-bit Hugging Face folder of one with bf16, f16 or f32 weights, on a CPU, layer by layer.
 *
 * Main thread. Ctrl-C and SIGTERM end the run at the next step; what is done stays in OUT.partial for --resume. */
#include "cli/quantize.h"

#include "base/file.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/text.h"
#include "cli/cli.h"
#include "quant/calib.h"
#include "quant/eval.h"
#include "quant/quantize.h"
#include "quant/report.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct quantize_opts {
  const char *in, *out, *calib, *method, *format, *zero_point, *cpu;
  sh_strlist keep, also;
  int64_t bits, group, samples, seq_len, own, max_memory, seed, threads, windows;
  const char *text;
  double damp;
  bool pow2, resume, act_order;
} quantize_opts;

static const quantize_opts DEFAULTS = {.method = "awq",
                                       .format = "auto",
                                       .zero_point = "auto",
                                       .cpu = "native",
                                       .bits = 4,
                                       .group = 128,
                                       .samples = 128,
                                       .seq_len = 512,
                                       .own = 16,
                                       .seed = 1,
                                       .damp = 0.01,
                                       .act_order = true,
                                       .windows = 16};

#define AT(field) offsetof(quantize_opts, field)
static const sh_opt TABLE[] = {
    {"model-path", NULL, SH_OPT_STR, AT(in), 0, 0, NULL, NULL, "Input and output", "IN",
     "Hugging Face folder with bf16, f16 or f32 weights."},
    {"output-path", "o", SH_OPT_STR, AT(out), 0, 0, NULL, NULL, "Input and output", "OUT", "Folder to make; it appears when it is whole."},
    {"resume", NULL, SH_OPT_FLAG, AT(resume), 0, 0, NULL, NULL, "Input and output", NULL,
     "Go on with what an interrupted run of the same command left in OUT.partial, or make the report that OUT lacks."},
    {"method", NULL, SH_OPT_ENUM, AT(method), 0, 0, "awq|gptq|rtn|int8", NULL, "Method", "NAME",
     "awq: activation-aware scales and ranges; gptq: rounding with error compensation; rtn: rounding to nearest; int8: 8 bits, one scale "
     "per row."},
    {"w-bit", NULL, SH_OPT_INT, AT(bits), 0, 0, NULL, NULL, "Method", "BITS", "Bits of a weight: 4 or 8."},
    {"q-group-size", NULL, SH_OPT_INT, AT(group), -1, 65536, NULL, NULL, "Method", "N",
     "Columns that share a scale, a multiple of 16; -1 is a whole row: one scale for each output channel."},
    {"zero-point", NULL, SH_OPT_ENUM, AT(zero_point), 0, 0, "auto|true|false", NULL, "Method", "BOOL",
     "Zero points (false: symmetric); auto is true, but false for int8, --pow2-scales and --format gptq, whose other readers want none."},
    {"pow2-scales", NULL, SH_OPT_FLAG, AT(pow2), 0, 0, NULL, NULL, "Method", NULL,
     "Scales are powers of two, for hardware that wants shifts."},
    {"format", NULL, SH_OPT_ENUM, AT(format), 0, 0, "auto|awq|gptq|compressed-tensors", NULL, "Method", "LAYOUT",
     "Layout of the folder, whatever the method; auto is gptq for --method gptq with 8 bits or symmetric, compressed-tensors for int8, 8 "
     "bits and whole rows, else awq."},
    {"keep", NULL, SH_OPT_LIST, AT(keep), 0, 0, NULL, NULL, "Method", "PATTERN",
     "Modules to leave as they are: a part of the name between dots, or a shell pattern on all of it; repeatable."},
    {"also", NULL, SH_OPT_LIST, AT(also), 0, 0, NULL, NULL, "Method", "PATTERN",
     "Modules to quantize that usually stay: lm_head, mtp, in_proj_a, ...; those outside the layers by rounding to nearest; repeatable."},
    {"act-order", NULL, SH_OPT_FLAG, AT(act_order), 0, 0, NULL, NULL, "Method", NULL,
     "gptq: round columns in the order of what they carry; groups stay where they are."},
    {"damp", NULL, SH_OPT_FLOAT, AT(damp), 0.0001, 1, NULL, NULL, "Method", "SHARE",
     "gptq: share of the mean that is added to the diagonal."},
    {"calib-data", NULL, SH_OPT_STR, AT(calib), 0, 0, NULL, NULL, "Calibration", "FILE",
     "awq, gptq: JSON lines of {\"text\"} or {\"messages\"}, or plain text; without it a text in the program and answers of the model "
     "itself."},
    {"samples", NULL, SH_OPT_INT, AT(samples), 1, 65536, NULL, NULL, "Calibration", "N", "Sequences at most."},
    {"seq-len", NULL, SH_OPT_INT, AT(seq_len), 16, 32768, NULL, NULL, "Calibration", "TOKENS", "Tokens of a sequence at most."},
    {"own-samples", NULL, SH_OPT_INT, AT(own), 0, 4096, NULL, NULL, "Calibration", "N",
     "Of them, how many the model writes itself (without --calib-data)."},
    {"seed", NULL, SH_OPT_INT, AT(seed), 0, 1e15, NULL, NULL, "Calibration", "N",
     "Of the choice and order of texts, and of the model's own answers."},
    {"eval-samples", NULL, SH_OPT_INT, AT(windows), 0, 1 << 20, NULL, NULL, "Report", "N",
     "Windows of a text over which the result is compared with IN at the end, into OUT/eval.json and OUT/report.html; 0 is none."},
    {"eval-text", NULL, SH_OPT_STR, AT(text), 0, 0, NULL, NULL, "Report", "FILE",
     "That text, as for `sheng eval --text`; without it one in the program."},
    {"max-memory", NULL, SH_OPT_SIZE, AT(max_memory), 0, 0, NULL, NULL, "Computation", "SIZE",
     "Refuse what would take more; 0 is no bound."},
    {"threads", NULL, SH_OPT_INT, AT(threads), 0, 1024, NULL, NULL, "Computation", "N", "Threads; 0 is every usable core."},
    {"cpu", NULL, SH_OPT_ENUM, AT(cpu), 0, 0, "native|avx2|baseline", NULL, "Computation", "LEVEL", "Instruction sets to use."},
    {0},
};
#undef AT

enum { REPORT_SEQ_LEN = 512 };

static volatile bool stopped, reading;

/* A text may be a pipe that nobody writes to, and a run that waits for it does not see that it shall stop. */
static void on_signal(int sig) {
  stopped = true;
  if (reading) raise(sig); /* it is as usual again (SA_RESETHAND) */
}

/* --- Progress: one line on a terminal, else a line per part. */

typedef struct progress {
  bool terminal;
  int64_t began;
  int first; /* parts that were there already; -1: not known yet */
} progress;

static void on_progress(void *ctx, int done, int total, const char *what) {
  progress *p = ctx;
  if (p->first < 0) p->first = done - 1;
  double spent = (double)(sh_now_ns() - p->began) * 1e-9, each = spent / (done - p->first), left = each * (total - done);
  enum { BAR = 30 };
  char bar[BAR + 1];
  for (int i = 0; i < BAR; i++) bar[i] = i * total < done * BAR ? '#' : '.';
  bar[BAR] = 0;
  if (p->terminal)
    fprintf(stderr, "\r[%s] %d of %d parts, %d:%02d left \033[K%s", bar, done, total, (int)left / 60, (int)left % 60,
            done == total ? "\n" : "");
  else fprintf(stderr, "%s: %d of %d parts, %.0f s, about %.0f s left\n", what, done, total, spent, left);
}

/* --- What the options mean together */

/* GPTQ's rounding is at its best with zero points, and its own layout is where current readers refuse them (vLLM's AutoGPTQConfig wants sym
 * to be true, GPTQModel, by which transformers reads, knows only its own without). The weights are the same numbers in the other layouts.
 */
static sh_qformat layout_of(const quantize_opts *o, const sh_quantize_opts *q) {
  static const char *const FORMATS[] = {"awq", "gptq", "compressed-tensors"};
  bool symmetric = strcmp(o->zero_point, "false") == 0 || (o->pow2 && strcmp(o->zero_point, "auto") == 0);
  for (int i = 0; i < 3; i++)
    if (strcmp(o->format, FORMATS[i]) == 0) return (sh_qformat)i;
  if (q->method == SH_QM_GPTQ && (q->bits == 8 || symmetric)) return SH_QF_GPTQ;
  return q->bits == 8 || q->group < 0 ? SH_QF_CT : SH_QF_AWQ;
}

static int settle(const quantize_opts *o, sh_quantize_opts *q, sh_error *e) {
  static const char *const METHODS[] = {"awq", "gptq", "rtn", "int8"};
  for (int i = 0; i < 4; i++)
    if (strcmp(o->method, METHODS[i]) == 0) q->method = (sh_qmethod)i;
  bool int8 = q->method == SH_QM_INT8;
  if (o->bits != 4 && o->bits != 8) return sh_fail(e, SH_ERR_ARG, "--w-bit: found %lld, wanted 4 or 8", (long long)o->bits);
  q->bits = int8 ? 8 : (int)o->bits;
  q->group = int8 ? -1 : o->group;
  if (q->group == 0 || (q->group > 0 && q->group % 16))
    return sh_fail(e, SH_ERR_ARG,
                   "--q-group-size: found %lld, wanted a multiple of 16 (32, 64 and 128 are usual), or -1 for one scale a row",
                   (long long)o->group);
  if (int8 && o->group != DEFAULTS.group && o->group != -1)
    return sh_fail(e, SH_ERR_ARG, "--method int8 has one scale a row, --q-group-size %lld asks for groups; --method rtn --w-bit 8 has them",
                   (long long)o->group);
  q->format = layout_of(o, q);
  if (int8 && q->format != SH_QF_CT)
    return sh_fail(e, SH_ERR_ARG, "--method int8 is written as --format compressed-tensors, not %s", o->format);
  bool automatic = strcmp(o->zero_point, "auto") == 0;
  q->zero_point = automatic ? !int8 && !o->pow2 && q->format != SH_QF_GPTQ : strcmp(o->zero_point, "true") == 0;
  if (int8 && q->zero_point) return sh_fail(e, SH_ERR_ARG, "--method int8 is symmetric; --zero-point true asks for zero points");
  q->int8_activations = int8;
  q->pow2 = o->pow2;
  q->act_order = o->act_order;
  q->damp = o->damp;
  return 0;
}

/* What works, but not as it may be meant. */
static void warn_options(const quantize_opts *o, const sh_quantize_opts *q) {
  if (q->format == SH_QF_GPTQ && q->zero_point)
    sh_log(SH_LOG_WARN,
           "a GPTQ folder with zero points is read by sheng, but vLLM and transformers want symmetric ones; --format %s holds the same "
           "weights for them",
           q->bits == 4 ? "awq" : "compressed-tensors");
  if (o->calib && q->method != SH_QM_AWQ && q->method != SH_QM_GPTQ)
    sh_log(SH_LOG_WARN, "--calib-data is not read: --method %s needs no calibration", o->method);
}

/* The tokens to calibrate with. Texts first: how many they are says whether the bound on memory holds, before the model writes for minutes.
 */
static int calibrate(const sh_calib_opts *c, const char *in, sh_quantizer *z, sh_samples *samples, char **says, sh_error *e) {
  int own = sh_calib_own(c);
  reading = true;
  int rc = sh_calib_texts(samples, in, c, e);
  reading = false;
  if (rc == 0) rc = sh_quantizer_room(z, samples->n + own, samples->tokens + (int64_t)own * c->seq_len, e);
  if (rc == 0 && own > 0) fprintf(stderr, "calibration: the model writes %d answers\n", own);
  if (rc == 0) rc = sh_calib_answers(samples, says, in, c, e);
  if (rc == 0) fprintf(stderr, "calibration: %s, %lld tokens\n", *says, (long long)samples->tokens);
  return rc;
}

/* report.html comes last. */
static bool has_report(const char *out) {
  char *path = sh_path_join(out, "report.html");
  bool has = path && sh_file_exists(path);
  sh_free(path);
  return has;
}

/* Hours later is too late to find that the report's text cannot be read, or that the model has no tokenizer. A pipe gives its text once
 * only. */
static int check_report(const quantize_opts *o, const char *in, sh_error *e) {
  const sh_calib_opts c = {.file = o->text, .samples = (int)o->windows, .seq_len = REPORT_SEQ_LEN};
  sh_samples s = {0};
  char *text = NULL;
  size_t n;
  if (o->windows == 0) return 0;
  int rc = o->text ? sh_file_read_regular(o->text, SH_SAMPLES_MAX_FILE, &text, &n, e) : 0;
  sh_free(text);
  if (rc == 0) rc = sh_calib_texts(&s, in, &c, e);
  sh_samples_free(&s);
  return rc < 0 ? sh_fail_in(e, rc, "the report (--eval-samples 0 leaves it out)") : 0;
}

static int run(const quantize_opts *o, const char *in, sh_quantize_opts *q, bool *whole, sh_quantize_result *r, sh_error *e) {
  bool looks = q->method == SH_QM_AWQ || q->method == SH_QM_GPTQ;
  sh_samples samples = {0};
  sh_quantizer *z = NULL;
  char *says = NULL, choice[400] = "";
  const sh_calib_opts c = {.file = o->calib,
                           .samples = (int)o->samples,
                           .seq_len = (int)o->seq_len,
                           .own = (int)o->own,
                           .seed = (uint64_t)o->seed,
                           .threads = (int)o->threads,
                           .cpu = o->cpu,
                           .stop = &stopped};
  q->own_seqs = looks ? sh_calib_own(&c) : 0;
  q->own_len = c.seq_len;
  if (looks)
    snprintf(choice, sizeof choice, "--calib-data: %.255s\t--samples: %d\t--seq-len: %d\t--own-samples: %d",
             o->calib ? sh_path_base(o->calib) : "none", c.samples, c.seq_len, q->own_seqs);
  q->calib_choice = choice;
  int rc = sh_quantizer_open(&z, in, q, e);
  *whole = rc == 0 && sh_quantizer_whole(z);
  if (rc == 0 && !(*whole && has_report(o->out))) rc = check_report(o, in, e);
  if (rc == 0 && !*whole && looks) rc = calibrate(&c, in, z, &samples, &says, e);
  if (rc == 0 && !*whole) rc = sh_quantizer_run(z, looks ? &samples : NULL, says, r, e);
  sh_quantizer_close(z);
  q->calib_choice = NULL;
  sh_samples_free(&samples);
  sh_free(says);
  return rc;
}

/* --- The report: what was made against what it was made of. */

static int put(const char *dir, const char *name, const sh_buf *b, sh_error *e) {
  char *path = sh_path_join(dir, name);
  int rc = !path || b->failed ? sh_fail(e, SH_ERR_NOMEM, "out of memory for %s", name) : sh_file_write_atomic(path, b->p, b->len, e);
  sh_free(path);
  return rc;
}

static int report(const quantize_opts *o, const char *in, sh_error *e) {
  sh_eval r = {0};
  sh_eval_opts eo = {.model = o->out,
                     .against = in,
                     .text = o->text,
                     .seq_len = REPORT_SEQ_LEN,
                     .samples = (int)o->windows,
                     .prompts = 4,
                     .exact = true,
                     .threads = (int)o->threads,
                     .cpu = o->cpu,
                     .cache_dir = "",
                     .stop = &stopped};
  sh_buf b;
  sh_buf_init(&b, 64 << 20);
  int rc = sh_eval_run(&r, &eo, e);
  if (rc == 0) sh_eval_write_json(&r, &b);
  if (rc == 0) rc = put(o->out, "eval.json", &b, e);
  sh_buf_reset(&b);
  if (rc == 0) sh_report_html(&r, NULL, 0, &b);
  if (rc == 0) rc = put(o->out, "report.html", &b, e);
  if (rc == 0)
    printf("against the original, over %lld tokens: perplexity %.4g (%.4g), KL divergence %.4g, same most likely token %.1f %%; see "
           "%s/report.html\n",
           (long long)r.scored, r.model.ppl, r.ref.ppl, r.kl_mean, 100 * r.top1, o->out);
  sh_buf_free(&b);
  sh_eval_free(&r);
  return rc < 0 ? sh_fail_in(e, rc, "%s is complete, but its report was not made (the same command with --resume makes it)", o->out) : 0;
}

/* --- All of it */

/* The second signal ends the program at once. */
static void listen_to_signals(void) {
  struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)(SA_RESTART | SA_RESETHAND)};
  sigemptyset(&a.sa_mask);
  sigaction(SIGINT, &a, NULL);
  sigaction(SIGTERM, &a, NULL);
}

static int make(const quantize_opts *o, const char *in, sh_quantize_opts *q, sh_error *e) {
  sh_quantize_result r = {0};
  bool whole = false;
  char bytes[32], peak[32];
  int rc = run(o, in, q, &whole, &r, e);
  if (rc < 0) return rc;
  if (whole && (o->windows == 0 || has_report(o->out))) {
    printf("%s is complete: nothing is left to do%s\n", o->out,
           has_report(o->out) ? " (its report is made again if report.html is removed from it)" : "");
    return 0;
  }
  if (whole) printf("%s is complete but for its report\n", o->out);
  else
    printf("%s: %d modules at %.3f bits per weight, %s in all, %s layout; %.0f s, at most %s of memory\n", o->out, r.n_modules,
           r.bits_per_weight, sh_format_size(r.bytes, bytes), sh_qformat_name(q->format), r.seconds, sh_format_size(r.peak_bytes, peak));
  if (r.search_gflops > 0) printf("scale searches: %.0f GFLOP/s\n", r.search_gflops);
  fflush(stdout);
  return o->windows > 0 ? report(o, in, e) : 0;
}

void sh_cmd_quantize_options(const sh_opt **table, const void **defaults) {
  *table = TABLE;
  *defaults = &DEFAULTS;
}

int sh_cmd_quantize(int argc, char **argv) {
  sh_error e = {0};
  quantize_opts o = DEFAULTS;
  const char *model = NULL;
  char *in = NULL;
  bool done = false;
  sh_cli_parse p = {.name = "quantize",
                    .usage = "sheng quantize --model-path IN --output-path OUT [options]",
                    .table = TABLE,
                    .opts = &o,
                    .defaults = &DEFAULTS};
  int status = sh_cli_options(&p, argc, argv, &model, &done);
  if (status != SH_EXIT_OK || done) goto end;
  if (model && o.in) {
    sh_fail(&e, SH_ERR_ARG, "the model is named twice, --model-path %s and %s; one is wanted", o.in, model);
    status = sh_cli_fail("quantize", &e, true);
    goto end;
  }
  if (model) o.in = model;
  progress show = {.terminal = isatty(STDERR_FILENO), .first = -1};
  sh_quantize_opts q = {.out = o.out,
                        .keep = o.keep.v,
                        .n_keep = o.keep.n,
                        .also = o.also.v,
                        .n_also = o.also.n,
                        .max_memory = o.max_memory,
                        .seed = (uint64_t)o.seed,
                        .resume = o.resume,
                        .report_seq_len = o.windows > 0 ? REPORT_SEQ_LEN : 0,
                        .threads = (int)o.threads,
                        .cpu = o.cpu,
                        .progress = on_progress,
                        .ctx = &show,
                        .stop = &stopped};
  if (!o.in || !o.out) {
    sh_fail(&e, SH_ERR_ARG, "%s is missing: %s", o.in ? "--output-path OUT" : "--model-path IN",
            o.in ? "the folder to make" : "the model's Hugging Face folder");
    status = sh_cli_fail("quantize", &e, true);
    goto end;
  }
  if (settle(&o, &q, &e) < 0) {
    status = sh_cli_fail("quantize", &e, true);
    goto end;
  }
  if ((status = sh_cli_find_model("quantize", o.in, &in)) != SH_EXIT_OK) goto end;
  warn_options(&o, &q);
  listen_to_signals();
  show.began = sh_now_ns();
  if (make(&o, in, &q, &e) < 0) status = sh_cli_fail("quantize", &e, false);
end:
  if (o.keep.private_cap > 0) sh_free((void *)o.keep.v);
  if (o.also.private_cap > 0) sh_free((void *)o.also.v);
  sh_free(in);
  return status;
}
