#!/usr/bin/env python3
"""`sheng pull` against a local hub that redirects, cuts, stalls, lies about lengths and serves wrong bytes.

    tests/pull/test_pull.py [NAME...]      SHENG_BIN: the program (default ./sheng). Also runs under pytest. Loopback only.
"""
import concurrent.futures
import json
import os
import pathlib
import pty
import random
import resource
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from hub import COMMIT, Fault, Hub  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = os.path.abspath(os.environ.get("SHENG_BIN") or ROOT / "sheng")
PART = 65536  # the smallest --part-size
SLOW = 3 if "address" in BIN or "thread" in BIN else 1  # sanitizers
signal.signal(signal.SIGINT, signal.default_int_handler)  # started with nohup or & it would be ignored, and by every child as well


def some_bytes(n, seed=1):
    return random.Random(seed).randbytes(n)


class PullTest(unittest.TestCase):
    def setUp(self):
        self.tmp = pathlib.Path(tempfile.mkdtemp(prefix="sheng-pull-"))
        self.addCleanup(shutil.rmtree, self.tmp, ignore_errors=True)
        self.hub = Hub()
        self.hub.__enter__()
        self.addCleanup(self.hub.__exit__, None, None, None)
        self.hub.add("config.json", b'{"model_type": "qwen3_5"}')
        self.hub.add("tokenizer.json", some_bytes(3000, 2))
        self.hub.add("README.md", b"# a model\n")
        self.hub.add(".gitattributes", b"*.safetensors filter=lfs\n")
        self.big = some_bytes(PART * 5 + 1234)
        self.hub.add("model.safetensors", self.big)

    def env(self, **more):
        keep = {k: v for k, v in os.environ.items() if k in ("PATH", "LD_LIBRARY_PATH") or k.endswith("SAN_OPTIONS")}
        return {**keep, "HOME": str(self.tmp / "home"), "HF_ENDPOINT": self.hub.url, "no_proxy": "127.0.0.1", **more}

    def args(self, *more, name="org/model"):
        return [BIN, "pull", name, "--part-size", str(PART), "--retries", "3", *more]

    def pull(self, *more, name="org/model", status=0, timeout=60, preexec=None, **env):
        p = subprocess.run(self.args(*more, name=name), env=self.env(**env), cwd=self.tmp, capture_output=True, text=True, timeout=timeout, preexec_fn=preexec)
        self.assertEqual(p.returncode, status, p.stderr + p.stdout)
        return p

    def start(self, *more, **env):
        return subprocess.Popen(self.args(*more), env=self.env(**env), cwd=self.tmp, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def find(self, name, **env):
        """Opens the tokenizer of a model by name."""
        return subprocess.run([BIN, "tokenize", name], env=self.env(**env), cwd=self.tmp, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)

    @property
    def dir(self):
        return self.tmp / "home/.cache/sheng/models/org/model"

    def wait_for(self, what, seconds=20):
        end = time.monotonic() + seconds
        while not what():
            self.assertLess(time.monotonic(), end, "it did not happen")
            time.sleep(0.01)

    def assert_complete(self, folder=None, names=("config.json", "tokenizer.json", "README.md", "model.safetensors")):
        folder = folder or self.dir
        for name in names:
            self.assertEqual((folder / name).read_bytes(), self.hub.files[name], name)
        self.assertFalse((folder / ".sheng-pull").exists())
        manifest = json.loads((folder / ".sheng-pull.json").read_text())
        self.assertEqual(sorted(f["path"] for f in manifest["files"]), sorted(names))
        return manifest

    def fetched(self, path="model.safetensors", since=0):
        """Bytes of a file that were sent; since: only for the requests from that number on."""
        new = self.hub.requests[since:]
        return sum(r.sent for r in self.hub.of(path) if r in new)


class Plain(PullTest):
    def test_a_model_is_pulled_into_the_store_and_its_path_printed(self):
        p = self.pull()
        m = self.assert_complete()
        self.assertEqual(p.stdout.strip(), str(self.dir))
        self.assertEqual((m["name"], m["hub"], m["revision"], m["commit"]), ("org/model", "huggingface", "main", COMMIT))
        self.assertIn("model.safetensors", p.stderr)
        self.assertIn("4 files", p.stderr)
        self.assertFalse((self.dir / ".gitattributes").exists())

    def test_a_large_file_comes_in_parts_over_several_connections(self):
        self.hub.rate = 400_000
        self.pull("--jobs", "4")
        self.assert_complete()
        ranges = {r.range for r in self.hub.of("model.safetensors", "storage")}
        self.assertEqual(len(ranges), 6)
        self.assertEqual(self.fetched(), len(self.big))
        self.assertLessEqual(len(self.hub.of("model.safetensors", "hub")), 2)  # the storage address is kept for the other parts

    def test_pulling_again_downloads_nothing(self):
        self.pull()
        n = len(self.hub.requests)
        p = self.pull()
        self.assertEqual([r.path for r in self.hub.requests[n:] if "/api/" not in r.path], [])
        self.assertIn("to download: 0", p.stderr)

    def test_what_changed_at_the_hub_is_brought_up_to_date(self):
        self.hub.add("old.json", b"{}")
        self.pull()
        del self.hub.files["old.json"]
        self.hub.files["config.json"] = b'{"model_type": "qwen3_6"}'
        self.hub.commit = "9" * 40
        n = len(self.hub.requests)
        self.pull()
        self.assert_complete()
        self.assertFalse((self.dir / "old.json").exists())
        self.assertEqual([r.path.split("/")[-1] for r in self.hub.requests[n:] if "/api/" not in r.path], ["config.json"])

    def test_a_file_of_the_old_revision_that_was_edited_here_stays(self):
        self.hub.add("old.json", b"{}")
        self.pull()
        (self.dir / "old.json").write_text("mine")
        del self.hub.files["old.json"]
        self.pull()
        self.assertEqual((self.dir / "old.json").read_text(), "mine")

    def test_a_file_damaged_here_is_found_and_replaced(self):
        self.pull()
        (self.dir / "tokenizer.json").write_bytes(b"x" * 3000)
        p = self.pull()
        self.assertIn("tokenizer.json", p.stderr)
        self.assert_complete()

    def test_verify_finds_damage_that_kept_the_time(self):
        self.pull()
        f = self.dir / "model.safetensors"
        st = f.stat()
        f.write_bytes(b"y" + self.big[1:])
        os.utime(f, ns=(st.st_atime_ns, st.st_mtime_ns))
        self.pull()
        self.assertNotEqual(f.read_bytes(), self.big)
        self.pull("--verify")
        self.assert_complete()

    def test_files_that_are_there_from_elsewhere_are_checked_and_kept(self):
        folder = self.tmp / "mine"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(self.big)
        (folder / "own.txt").write_text("keep me")
        self.pull("--local-dir", "mine")
        self.assert_complete(folder)
        self.assertEqual(self.fetched(), 0)
        self.assertEqual((folder / "own.txt").read_text(), "keep me")

    def test_the_store_is_where_the_variable_says(self):
        p = self.pull(SHENG_HOME=str(self.tmp / "store"))
        self.assertEqual(p.stdout.strip(), str(self.tmp / "store/models/org/model"))
        p = self.pull(XDG_CACHE_HOME=str(self.tmp / "xdg"))
        self.assertEqual(p.stdout.strip(), str(self.tmp / "xdg/sheng/models/org/model"))

    def test_without_hashes_the_commit_tells_that_nothing_changed(self):
        self.hub.no_hashes = True
        self.pull()
        self.assertIn("to download: 0", self.pull().stderr)
        self.hub.commit = "9" * 40
        self.assertIn("to download: 4", self.pull().stderr)
        self.assert_complete()

    def test_a_dry_run_writes_nothing(self):
        p = self.pull("--dry-run")
        self.assertIn("model.safetensors", p.stderr)
        self.assertIn("to download: 4", p.stderr)
        self.assertFalse((self.tmp / "home").exists())

    def test_names_with_blanks_and_other_alphabets_and_empty_files_come_through(self):
        self.hub.add("a b#c?.json", b"[1]")
        self.hub.add("模型.txt", "你好".encode())
        self.hub.add("empty.txt", b"")
        self.hub.add("sub/dir/x.json", b"{}")
        self.pull("--include", "*.json", "*.txt")
        self.assert_complete(names=("config.json", "tokenizer.json", "a b#c?.json", "模型.txt", "empty.txt", "sub/dir/x.json"))

    def test_a_list_of_many_pages_is_read_to_its_end(self):
        for i in range(25):
            self.hub.add(f"x{i:02}.json", b"%d" % i)
        self.hub.page_size = 4
        self.hub.link_base = "https://huggingface.co"  # a mirror that passes on foreign links
        self.pull()
        self.assertEqual(len(list(self.dir.glob("x*.json"))), 25)

    def test_a_revision_is_asked_for_by_name(self):
        self.hub.revisions.append("refs/pr/7")
        self.pull("--revision", "refs/pr/7")
        self.assertTrue(any("/revision/refs%2Fpr%2F7" in r.path for r in self.hub.requests))
        self.assertTrue(any(f"/resolve/{COMMIT}/" in r.path for r in self.hub.requests))

    def test_a_terminal_gets_a_bar(self):
        self.hub.rate = 200_000
        pid, fd = pty.fork()
        if pid == 0:
            os.chdir(self.tmp)
            os.execve(BIN, self.args(), self.env())
        out = b""
        while True:
            try:
                chunk = os.read(fd, 65536)
            except OSError:
                break
            if not chunk:
                break
            out += chunk
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        os.close(fd)
        self.assertIn(b"\r\x1b[K[#", out)
        self.assertIn(b"KiB/s", out)
        self.assert_complete()


class Choice(PullTest):
    def only(self, *names):
        self.hub.files, self.hub.lfs = {}, set()
        for n in names:
            self.hub.add(n, some_bytes(2000, hash(n) % 1000))

    def test_folders_of_a_repository_are_left_alone(self):
        self.hub.add("onnx/model.json", b"{}")
        self.hub.add("original/consolidated.safetensors", b"zz")
        self.hub.add("pytorch_model.bin", b"zz")
        self.pull()
        self.assert_complete()

    def test_patterns_choose_exactly_what_they_match(self):
        self.pull("--include", "config.json", "README*")
        self.assert_complete(names=("config.json", "README.md"))

    def test_a_pattern_that_matches_nothing_is_an_error(self):
        p = self.pull("--include", "*.ggfu", status=1)
        self.assertIn("*.ggfu", p.stderr)
        self.assertFalse(self.dir.exists())

    def test_the_one_gguf_of_a_repository_is_taken_with_all_its_pieces(self):
        self.only("config.json", "README.md", "x-Q4-00001-of-00002.gguf", "x-Q4-00002-of-00002.gguf", "mmproj-F16.gguf", "imatrix.gguf")
        self.pull()
        self.assert_complete(names=("README.md", "x-Q4-00001-of-00002.gguf", "x-Q4-00002-of-00002.gguf"))

    def test_several_ggufs_are_listed_and_a_choice_is_asked_for(self):
        self.only("x-Q4_K_M.gguf", "x-Q8_0.gguf", "README.md")
        p = self.pull(status=1)
        self.assertIn("x-Q8_0.gguf", p.stderr)
        self.assertIn("--include 'x-Q4_K_M.gguf'", p.stderr)
        self.assertFalse(self.dir.exists())
        self.pull("--include", "*Q8_0*")
        self.assert_complete(names=("x-Q8_0.gguf",))
        self.pull()  # brings up to date what is there
        self.assert_complete(names=("README.md", "x-Q8_0.gguf"))

    def test_a_repository_without_weights_sheng_reads_is_refused_before_anything_is_downloaded(self):
        self.only("config.json", "pytorch_model.bin")
        p = self.pull(status=1)
        self.assertIn("safetensors", p.stderr)


class Faults(PullTest):
    def fault(self, kind, path="model.safetensors", **args):
        self.hub.faults[path] = Fault(kind, **args)

    def test_a_cut_connection_goes_on_where_it_stopped(self):
        self.fault("cut", at=40000, times=5)
        self.pull()
        self.assert_complete()
        self.assertEqual(self.fetched(), len(self.big))

    def test_a_server_that_always_cuts_at_once_is_given_up(self):
        self.fault("cut", at=0)
        p = self.pull("--retries", "2", status=1)
        self.assertIn("given up after 3 tries", p.stderr)
        self.assertIn("run the same command again", p.stderr)

    def test_a_stall_is_noticed_and_tried_again(self):
        self.fault("stall", at=20000, times=1)
        start = time.monotonic()
        self.pull("--stall-timeout", "2")
        self.assertLess(time.monotonic() - start, 20 * SLOW)
        self.assert_complete()

    def test_a_server_that_ignores_ranges_sends_the_file_in_one_stream(self):
        self.fault("no_ranges")
        self.pull()
        self.assert_complete()
        self.assertEqual(len(self.hub.of("model.safetensors", "storage")), 1)

    def test_a_stream_without_ranges_that_is_cut_starts_again(self):
        self.fault("no_ranges", at=200_000, times=2)
        self.pull()
        self.assert_complete()

    def test_a_stream_that_is_always_cut_is_given_up(self):
        self.fault("no_ranges", at=200_000)
        p = self.pull("--retries", "2", status=1)
        self.assertIn("given up after 3 tries", p.stderr)

    def test_a_small_file_that_is_cut_where_ranges_are_ignored_is_read_again(self):
        self.hub.add("vocab.txt", some_bytes(50000, 9))
        hub = self.hub
        cut = Fault("cut", at=30000, times=1)
        hub.faults["vocab.txt"] = cut
        done = threading.Event()

        def then_no_ranges():
            while cut.left and not done.is_set():
                time.sleep(0.001)
            hub.faults["vocab.txt"] = Fault("no_ranges")

        t = threading.Thread(target=then_no_ranges)
        t.start()
        try:
            self.pull()
        finally:
            done.set()
            t.join()
        self.assertEqual((self.dir / "vocab.txt").read_bytes(), hub.files["vocab.txt"])

    def test_a_length_that_is_too_large_is_a_cut(self):
        self.fault("long_length", extra=1000, times=2)
        self.pull()
        self.assert_complete()

    def test_a_length_that_is_too_small_is_completed_by_another_request(self):
        self.fault("short_length", missing=3000, times=3)
        self.pull()
        self.assert_complete()

    def test_an_endless_answer_is_cut_at_the_end_of_the_part(self):
        self.fault("endless", extra=5_000_000, times=2)
        self.pull()
        self.assert_complete()
        self.assertLess(os.path.getsize(self.dir / "model.safetensors"), len(self.big) + 1)

    def test_an_endless_small_file_is_not_taken(self):
        self.fault("endless", path="tokenizer.json", extra=5_000_000)
        p = self.pull(status=1)
        self.assertIn("the hub lists 3000", p.stderr)

    def test_another_part_than_the_one_asked_for_is_not_written(self):
        self.fault("shifted", times=2, after=1)
        p = self.pull("--jobs", "1")
        self.assertIn("another part than the one asked for", p.stderr)
        self.assertNotIn("checksum", p.stderr)
        self.assert_complete()

    def test_a_wrong_total_is_found(self):
        self.fault("lie", total_off=77)
        p = self.pull(status=1)
        self.assertIn("the hub lists", p.stderr)
        self.assertFalse((self.dir / "model.safetensors").exists())

    def test_a_file_that_became_shorter_is_found(self):
        self.fault("other", data=b"short")
        p = self.pull(status=1)
        self.assertIn("has 5 bytes, the hub lists", p.stderr)

    def test_wrong_bytes_once_are_downloaded_again(self):
        self.fault("corrupt", at=PART * 2 + 7, times=6)
        p = self.pull()
        self.assertIn("checksum", p.stderr)
        self.assert_complete()
        self.assertEqual(self.fetched(), 2 * len(self.big))

    def test_wrong_bytes_always_are_deleted_and_reported(self):
        self.fault("corrupt")
        p = self.pull(status=1)
        self.assertIn("a second time", p.stderr)
        self.assertFalse((self.dir / "model.safetensors").exists())
        self.assertEqual(list((self.dir / ".sheng-pull").glob("*.part")), [])
        self.assertEqual((self.dir / "config.json").read_bytes(), self.hub.files["config.json"])

    def test_wrong_bytes_in_a_small_file_are_found_by_gits_hash(self):
        self.fault("corrupt", path="config.json")
        p = self.pull(status=1)
        self.assertIn("config.json: the checksum", p.stderr)
        self.assertFalse((self.dir / "config.json").exists())

    def test_a_429_waits_as_long_as_it_asks(self):
        self.fault("status", status=429, headers=[("Retry-After", "2")], times=1)
        start = time.monotonic()
        self.pull()
        self.assertGreater(time.monotonic() - start, 2)
        self.assert_complete()

    def test_a_rate_limit_in_hugging_faces_own_header_is_honoured(self):
        self.fault("status", status=429, headers=[("RateLimit", '"resolvers";r=0;t=2')], times=1)
        start = time.monotonic()
        self.pull()
        self.assertGreater(time.monotonic() - start, 2)
        self.fault("status", status=500, headers=[("RateLimit", '"resolvers";r=499;t=299')], times=1)
        self.pull("--local-dir", "b", timeout=30)

    def test_a_wait_of_hours_is_an_error_that_says_so(self):
        self.fault("status", status=503, headers=[("Retry-After", "7200")])
        p = self.pull(status=1)
        self.assertIn("7200 seconds", p.stderr)

    def test_errors_of_the_server_are_tried_again(self):
        self.fault("status", status=500, times=2)
        self.hub.api_faults["/api/models"] = Fault("status", status=502, times=1)
        self.pull()
        self.assert_complete()

    def test_errors_of_the_server_that_stay_end_the_pull(self):
        self.fault("status", status=500, body=b'{"error": "the disk is on fire"}')
        p = self.pull("--retries", "1", status=1)
        self.assertIn("answered 500: the disk is on fire", p.stderr)

    def test_a_storage_address_that_expired_is_asked_for_again(self):
        self.hub.rate = 300_000
        p = self.start("--jobs", "1")
        self.wait_for(lambda: len(self.hub.of("model.safetensors", "storage")) >= 3)
        self.hub.expired = self.hub.signatures
        out, err = p.communicate(timeout=60)
        self.assertEqual(p.returncode, 0, err)
        self.assert_complete()
        self.assertEqual(len(self.hub.of("model.safetensors", "hub")), 2)

    def test_without_hashes_the_etag_ties_the_parts_together(self):
        self.hub.no_hashes = True
        self.fault("other", data=some_bytes(len(self.big), 99), times=2)
        p = self.pull("--jobs", "1")
        self.assertIn("changed at the hub", p.stderr)
        self.assert_complete()

    def test_redirects_in_a_circle_end(self):
        self.hub.api_faults["/org/model/resolve"] = Fault("redirect", to=self.hub.url + f"/org/model/resolve/{COMMIT}/config.json")
        p = self.pull(status=1)
        self.assertIn("8 redirects", p.stderr)

    def test_redirects_to_other_protocols_are_not_followed(self):
        for to in ("file:///etc/passwd", "ftp://127.0.0.1/x", "http://user@127.0.0.1/x", "gopher://127.0.0.1"):
            self.hub.api_faults["/org/model/resolve"] = Fault("redirect", to=to)
            p = self.pull(status=1)
            self.assertIn("redirect", p.stderr)

    def test_a_signed_address_is_not_printed(self):
        self.hub.api_faults["/org/model/resolve"] = Fault("redirect", to="ftp://127.0.0.1/x?signature=tell-nobody")
        self.assertNotIn("tell-nobody", self.pull(status=1).stderr)

    def test_what_is_no_list_of_files_is_said(self):
        for body in (b"<html>login</html>", b"{}", b'[{"type":"file"}]', b"", b"[" * 5000, b'[{"type":"file","path":"a.safetensors"}]',
                     b'[{"type":"file","path":"a.safetensors","size":-4}]', b'[{"type":"file","path":"a.safetensors","size":1e300}]'):
            self.hub.api_faults = {f"/api/models/org/model/tree/{COMMIT}": Fault("text", body=body)}
            p = self.pull(status=1)
            self.assertTrue("API" in p.stderr or "no path" in p.stderr or "no usable size" in p.stderr or "deep" in p.stderr or "depth" in p.stderr, p.stderr)
        self.assertFalse((self.tmp / "home").exists())

    def test_a_file_listed_twice_with_two_sizes_is_refused(self):
        self.hub.extra_entries = [{"type": "file", "path": "config.json", "size": 7, "oid": "a" * 40}]
        p = self.pull(status=1)
        self.assertIn("twice", p.stderr)


class Names(PullTest):
    def test_paths_that_leave_the_folder_are_refused(self):
        for bad in ("../evil.json", "a/../../evil.json", "/etc/evil.json", "a//b.json", "./x.json", "x/.", "..", "", "a\0b.json", "a\nb.json", "a\x1b[31m.json",
                    ".git/hooks/post-checkout", "sub/.git/config", ".sheng-pull/resume", ".sheng-pull.json", "x" * 300 + ".json", "a/" * 600 + "b.json"):
            self.hub.extra_entries = [{"type": "file", "path": bad, "size": 3, "oid": "a" * 40}]
            p = self.pull(status=1)
            self.assertIn("nothing of this repository is downloaded", p.stderr, repr(bad))
            self.assertNotIn("\x1b", p.stderr)
        self.assertFalse((self.tmp / "home").exists())

    def test_a_name_that_is_none_is_refused_before_any_request(self):
        for bad in ("../x", "a//b", "/abs", "a/b/c/d", "org/mo del", "org/..", "org/model/", "https://huggingface.co/org/model", ""):
            p = self.pull(name=bad, status=1)
            self.assertIn("OWNER/NAME", p.stderr)
        self.assertEqual(self.hub.requests, [])

    def test_a_file_and_a_folder_of_one_name_end_in_an_error(self):
        self.hub.add("a.json", b"1")
        self.hub.add("a.json/b.json", b"2")
        p = self.pull("--include", "a.json*", status=1)
        self.assertIn("a.json", p.stderr)

    def test_a_folder_in_the_way_of_a_file_is_said(self):
        (self.dir / "config.json").mkdir(parents=True)
        p = self.pull(status=1)
        self.assertIn("in the way", p.stderr)


class Access(PullTest):
    def test_the_token_goes_to_the_hub_and_to_nobody_else(self):
        self.hub.token = "hf_secret"
        self.pull(HF_TOKEN="hf_secret")
        self.assert_complete()
        for r in self.hub.requests:
            self.assertEqual("hf_secret" in str(r.headers), r.server == "hub", r)
        self.assertTrue(any(r.server == "storage" for r in self.hub.requests))

    def test_the_token_is_printed_nowhere(self):
        self.hub.token = "another"
        p = self.pull(HF_TOKEN="hf_secret", status=1)
        self.assertNotIn("hf_secret", p.stderr + p.stdout)
        self.assertIn("does not accept the token in HF_TOKEN", p.stderr)

    def test_a_private_model_without_token_names_the_variable(self):
        self.hub.token = "t"
        p = self.pull(status=1)
        self.assertIn("HF_TOKEN", p.stderr)
        self.assertIn("org/model", p.stderr)

    def test_a_gated_model_names_its_page(self):
        self.hub.api_faults["/api/models"] = Fault("status", status=403, headers=[("X-Error-Code", "GatedRepo"), ("X-Error-Message", "Access is restricted")])
        p = self.pull(status=1)
        self.assertIn(self.hub.url + "/org/model", p.stderr)
        self.assertIn("accept the terms", p.stderr)
        self.assertIn("Access is restricted", p.stderr)

    def test_a_file_that_is_gated_alone_says_the_same(self):
        self.hub.api_faults["/org/model/resolve"] = Fault("status", status=403, headers=[("X-Error-Code", "GatedRepo")])
        p = self.pull(status=1, HF_TOKEN="x")
        self.assertIn("accept the terms", p.stderr)

    def test_a_model_that_does_not_exist_is_said_and_leaves_nothing(self):
        p = self.pull(name="org/nothing", status=1)
        self.assertIn("no model org/nothing", p.stderr)
        self.assertFalse((self.tmp / "home").exists())

    def test_a_revision_that_does_not_exist_is_said(self):
        p = self.pull("--revision", "v9", status=1)
        self.assertIn("no revision 'v9'", p.stderr)

    def test_a_hub_that_is_not_there_is_said(self):
        p = self.pull("--retries", "1", HF_ENDPOINT="http://127.0.0.1:9", status=1)
        self.assertIn("http://127.0.0.1:9: the connection failed", p.stderr)
        self.assertIn("https_proxy", p.stderr)
        self.assertIn("--from", p.stderr)

    def test_addresses_and_tokens_of_a_wrong_form_are_refused(self):
        for endpoint in ("ftp://x", "http://", "http://u:p@127.0.0.1", "http://127.0.0.1:99999", "http://127.0.0.1/?x=1"):
            self.assertIn("no address of a hub", self.pull(HF_ENDPOINT=endpoint, status=1).stderr)
        self.assertIn("line break", self.pull(HF_TOKEN="a\nX-Evil: 1", status=1).stderr)
        self.assertIn("--from", self.pull("--from", "nohub", status=1).stderr)
        self.assertEqual(self.hub.requests, [])

    def test_a_proxy_from_the_environment_is_used(self):
        self.hub.token = "hf_secret"
        self.hub.storage_url = "http://storage.test"
        self.hub.lfs = set()
        self.pull(HF_ENDPOINT="http://hub.test", http_proxy=self.hub.url, no_proxy="", HF_TOKEN="hf_secret")
        self.assert_complete()
        self.assertTrue(self.hub.proxied[0].startswith("http://hub.test/api/"))

    def test_a_missing_libcurl_says_how_to_install_it(self):
        p = self.pull("--libcurl", "/nowhere/libcurl.so.4", status=1)
        self.assertIn("apt-get install libcurl4", p.stderr)
        libm = next((x for x in ("/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6") if os.path.exists(x)), None)
        if libm:
            self.assertIn("has no curl_", self.pull("--libcurl", libm, status=1).stderr)

    @unittest.skipUnless(shutil.which("openssl"), "skip: no openssl program to make a certificate")
    def test_certificates_are_checked_and_an_own_one_can_be_trusted(self):
        cert, key = self.tmp / "cert.pem", self.tmp / "key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
                        "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], check=True, capture_output=True)
        ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ctx.load_cert_chain(cert, key)
        with Hub(tls=ctx) as hub:
            hub.files, hub.lfs = self.hub.files, self.hub.lfs
            p = self.pull(HF_ENDPOINT=hub.url, status=1)
            self.assertIn("certificate is not trusted", p.stderr)
            self.pull("--ca-file", str(cert), HF_ENDPOINT=hub.url)
            self.assert_complete()
            hub.api_faults["/org/model/resolve"] = Fault("redirect", to=self.hub.url + "/x")
            p = self.pull("--ca-file", str(cert), "--local-dir", "d", HF_ENDPOINT=hub.url, status=1)
            self.assertIn("unprotected http", p.stderr)


class Hubs(PullTest):
    def test_any_hub_with_the_same_api_is_named_by_its_address(self):
        self.hub.api_faults["/api/models/org/model/revision"] = Fault("status", status=404)  # one without that call
        p = self.pull("--from", self.hub.url + "/", HF_ENDPOINT="", SHENG_HUB_TOKEN="tt", HF_TOKEN="hf_secret")
        self.assert_complete()
        self.assertNotIn("hf_secret", str([r.headers for r in self.hub.requests]))
        self.assertIn("Bearer tt", str([r.headers for r in self.hub.requests if r.server == "hub"]))
        self.assertIn(self.hub.url, p.stderr)

    def test_modelscope(self):
        self.hub.token = "ms_secret"
        self.hub.add("sub/x.json", b"{}")
        self.pull("--from", "modelscope", MODELSCOPE_ENDPOINT=self.hub.url, MODELSCOPE_API_TOKEN="ms_secret")
        m = self.assert_complete()
        self.assertEqual((m["hub"], m["revision"]), ("modelscope", "master"))
        for r in self.hub.requests:
            self.assertEqual("m_session_id=ms_secret" in str(r.headers), r.server == "hub", r)

    def test_modelscope_errors_with_status_200_are_errors(self):
        p = self.pull("--from", "modelscope", "--revision", "v9", MODELSCOPE_ENDPOINT=self.hub.url, status=1)
        self.assertIn("no revision v9", p.stderr)
        p = self.pull("--from", "modelscope", name="org/none", MODELSCOPE_ENDPOINT=self.hub.url, status=1)
        self.assertIn("no model org/none", p.stderr)
        self.assertIn("record not found", p.stderr)

    def test_modelscope_lists_of_3000_files_are_walked_folder_by_folder(self):
        for i in range(3100):
            self.hub.files[f"many{i % 3}/{i}.bin"] = b"x"
        self.hub.add("z/last.json", b"{}")
        self.pull("--from", "modelscope", "--include", "z/", "config.json", MODELSCOPE_ENDPOINT=self.hub.url)
        self.assert_complete(names=("config.json", "z/last.json"))

    def test_modelers(self):
        self.hub.token = "ml_secret"
        self.hub.add("sub/deep/x.json", b"{}")
        self.pull("--from", "modelers", "--include", "*", OPENMIND_HUB_ENDPOINT=self.hub.url, MODELERS_TOKEN="ml_secret")
        m = self.assert_complete(names=(".gitattributes", "config.json", "tokenizer.json", "README.md", "model.safetensors", "sub/deep/x.json"))
        self.assertEqual(m["commit"], COMMIT)
        self.hub.faults["config.json"] = Fault("corrupt")
        p = self.pull("--from", "modelers", "--local-dir", "b", OPENMIND_HUB_ENDPOINT=self.hub.url, MODELERS_TOKEN="ml_secret", status=1)
        self.assertIn("config.json: the checksum", p.stderr)


class Cuts(PullTest):
    def half(self, **args):
        """A pull of which about half of the large file has come."""
        self.hub.rate = 150_000
        since = len(self.hub.requests)
        p = self.start(*args.get("more", ()))
        self.addCleanup(p.kill)
        self.wait_for(lambda: self.fetched(since=since) > len(self.big) // 2)
        return p

    def finish(self, *more):
        self.hub.rate = 0
        since = len(self.hub.requests)
        self.pull(*more)
        self.assert_complete()
        return self.fetched(since=since)

    def test_ctrl_c_ends_at_once_and_the_next_run_goes_on(self):
        p = self.half()
        p.send_signal(signal.SIGINT)
        start = time.monotonic()
        out, err = p.communicate(timeout=10)
        self.assertLess(time.monotonic() - start, 2 * SLOW)
        self.assertEqual(p.returncode, 1)
        self.assertIn("run the same command again", err)
        self.assertFalse((self.dir / "model.safetensors").exists())
        self.assertFalse((self.dir / ".sheng-pull.json").exists())
        again = self.finish()
        self.assertLess(again, len(self.big) * 0.6)

    def test_ctrl_c_during_the_listing_and_during_a_stall_ends_at_once(self):
        for where in (lambda: self.hub.api_faults.update({"/api/models": Fault("stall")}),
                      lambda: (self.hub.api_faults.clear(), self.hub.faults.update({"model.safetensors": Fault("stall", at=10)}))):
            where()
            n = len(self.hub.requests)
            p = self.start()
            self.wait_for(lambda: len(self.hub.requests) > n + (0 if self.hub.api_faults else 5))
            time.sleep(0.3)
            p.send_signal(signal.SIGTERM)
            start = time.monotonic()
            p.communicate(timeout=10)
            self.assertLess(time.monotonic() - start, 2 * SLOW)
            self.assertEqual(p.returncode, 1)

    def test_a_killed_pull_goes_on_with_the_parts_that_were_whole(self):
        p = self.half(more=("--jobs", "1"))
        p.kill()
        p.communicate()
        again = self.finish()
        self.assertLess(again, len(self.big) * 0.75)

    def test_another_part_size_does_not_lose_what_is_there(self):
        p = self.half(more=("--jobs", "1"))
        p.send_signal(signal.SIGINT)
        p.communicate()
        self.hub.rate = 0
        since = len(self.hub.requests)
        self.pull("--part-size", "1MiB")
        self.assert_complete()
        self.assertLess(self.fetched(since=since), len(self.big) * 0.6)

    def test_a_file_that_changed_meanwhile_starts_again(self):
        p = self.half()
        p.send_signal(signal.SIGINT)
        p.communicate()
        self.hub.files["model.safetensors"] = some_bytes(len(self.big), 77)
        self.assertEqual(self.finish(), len(self.big))

    def test_damaged_journals_and_part_files_do_no_harm(self):
        for damage in (b"", b"garbage\n", b"\xff\x00\xff", None, "cut", "tail", "short"):
            p = self.half()
            p.send_signal(signal.SIGINT)
            p.communicate()
            work = self.dir / ".sheng-pull"
            (journal,) = [f for f in work.glob("*.journal") if len(f.read_bytes().splitlines()) > 1]
            text = journal.read_bytes()
            if damage == "cut":
                journal.write_bytes(text[:-3])
            elif damage == "tail":
                journal.write_bytes(text + b"999999 5\n")
            elif damage == "short":
                os.truncate(journal.with_suffix(".part"), 100)
            elif damage is None:
                journal.write_bytes(text.replace(b"sheng-pull 1", b"sheng-pull 9"))
            else:
                journal.write_bytes(damage)
            self.finish()
            shutil.rmtree(self.dir)

    def test_bytes_lost_behind_the_journal_are_found_by_the_checksum(self):
        p = self.half(more=("--jobs", "1"))
        p.send_signal(signal.SIGINT)
        p.communicate()
        (part,) = [f for f in (self.dir / ".sheng-pull").glob("*.part") if f.stat().st_size > PART]
        with open(part, "r+b") as f:
            f.write(b"\0" * 1000)
        self.hub.rate = 0
        p = self.pull()
        self.assertIn("checksum", p.stderr)
        self.assert_complete()

    def test_two_processes_share_the_work(self):
        p = self.half()
        q = self.start()
        out, err = q.communicate(timeout=60)
        self.assertEqual(q.returncode, 0, err)
        self.assertIn(f"process {p.pid} is pulling", err)
        self.assertIn("to download: 0", err)
        p.communicate(timeout=60)
        self.assertEqual(p.returncode, 0)
        self.assert_complete()
        self.assertEqual(self.fetched(), len(self.big))

    def test_many_processes_at_once_end_with_one_download(self):
        procs = [self.start() for _ in range(5)]
        for p in procs:
            out, err = p.communicate(timeout=60)
            self.assertEqual(p.returncode, 0, err)
        self.assert_complete()
        self.assertEqual(self.fetched(), len(self.big))

    def test_a_full_disk_is_said_and_the_next_run_goes_on(self):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

        p = self.pull("--jobs", "1", status=1, preexec=limit)
        self.assertIn("make room and run the same command again", p.stderr)
        again = self.finish()
        self.assertLess(again, len(self.big) * 0.6)

    def test_a_disk_that_is_too_small_is_found_before_the_download(self):
        self.hub.entry = lambda path, data: {"type": "file", "path": path, "size": 1 << 55 if path == "model.safetensors" else len(data)}
        p = self.pull("--part-size", "1GiB", status=1)
        self.assertTrue("make room" in p.stderr or "too many" in p.stderr, p.stderr)
        self.hub.entry = lambda path, data: {"type": "file", "path": path, "size": 1 << 47 if path == "model.safetensors" else len(data)}
        p = self.pull("--part-size", "1GiB", status=1)
        self.assertIn("make room", p.stderr)
        self.assertFalse((self.dir / ".sheng-pull").exists())
        self.assertEqual(self.hub.of("model.safetensors"), [])

    def test_a_target_that_cannot_be_written_is_said(self):
        (self.tmp / "file").write_text("x")
        for folder in ("file/sub", "/proc/sheng-test", "/sys/sheng-test"):
            p = self.pull("--local-dir", folder, status=1)
            self.assertIn("--local-dir", p.stderr)


class Finding(PullTest):
    MODEL = ROOT / "tests/golden/models/dense-small"

    def golden(self):
        """The hub has a real small model in place of the made-up one."""
        self.hub.files, self.hub.lfs = {}, set()
        for f in self.MODEL.iterdir():
            self.hub.add(f.name, f.read_bytes())

    def test_a_pulled_model_is_served_under_its_name(self):
        self.golden()
        self.pull()
        p = subprocess.Popen([BIN, "serve", "org/model", "--port", "0", "--host", "127.0.0.1"], env=self.env(), cwd=self.tmp, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        self.addCleanup(p.kill)
        line = p.stdout.readline()
        url = line.split()[-1] if line else self.fail(p.stderr.read())
        with urllib.request.urlopen(url + "/v1/models", timeout=30) as r:
            models = json.load(r)
        self.assertEqual([m["id"] for m in models["data"]], ["org/model"])
        p.terminate()
        p.communicate(timeout=30)

    def test_a_pulled_tokenizer_is_found_by_its_name(self):
        self.hub.files = {f.name: f.read_bytes() for f in (ROOT / "tests/golden/models/dense-real").iterdir() if f.name.startswith("tokenizer")}
        self.pull("--include", "tokenizer*")
        p = subprocess.run([BIN, "tokenize", "org/model"], env=self.env(), cwd=self.tmp, input='{"text": "hello"}\n', capture_output=True, text=True, timeout=60)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertTrue(json.loads(p.stdout)["ids"])

    def test_a_path_wins_over_the_store(self):
        self.hub.files = {f.name: f.read_bytes() for f in (ROOT / "tests/golden/models/dense-real").iterdir() if f.name.startswith("tokenizer")}
        self.pull("--include", "*")
        self.assertEqual(self.find("org/model").returncode, 0)
        (self.tmp / "org/model").mkdir(parents=True)
        self.assertEqual(self.find("org/model").returncode, 1)

    def test_a_cut_pull_is_reported_with_the_command_that_goes_on(self):
        self.hub.rate = 100_000
        p = self.start("--local-dir", "it's here", "--include", "*")
        self.wait_for(lambda: self.fetched() > 1000)
        q = self.find("it's here")
        self.assertIn(f"process {p.pid} is pulling it right now", q.stderr)
        p.kill()
        p.communicate()
        q = self.find("it's here")
        self.assertIn("its pull was cut", q.stderr)
        command = q.stderr.split("`")[1]
        self.hub.rate = 0
        r = subprocess.run(command.replace("sheng", BIN, 1), shell=True, env=self.env(), cwd=self.tmp, capture_output=True, text=True, timeout=60)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assert_complete(self.tmp / "it's here", names=tuple(self.hub.files))

    def test_a_name_that_is_not_there_says_how_to_get_it(self):
        self.assertIn("sheng pull org/other", self.find("org/other").stderr)


def run_one(test):
    result = unittest.TestResult()
    test.run(result)
    return test, result


def flatten(suite):
    for t in suite:
        if isinstance(t, unittest.TestSuite):
            yield from flatten(t)
        else:
            yield t


def main():
    names = sys.argv[1:]
    tests = [t for t in flatten(unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])) if not names or any(n in t.id() for n in names)]
    passed = failed = skipped = 0
    with concurrent.futures.ThreadPoolExecutor(6) as pool:  # they mostly wait
        for test, result in pool.map(run_one, tests):
            for _, trace in result.failures + result.errors:
                print(f"FAIL {test.id()}; run again: {sys.argv[0]} {test.id().split('.')[-1]}\n{trace}")
            for _, reason in result.skipped:
                print(f"{test.id()}: {reason}")
            bad = bool(result.failures or result.errors)
            failed += bad
            skipped += bool(result.skipped)
            passed += not bad and not result.skipped
            if names:
                print("FAIL" if bad else "ok  ", test.id(), flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
