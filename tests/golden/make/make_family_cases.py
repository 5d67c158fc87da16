"""What jinja2 makes of the chat templates of many model families, in the environment transformers sets up (as in make_jinja_cases.py).
make_family_cases.py DIR           renders DIR/*.jinja over CONVERSATIONS into DIR/cases.jsonl.gz

Lines: {"conversation": name, "vars": {...}} first, then {"template": file, "conversation": name, "expect": text} or {..., "error": exception's name}.
strftime_now answers U+0001 format U+0002; the test puts today's date there, since the interpreter under test has a clock of its own.
Made with jinja2 3.1.6, markupsafe 3.0.3, Python 3.11."""
import copy, gzip, json, pathlib, sys
from transformers_env import env

env.globals["strftime_now"] = lambda fmt: "\x01" + fmt + "\x02"


# --- Conversations ------------------------------------------------------------------------------------------------------------------------
def S(c, **kw): return dict(role="system", content=c, **kw)
def U(c, **kw): return dict(role="user", content=c, **kw)
def A(c, **kw): return dict(role="assistant", content=c, **kw)
def T(c, **kw): return dict(role="tool", content=c, **kw)
def text(*parts): return [{"type": "text", "text": p} for p in parts]


def call(name, args, id=None):
    c = {"type": "function", "function": {"name": name, "arguments": args}}
    return c if id is None else {"id": id, **c}


WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.\nToday's.", "parameters": {
    "type": "object", "properties": {
        "city": {"type": "string", "description": "The city's name, e.g. \"Zürich\""},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius", "description": "unit"}},
    "required": ["city"]}}}
ORDER = {"type": "function", "function": {"name": "order", "description": "Places an order", "strict": True, "parameters": {
    "type": "object", "additionalProperties": False, "required": ["items", "pay"], "properties": {
        "items": {"type": "array", "minItems": 1, "description": "what", "items": {"type": "object", "properties": {
            "id": {"type": "integer"}, "n": {"type": "number", "minimum": 0.5, "maximum": 1e6}, "tags": {"type": "array", "items": {"type": "string"}}}}},
        "pay": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "how"},
        "when": {"type": ["string", "null"], "nullable": True}, "gift": {"type": "boolean", "default": False},
        "any": {"oneOf": [{"type": "number"}, {"type": "boolean"}]}, "map": {"type": "object", "additionalProperties": {"type": "string"}}}},
    "return": {"type": "object", "properties": {"ok": {"type": "boolean"}}}}}
NOARGS = {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}}
BARE = {"type": "function", "function": {"name": "ping"}}
FLAT = {"name": "flat", "description": "A tool without the wrapper", "parameters": {"type": "object", "properties": {"q": {"type": "string", "description": "query"}}, "required": ["q"]}}
ODD = "Zoë 日本語 🎉 <|im_end|> </s> [INST] {{ x }} & 'q' \"d\" \\ \t<b>"
PARIS = {"city": "Paris", "unit": "celsius"}
RICH = {"i": 3, "f": 1.0, "e": 1e20, "big": 12345678901234567890, "neg": -0.5, "t": True, "no": False, "nil": None, "s": "é\n\"q\"</x>", "l": [1, [2, "a"], {}], "d": {"k": {"z": []}}, "empty": ""}

ASKED = [U("Weather in Paris?")]
ANSWERED = ASKED + [A("", tool_calls=[call("get_weather", PARIS, "call12345")]), T("{\"temp\": 21.5}", name="get_weather", tool_call_id="call12345")]
TWO = [S("Be brief."), U("Paris and Rome?"), A(None, tool_calls=[call("get_weather", PARIS, "aaaaaaaa1"), call("get_weather", {"city": "Rome"}, "bbbbbbbb2")]),
       T("21", name="get_weather", tool_call_id="aaaaaaaa1"), T("25", name="get_weather", tool_call_id="bbbbbbbb2")]
THOUGHT = [U("1+1?"), A("2", reasoning_content="Add one\nand one.", reasoning="Add one\nand one.", thinking="Add one\nand one."), U("And 2+2?"), A("4", reasoning_content="Again."), U("Thanks")]
DOCS = [{"title": "First", "text": "Text of the first.", "doc_id": 1}, {"title": "Zweites", "text": "ß\nlines", "snippet": "s", "contents": "c"}]

