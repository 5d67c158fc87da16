"""Drives llama.cpp through its C API: the other side of compare.py, run by the Python of the virtual environment that has the package.

    llama.py PEER          PEER: xllamacpp or llama-cpp-python

Reads commands from standard input, one JSON object a line, and answers each with one on the real standard output (what the library prints goes to
standard error):

    {"do": "about"}                                          -> version and instruction sets, as llama.cpp says them
    {"do": "open", "model": FILE, "repack": true}            -> what it said of its buffers
    {"do": "context", "threads": 2, "seqs": 1, "room": 1024, "batch": 512, "flash": -1, "unified": false}
    {"do": "prefill", "tokens": 512}                         -> seconds of one prompt with the logits of its last row
    {"do": "decode", "depth": 256, "seconds": 0.15}          -> steps and seconds; every sequence of the context draws a token a step
    {"do": "logits", "ids": [...], "out": FILE}              -> writes the last row's logits as float32

Structures are those of include/llama.h at the pinned version. Their layout is no stable interface, so it is held to the defaults that the library fills
in, and after a context was made to what the library says of it: another version ends with a message, not with wrong figures.
"""
import ctypes as c
import importlib
import json
import os
import random
import sys
import time


class ContextParams(c.Structure):
    """llama_context_params; a pad at the end takes what later versions append."""
    _fields_ = ([(n, c.c_uint32) for n in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "n_outputs_max", "n_outputs_max_per_seq")]
                + [(n, c.c_int32) for n in ("n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type", "pooling_type", "attention_type",
                                            "flash_attn_type")]
                + [(n, c.c_float) for n in ("rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast",
                                            "yarn_beta_slow")]
                + [("yarn_orig_ctx", c.c_uint32), ("defrag_thold", c.c_float), ("cb_eval", c.c_void_p), ("cb_eval_user_data", c.c_void_p),
                   ("type_k", c.c_int32), ("type_v", c.c_int32), ("abort_callback", c.c_void_p), ("abort_callback_data", c.c_void_p)]
                + [(n, c.c_bool) for n in ("embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified")]
                + [("samplers", c.c_void_p), ("n_samplers", c.c_size_t), ("ctx_other", c.c_void_p), ("pad", c.c_uint64 * 16)])


class ModelParams(c.Structure):
    """llama_model_params; only the switch of repacking is used."""
    _fields_ = [("devices", c.c_void_p), ("tensor_buft_overrides", c.c_void_p), ("n_gpu_layers", c.c_int32), ("split_mode", c.c_int32),
                ("load_mode", c.c_int32), ("lazy_mode", c.c_int32), ("main_gpu", c.c_int32), ("tensor_split", c.c_void_p),
                ("progress_callback", c.c_void_p), ("progress_callback_user_data", c.c_void_p), ("kv_overrides", c.c_void_p),
                ("vocab_only", c.c_bool), ("check_tensors", c.c_bool), ("use_extra_bufts", c.c_bool), ("no_host", c.c_bool), ("no_alloc", c.c_bool),
                ("load_mtp", c.c_bool), ("pad", c.c_uint64 * 16)]


class Batch(c.Structure):
    _fields_ = [("n_tokens", c.c_int32), ("token", c.POINTER(c.c_int32)), ("embd", c.c_void_p), ("pos", c.POINTER(c.c_int32)),
                ("n_seq_id", c.POINTER(c.c_int32)), ("seq_id", c.POINTER(c.POINTER(c.c_int32))), ("logits", c.POINTER(c.c_int8))]


LOG = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
P, I = c.c_void_p, c.c_int32
FUNCTIONS = {
    "llama_backend_init": (None,), "llama_log_set": (None, LOG, P), "llama_print_system_info": (c.c_char_p,),
    "llama_model_load_from_file": (P, c.c_char_p, None), "llama_model_free": (None, P), "llama_model_desc": (I, P, c.c_char_p, c.c_size_t),
    "llama_model_get_vocab": (P, P), "llama_vocab_n_tokens": (I, P), "llama_init_from_model": (P, P, None), "llama_free": (None, P),
    "llama_get_memory": (P, P), "llama_memory_clear": (None, P, c.c_bool), "llama_memory_seq_cp": (None, P, I, I, I, I),
    "llama_memory_seq_pos_max": (I, P, I), "llama_batch_init": (Batch, I, I, I), "llama_batch_free": (None, Batch), "llama_decode": (I, P, Batch),
    "llama_synchronize": (None, P), "llama_get_logits_ith": (c.POINTER(c.c_float), P, I), "llama_n_ctx": (c.c_uint32, P),
    "llama_n_batch": (c.c_uint32, P), "llama_n_ubatch": (c.c_uint32, P), "llama_n_seq_max": (c.c_uint32, P), "llama_n_threads": (I, P),
    "llama_n_threads_batch": (I, P),
}


