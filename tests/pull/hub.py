"""A model hub on 127.0.0.1 for the tests of `sheng pull`: the APIs of Hugging Face, ModelScope and Modelers, with large files at a second server (another
port is another host), and faults that can be ordered per file. Standard library only."""
import hashlib
import http.server
import json
import re
import socket
import threading
import time
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git_oid(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Fault:
    """What goes wrong with the answers for one file. times: how many answers, None: all. after: answers that are right before."""

    def __init__(self, kind, times=None, after=0, **args):
        self.kind, self.left, self.after, self.args = kind, times, after, args


class Request:
    def __init__(self, server, method, path, headers):
        self.server, self.method, self.path, self.headers = server, method, path, dict(headers.items())
        self.sent = 0  # bytes of the body that went out

    @property
    def range(self):
        return self.headers.get("Range")

    def __repr__(self):
        return f"<{self.server} {self.path} {self.range} sent {self.sent}>"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        hub, name = self.server.hub, self.server.role
        path = self.path
        if path.startswith("http://"):  # asked as a proxy
            hub.proxied.append(path)
            u = urllib.parse.urlsplit(path)
            path = u.path + ("?" + u.query if u.query else "")
        self.record = Request(name, self.command, path, self.headers)
        with hub.lock:
            hub.requests.append(self.record)
        try:
            if name == "storage":
                self.storage(path)
            else:
                self.hub(path)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    # --- answers

    def answer(self, status, body=b"", headers=()):
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
        self.send_response(status)
        for k, v in headers:
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, hub):
        """Status and headers of a file or listing that the test wants refused; True when it was."""
        wanted = hub.token
        if wanted and self.headers.get("Authorization") != f"Bearer {wanted}":
            self.answer(401, {"error": "Invalid username or password."}, [("X-Error-Message", "Invalid username or password.")])
            return True
        return False

    # --- the hub's own host

    def hub(self, path):
        hub = self.server.hub
        u = urllib.parse.urlsplit(path)
        q = {k: v[0] for k, v in urllib.parse.parse_qs(u.query, keep_blank_values=True).items()}
        p = u.path
        for prefix, fault in list(hub.api_faults.items()):
            if p.startswith(prefix) and self.spend(fault):
                if fault.kind == "status":
                    return self.answer(fault.args["status"], fault.args.get("body", b""), fault.args.get("headers", ()))
                if fault.kind == "redirect":
                    return self.answer(302, b"", [("Location", fault.args["to"])])
                if fault.kind == "text":
                    return self.answer(200, fault.args["body"])
                if fault.kind == "stall":
                    hub.released.wait(fault.args.get("seconds", 60))
                    self.close_connection = True
                    return None
        if self.refuse(hub):
            return None
        m = re.fullmatch(r"/api/models/(.+)/revision/([^/]+)", p)
        if m:
            return self.hf_revision(hub, m[1], urllib.parse.unquote(m[2]))
        m = re.fullmatch(r"/api/models/(.+)/tree/([^/]+)", p)
        if m:
            return self.hf_tree(hub, m[1], urllib.parse.unquote(m[2]), q)
        m = re.fullmatch(r"/api/v1/models/(.+)/repo/files", p)
        if m:
            return self.ms_files(hub, m[1], q)
        m = re.fullmatch(r"/api/v1/models/(.+)/repo", p)
        if m:
            return self.file(hub, q["FilePath"])
        m = re.fullmatch(r"/api/v1/file/([^/]+/[^/]+)", p)
        if m:
            return self.modelers_tree(hub, m[1], q)
        m = re.fullmatch(r"/api/v1/file/([^/]+/[^/]+)/([^/]+)/media/(.+)", p)
        if m:
            return self.file(hub, urllib.parse.unquote(m[3]))
        m = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", p)
        if m:
            return self.file(hub, urllib.parse.unquote(m[3]))
        return self.answer(404, {"error": "no such page"})

    def hf_revision(self, hub, name, revision):
        if name != hub.name:
            return self.answer(404, {"error": "Repository not found"}, [("X-Error-Code", "RepoNotFound")])
        if revision not in hub.revisions:
            return self.answer(404, {"error": f"Invalid rev id: {revision}"}, [("X-Error-Code", "RevisionNotFound")])
        return self.answer(200, {"id": name, "sha": hub.commit})

    def hf_tree(self, hub, name, revision, q):
        if name != hub.name or revision not in hub.revisions + [hub.commit]:
            return self.answer(404, {"error": "not found"}, [("X-Error-Code", "RepoNotFound")])
        entries = []
        for path, data in hub.listing():
            if hub.entry:
                e = hub.entry(path, data)
            else:
                e = {"type": "file", "path": path, "size": len(data), "oid": git_oid(data)}
                if path in hub.lfs:
                    e["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
                    e["oid"] = "f" * 40
                if hub.no_hashes:
                    e.pop("oid"), e.get("lfs", {}).pop("oid", None)
            entries.append(e)
        entries += hub.extra_entries
        start = int(q.get("cursor", 0))
        page = entries[start : start + hub.page_size]
        headers = []
        if start + hub.page_size < len(entries):
            nxt = f"{hub.link_base or hub.url}/api/models/{name}/tree/{revision}?recursive=true&cursor={start + hub.page_size}"
            headers = [("Link", f'<{nxt}>; rel="next"')]
        return self.answer(200, page, headers)

    def ms_files(self, hub, name, q):
        if name != hub.name:
            return self.answer(404, {"Code": 10010205001, "Message": "record not found", "Success": False})
        if q["Revision"] not in hub.revisions + ["master"]:
            return self.answer(200, {"Code": 10010205002, "Message": f"no revision {q['Revision']}", "Success": False})
        root = q.get("Root", "")
        files, dirs = [], set()
        for path, data in hub.listing():
            if root and not path.startswith(root + "/"):
                continue
            rest = path[len(root) + 1 :] if root else path
            if "/" in rest:
                dirs.add((root + "/" if root else "") + rest.split("/")[0])
                if q["Recursive"] != "true":
                    continue
            files.append({"Name": path.split("/")[-1], "Path": path, "Type": "blob", "Size": len(data), "Sha256": hashlib.sha256(data).hexdigest(),
                          "IsLFS": path in hub.lfs})
        files = [{"Name": d, "Path": d, "Type": "tree", "Size": 0, "Sha256": ""} for d in sorted(dirs)] + files
        return self.answer(200, {"Code": 200, "Data": {"Files": files[:3000]}, "Success": True, "Message": "success"})

    def modelers_tree(self, hub, name, q):
        if name != hub.name:
            return self.answer(404, {"code": "repo_not_found", "msg": "not found"})
        root = q.get("path", "")
        tree, dirs = [], set()
        for path, data in hub.listing():
            if root and not path.startswith(root + "/"):
                continue
            rest = path[len(root) + 1 :] if root else path
            if "/" in rest:
                dirs.add((root + "/" if root else "") + rest.split("/")[0])
                continue
            lfs = path in hub.lfs
            tree.append({"type": "file", "name": rest, "path": path, "size": len(data), "is_lfs": lfs,
                         "etag": hashlib.sha256(data).hexdigest() if lfs else git_oid(data)})
        tree += [{"type": "dir", "name": d.split("/")[-1], "path": d, "size": 0} for d in sorted(dirs)]
        return self.answer(200, {"code": "", "msg": "", "data": {"tree": tree, "last_commit": {"commit": {"commit_sha": hub.commit}}}})

    def file(self, hub, path):
        if path not in hub.files:
            return self.answer(404, {"error": "Entry not found"}, [("X-Error-Code", "EntryNotFound")])
        if path in hub.lfs:
            hub.signatures += 1
            to = f"{hub.storage_url}/signed/{hub.signatures}/{urllib.parse.quote(path)}?key=secret"
            return self.answer(302, b"", [("Location", to), ("X-Linked-Size", str(len(hub.files[path])))])
        return self.body(hub, path)

    # --- the storage host

    def storage(self, path):
        hub = self.server.hub
        m = re.fullmatch(r"/signed/(\d+)/([^?]+)\?key=secret", path)
        if not m:
            return self.answer(403, b"<Error>bad signature</Error>")
        file = urllib.parse.unquote(m[2])
        if int(m[1]) <= hub.expired:
            return self.answer(403, b"<Error>Request has expired</Error>")
        return self.body(hub, file)

    @staticmethod
    def spend(fault):
        if fault.after > 0:
            fault.after -= 1
            return False
        if fault.left is None:
            return True
        if fault.left == 0:
            return False
        fault.left -= 1
        return True

    def body(self, hub, path):
        data = hub.files[path]
        with hub.lock:
            fault = hub.faults.get(path)
            if fault and not self.spend(fault):
                fault = None
        kind, args = (fault.kind, fault.args) if fault else ("", {})
        if kind == "status":
            return self.answer(args["status"], args.get("body", b""), args.get("headers", ()))
        if kind == "corrupt":
            data = bytes([data[0] ^ 1]) + data[1:] if args.get("at", 0) == 0 else data[: args["at"]] + bytes([data[args["at"]] ^ 1]) + data[args["at"] + 1 :]
        if kind == "other":
            data = args["data"]
        size, start, end, status = len(data), 0, len(data), 200
        m = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if m and kind != "no_ranges":
            start, end, status = int(m[1]), min(int(m[2]) + 1 if m[2] else size, size), 206
            if start >= size:
                return self.answer(416, b"", [("Content-Range", f"bytes */{size}")])
        if kind == "shifted" and status == 206 and start:
            start, end = start - 1, end - 1
        out = data[start:end]
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size + args.get('total_off', 0)}")
        if hub.etags:
            self.send_header("ETag", f'"{args.get("etag") or hashlib.md5(data).hexdigest()}"')
        length = len(out)
        if kind == "short_length":
            out = out[: max(1, len(out) - args["missing"])]
            length = len(out)
        elif kind == "long_length":
            length += args["extra"]
        elif kind == "endless":
            out, length = out + b"x" * args["extra"], None
        if length is None:
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        stop = len(out)
        if "at" in args and kind != "corrupt":
            stop = min(args["at"], len(out))
        rate = args.get("rate") or hub.rate
        step = 65536 if not rate else max(1024, rate // 20)
        for at in range(0, stop, step):
            chunk = out[at : min(at + step, stop)]
            self.wfile.write(chunk)
            self.record.sent += len(chunk)
            if rate:
                time.sleep(len(chunk) / rate)
        self.wfile.flush()
        if kind == "stall":
            hub.released.wait(args.get("seconds", 60))
        if stop < len(out) or kind == "long_length" or length is None:
            self.close_connection = True
            try:
                self.connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        return None


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        pass


class Hub:
    """`with Hub() as hub:`; fill hub.files (path -> bytes), put large ones into hub.lfs too, order hub.faults[path] = Fault(...)."""

    def __init__(self, name="org/model", tls=None):
        self.name, self.commit, self.revisions = name, COMMIT, ["main"]
        self.files, self.lfs, self.faults, self.api_faults, self.extra_entries = {}, set(), {}, {}, []
        self.requests, self.proxied, self.lock = [], [], threading.Lock()
        self.token, self.entry, self.link_base = None, None, None
        self.page_size, self.signatures, self.expired, self.rate = 1000, 0, 0, 0
        self.etags, self.no_hashes = True, False
        self.released = threading.Event()
        self.tls = tls

    def add(self, path, data, lfs=None):
        self.files[path] = data
        if lfs if lfs is not None else path.endswith((".safetensors", ".gguf")):
            self.lfs.add(path)

    def listing(self):
        return sorted(self.files.items())

    def serve(self, role):
        s = Server(("127.0.0.1", 0), Handler)
        s.hub, s.role = self, role
        if self.tls:
            s.socket = self.tls.wrap_socket(s.socket, server_side=True)
        threading.Thread(target=s.serve_forever, args=(0.05,), daemon=True).start()
        return s

    def __enter__(self):
        self.servers = [self.serve("hub"), self.serve("storage")]
        scheme = "https" if self.tls else "http"
        self.url, self.storage_url = (f"{scheme}://127.0.0.1:{s.server_address[1]}" for s in self.servers)
        return self

    def __exit__(self, *exc):
        self.released.set()
        for s in self.servers:
            s.shutdown()
            s.server_close()

    def of(self, path, server=None):
        """The requests for the bytes of a file that reached a server that had them."""
        quoted = urllib.parse.quote(path)
        return [r for r in self.requests if (quoted in r.path or urllib.parse.quote(path, safe="") in r.path) and (server is None or r.server == server)]
