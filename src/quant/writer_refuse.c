/* Why a folder cannot be written, where that takes some looking: it and the model lie in one another, or it is of another job.
 *
 * One thread. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/text.h"
#include "quant/writer_internal.h"

/* --- The model and OUT in one another */

/* Whether an absolute path without links is the folder or lies in it. Compared by device and inode, for a folder may be mounted twice. */
static bool lies_in(const char *path, const struct stat *folder) {
  char at[PATH_MAX];
  struct stat st;
  snprintf(at, sizeof at, "%s", path);
  for (;;) {
    if (stat(at, &st) == 0 && st.st_dev == folder->st_dev && st.st_ino == folder->st_ino) return true;
    char *slash = strrchr(at, '/');
    if (!slash || !at[1]) return false;
    slash[slash == at] = '\0';
  }
}

/* The folder in which `path` is, or would be, without links and dots; false when it is not there. */
static bool parent_of(const char *path, char real[PATH_MAX]) {
  size_t n = (size_t)(sh_path_base(path) - path);
  char *dir = n ? sh_strndup(path, n) : sh_strdup(".");
  bool is = dir && realpath(dir, real);
  sh_free(dir);
  return is;
}

/* The result would be a part of the model's folder, to be taken for a part of the model; or the model would be moved along with OUT. */
int sh_qw_refuse_overlap(const sh_qwriter *w, sh_error *e) {
  char model[PATH_MAX], parent[PATH_MAX];
  struct stat in, at;
  if (!w->source || !realpath(sh_ckpt_path(w->source), model) || stat(model, &in) != 0) return 0;
  bool there = stat(w->out, &at) == 0;
  if (there && at.st_dev == in.st_dev && at.st_ino == in.st_ino)
    return sh_fail(e, SH_ERR_ARG, "%s is the model itself; name another folder for the result", w->out);
  if (parent_of(w->out, parent) && lies_in(parent, &in))
    return sh_fail(e, SH_ERR_ARG, "%s lies in the model's own folder, %s; name a folder outside of it", w->out, model);
  if (there && lies_in(model, &at))
    return sh_fail(e, SH_ERR_ARG, "the model, %s, lies in %s, where the result shall be; name another folder", model, w->out);
  if (stat(w->dir, &at) == 0 && lies_in(model, &at))
    return sh_fail(e, SH_ERR_ARG, "the model, %s, lies in %s, where the result is put together; name another folder than %s", model, w->dir,
                   w->out);
  return 0;
}

/* --- Another job */

typedef struct field {
  const char *name, *value;
  int name_len, value_len; /* bytes */
} field;

/* The next field of a line, or false at its end. */
static bool next_field(const char **at, field *f) {
  *at += strspn(*at, "\t");
  size_t n = strcspn(*at, "\t\n");
  if (!n) return false;
  const char *colon = memmem(*at, n, ": ", 2);
  f->name = *at;
  f->name_len = (int)(colon ? colon - *at : (ptrdiff_t)n);
  f->value = colon ? colon + 2 : *at + n;
  f->value_len = (int)(*at + n - f->value);
  *at += n;
  return true;
}

static bool find_field(const char *line, const field *like, field *f) {
  while (next_field(&line, f))
    if (f->name_len == like->name_len && memcmp(f->name, like->name, (size_t)f->name_len) == 0) return true;
  return false;
}

static void put_difference(sh_buf *b, const field *was, const field *is) {
  enum { MOST = 60, NAME = 160 }; /* bytes shown: a list of patterns may be long */
  const field *f = was ? was : is;
  if (b->len) sh_buf_puts(b, ", ");
  sh_buf_printf(b, "%.*s ", f->name_len < NAME ? f->name_len : NAME, f->name);
  for (int k = 0; k < 2; k++) {
    const field *v = k ? is : was;
    sh_buf_puts(b, k ? " and is " : "was ");
    if (v) sh_buf_printf(b, "%.*s%s", v->value_len < MOST ? v->value_len : MOST, v->value, v->value_len > MOST ? "..." : "");
    else sh_buf_puts(b, "none");
  }
}

/* Fields of one line that are not the same in the other's. */
static void put_differences(sh_buf *b, const char *was, const char *is) {
  field f, g;
  for (const char *at = was; next_field(&at, &f);) {
    bool both = find_field(is, &f, &g);
    if (!both || f.value_len != g.value_len || memcmp(f.value, g.value, (size_t)f.value_len) != 0) put_difference(b, &f, both ? &g : NULL);
  }
  for (const char *at = is; next_field(&at, &f);)
    if (!find_field(was, &f, &g)) put_difference(b, NULL, &f);
}

int sh_qw_fail_other_job(const sh_qwriter *w, const char *where, const char *theirs, sh_error *e) {
  sh_buf b;
  sh_buf_init(&b, 400);
  const char *was = theirs, *is = w->job;
  size_t tag = strcspn(is, "\t\n");
  bool known = strncmp(was, is, tag) == 0 && strchr("\t\n", was[tag]); /* the first field has the program's name and version */
  for (int line = 0; known && line < 2 && !b.len && *was && *is; line++) {
    put_differences(&b, was, is);
    was += strcspn(was, "\n");
    is += strcspn(is, "\n");
    was += *was == '\n';
    is += *is == '\n';
  }
  int rc = b.len ? sh_fail(e, SH_ERR_ARG,
                           "%s is of a run with other options or of another model: %s%s; give what it was made with to go on with it, or "
                           "remove it to begin anew",
                           where, b.p, b.failed ? " ..." : "")
                 : sh_fail(e, SH_ERR_ARG, "%s is of a run of another version of sheng, or its file %s is damaged; remove it to begin anew",
                           where, SH_QW_JOB);
  sh_buf_free(&b);
  return rc;
}