class Wrong(Exception):
    pass


def library(peer):
    """The shared library that holds llama.cpp, the classes of its two parameter structures, and the package's version."""
    if peer == "llama-cpp-python":
        package = importlib.import_module("llama_cpp")
        low = importlib.import_module("llama_cpp.llama_cpp")
        return low._lib, low.llama_model_params, low.llama_context_params, package.__version__
    package = importlib.import_module("xllamacpp")
    folder = os.path.dirname(package.__file__)
    files = [f for f in os.listdir(folder) if f.startswith("xllamacpp") and f.endswith(".so")]
    if len(files) != 1:
        raise Wrong(f"{folder} has {len(files)} libraries named xllamacpp*.so, not one")
    return c.CDLL(os.path.join(folder, files[0])), ModelParams, ContextParams, package.__version__


class Llama:
    def __init__(self, peer):
        self.lib, self.ModelParams, self.ContextParams, self.version = library(peer)
        kinds = dict(FUNCTIONS, llama_model_default_params=(self.ModelParams,), llama_context_default_params=(self.ContextParams,))
        for name, (gives, *takes) in kinds.items():
            f = getattr(self.lib, name, None)
            if f is None:
                raise Wrong(f"the library of {peer} {self.version} has no function {name}")
            last = {"llama_model_load_from_file": self.ModelParams, "llama_init_from_model": self.ContextParams}.get(name)
            f.restype, f.argtypes = gives, [t or last for t in takes]
        self.peer, self.model, self.ctx, self.said = peer, None, None, []
        self.log = LOG(self.heard)
        self.lib.llama_log_set(self.log, None)
        self.lib.llama_backend_init()
        self.rng = random.Random(1)

    def heard(self, _level, text, _user):
        self.said.append((text or b"").decode(errors="replace"))

    def lines(self, *parts):
        return [line.strip() for line in "".join(self.said).splitlines() if any(p in line for p in parts)]

    def failed(self, what):
        return Wrong(f"{what}; llama.cpp said:\n" + "".join(self.said)[-800:])

    def about(self, _o):
        return {"version": f"{self.peer} {self.version}", "system": self.lib.llama_print_system_info().decode()}

    def open(self, o):
        p = self.lib.llama_model_default_params()
        if (p.vocab_only, p.use_extra_bufts, p.no_alloc) != (False, True, False):
            raise Wrong(f"llama_model_params of {self.version} is laid out otherwise than here: take the pinned version")
        p.use_extra_bufts = o["repack"]
        self.close()
        self.said.clear()
        self.model = self.lib.llama_model_load_from_file(o["model"].encode(), p)
        if not self.model:
            raise self.failed(f"{o['model']} was not loaded")
        self.vocab = self.lib.llama_vocab_n_tokens(self.lib.llama_model_get_vocab(self.model))
        text = c.create_string_buffer(256)
        self.lib.llama_model_desc(self.model, text, len(text))
        return {"model": text.value.decode(), "buffers": self.lines("model buffer size")}

    def close(self):
        self.free_context()
        if self.model:
            self.lib.llama_model_free(self.model)
        self.model = None

    def free_context(self):
        if self.ctx:
            self.lib.llama_batch_free(self.batch)
            self.lib.llama_free(self.ctx)
        self.ctx = None

    def context(self, o):
        """o["room"]: tokens of a sequence."""
        p, seqs = self.lib.llama_context_default_params(), o["seqs"]
        found = (p.n_batch, p.n_ubatch, p.n_seq_max, p.rope_scaling_type, p.flash_attn_type, p.type_k, p.type_v, p.embeddings, p.kv_unified)
        if found != (2048, 512, 1, -1, -1, 1, 1, False, False):
            raise Wrong(f"llama_context_params of {self.version} is laid out otherwise than here, its defaults read {found}: take the pinned version")
        p.n_ctx, p.n_seq_max, p.n_batch, p.n_ubatch = o["room"] * seqs, seqs, max(o["batch"], 512), o["batch"]
        p.n_threads = p.n_threads_batch = o["threads"]
        p.flash_attn_type, p.kv_unified, p.no_perf = o["flash"], o["unified"], True
        self.free_context()
        self.said.clear()
        self.ctx = self.lib.llama_init_from_model(self.model, p)
        if not self.ctx:
            raise self.failed("no context was made")
        self.batch = self.lib.llama_batch_init(max(o["room"], seqs), 0, 1)
        self.seqs, self.step, self.room = seqs, p.n_batch, o["room"]
        self.clock = time.thread_time if o["threads"] == 1 else time.perf_counter
        got = [getattr(self.lib, f)(self.ctx) for f in ("llama_n_batch", "llama_n_ubatch", "llama_n_seq_max", "llama_n_threads", "llama_n_threads_batch")]
        asked = [p.n_batch, p.n_ubatch, seqs, o["threads"], o["threads"]]
        if got != asked or self.lib.llama_n_ctx(self.ctx) < p.n_ctx:
            raise Wrong(f"the context has batch, ubatch, sequences, threads {got}, not {asked}")
        return {"said": self.lines("flash_attn", "Flash Attention", "KV buffer size", "RS buffer size")}

    def fill(self, rows):
        """rows: (id, position, sequence, are its logits wanted)"""
        b = self.batch
        b.n_tokens = len(rows)
        for i, (token, pos, seq, wanted) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = token, pos, 1, seq, wanted

    def compute(self):
        """Seconds of the call until the last logits lie in memory; with one thread by the processor's clock, as sheng's side."""
        began = self.clock()
        rc = self.lib.llama_decode(self.ctx, self.batch)
        self.lib.llama_synchronize(self.ctx)
        took = self.clock() - began
        if rc:
            raise self.failed(f"llama_decode gave {rc}")
        return took

    def token(self):
        return self.rng.randrange(self.vocab)

    def read(self, ids, logits):
        """A prompt as sequence 0 of an empty memory."""
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.ctx), True)
        took = 0
        for at in range(0, len(ids), self.step):
            piece = ids[at : at + self.step]
            self.fill([(t, at + i, 0, logits and at + i == len(ids) - 1) for i, t in enumerate(piece)])
            took += self.compute()
        return took

    def prefill(self, o):
        took = self.read([self.token() for _ in range(o["tokens"])], True)
        self.stands_at([0], o["tokens"])
        return {"seconds": took}

    def decode(self, o):
        memory = self.lib.llama_get_memory(self.ctx)
        self.read([self.token() for _ in range(max(o["depth"], 1))], False)
        for s in range(1, self.seqs):
            self.lib.llama_memory_seq_cp(memory, 0, s, -1, -1)
        pos, steps, took = max(o["depth"], 1), -1, 0
        while took < o["seconds"] and pos < self.room:
            self.fill([(self.token(), pos, s, True) for s in range(self.seqs)])
            one = self.compute()
            took += one if steps >= 0 else 0  # the first carries out the copies
            steps, pos = steps + 1, pos + 1
        self.stands_at(range(self.seqs), pos)
        return {"steps": steps, "seconds": took}

    def stands_at(self, seqs, pos):
        memory = self.lib.llama_get_memory(self.ctx)
        for s in seqs:
            at = self.lib.llama_memory_seq_pos_max(memory, s)
            if at != pos - 1:
                raise Wrong(f"sequence {s} stands at {at} after {pos} tokens: not all were computed")

    def logits(self, o):
        self.read(o["ids"], True)
        row = self.lib.llama_get_logits_ith(self.ctx, -1)
        with open(o["out"], "wb") as f:
            f.write(c.string_at(row, 4 * self.vocab))
        return {"vocabulary": self.vocab}


def main():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        llama = Llama(sys.argv[1])
        doers = {n: getattr(llama, n) for n in ("about", "open", "context", "prefill", "decode", "logits")}
        for line in sys.stdin:
            o = json.loads(line)
            print(json.dumps(doers[o["do"]](o)), file=out, flush=True)
        llama.close()
    except (Wrong, ImportError, OSError) as e:
        print(json.dumps({"error": str(e)}), file=out, flush=True)
        sys.exit(1)


main()