CONVERSATIONS = {}


def add(name, messages, gen=True, **kw):
    CONVERSATIONS[name] = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": gen, "bos_token": "<BOS>", "eos_token": "<EOS>", **kw}


add("user", [U("Hello")])
add("user, no prompt", [U("Hello")], False)
add("system", [S("You are terse."), U("Hello")])
add("turns", [S("You are terse."), U("Hello"), A("Hi."), U("How are you?")])
add("turns without system", [U("Hello"), A("Hi."), U("How are you?"), A("Well."), U("Good")])
add("ends with assistant", [U("Hello"), A("Hi.")], False)
add("ends with assistant, prompt", [S("x"), U("Hello"), A("Hi.")])
add("odd text", [S(ODD), U(ODD), A(ODD), U(ODD)])
add("white space", [S("  \n s \n"), U("\n\n  u  \n"), A(" \n a\n\n"), U("\t")])
add("empty text", [S(""), U(""), A(""), U("x")])
add("none", [U("a"), A(None), U("b")])
add("none from user", [S(None), U(None)])
add("no content", [U("a"), {"role": "assistant"}, U("b")])
add("no role", [{"content": "a"}])
add("number as content", [U(5), A(1.5), U(True)])
add("one part", [S(text("Sys")), U(text("Hello"))])
add("parts", [S(text("Sys", "tem")), U(text("Hello", " there")), A(text("Hi", ".")), U(text("x"))])
add("no parts", [U([]), A([]), U("x")])
add("images", [U([{"type": "image"}, {"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": "http://x/y.png"}}, {"type": "video"}, {"type": "audio"}])])
add("images, counted", [U([{"type": "image", "image": "x"}, {"type": "text", "text": "What?"}]), A("A cat."), U([{"type": "video", "video": "y"}, {"type": "text", "text": "This?"}])], add_vision_id=True)
add("strange parts", [U([{"type": "input_text", "text": "a"}, {"text": "b"}, "c"])])
add("tools", ASKED, tools=[WEATHER])
add("tools, no prompt", ASKED, False, tools=[WEATHER])
add("tools and system", [S("Be brief.")] + ASKED, tools=[WEATHER, ORDER, NOARGS])
add("bare tool", ASKED, tools=[BARE])
add("flat tool", ASKED, tools=[FLAT])
add("no tools", ASKED, tools=[])
add("rich tool", [S("x"), U("y")], tools=[ORDER])
add("tool call", ANSWERED, tools=[WEATHER])
add("tool call, no list", ANSWERED)
add("tool call, unanswered", ANSWERED[:2], False, tools=[WEATHER])
add("tool call, answered", ANSWERED + [A("21.5 degrees."), U("Thanks")], tools=[WEATHER])
add("string arguments", ASKED + [A("", tool_calls=[call("get_weather", json.dumps(PARIS), "call12345")]), T("21", name="get_weather", tool_call_id="call12345")], tools=[WEATHER])
add("two calls", TWO, tools=[WEATHER, NOARGS])
add("two calls, answered", TWO + [A("21 and 25."), U("Again"), A("", tool_calls=[call("now", {}, "cccccccc3")]), T("", name="now", tool_call_id="cccccccc3")], tools=[WEATHER, NOARGS])
add("call with text", ASKED + [A("Let me see.", tool_calls=[call("get_weather", PARIS)]), T("21")], tools=[WEATHER])
add("call with thought", ASKED + [A("Let me see.", reasoning_content="Hm.", thinking="Hm.", tool_calls=[call("get_weather", PARIS, "call12345")]), T("21", tool_call_id="call12345")], tools=[WEATHER], enable_thinking=True)
add("call without content", ASKED + [{"role": "assistant", "tool_calls": [call("get_weather", PARIS, "call12345")]}, T("21", tool_call_id="call12345")], tools=[WEATHER])
add("rich arguments", ASKED + [A("", tool_calls=[call("order", RICH, "call12345")]), T("ok", name="order", tool_call_id="call12345")], tools=[ORDER])
add("object as reply", ANSWERED[:2] + [T({"temp": 21.5, "sky": ["é", None, True]}, name="get_weather", tool_call_id="call12345")], tools=[WEATHER])
add("parts as reply", ANSWERED[:2] + [T(text("21", " C"), name="get_weather", tool_call_id="call12345")], tools=[WEATHER])
add("flat calls", ASKED + [A("", tool_calls=[{"name": "get_weather", "arguments": PARIS, "id": "call12345"}]), T("21", name="get_weather", tool_call_id="call12345")], tools=[WEATHER])
add("empty calls", ASKED + [A("No.", tool_calls=[]), U("x")], tools=[WEATHER])
add("null calls", ASKED + [A("No.", tool_calls=None, reasoning_content=None), U("x")])
add("function call of old", ASKED + [A(None, function_call={"name": "f", "arguments": "{}"}), dict(role="function", name="f", content="1")])
add("thoughts", THOUGHT)
add("thoughts on", THOUGHT, enable_thinking=True, thinking=True, clear_thinking=False, preserve_thinking=True, keep_past_thinking=True)
add("thoughts off", THOUGHT, enable_thinking=False, thinking=False)
add("thoughts in text", [U("1+1?"), A("<think>\nadd\n</think>\n\n2"), U("And?"), A("<think>x</think>y</think>z")], False)
add("effort", [S("x /no_think"), U("y /think")], reasoning_effort="high", thinking_budget=512, reasoning=True, thinking_mode="on")
add("no effort", [U("y /no_think")], reasoning_effort="none", thinking_budget=0, thinking_mode="off", model_identity="I am X.", builtin_tools=["browser", "python"])
add("documents", [S("x"), U("What do they say?")], documents=DOCS, citation_mode="accurate")
add("documents and tools", [U("What do they say?")], documents=DOCS, tools=[WEATHER], controls={"length": "long", "originality": "low"})
add("documents in messages", [dict(role="document", content="D1"), U("x")], available_tools=[WEATHER])
add("dates", [U("x")], date_string="26 Jul 2024", tools=[WEATHER], tools_in_user_message=False, builtin_tools=["brave_search", "code_interpreter"], today="2026-01-02")
add("custom tools", [S("Sys"), U("x")], custom_tools=[WEATHER], functions=[FLAT], xml_tools=["<x/>"], python_tools=["def f(): pass"], datetime="2026", instructions="be nice")
add("without tokens", [S("x"), U("y"), A("z"), U("w")], bos_token=None, eos_token=None)
add("assistant first", [A("Hello"), U("Hi")])
add("users in a row", [U("a"), U("b")])
add("assistants in a row", [U("a"), A("b"), A("c"), U("d")])
add("systems in a row", [S("a"), S("b"), U("c")])
add("system in the middle", [U("a"), S("b"), A("c"), U("d")])
add("system only", [S("a")])
add("system last", [U("a"), S("b")])
add("tool first", [T("a", name="f", tool_call_id="call12345"), U("b")])
add("tool without a call", [U("a"), T("b")])
add("developer", [dict(role="developer", content="Dev"), U("a")])
add("unknown role", [U("a"), dict(role="critic", content="b")])
add("other names", [U("a", name="Ann"), dict(role="model", content="b"), dict(role="ipython", content="c"), U("d")])
add("nothing", [])
for first in ("user", "tools"):
    v = CONVERSATIONS[first].copy()
    for key in ("tools", "documents", "bos_token", "eos_token", "add_generation_prompt"):
        if not (key == "tools" and v[key]): del v[key]
    CONVERSATIONS[first + ", least variables"] = v

if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    counts = {"templates": 0, "expect": 0, "error": 0}
    lines = [{"conversation": k, "vars": v} for k, v in CONVERSATIONS.items()]
    for path in sorted(root.glob("*.jinja")):
        counts["templates"] += 1
        try: template = env.from_string(path.read_bytes().decode("utf8"))
        except Exception as e: template, broken = None, e
        for name, given in CONVERSATIONS.items():
            rec = {"template": path.name, "conversation": name}
            try:
                if not template: raise broken
                rec["expect"] = template.render(**copy.deepcopy(given))
            except Exception as e: rec["error"] = type(e).__name__
            counts["expect" if "expect" in rec else "error"] += 1
            lines.append(rec)
    with open(root / "cases.jsonl.gz", "wb") as f, gzip.GzipFile("", "wb", 9, f, 0) as z:
        for rec in lines: z.write((json.dumps(rec, ensure_ascii=False) + "\n").encode("utf8"))
    print(counts)
