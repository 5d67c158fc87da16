#!/usr/bin/env python3
"""How fast a folder is loaded, cold and cached, beside what the disk gives in the same run.

  python3 bench/load.py [--sheng ./sheng] [--dir DIR] [--runs 3] [--only bf16|awq]

Makes two folders of random weights in DIR (a temporary folder beside the repository's build when not given, removed at the end): Qwen3.5-0.8B's shapes
in bf16 (1.5 GB, the real vocabulary), and 1 GB of AWQ (hidden 4096, 9 layers). Each round drops the caches, reads the folder's files with dd
(bs=8M, direct and buffered, caches dropped before each), then starts `sheng serve` cold and once more. As root the caches of the whole machine are
dropped; otherwise only those of the folder's files (posix_fadvise).

  resident   seconds from the start of the process until its resident file pages are 98% of what the model reads (/proc/PID/status, RssFile), and the rate
  ready      seconds until /health says 200, and the processor time used until then: on a busy machine ready is at best that divided by the cores
  answer     seconds of the first request after that (one token)
"""
import argparse
import array
import gzip
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = ROOT / "tests/golden/text"

# --- Folders ---------------------------------------------------------------------------------------------------------


class Random:
    """Endless bytes from one block, from another place each time: the disk does not compress, and no loader looks at the values."""

    def __init__(self):
        rng = random.Random(5)
        self.rng = rng
        self.blocks = {
            "BF16": array.array("H", (0x3C00 | rng.getrandbits(9) | rng.getrandbits(1) << 15 for _ in range(1 << 20))).tobytes(),
            "F16": array.array("H", (0x1800 | rng.getrandbits(10) for _ in range(1 << 18))).tobytes(),
            "F32": array.array("f", (rng.uniform(-1, 1) for _ in range(1 << 16))).tobytes(),
            "I32": rng.randbytes(1 << 21),
        }

    def write(self, f, dtype, n):
        block = self.blocks[dtype]
        at = self.rng.randrange(len(block) // 4) * 4
        while n > 0:
            piece = block[at : at + n]
            f.write(piece)
            n -= len(piece)
            at = 0


def count(shape):
    n = 1
    for d in shape:
        n *= d
    return n


SIZE = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4}


def write_shard(path, tensors, rnd):
    head, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        n = count(shape) * SIZE[dtype]
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for dtype, shape in tensors.values():
            rnd.write(f, dtype, count(shape) * SIZE[dtype])
        f.flush()
        os.fsync(f.fileno())
    return at


