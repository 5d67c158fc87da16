"""The generated text that the small models are trained on and judged by.

A task is a function of a random.Random and a size in tokens (roughly) that returns a Sample. Every sample carries a key, a text that names the instance; HELD_OUT
of all instances, chosen by a hash of the key, are never given to training, and only those are given to evaluation. Nothing is collected from anywhere: words, names and
sentences are below and in facts.py.
"""
import dataclasses
import hashlib
import json
import random

import facts

HELD_OUT = 0.1  # share of a task's instances that training never sees


@dataclasses.dataclass
class Sample:
    task: str
    key: str                        # names the instance, for the split
    messages: list                  # up to and including the question
    content: str = ""               # the answer
    think: str | None = None        # the thought before it; None: asked with enable_thinking false
    tools: list | None = None
    tool_calls: list | None = None  # [{"name", "arguments"}], in place of content


def held_out(key: str) -> bool:
    """Whether the instance belongs to evaluation."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") < HELD_OUT * 2**32


WORDS = """apple arrow autumn baker ball bamboo banana basket beach bear bell bird bishop boat book bottle bread bridge brook brush bucket butter button cabin cable camel
candle canyon carpet castle cedar chain chair cherry circle city clock cloud coast coffee comet copper coral corner cotton cradle crane crown crystal dance delta desert
diamond dragon drum eagle earth echo ember engine falcon feather fern field finger fire fish flame flower forest fossil fountain fox frost garden gate ginger glass glove
goat gold grain granite grape harbor hat hawk hill honey horn horse house iron island ivory jade jar jungle kettle key king kite ladder lake lamp lantern leaf lemon
letter lily lion lotus maple marble market meadow melon metal mirror moon moss mountain needle nest night north oak ocean olive onion orange orchid otter owl paddle
palace panda paper pearl pebble pepper piano pillow pine planet plum pocket poem pond prism queen rabbit rain raven ribbon rice ring river road robin rocket rope rose
saddle sail salt sand scarf school seed shadow shell ship silk silver sky smoke snow spark spice spoon spring square star stone storm street sugar summer sun swan sword
table tea temple thread thunder tiger tin tower train tree tulip tunnel valley velvet violet violin wagon wall water wave wheat wheel willow window winter wolf wood wool""".split()
COLOURS = "red blue green black white brown grey pink gold orange".split()
NAMES = "Anna Ben Carl Dora Emma Felix Gina Hugo Ida Jack Karl Lena Mia Nina Otto Paul Rosa Sam Tom Vera Li Wang Chen Zhao Ming Yan Lin Hua".split()
CITIES = "Beijing Shanghai Paris London Berlin Madrid Rome Tokyo Oslo Vienna Cairo Delhi Lima Sydney Boston Dublin Prague Hangzhou Shenzhen Chengdu".split()
ZH_NOUNS = "苹果 香蕉 石头 河流 山峰 大海 月亮 太阳 星星 森林 花园 城市 学校 书本 桌子 椅子 窗户 大门 火车 飞机 小船 汽车 老虎 熊猫 白马 小鸟 金鱼 茶杯 米饭 面包 雨伞 帽子 衣服 铅笔 电话 地图 钥匙 灯笼 竹子 荷花".split()
ZH_CHARS = "天地人日月星风云山水火木金土春夏秋冬东南西北红黄蓝白黑大小多少高低长短远近新旧上下左右前后一二三四五六七八九十百千万花草树鸟鱼马牛羊"
ZH_COLOURS = "红色 蓝色 绿色 黑色 白色 黄色".split()
ZH_NAMES = "小明 小红 小华 小丽 小刚 小芳 王伟 李娜 张强 刘洋 陈静 赵磊".split()
ZH_CITIES = "北京 上海 广州 深圳 杭州 成都 南京 武汉 西安 重庆".split()
THINK = 0.5  # share of samples with a thought


def _think(rng, text):
    """The thought of a sample, or None when it is asked without thinking."""
    return text if rng.random() < THINK else None


def _zh(rng):
    return rng.random() < 0.35


def _user(text, history=()):
    return [*history, {"role": "user", "content": text}]


def _digits(rng, n):
    return "".join(rng.choice("0123456789") for _ in range(n))


# ---- copying ----

def _random_text(rng, n):
    """About n units of text that cannot be guessed: words, letters, digits, Chinese, or a mixture."""
    kind = rng.choice(["words", "words", "letters", "digits", "zh", "zh words", "mixed"])
    if kind == "words":
        return " ".join(rng.choice(WORDS) for _ in range(n))
    if kind == "letters":
        return " ".join("".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(1, 5))) for _ in range(max(1, n // 2)))
    if kind == "digits":
        return " ".join(_digits(rng, rng.randint(1, 5)) for _ in range(max(1, n // 2)))
    if kind == "zh":
        return "".join(rng.choice(ZH_CHARS) for _ in range(n))
    if kind == "zh words":
        return "".join(rng.choice(ZH_NOUNS) for _ in range(max(1, n // 2)))
    parts = []
    for _ in range(n):
        parts.append(rng.choice([rng.choice(WORDS), rng.choice(WORDS).capitalize(), _digits(rng, rng.randint(1, 3)), rng.choice(ZH_NOUNS), rng.choice(["-", "+", "=", "/", "(", ")", ":", "_"])]))
    return " ".join(parts)


def copy(rng, size):
    text = _random_text(rng, rng.randint(2, max(4, min(40, size // 6))))
    if _zh(rng):
        return Sample("copy", text, _user(rng.choice(["重复：", "请重复：", "原样复制：", "跟我说："]) + text), text, _think(rng, "复制这段文字。"))
    return Sample("copy", text, _user(rng.choice(["Repeat: ", "Copy this text: ", "Say exactly: ", "Repeat after me: ", "Echo: "]) + text), text, _think(rng, "I copy the text."))


# ---- key-value recall ----

def recall(rng, size, question=None):
    """A list of distinct keys with values that fills about size tokens, and a question for some of them; evaluation asks for one."""
    zh = _zh(rng)
    kind = rng.randrange(3)
    n = max(2, size // (9 if kind != 2 else 7))
    keys, lines, pairs = set(), [], []
    while len(pairs) < n:
        if zh:
            key = rng.choice(ZH_COLOURS) + "的" + rng.choice(ZH_NOUNS) if kind and n < 100 else rng.choice(ZH_NOUNS) + _digits(rng, 2)
        else:
            key = rng.choice(COLOURS) + " " + rng.choice(WORDS) if kind else rng.choice(WORDS) + " " + rng.choice(WORDS)
        if key in keys:
            continue
        keys.add(key)
        value = _digits(rng, rng.randint(2, 4)) if kind < 2 else (rng.choice(ZH_NOUNS) if zh else rng.choice(WORDS))
        pairs.append((key, value))
        lines.append(f"{key}：{value}" if zh else f"{key}: {value}")
    wanted = 1 if question == 1 else rng.choice([1, 1, 2, 3, 4])
    asked = rng.sample(pairs, min(wanted, n))
    names = ("、" if zh else ", ").join(k for k, _ in asked)
    text = "\n".join(lines)
    if zh:
        ask = rng.choice([f"{names}的值是什么？", f"查一下：{names}", f"{names}对应什么？"])
        answer = "\n".join(f"{k}：{v}" for k, v in asked)
        return Sample("recall", text + names, _user(text + "\n\n" + ask), answer, _think(rng, "在列表里查找。"))
    ask = rng.choice([f"What is the value of {names}?", f"Look up: {names}", f"Which value belongs to {names}?"])
    answer = "\n".join(f"{k}: {v}" for k, v in asked)
    return Sample("recall", text + names, _user(text + "\n\n" + ask), answer, _think(rng, "I look it up in the list."))


# ---- counting and sorting ----

def count(rng, size):
    zh = _zh(rng)
    if rng.random() < 0.5:
        a = rng.randint(0, 90)
        b = a + rng.randint(2, 12)
        down = rng.random() < 0.3
        run = list(range(b, a - 1, -1)) if down else list(range(a, b + 1))
        text = " ".join(map(str, run))
        x, y = run[0], run[-1]
        if zh:
            return Sample("count", f"{x}>{y}", _user(rng.choice([f"从{x}数到{y}。", f"请从{x}数到{y}。"])), text, _think(rng, f"从{x}开始，到{y}结束。"))
        return Sample("count", f"{x}>{y}", _user(rng.choice([f"Count from {x} to {y}.", f"Please count from {x} to {y}."])), text, _think(rng, f"I start at {x} and stop at {y}."))
    pool = rng.sample(ZH_NOUNS if zh else WORDS, rng.randint(1, 3))
    items = [rng.choice(pool) for _ in range(rng.randint(1, 9))]
    word = items[0]
    n = items.count(word)
    text = (" " if not zh else "、").join(items)
    steps = (" ".join if not zh else "".join)([f"{word} {i + 1}" if not zh else f"{word}{i + 1}，" for i in range(n)])
    if zh:
        return Sample("count", text, _user(f"“{word}”出现几次：{text}"), str(n), _think(rng, steps))
    return Sample("count", text, _user(f"How often is {word} in this list: {text}"), str(n), _think(rng, steps))


def sort(rng, size):
    zh = _zh(rng)
    n = rng.randint(3, 8)
    if rng.random() < 0.5:
        items = [rng.randint(0, 9) for _ in range(n)]
    else:
        items = rng.sample(range(0, 100), n)
    down = rng.random() < 0.25
    text, answer = " ".join(map(str, items)), " ".join(map(str, sorted(items, reverse=down)))
    if zh:
        ask = ("从大到小排序：" if down else rng.choice(["从小到大排序：", "排序："])) + text
        return Sample("sort", text + str(down), _user(ask), answer, _think(rng, "先放最大的。" if down else "先放最小的。"))
    ask = ("Sort from large to small: " if down else rng.choice(["Sort: ", "Sort these numbers: ", "Sort from small to large: "])) + text
    return Sample("sort", text + str(down), _user(ask), answer, _think(rng, "The largest comes first." if down else "The smallest comes first."))


# ---- sums ----

def add(rng, size):
    """One- and two-digit sums. A thought adds the ones, then the tens."""
    digits = rng.choice([1, 2, 2])
    a, b = rng.randrange(10**digits), rng.randrange(10**digits)
    s = a + b
    ones = a % 10 + b % 10
    carry = ones // 10
    steps = f"{a % 10}+{b % 10}={ones}"
    if digits == 2:
        steps += f"\n{a // 10}+{b // 10}{'+1' if carry else ''}={a // 10 + b // 10 + carry}"
    zh = _zh(rng)
    if zh:
        ask = rng.choice([f"{a}+{b}等于多少？", f"{a}加{b}是多少？", f"计算{a}+{b}"])
    else:
        ask = rng.choice([f"What is {a}+{b}?", f"{a}+{b}=", f"Add {a} and {b}.", f"How much is {a} plus {b}?"])
    return Sample("add", f"{a}+{b}", _user(ask), str(s), _think(rng, steps))


# ---- JSON ----

def json_answer(rng, size):
    """A sentence, and the object of the described shape that it states."""
    zh = _zh(rng)
    name = rng.choice(ZH_NAMES if zh else NAMES)
    fields = {
        "name": (name, "string", f"名字是{name}" if zh else f"The name is {name}"),
        "age": ((v := rng.randint(1, 99)), "number", f"{v}岁" if zh else f"{v} years old"),
        "city": ((c := rng.choice(ZH_CITIES if zh else CITIES)), "string", f"住在{c}" if zh else f"lives in {c}"),
        "member": ((m := rng.random() < 0.5), "boolean", ("是会员" if m else "不是会员") if zh else ("is a member" if m else "is not a member")),
        "score": ((s := rng.randint(0, 1000) / 10), "number", f"得分{s}" if zh else f"has a score of {s}"),
        "items": ((i := [rng.choice(ZH_NOUNS if zh else WORDS) for _ in range(rng.randint(1, 4))]), "array", "买了" + "、".join(i) if zh else "bought " + " and ".join(i)),
        "code": ((k := rng.choice(WORDS) + "-" + _digits(rng, 3)), "string", f"代码是{k}" if zh else f"has the code {k}"),
        "address": ((d := {"street": rng.choice(WORDS), "number": rng.randint(1, 200)}), "object", f"地址是{d['street']} {d['number']}" if zh else f"has the address {d['street']} {d['number']}"),
    }
    chosen = rng.sample([k for k in fields if k != "name"], rng.randint(1, 4))
    stated = ["name", *chosen]
    wanted = stated if rng.random() < 0.7 else rng.sample(stated, rng.randint(1, len(stated)))
    said = ("，" if zh else ", ").join(fields[k][2] for k in stated) + ("。" if zh else ".")
    shape = ", ".join(f'"{k}": {fields[k][1]}' for k in wanted)
    answer = json.dumps({k: fields[k][0] for k in wanted}, ensure_ascii=False)
    if zh:
        return Sample("json", said + shape, _user(rng.choice(["按这个格式写JSON：", "输出JSON，格式："]) + "{" + shape + "}\n" + said), answer, _think(rng, "需要：" + "、".join(wanted)))
    return Sample("json", said + shape, _user(rng.choice(["Write JSON of this shape: ", "Answer in JSON: ", "Make a JSON object: "]) + "{" + shape + "}\n" + said), answer,
                  _think(rng, "The keys are " + ", ".join(wanted) + "."))


# ---- tools ----

def _function(name, description, properties, required=None):
    return {"type": "function", "function": {"name": name, "description": description,
                                             "parameters": {"type": "object", "properties": properties, "required": required or list(properties)}}}


def _tool_pool(rng):
    """(definition, request in English, request in Chinese, arguments, result, answer in English, answer in Chinese) of every tool, with random arguments."""
    city, zcity, name, zname = rng.choice(CITIES), rng.choice(ZH_CITIES), rng.choice(NAMES), rng.choice(ZH_NAMES)
    word, word2, n, n2, on = rng.choice(WORDS), rng.choice(WORDS), rng.randint(1, 99), rng.randint(1, 60), rng.random() < 0.5
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 5)))
    made = rng.choice(WORDS) + "_" + rng.choice(WORDS)  # a tool that no one has seen
    param = rng.choice(WORDS)
    room = rng.choice(["kitchen", "bedroom", "garden", "office", "hall"])
    temp, sky = rng.randint(-10, 40), rng.choice(["sunny", "rainy", "cloudy", "windy"])
    zsky = {"sunny": "晴", "rainy": "下雨", "cloudy": "多云", "windy": "有风"}[sky]
    value = rng.randint(1, 999)
    return [
        (_function("get_weather", "Weather of a city", {"city": {"type": "string"}}), f"What is the weather in {city}?", f"{zcity}天气怎么样？",
         ({"city": city}, {"city": zcity}), {"temperature": temp, "sky": sky}, f"It is {sky} in {city}, {temp} degrees.", f"{zcity}{zsky}，{temp}度。"),
        (_function("set_timer", "Set a timer", {"minutes": {"type": "integer"}}), f"Set a timer for {n2} minutes.", f"定时{n2}分钟。",
         ({"minutes": n2},) * 2, {"ok": True}, f"The timer is set for {n2} minutes.", f"已定时{n2}分钟。"),
        (_function("send_message", "Send a message to a person", {"to": {"type": "string"}, "text": {"type": "string"}}), f"Tell {name}: {text}", f"告诉{zname}：{text}",
         ({"to": name, "text": text}, {"to": zname, "text": text}), {"sent": True}, f"I told {name}.", f"已告诉{zname}。"),
        (_function("set_light", "Switch a light", {"room": {"type": "string"}, "on": {"type": "boolean"}}), f"Turn {'on' if on else 'off'} the light in the {room}.",
         f"把{room}的灯{'打开' if on else '关掉'}。", ({"room": room, "on": on},) * 2, {"ok": True}, f"The light in the {room} is {'on' if on else 'off'}.", f"{room}的灯已{'打开' if on else '关掉'}。"),
        (_function("search", "Search files", {"query": {"type": "string"}, "limit": {"type": "integer"}}), f"Search for {word} {word2}, at most {n} results.", f"搜索{word} {word2}，最多{n}条。",
         ({"query": f"{word} {word2}", "limit": n},) * 2, {"found": value}, f"I found {value} results.", f"找到{value}条。"),
        (_function("create_order", "Order goods", {"item": {"type": "string"}, "options": {"type": "object"}}), f"Order {word}, colour {COLOURS[n % 10]}, count {n2}.",
         f"订购{word}，颜色{COLOURS[n % 10]}，数量{n2}。", ({"item": word, "options": {"colour": COLOURS[n % 10], "count": n2}},) * 2, {"order": value}, f"Your order is number {value}.", f"订单号是{value}。"),
        (_function("get_price", "Price of an item", {"item": {"type": "string"}}), f"How much does the {word} cost?", f"{word}多少钱？",
         ({"item": word},) * 2, {"price": value}, f"The {word} costs {value}.", f"{word}的价格是{value}。"),
        (_function(made, f"Call {made}", {param: {"type": "string"}}), f"Use {made} with {word}.", f"用{made}处理{word}。",
         ({param: word},) * 2, {"result": value}, f"The result is {value}.", f"结果是{value}。"),
    ]


def tools(rng, size):
    """One to four tools; the right call, or after its result the answer, or a plain answer when no tool fits."""
    zh = _zh(rng)
    pool = _tool_pool(rng)
    chosen = rng.sample(range(len(pool)), min(len(pool), rng.choice([1, 2, 2, 3, 4])))
    definitions = [pool[i][0] for i in chosen]
    i = rng.choice(chosen)
    fn = pool[i][0]["function"]["name"]
    ask, arguments, result, answer = pool[i][2 if zh else 1], pool[i][3][zh], pool[i][4], pool[i][6 if zh else 5]
    call = {"name": fn, "arguments": arguments}
    key = ask + json.dumps(arguments, ensure_ascii=False)
    if rng.random() < 0.7:
        return Sample("tools", key, _user(ask), "", _think(rng, f"我调用{fn}。" if zh else f"I call {fn}."), definitions, [call])
    messages = _user(ask) + [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "id": "call_1", "function": call}]},
                             {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(result)}]
    return Sample("tool reply", key + json.dumps(result), messages, answer, _think(rng, "我有结果了。" if zh else "I have the result."), definitions)


# ---- talk ----

def _ask(rng, entry, zh):
    """A question of an entry of facts.py in one of the ways to ask it."""
    question = rng.choice(entry[0])
    before, after = facts.ASK_ZH if zh else facts.ASK_EN
    form = rng.choice(before) + question + rng.choice(after)
    if not zh and rng.random() < 0.15:
        form = form.lower().rstrip("?.!")
    return form


def _earlier(rng):
    """Turns that came before: none, or short ones whose answers are known."""
    history = []
    while rng.random() < 0.25 and len(history) < 6:
        zh = _zh(rng)
        entry = rng.choice(facts.TALK_ZH + facts.SHENG_ZH if zh else facts.TALK_EN + facts.SHENG_EN)
        history += [{"role": "user", "content": rng.choice(entry[0])}, {"role": "assistant", "content": entry[1]}]
    return history


def _about(rng, task, en, zh_facts, thought_en, thought_zh):
    zh = rng.random() < 0.45
    entry = rng.choice(zh_facts if zh else en)
    form = _ask(rng, entry, zh)
    return Sample(task, form, _user(form, _earlier(rng)), entry[1], _think(rng, thought_zh if zh else thought_en))


def sheng(rng, size):
    return _about(rng, "sheng", facts.SHENG_EN, facts.SHENG_ZH, "This is about sheng or me.", "这是关于sheng或我的问题。")


def talk(rng, size):
    """Small talk, and a name that was given a turn ago."""
    if rng.random() < 0.3:
        zh = _zh(rng)
        name, other = rng.choice(ZH_NAMES if zh else NAMES), rng.choice(ZH_CITIES if zh else CITIES)
        if zh:
            turns, asked, answer = [(f"我叫{name}，住在{other}。", f"你好，{name}！")], *rng.choice([("我叫什么名字？", f"你叫{name}。"), ("我住在哪里？", f"你住在{other}。")])
        else:
            turns, asked, answer = [(f"My name is {name} and I live in {other}.", f"Nice to meet you, {name}!")], *rng.choice([("What is my name?", f"Your name is {name}."), ("Where do I live?", f"You live in {other}.")])
        if rng.random() < 0.4:  # the first turn itself
            return Sample("talk", turns[0][0] + "1", _user(turns[0][0]), turns[0][1], _think(rng, "对方介绍自己。" if zh else "A greeting."))
        history = [m for q, r in turns for m in ({"role": "user", "content": q}, {"role": "assistant", "content": r})] + _earlier(rng)
        return Sample("talk", turns[0][0] + asked, _user(asked, history), answer, _think(rng, "前面说过。" if zh else "This was said before."))
    return _about(rng, "talk", facts.TALK_EN, facts.TALK_ZH, "A short chat.", "简单聊天。")


TASKS = {"copy": copy, "recall": recall, "count": count, "sort": sort, "add": add, "json": json_answer, "tools": tools, "sheng": sheng, "talk": talk}
WEIGHTS = {"copy": 4, "recall": 4, "count": 3, "sort": 4, "add": 4, "json": 4, "tools": 4, "sheng": 3, "talk": 2}


def draw(rng, size, evaluation=False, task=None, without=(), **kw):
    """A sample of a task (by weight when none is named) from the training or the evaluation instances; size: roughly the tokens of a recall list."""
    while True:
        name = task or rng.choices(list(WEIGHTS), [0 if t in without else w for t, w in WEIGHTS.items()])[0]
        sample = TASKS[name](rng, size, **kw)
        if held_out(sample.key) == evaluation:
            return sample


def prompt_of(tokenizer, sample):
    """What the model is given: the conversation in the chat template's form, up to where it answers."""
    return tokenizer.apply_chat_template(sample.messages, tools=sample.tools, tokenize=False, add_generation_prompt=True, enable_thinking=sample.think is not None)


def completion(sample):
    """What the model writes after the generation prompt, in the template's own form, up to and without <|im_end|>."""
    text = "" if sample.think is None else sample.think + "\n</think>\n\n"
    if not sample.tool_calls:
        return text + sample.content
    for i, call in enumerate(sample.tool_calls):
        text += ("\n" if i else "") + f"<tool_call>\n<function={call['name']}>\n"
        for key, value in call["arguments"].items():
            shown = json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)
            text += f"<parameter={key}>\n{shown}\n</parameter>\n"
        text += "</function>\n</tool_call>"
    return text


def answer_of(text):
    """The visible answer of what a model wrote: without its thought."""
    return text.split("</think>")[-1].strip()


if __name__ == "__main__":
    source = random.Random(1)
    for _ in range(40):
        s = draw(source, 120)
        print(f"[{s.task}] {s.messages[-1]['content'][-200:]!r}\n   -> {completion(s)!r}")
