"""Compares sheng's tokenizer with HF tokenizers on random text: ids, decoding of those ids and of random ids.
compare_tokenizer.py FOLDER [--seed N] [--count N] [--sheng COMMAND]    (FOLDER holds a tokenizer.json; needs the package tokenizers)

COMMAND (default ./sheng) is run as `COMMAND tokenize FOLDER` and `COMMAND detokenize FOLDER`, one JSON per line. Characters that were assigned after Unicode 14
are left out: the reference's regex engine and PCRE2 may know different versions. So are texts that the
reference's NFC (its tables are older) normalizes differently from Python's."""
import argparse, glob, json, os, random, subprocess, sys, unicodedata
from tokenizers import Tokenizer

RANGES = [(0x20, 0x7e, 10), (0xa0, 0x24f, 2), (0x250, 0x2ff, 1), (0x370, 0x52f, 2), (0x530, 0x6ff, 1), (0x900, 0xd7f, 1), (0xe00, 0xeff, 1), (0x1000, 0x1fff, 2), (0x2000, 0x2bff, 2),
          (0x3000, 0x30ff, 2), (0x3100, 0x33ff, 1), (0x4e00, 0x9fa5, 5), (0xac00, 0xd7a3, 2), (0x1100, 0x11ff, 1), (0x300, 0x345, 1), (0xf900, 0xfaff, 1), (0xfb00, 0xfdff, 1), (0xfe00, 0xffef, 1),
          (0x10000, 0x1ffff, 1), (0x1f300, 0x1faff, 2), (0x20000, 0x2a6d6, 1), (0x2f800, 0x2fa1d, 1), (0xe0000, 0xe01ef, 1), (0, 31, 1), (9, 13, 2)]
WORDS = ("the of model token inference 'll 's 'T 'RE 'ſ ſ I'm don't int main return if ( ) { } [ ] ; == != -> :: // /* */ # \" \\ \n \n\n \r\n \r \t \t\t    \u00a0 \u3000 \u2028 \u180e \u0085 "
         "0 1 42 3.14159 1e-9 0xFF 2026 100% ½ ² Ⅷ ٣ 推理 部署 你好 ， 。 、 显存 日本語 テスト 한국어 привет мир مرحبا नमस्ते ไทย é e\u0301 ﬁ Å \u212b 가 각 \u1100\u1161\u11a8 👍🏽 👩‍👩‍👧 "
         "🇨🇳 ... !!! ??? --- ___ _x __init__ CamelCase snake_case <| |> <|im </s> <s> A3B KV").split(" ") + ["", " ", "  ", "     "]
skip = lambda c: unicodedata.category(c) in ("Cs", "Cn") and not 0xfdd0 <= ord(c) <= 0xfdef


def char(R):
    while True:
        a, b, _ = R.choices(RANGES, [r[2] for r in RANGES])[0]
        c = chr(R.randint(a, b))
        if not skip(c): return c


def text(R, added, code):
    kind, out = R.random(), []
    if kind < .2 and code:
        s = R.choice(code)
        a = R.randrange(len(s))
        out.append(s[a:a + R.randint(1, 400)])
        out = ["".join(c for c in "".join(out) if not skip(c))]
    for _ in range(R.randint(0 if out else 1, 30)):
        p = R.random()
        if p < .45: out.append(R.choice(WORDS))
        elif p < .55 and added: out.append(R.choice(added))
        elif p < .6 and added: a = R.choice(added); out.append(a[:R.randint(1, len(a))])
        elif p < .9: out.append("".join(char(R) for _ in range(R.randint(1, 8))))
        else: out.append(char(R) * R.choice([2, 3, 10, 70]))
        if R.random() < .5: out.append(" " * R.choice([1, 1, 1, 2, 7]))
    return "".join(out)


def run(cmd, rows):
    p = subprocess.run(cmd, input="".join(json.dumps(r) + "\n" for r in rows), capture_output=True, text=True)
    if p.returncode: sys.exit(f"{cmd}: {p.stderr}")
    return [json.loads(l) for l in p.stdout.split("\n") if l]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("folder"); ap.add_argument("--seed", type=int, default=1); ap.add_argument("--count", type=int, default=5000); ap.add_argument("--sheng", default="./sheng")
    o = ap.parse_args()
    t, R = Tokenizer.from_file(os.path.join(o.folder, "tokenizer.json")), random.Random(o.seed)
    added = [x.content for x in t.get_added_tokens_decoder().values()]
    code = [open(f, encoding="utf8").read() for f in glob.glob("src/*/*.[ch]") + glob.glob("tests/golden/text/*.jinja") if os.path.getsize(f)]
    nfc = t.normalizer.normalize_str if t.normalizer else lambda s: unicodedata.normalize("NFC", s)
    texts = [x for x in (text(R, added, code) for _ in range(o.count)) if nfc(x) == unicodedata.normalize("NFC", x)]
    bad = 0
    for x, got in zip(texts, run([o.sheng, "tokenize", o.folder], [{"text": x} for x in texts])):
        want = t.encode(x, add_special_tokens=False).ids
        if got.get("ids") != want:
            bad += 1
            if bad <= 10: print("ENCODE", json.dumps(x), "\n  want", want, "\n  got ", got)
    n = t.get_vocab_size()
    lists = [[R.randrange(n) for _ in range(R.randint(1, 12))] for _ in range(o.count)] + [t.encode(x, add_special_tokens=False).ids for x in texts[:o.count // 4]]
    rows = [{"ids": i, "skip_special": s} for i in lists for s in (False, True)]
    for r, got in zip(rows, run([o.sheng, "detokenize", o.folder], rows)):
        want = t.decode(r["ids"], skip_special_tokens=r["skip_special"])
        if got.get("text") != want:
            bad += 1
            if bad <= 10: print("DECODE", r, "\n  want", ascii(want), "\n  got ", ascii(got))
    print(f"{len(texts)} texts, {len(rows)} id lists, seed {o.seed}: {bad} differences")
    sys.exit(1 if bad else 0)


main()