def matrix(t, name, rows, cols, awq):
    if not awq:
        t[name + ".weight"] = ("BF16", (rows, cols))
        return
    t[name + ".qweight"] = ("I32", (cols, rows // 8))
    t[name + ".qzeros"] = ("I32", (cols // 128, rows // 8))
    t[name + ".scales"] = ("F16", (cols // 128, rows))


def layer(i, h, inter, heads, kv, lk, lv, awq):
    p, t = f"model.layers.{i}.", {}
    for n in ("input_layernorm", "post_attention_layernorm"):
        t[p + n + ".weight"] = ("BF16", (h,))
    if i % 4 == 3:
        q = p + "self_attn."
        for n, rows in (("q_proj", heads * 512), ("k_proj", kv * 256), ("v_proj", kv * 256)):
            matrix(t, q + n, rows, h, awq)
        matrix(t, q + "o_proj", h, heads * 256, awq)
        t[q + "q_norm.weight"] = t[q + "k_norm.weight"] = ("BF16", (256,))
    else:
        q, c = p + "linear_attn.", 2 * lk * 128 + lv * 128
        matrix(t, q + "in_proj_qkv", c, h, awq)
        matrix(t, q + "in_proj_z", lv * 128, h, awq)
        t[q + "in_proj_a.weight"] = t[q + "in_proj_b.weight"] = ("BF16", (lv, h))
        t[q + "conv1d.weight"] = ("BF16", (c, 1, 4))
        t[q + "A_log"] = ("F32", (lv,))
        t[q + "dt_bias"] = ("BF16", (lv,))
        t[q + "norm.weight"] = ("BF16", (128,))
        matrix(t, q + "out_proj", h, lv * 128, awq)
    for n in ("gate_proj", "up_proj"):
        matrix(t, p + "mlp." + n, inter, h, awq)
    matrix(t, p + "mlp.down_proj", h, inter, awq)
    return t


def make_folder(out, vocab, h, inter, layers, heads, kv, lk, lv, awq):
    out.mkdir(parents=True)
    rnd, where, total = Random(), {}, 0
    shards = [{"model.embed_tokens.weight": ("BF16", (vocab, h)), "model.norm.weight": ("BF16", (h,))}]
    shards += [layer(i, h, inter, heads, kv, lk, lv, awq) for i in range(layers)]
    for i, tensors in enumerate(shards):
        name = f"model-{i:05d}.safetensors"
        total += write_shard(out / name, tensors, rnd)
        where.update(dict.fromkeys(tensors, name))
    config = {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "vocab_size": vocab, "hidden_size": h, "intermediate_size": inter,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": 256, "linear_num_key_heads": lk,
        "linear_num_value_heads": lv, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "hidden_act": "silu", "dtype": "bfloat16",
        "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25, "mrope_interleaved": True,
                            "mrope_section": [11, 11, 10]},
    }
    if awq:
        config["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
    (out / "config.json").write_text(json.dumps(config))
    (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}))
    with gzip.open(TEXT / "qwen3.5-tokenizer.json.gz") as f, open(out / "tokenizer.json", "wb") as g:
        shutil.copyfileobj(f, g)
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TEXT / name, out / name)
    return total


FOLDERS = {
    "bf16": dict(vocab=248320, h=1024, inter=3584, layers=24, heads=8, kv=2, lk=16, lv=16, awq=False),
    "awq": dict(vocab=32768, h=4096, inter=12288, layers=9, heads=16, kv=4, lk=16, lv=32, awq=True),
}

# --- Measuring -------------------------------------------------------------------------------------------------------


def drop_caches(folder):
    os.sync()
    for f in folder.rglob("*"):
        if f.is_file():
            fd = os.open(f, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
    if os.geteuid() == 0:
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("3")


def weight_files(folder):
    return sorted(folder.glob("*.safetensors"))


def dd(folder, *flags):
    drop_caches(folder)
    began = time.monotonic()
    for f in weight_files(folder):
        subprocess.run(["dd", f"if={f}", "of=/dev/null", "bs=8M", *flags], check=True, stderr=subprocess.DEVNULL)
    return sum(f.stat().st_size for f in weight_files(folder)) / (time.monotonic() - began) / 1e6


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def resident(pid):
    try:
        for line in open(f"/proc/{pid}/status"):
            if line.startswith("RssFile:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def processor_time(pid):
    """Seconds in user and kernel, of all threads."""
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(port, method, path, body=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        c.request(method, path, body, {"Content-Type": "application/json"})
        return c.getresponse().status
    except OSError:
        return 0
    finally:
        c.close()


def start(sheng, folder, bytes_read):
    """Starts the server, waits until it is ready, asks once, ends it. Gives seconds: resident, ready, processor time, answer; and the log."""
    port = free_port()
    began = time.monotonic()
    p = subprocess.Popen([sheng, "serve", folder, "--port", str(port), "--served-model-name", "m", "--log-level", "debug"], stdout=subprocess.DEVNULL,
                         stderr=subprocess.PIPE, text=True)
    there = ready = cpu = None
    while ready is None and p.poll() is None and time.monotonic() - began < 300:
        if there is None and resident(p.pid) >= 0.98 * bytes_read:
            there = time.monotonic() - began
        if ask(port, "GET", "/health") == 200:
            ready, cpu = time.monotonic() - began, processor_time(p.pid)
        time.sleep(0.01)
    if ready is None:
        p.kill()
        sys.exit("the server did not get ready:\n" + p.communicate()[1])
    asked = time.monotonic()
    status = ask(port, "POST", "/v1/completions", json.dumps({"model": "m", "prompt": "Hello", "max_tokens": 1}))
    answer = time.monotonic() - asked
    p.send_signal(signal.SIGTERM)
    log = p.communicate(timeout=60)[1]
    if status != 200:
        sys.exit(f"the first request got status {status}:\n{log}")
    return there or ready, ready, cpu, answer, log


def measure(name, folder, total, o):
    print(f"\n{name}: {total / 1e9:.2f} GB in {len(weight_files(folder))} files")
    if FOLDERS[name]["awq"]:
        drop_caches(folder)
        log = start(o.sheng, folder, total)[4]
        print("  the first start, cold:")
        for line in log.splitlines():
            if "repack" in line or "weights" in line:
                print("   ", line[25:])
    print("| dd direct, buffered (MB/s) | cold: resident | of dd direct, buffered | ready | answer | again: resident | ready | answer |")
    print("|---|---|---|---|---|---|---|---|")
    for _ in range(o.runs):
        direct, buffered = dd(folder, "iflag=direct"), dd(folder)
        drop_caches(folder)
        there, ready, cpu, answer, _log = start(o.sheng, folder, total)
        rate = total / there / 1e6
        there2, ready2, cpu2, answer2, _log = start(o.sheng, folder, total)
        print(f"| {direct:.0f}, {buffered:.0f} | {there:.2f} s, {rate:.0f} MB/s | {100 * rate / direct:.0f}%, {100 * rate / buffered:.0f}% | {ready:.2f} s ({cpu:.2f}) | "
              f"{answer:.2f} s | {there2:.2f} s | {ready2:.2f} s ({cpu2:.2f}) | {answer2:.2f} s |", flush=True)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--sheng", default=str(ROOT / "sheng"))
    a.add_argument("--dir", type=pathlib.Path)
    a.add_argument("--runs", type=int, default=3)
    a.add_argument("--only", choices=list(FOLDERS))
    o = a.parse_args()
    where = o.dir or pathlib.Path(tempfile.mkdtemp(prefix="load-", dir=ROOT / "build"))
    print(f"caches dropped: {'all' if os.geteuid() == 0 else 'of the files'}; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    try:
        for name, shape in FOLDERS.items():
            if o.only and name != o.only:
                continue
            folder = where / name
            if not (folder / "model.safetensors.index.json").exists():
                make_folder(folder, **shape)
            total = json.loads((folder / "model.safetensors.index.json").read_text())["metadata"]["total_size"]
            measure(name, folder, total, o)
    finally:
        if not o.dir:
            shutil.rmtree(where, ignore_errors=True)


if __name__ == "__main__":
    main()
