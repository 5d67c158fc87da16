"""Random tokenizer configurations and what HF tokenizers makes of them: every split behaviour, added-token flag, normalizer and post-processor that sheng reads.
make_tokenizer_features.py BASE_FOLDER OUT.jsonl SEED N      (made with tokenizers 0.23.3, tests/golden/models/dense-small, seed 11, 64 configurations)

A line: {"set": components that replace those of BASE_FOLDER/tokenizer.json, "model": fields that replace those of its model, "cases": [{"text", "special", "ids"}]}"""
import json, random, sys
from tokenizers import Tokenizer

folder, out, seed, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
base, R = json.load(open(folder + "/tokenizer.json", encoding="utf8")), random.Random(seed)
PATTERNS = [r"\s+", r"\p{N}{1,3}", r"\p{L}+", r"[^\s\p{L}]+", r"(?i:'s|'t|'re)", r"\w+", r"\W", r"\b", r"\B", r"\d", r"$", r"^", r".", r"x*", r"\p{Han}+", r"[\r\n]+", r"(?<=a)b?", r"[[:alpha:]]+", r"[[:punct:]]",
            r"\h+", r"[\w-]+", r"a|bc|(\s)(\S)", r"\S+\s?", r"[\p{Lu}\p{Lt}]?[\p{Ll}]+", r"\p{P}", r"\p{S}|\p{Nd}", r"(?m:<.|>.)", r"\n|\Z", r"t{2,}?h{,2}", r"(?<n>the)\B", r"\p{^L}", r"\u0041|\x{4f60}|\x42", r"[^\S\n]+",
            r"\v|\R", r"(?=[A-Z])", r"(?!a)\p{Hiragana}|\p{Katakana}", r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)", r"\p{Digit}|\p{Punct}", r"[^[:space:]]+"]
STRINGS = ["a", " ", "the", "..", "é", "e\u0301", "\n", "'", "[a]", ".*"]
CONTENTS = ["<|im_end|>", "<x>", "the", "é", "e\u0301f", " sp ", "word", "<x", "<xy>", "and of", "\n", "你好", "🇨🇳", "'s", "ID", "  ", "<|im_start|>", "ñ", "\u212b"]
WORDS = ("the of word and theand 'll 's 'T 'RE 'ſ I'm don't int return ( ) [a] ; == -> :: // # \" \\ \n \n\n \r\n \t \u00a0 \u3000 \u2028 \u180e \u0085 0 42 3.14159 1234567 100% ½ ² ٣ 推理 你好 ， 。 日本語 テスト ひらがな 한국어 "
         "привет мир مرحبا नमस्ते ไทย é e\u0301 e\u0301f ﬁ Å \u212b \u1100\u1161\u11a8 👍🏽 🇨🇳 ... !!! ___ _x CamelCase TTTT tthh abcb xx B A").split(" ") + ["", " ", "  ", "     ", "q" * 60, "啊" * 30, "ab" * 90]
flip = lambda p: R.random() < p


def split():
    pattern = {"String": R.choice(STRINGS)} if flip(.3) else {"Regex": R.choice(PATTERNS)}
    return dict(type="Split", pattern=pattern, behavior=R.choice(["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]), invert=flip(.3))


def added(vocab):
    tokens, fresh = [], 592
    for c in R.sample(CONTENTS, R.randint(0, 12)):
        i = vocab.get(c, fresh)
        fresh += c not in vocab
        tokens.append(dict(id=i, content=c, single_word=flip(.3), lstrip=flip(.3), rstrip=flip(.3), normalized=flip(.4), special=flip(.5)))
    return tokens


def post():
    special = {"B": dict(id="B", ids=[3, 4], tokens=["$", "%"]), "E": dict(id="E", ids=[5], tokens=["&"])}
    token, seq = lambda n: {"SpecialToken": dict(id=n, type_id=0)}, lambda n: {"Sequence": dict(id=n, type_id=0)}
    t = dict(type="TemplateProcessing", single=[token("B"), seq("A")] + [token("E")] * flip(.5), pair=[seq("A"), seq("B")], special_tokens=special)
    b = dict(type="ByteLevel", add_prefix_space=True, trim_offsets=False, use_regex=True)
    return R.choice([None, b, t, dict(type="Sequence", processors=[b, t])])


def configuration():
    m = base["model"]
    steps = [split() if flip(.75) else dict(type="Digits", individual_digits=flip(.5)) for _ in range(R.randint(0, 3))]
    steps.append(dict(type="ByteLevel", add_prefix_space=flip(.3), trim_offsets=True, use_regex=flip(.4)))
    model = dict(ignore_merges=flip(.3))
    if flip(.3): model.update(unk_token=R.choice(list(m["vocab"])[:200]), fuse_unk=flip(.5))
    if flip(.15):
        model["merges"] = [" ".join(x) for x in m["merges"]]
        if flip(.5): R.shuffle(model["merges"])
    if flip(.3):  # bytes without a token
        drop = [k for k in R.sample(list(m["vocab"]), 40) if len(k) == 1 and not any(k in a + b for a, b in m["merges"])]
        model["vocab"] = {f"<gone{v}>" if k in drop else k: v for k, v in m["vocab"].items()}
        if model.get("unk_token") in drop: del model["unk_token"]
    normalizer = R.choice([None, dict(type="NFC"), dict(type="Sequence", normalizers=[dict(type="NFC")])])
    pre = dict(type="Sequence", pretokenizers=steps) if len(steps) > 1 or flip(.5) else steps[0]
    return dict(normalizer=normalizer, pre_tokenizer=pre, added_tokens=added(model.get("vocab", m["vocab"])), post_processor=post()), model


def text(contents):
    parts = []
    for _ in range(R.randint(0, 14)):
        parts.append(R.choice(contents) if contents and flip(.2) else R.choice(WORDS))
        if flip(.5): parts.append(" " * R.choice([1, 1, 2, 7]))
    return "".join(parts)


with open(out, "w", encoding="utf8") as f:
    for _ in range(count):
        parts, model = configuration()
        j = {**base, **parts, "model": {**base["model"], **model}}
        t, cases = Tokenizer.from_str(json.dumps(j)), []
        for x in [text([a["content"] for a in parts["added_tokens"]]) for _ in range(10)] + ["", " ", " the <x> the"]:
            special = flip(.5)
            try: cases.append(dict(text=x, special=special, ids=t.encode(x, add_special_tokens=special).ids))
            except BaseException: pass  # overlapping stripped tokens make the reference panic
        f.write(json.dumps(dict(set=parts, model=model, cases=cases)) + "\n")
