"""Jinja cases rendered by jinja2 itself, in an environment set up as transformers sets up chat templates (its defaults written out here).
make_jinja_cases.py OUT.jsonl      one line per case: {"template", "vars", "expect"} or {"template", "vars", "error": true}
Made with jinja2 3.1.6, markupsafe 3.0.3, Python 3.11."""
import json, sys
from jinja2 import meta
from transformers_env import env

VARS = dict(
    n=5, neg=-7, zero=0, f=2.5, big=123456789012345678901234567890, t=True, no=False, nil=None, s="Hello World", e="", u="Zoë 日本語 🎉", ws="  x y \n",
    html="<a href='x'>\"&</a>", csv="a,b,,c", lines="one\ntwo\n\nthree", num="42", fnum=" 3.75 ", path="a/b/c",
    l=[3, 1, 2], le=[], ls=["b", "A", "c"], ll=[[1, 2], [3, 4]], mixed=[1, "a", None, True, 2.5, {"k": []}], dup=["a", "A", "b", "a"],
    d={"b": 1, "a": 2, "C": 3}, de={}, dd={"items": "own", "x": {"y": {"z": 1}}, "1": "one"}, pairs=[["k", 1], ["q", 2]],
    users=[{"name": "bob", "age": 31, "tag": "x"}, {"name": "Al", "age": 25}, {"name": "carol", "age": 31, "tag": "y"}],
    msgs=[{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "b": [True, None]}}}]}],
    tree=[{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}, {"v": 5, "c": []}])

# --- expressions, one per line, put inside {{ }}
EXPRESSIONS = r'''
1
1_000
0x1f
0b101
0o17
1.5
1e3
2.5e-3
1_0.5
"a" 'b' "c"
'a\nb\t\\ \' \" \x41 \u00e9 \U0001F389 \101 \q'
"\
x"
true
True
false
none
None
()
(1,)
1,
1, 2
[1, 'a', none, true, 1.0]
{'a': 1, 2: 'b', none: [], (1, 2): 3}
{1: 'a', true: 'b', 1.0: 'c'}
1 + 2 * 3
(1 + 2) * 3
7 // 2
-7 // 2
7 % 3
-7 % 3
7 % -3
7.5 // 2
-7.5 % 2
7 / 2
6 / 2
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
0 ** 0
2.0 ** 0.5
1 + 1.0
10 ** 15
1e16
1e15
123456789.123456789
0.1 + 0.2
1 / 3
1e-5
0.0001
100.0
1e100
-0.0
5e-324
1.7976931348623157e308
2 ** 62
9223372036854775807
-9223372036854775807
big
[big]
big|tojson
big|string|length
big > n
big == big
1 / 0
1 // 0
1 % 0
1.0 / 0
t + t
t * 3
-t
+n
not n
not zero
n and 0
n and s
zero or 'x'
nil or e or 'last'
n or undefd.x
undefd and undefd.x
n == 5
n == 5.0
t == 1
'1' == 1
l == [3, 1, 2]
l == (3, 1, 2)
d == {'C': 3, 'a': 2, 'b': 1}
1 < 2 < 3
1 < 3 < 2
3 > 2 >= 2
1 < 2 == 2
'a' < 'b'
'a' < 'B'
[1, 2] < [1, 3]
[1] < [1, 0]
(1, 'a') < (1, 'b')
1 < 'a'
[1] < (1,)
none < 1
none == none
nil != none
1 in l
9 in l
9 not in l
'ell' in s
'' in s
1 in 'a1'
'a' in d
'z' in d
[1] in d
[1, 2] in ll
1 in n
'x' in undefd
not 1 in l
'b' in d.keys()
('b', 1) in d.items()
2 in d.values()
3 in range(5)
'a' ~ 1 ~ none ~ true ~ 2.0 ~ [1]
1 ~ 2 + 3
'a' ~ undefd ~ 'b'
'a' + 'b'
'a' + 1
1 + 'a'
[1] + [2]
[1] + (2,)
(1,) + (2,)
'ab' * 3
3 * 'ab'
[0] * 3
'ab' * -1
'ab' * 2.0
'a' - 'b'
undefd + 1
1 + undefd
-undefd
-s
'x' if t else 'y'
'x' if no else 'y'
'x' if no
('x' if no) is defined
'a' if no else 'b' if no else 'c'
1 if t else undefd.x
n.x
n.x.y
nil.x
nil.x.y
undefd
undefd.x
undefd['x']
undefd[0]
undefd()
undefd|upper
undefd == undefd2
undefd == none
undefd is defined
undefd < 1
[undefd]
{'a': undefd}
l[0]
l[-1]
l[9]
l['x']
l.x
l[1.0]
l[true]
l.0
ll.0.1
ll[1][0]
l[1:]
l[:2]
l[::-1]
l[::2]
l[-2:]
l[5:]
l[2:0:-1]
l[::0]
l['a':]
l[1:none]
(1, 2, 3)[1:]
range(10)[2:8:3]
range(5)[1]
range(1, 9, 3)[::2]
range(9)[::-2]
range(1, 9, 3).index(4)
range(3).count(1)
'x' % range(3)
d is filter
big|abs
range(5)
range(0, 10, 3)
range(3)|list
range(5, 0, -2)|list
range(0)|list
range(1, 2, 0)
range(100001)
range()
range('a')
range(3)|length
s[0]
s[-1]
s[99]
s[1:4]
s[::-1]
s[::3]
s[-3:]
u[4]
u[4:6]
u[::-1]
u[-1]
u|length
n[0]
n[1:]
d['a']
d.a
d['zz']
d.zz
d.zz.y
d[nil]
d[[1]]
d[1:2]
dd.items
dd['items']
dd.x.y.z
dd['x']['y']
dd.get('x').y.z
dd['1']
dd[1]
d.get('a')
d.get('q')
d.get('q', 'dflt')
d.get()
d.get([1])
d.items()
d.keys()
d.values()
d.items()|list
d.keys()|list
d.copy()
d.update({'z': 1})
d.pop('a')
d.pop
d.setdefault('a', 1)
d.clear()
l.append(4)
l.append is defined
l.pop()
l.sort()
l.index(2)
l.index(9)
l.count(1)
l.copy()
(1, 2).index(2)
(1, 1).count(1)
l.__class__
l.__class__.__name__
s.__len__()
s.foo
s.foo.bar
f.is_integer()
(2.0).is_integer()
dict(a=1, b=2)
dict([('a', 1)])
dict({'a': 1}, b=2)
dict(1)
dict.from_keys([('a', 1)])
dict['from_keys']([('a', 1)])
dict.fromkeys(ls)
dict.fromkeys('aba', 1)
dict.fromkeys(1)
dict.fromkeys([l])
dict.fromkeys()
dict['fromkeys']([('a', 1)])
dict.x is defined
dict.__class__
[dict]|map(attribute='x')|first is callable
namespace(a=1).a
namespace(a=1).b
namespace(a=1)['a']
namespace({'a': 1}, b=2).b
cycler('a', 'b').next()
cycler()
joiner()()
n()
s()
raise_exception('boom')
raise_exception()
range
dict(**{'a': 1})
dict(*[[('a', 1)]])
range(*[2, 5])|list
"%s" % 'x'
"%s and %s" % ('x', 2)
"%d %5d|%-5d|%05d" % (1, 2, 3, 4)
"%.2f %8.3f %e %g" % (1.005, 2.5, 12345.678, 0.0001)
"%x %X %#x %o" % (255, 255, 255, 8)
"%r" % 'a'
"%s" % none
"%s" % [1]
"%(a)s-%(b)d" % {'a': 'x', 'b': 2}
"%%"|format()
"100%%" % ()
"%s" % ()
"%s %s" % 'x'
"x" % 1
"%d" % 'a'
"%d" % 2.7
"%c%c" % (65, 'z')
"%+d % d" % (1, 2)
"%5s|%-5s|%.2s" % ('ab', 'ab', 'abc')
"%*d" % (5, 1)
"%q" % 1
"%"  % 1
"{} {}".format(1, 'a')
"{0} {1} {0}".format('a', 'b')
"{a}".format(a=1)
"{0.a} {0[b]}".format(d)
"{0[0]}".format(l)
"{:>5}|{:<5}|{:^5}|{:*^7}".format('ab', 'ab', 'ab', 'ab')
"{:5}|{:05d}|{:+d}|{: d}".format(3, 3, 3, 3)
"{:.2f} {:10.3f} {:e} {:g} {:%}".format(3.14159, 2.5, 12345.6789, 0.00001, 0.25)
"{:,} {:_} {:,.2f}".format(1234567, 1234567, 12345.678)
"{:x} {:X} {:#x} {:b} {:o} {:c}".format(255, 255, 255, 5, 8, 65)
"{!r} {!s}".format('a', 'b')
"{{}} {}".format(1)
"{:{}}|".format('a', 4)
"{:.3} {:.3}".format('abcdef', 3.14159)
"{}".format(none)
"{:5}".format(none)
"{}".format()
"{} {0}".format(1)
"{x}".format(a=1)
"{".format()
"}".format()
"{:d}".format('a')
"{:s}".format(1)
"{:.3}".format(1234.5)
"{}".format(undefd)
"{} {}".format(1.0, 1e20)
"{a[x]}".format_map({'a': {'x': 1}})
s.upper()
s.lower()
s.title()
s.capitalize()
s.swapcase()
"hello world-foo it's".title()
"straße ﬁ".upper()
"ΑΣ ΣΑΣ".lower()
"İI".lower()
"ß".capitalize()
"Straße".casefold()
"éÀ".swapcase()
ws.strip()
ws.lstrip()
ws.rstrip()
"xxabxx".strip('x')
"xyabyx".lstrip('xy')
"abyx".rstrip('xy')
"x".strip(1)
" \u3000a\u00a0".strip()
csv.split(',')
csv.split(',', 1)
csv.rsplit(',', 1)
csv.split(',,')
csv.split('')
"  a  b c ".split()
"  a  b c ".split(none, 1)
" a  b  c ".rsplit(none, 1)
"".split()
"".split(',')
"a b".split(maxsplit=0)
"a\u2003b".split()
lines.splitlines()
"a\r\nb\rc\n".splitlines()
"a\nb\n".splitlines(true)
"a\x0bb\x1cc\u2028d".splitlines()
"a</think>b".split('</think>')[-1]
s.startswith('Hell')
s.startswith(('x', 'He'))
s.startswith('lo', 3)
s.endswith('ld')
s.endswith(('x', 'ld'))
s.startswith(1)
s.find('o')
s.find('zz')
s.rfind('o')
s.find('o', 5)
s.find('o', 5, 6)
s.index('zz')
s.rindex('o')
u.find('本')
u.rfind('🎉')
s.count('l')
s.count('')
"aaa".count('aa')
s.replace('o', '0')
s.replace('o', '0', 1)
"abc".replace('', '-')
"abc".replace('', '-', 2)
s.replace('l', '')
s.replace('l')
'-'.join(ls)
'-'.join([1])
''.join([])
'-'.join('abc')
'-'.join(d)
"5".zfill(3)
"-5".zfill(4)
"ab".center(7, '*')
"ab".center(5)
"abc".center(6)
"ab".ljust(4, '.')
"ab".rjust(4)
"ab".rjust(4, 'xx')
"12".isdigit()
"1²".isdigit()
"1²".isdecimal()
"½".isnumeric()
"ab".isalpha()
"ab1".isalnum()
"".isalpha()
"日本".isalpha()
" \t".isspace()
"AB1".isupper()
"ab1".islower()
"Ab Cd".istitle()
"ab".isascii()
"é".isascii()
"a_1".isidentifier()
"1a".isidentifier()
"a\n".isprintable()
"foobar".removeprefix('foo')
"foobar".removesuffix('bar')
"foobar".removeprefix('bar')
"a-b-c".partition('-')
"a-b-c".rpartition('-')
"abc".partition('-')
"abc".rpartition('-')
"a\tb".expandtabs(4)
"a".encode
s.nope()
'it\'s'
['it\'s', 'say "hi"', 'both \' "', 'a\nb', '\x00\x7f\u200b', 'é日🎉', '\\']
[1.0, -0.0, 1e20]
{'k': [1, {'z': (1,)}]}
s|upper
s|lower
s|title
"hello-world (foo) [bar] it's"|title
s|capitalize
nil|upper
5|upper
ws|trim
"xxaxx"|trim('x')
nil|trim
undefd|trim
n|trim
s|length
l|count
d|length
n|length
nil|length
undefd|length
e|default('x')
e|default('x', true)
undefd|default
undefd|default('x')
nil|default('x')
nil|d('x', boolean=true)
undefd.x|default('y')
undefd|default(default_value=3)
ls|join
ls|join(', ')
l|join('-')
users|join(',', attribute='name')
[1, none, undefd, 'a']|join('|')
'abc'|join('.')
n|join
d|join(',')
users|map(attribute='name')|list
users|map(attribute='tag')|list
users|map(attribute='tag', default='-')|list
users|map(attribute='name')|map('upper')|join(' ')
ls|map('lower')|list
ls|map('replace', 'b', 'X')|list
ls|map('nofilter')|list
ls|map|list
[]|map|list
none|map('upper')|list
ll|map('first')|list
ll|map(attribute=0)|list
ll|map(attribute='1')|list
[{'a': {'b': 1}}]|map(attribute='a.b')|list
ls|map('upper')|length
[1, 0, 2, none, '']|select|list
[1, 0, 2, none, '']|reject|list
[1, 2, 3, 4]|select('even')|list
[1, 2, 3, 4]|select('odd')|list
[1, 2, 3, 4]|reject('divisibleby', 3)|list
[1, 2, 3, 4]|select('>', 2)|list
[1, 2, 3, 4]|select('in', [1, 4])|list
[1, 'a', none]|select('string')|list
[1]|select('notest')|list
users|selectattr('tag')|map(attribute='name')|list
users|rejectattr('tag')|map(attribute='name')|list
users|selectattr('age', 'equalto', 31)|map(attribute='name')|list
users|selectattr('age', 'lt', 30)|list|length
users|selectattr('tag', 'defined')|list|length
users|rejectattr('tag', 'undefined')|list|length
users|selectattr|list
msgs|selectattr('role', 'equalto', 'system')|list|tojson
msgs|selectattr('tool_calls.0.function', 'defined')|list|length
(l|select('odd')) is iterable
(l|select('odd')) is sequence
l|first
l|last
s|first
s|last
le|first
le|last
(le|first) is defined
d|first
d|last
n|first
l|select('odd')|last
l|list
'abc'|list
d|list
n|list
nil|list
undefd|list
l|sort
l|sort(reverse=true)
ls|sort
ls|sort(case_sensitive=true)
users|sort(attribute='age')|map(attribute='name')|list
users|sort(attribute='age,name')|map(attribute='name')|list
users|sort(attribute='age', reverse=true)|map(attribute='name')|list
[1, 'a']|sort
d|sort
ls|sort(attribute='nope')
[none, none]|sort
[none, 1]|sort
d|dictsort
d|dictsort(true)
d|dictsort(by='value')
d|dictsort(by='value', reverse=true)
d|dictsort(by='x')
l|dictsort
dup|unique|list
dup|unique(true)|list
users|unique(attribute='age')|map(attribute='name')|list
[1, 1.0, true, '1']|unique|list
[[1]]|unique|list
l|reverse|list
s|reverse
d|reverse|list
n|reverse
l|min
l|max
ls|min
ls|max(case_sensitive=true)
users|max(attribute='age')
le|min
(le|min) is defined
[1, 'a']|max
l|sum
users|sum(attribute='age')
users|sum('age', 10)
[[1], [2]]|sum(start=[])
ls|sum
[0.1, 0.2]|sum
le|sum
5.5|round
2.5|round
3.5|round
-2.5|round
2.675|round(2)
1234.5|round(-2)
1234|round(-2)
1250|round(-2)
1350|round(-2)
42|round
1.234|round(2, 'ceil')
1.239|round(2, 'floor')
1.5|round(0, 'x')
'a'|round
-5|abs
(-5)|abs
f|abs
s|abs
'42'|int
'42.7'|int
'abc'|int
'abc'|int(7)
' 42 '|int
'0x1f'|int(base=16)
'1_000'|int
'-5'|int
'12345678901234567890'|int
nil|int
undefd|int
l|int
3.99|int
-3.99|int
t|int
'3.5'|float
'1e3'|float
'abc'|float
'abc'|float(1.5)
'nan'|float
'inf'|float
fnum|float
5|float
nil|float
5|string
nil|string
l|string
undefd|string
5|string is string
html|escape
html|e
html|safe
html|safe|e
html|e|e
html|forceescape
(html|e)|forceescape
html|safe is escaped
html is escaped
('<b>'|safe) + '<i>'
'<i>' + ('<b>'|safe)
('<b>'|safe) ~ '<i>'
('<b>%s</b>'|safe) % '<i>'
('<b>{}</b>'|safe).format('<i>')
('<b>'|safe) * 2
[('<b>'|safe)]
('a,b'|safe).split(',')
('<b>'|safe).upper() + '<'
('<b>'|safe).replace('b', '<')
('<b>'|safe)|replace('b', '<')
('-'|safe).join(['<', '>'])
('<'|safe)[0] + '<'
'<p>a <b>b</b>\n  c</p><!-- x -->&lt;'|striptags
s|replace('o', '0')
s|replace('o', '0', 1)
5|replace(5, 6)
nil|replace('N', 'n')
"a b&c/d?é"|urlencode
{'a b': 'c&d', 'e': 1}|urlencode
[('a', 1)]|urlencode
5|urlencode
lines|indent
lines|indent(2)
lines|indent(2, true)
lines|indent(2, first=true, blank=true)
lines|indent('> ')
lines|indent(width=1, blank=true)
'a\n'|indent
''|indent
5|indent
'a b c'|wordcount
u|wordcount
'ab'|center(6)
'ab'|center|length
'one two three four'|truncate(12)
'one two three four'|truncate(12, true)
'one two three four'|truncate(12, false, '--')
'one two three four'|truncate(12, true, '', 0)
'short'|truncate(4)
'abc'|truncate(2)
'%s-%s'|format('a', 1)
'%(x)s'|format(x=1)
'%s'|format('a', x=1)
l|batch(2)|list
l|batch(2, '-')|list
[1, 2, 3, 4, 5]|batch(3, 'x')|list
[1, 2, 3, 4, 5]|slice(2)|list
[1, 2, 3, 4, 5, 6, 7]|slice(3, 'x')|list
l|slice(0)|list
users|groupby('age')|list
users|groupby('age')|map(attribute='grouper')|list
(users|groupby('age')|first).list|length
users|groupby('tag', default='none')|map('first')|list
ls|groupby(0)|list
d|items|list
undefd|items|list
l|items
nil|items|list
d|tojson
l|tojson
s|tojson
u|tojson
html|tojson
u|tojson(ensure_ascii=true)
d|tojson(indent=2)
mixed|tojson
mixed|tojson(indent=4)
mixed|tojson(indent=0)
mixed|tojson(indent='--')
{'b': [], 'a': {}}|tojson(indent=2)
d|tojson(sort_keys=true)
d|tojson(separators=(',', ':'))
d|tojson(separators=[' ; ', '='], indent=1)
(1, 2)|tojson
{1: 2, none: 3, true: 4, 1.5: 5}|tojson
{(1, 2): 3}|tojson
undefd|tojson
[1.0, 1e20, 1e-7, 0.1]|tojson
'\x00\x1f\x7f\u2028"\\/'|tojson
[nil, t, no]|tojson
('inf'|float)|tojson
range(3)|tojson
d.items()|tojson
d|attr('items') is callable
d|attr('a')
s|attr('upper')
(s|attr('upper'))()
s|attr('nope')
1000|filesizeformat
1|filesizeformat
999|filesizeformat
1500000|filesizeformat
1048576|filesizeformat(true)
{'a': 1, 'b': none, 'c': '<'}|xmlattr
{'a': 1}|xmlattr(false)
[3, 'a']|pprint
{'b': 1, 'a': 2}|pprint
s|nofilter
1 is odd
2 is even
9 is divisibleby 3
9 is divisibleby(3)
9 is not divisibleby 2
s is defined
s is not defined
nil is none
nil is not none
s is string
n is number
t is number
n is integer
t is integer
f is float
t is boolean
t is true
1 is true
no is false
d is mapping
l is mapping
l is sequence
s is sequence
d is sequence
n is sequence
undefd is sequence
l is iterable
s is iterable
n is iterable
undefd is iterable
nil is iterable
range is callable
s is callable
s.upper is callable
l is sameas l
1 is sameas 1
nil is sameas none
t is sameas true
t is sameas 1
1 is eq 1
1 is equalto 1
1 is ne 2
1 is lt 2
2 is le 2
3 is gt 2
3 is ge 4
1 is greaterthan 0
1 is lessthan 0
1 is in [1, 2]
'a' is in 'abc'
3 is not in l
'abc' is lower
'ABC' is upper
'aBc' is lower
'' is lower
'upper' is filter
'nope' is filter
'odd' is test
'nope' is test
s is nope
'a' is odd
not s is string
s is string and n is number
s is string or undefd.x
1 is odd is even
s|upper is upper
n|string|length + 1
-n|abs
-(n|abs)
(1, 2) + (3,)
s.upper()|lower
s|upper.lower()
ls|map('upper')|list|tojson|length
[[1, 2], [3]]|map('length')|sum
l|map('string')|join(',')
"a"
'a' 'b' ~ 'c'
a.b.c
{{}}
1 +
(1
[1
{'a': 1
{'a'}
1 2
'abc
x.
x|
x is
f(a=1, 2)
f(**a, *b)
a if
1 = 2
not
x[1
@
1..2
a b
if
"\xZZ"
"\u12"
'''.strip("\n").split("\n")
# lines that ended with a backslash are one expression
joined, i = [], 0
while i < len(EXPRESSIONS):
    x = EXPRESSIONS[i]
    if x.endswith("\\") and not x.endswith("\\\\"):
        x += "\n" + EXPRESSIONS[i + 1]; i += 1
    joined.append(x); i += 1
CASES = [("{{ " + x + " }}", None) for x in joined]

# --- whole templates
TEMPLATES = [
 # for
 "{% for x in l %}{{ x }},{% endfor %}", "{% for x in le %}x{% else %}empty{% endfor %}", "{% for x in undefd %}x{% else %}none{% endfor %}", "{% for x in nil %}{% endfor %}",
 "{% for x in n %}{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|items %}{{ k }}{{ v }}{% endfor %}",
 "{% for a, b in ll %}{{ a + b }} {% endfor %}", "{% for (a, b) in ll %}{{ a }}{% endfor %}", "{% for a, b in l %}{% endfor %}", "{% for a, b, c in ll %}{% endfor %}", "{% for c in s %}{{ c }}.{% endfor %}",
 "{% for c in u %}[{{ c }}]{% endfor %}", "{% for i in range(3) %}{{ i }}{% endfor %}", "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}", "{% for x in (1, 2) %}{{ x }}{% endfor %}",
 "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
 "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}",
 "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in l %}{{ loop.cycle() }}{% endfor %}", "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}",
 "{% for x in l %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}", "{% for x in l %}{{ loop }}{% endfor %}", "{% for x in l %}{{ loop.nope }}{% endfor %}", "{% for x in l %}{{ loop['index'] }}{% endfor %}",
 "{% for x in l if x > 1 %}{{ x }}{{ loop.index }}{{ loop.last }}/{{ loop.length }} {% endfor %}", "{% for x in l if x > 9 %}x{% else %}none{% endfor %}", "{% for x in l if x is odd %}{{ loop.nextitem }}{% endfor %}",
 "{% for x in l|select('odd') %}{{ x }}{{ loop.length }}{{ loop.last }}{% endfor %}", "{% for x in l|map('string') %}{{ loop.revindex }}{{ x }}{% endfor %}",
 "{% set ns = namespace(stop=false) %}{% for x in l if not ns.stop %}{{ x }}{% if x == 1 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
 "{% set ns = namespace(stop=false) %}{% for x in l if not ns.stop %}{{ x }}{{ loop.last }}{% if x == 1 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
 "{% for x in tree recursive %}{{ x.v }}({{ loop(x.c) }}){% endfor %}", "{% for x in tree recursive %}{{ loop.depth }}{{ x.v }}{% if x.c %}[{{ loop(x.c) }}]{% endif %}{% endfor %}", "{% for x in tree recursive %}{{ x.v }}{{ loop(x.c) }}{% else %}.{% endfor %}",
 "{% for x in l %}{{ loop(x) }}{% endfor %}", "{% for x in ll %}{% for y in x %}{{ loop.index }}{{ y }}{% endfor %}{{ loop.index }}{% endfor %}", "{% for x in ll %}{% set outer = loop %}{% for y in x %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
 "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% break %}{% else %}e{% endfor %}", "{% break %}", "{% continue %}", "{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
 "{% for x in l %}{% set y %}a{% break %}{% endset %}{{ y }}{% endfor %}|", "{% for x in l %}{% filter upper %}a{% if x == 1 %}{% continue %}{% endif %}b{% endfilter %}{% endfor %}", "{% for x in l %}{% with a = x %}{% if a == 1 %}{% break %}{% endif %}{{ a }}{% endwith %}{% endfor %}{{ x }}",
 "{% for loop in l %}{% endfor %}", "{% for x in l %}{% for y in l %}{% if loop.first %}{{ y }}{% endif %}{% endfor %}{% if loop.last %}!{% endif %}{% endfor %}", "{% for x in l %}{{ x }}{% endfor %}{{ x }}{{ loop }}",
 "{% for x in l %}{{ x }}{{ 'x' if loop.last else ', ' }}{% endfor %}", "{% for m in msgs[::-1] %}{{ m.role }} {% endfor %}", "{% for m in msgs[1:] %}{{ loop.index0 }}{{ m['role'] }}{% endfor %}", "{% for x in l recursive %}{{ loop('ab') if loop.depth < 2 else x }}{% endfor %}",
 "{% for i in range(3) %}{% for j in range(i) %}{{ i }}{{ j }} {% else %}none {% endfor %}{% endfor %}", "{% for x in d %}{{ loop.index }}{% endfor %}", "{% for x in [] %}{% endfor %}{% for x in '' %}a{% else %}b{% endfor %}",
 "{% set it = l|map('string') %}{% for x in it %}{{ x }}{% endfor %}{% for x in it %}{{ x }}{% endfor %}", "{% set it = l|select %}{{ it|first }}{{ it|list }}", "{% for x in l|reverse %}{{ x }}{% endfor %}", "{% for g in users|groupby('age') %}{{ g.grouper }}:{{ g.list|length }} {% endfor %}", "{% for age, us in users|groupby('age') %}{{ age }}:{{ us|map(attribute='name')|join('+') }} {% endfor %}",
 # if
 "{% if n %}a{% endif %}", "{% if zero %}a{% else %}b{% endif %}", "{% if zero %}a{% elif n %}b{% else %}c{% endif %}", "{% if zero %}a{% elif e %}b{% elif nil %}c{% endif %}", "{% if le or de or e or nil or undefd or 0.0 %}a{% else %}b{% endif %}", "{% if s and not no and (n > 1 or 1/0) %}ok{% endif %}",
 "{% if x is defined and x.y %}{% endif %}ok", "{% if undefd.y %}{% endif %}", "{% if 1 %}{% if 0 %}a{% else %}b{% endif %}{% else %}c{% endif %}", "{% if 1, 0 %}t{% endif %}", "{% if l|select('odd') %}gen{% endif %}", "{% if n == 5: %}colon{% endif %}",
 # set
 "{% set x = 1 %}{{ x }}", "{% set x = 1, 2 %}{{ x }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [3, 4] %}{{ b }}{{ a }}", "{% set (a, b) = 'xy' %}{{ b }}{{ a }}", "{% set a, b = 1 %}", "{% set a, b = [1] %}", "{% set [a, b] = l[:2] %}{{ a }}{{ b }}",
 "{% set x %}a{{ n }}{% endset %}[{{ x }}]", "{% set x | upper %}abc{% endset %}{{ x }}", "{% set x | replace('a', 'b') | upper %}abc{% endset %}{{ x }}", "{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}{{ y }}", "{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}", "{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}",
 "{% for i in l %}{{ y }}{% set y = i %}{{ y }}{% endfor %}", "{% set n = n + 1 %}{{ n }}", "{{ n }}{% set n = 9 %}{{ n }}", "{% if no %}{% set n = 1 %}{% endif %}{{ n }}", "{% for i in [1] %}{{ n }}{% set n = 7 %}{{ n }}{% endfor %}{{ n }}", "{% set x = x %}{{ x is defined }}",
 "{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}", "{% set ns = namespace() %}{% for x in l %}{% set ns.s = (ns.s or 0) + x %}{% endfor %}{{ ns.s }}", "{% set ns.a = 1 %}", "{% set d.a = 1 %}", "{% set ns = namespace(a=1, b=2) %}{% set ns.a, ns.b = ns.b, ns.a %}{{ ns.a }}{{ ns.b }}", "{% set ns = namespace() %}{% set ns.x %}blk{% endset %}{{ ns.x }}",
 "{% set ns = namespace(l=[]) %}{% for x in l %}{% set ns.l = ns.l + [x * 2] %}{% endfor %}{{ ns.l }}", "{% set ns = namespace(t='') %}{% for x in range(5) %}{% set ns.t = ns.t ~ x %}{% endfor %}{{ ns.t }}", "{% set ns = namespace(a=[1]) %}{% set x = ns.a %}{% set ns.a = ns.a + [2] %}{% set y = x + [3] %}{{ x }}{{ ns.a }}{{ y }}",
 "{% set a = 'x' * 300 %}{% set b = a + 'y' %}{% set c = a + 'z' %}{{ b[-2:] }}{{ c[-2:] }}{% set d2 = b + '1' %}{% set e2 = b + '2' %}{{ d2[-2:] }}{{ e2[-2:] }}{{ a|length }}", "{% set true = 1 %}", "{% set 1 = 2 %}", "{% set a.b.c = 1 %}", "{% set x = %}", "{% set %}", "{% set x = 1 %}{% set y = x %}{% set x = 2 %}{{ y }}",
 "{% set x = 'a' if n > 3 else 'b' %}{{ x }}", "{% set ns = namespace(**d) %}{{ ns.a }}", "{{ namespace(a=1) }}",
 # macro, call
 "{% macro m() %}x{% endmacro %}{{ m() }}{{ m() }}", "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=5, a=4) }} {{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}{{ m(none) }}",
 "{% macro m(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ m(1, 2, 3) }}{{ m() }}", "{% macro m(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ m(1, b=2) }}", "{% macro m() %}{{ varargs|length }}{{ kwargs|length }}{% endmacro %}{{ m(1, 2, a=3) }}", "{% macro m(a, a2=a) %}{{ a2 }}{% endmacro %}{{ m(7) }}", "{% macro m(a=1, b) %}{% endmacro %}",
 "{% macro m(x) %}{% if x > 0 %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(3) }}", "{% set g = 1 %}{% macro m() %}{{ g }}{% endmacro %}{% set g = 2 %}{{ m() }}", "{% macro m() %}{% set g = 5 %}{{ g }}{% endmacro %}{% set g = 1 %}{{ m() }}{{ g }}", "{% macro m() %}{{ late }}{% endmacro %}{% set late = 3 %}{{ m() }}",
 "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}", "{% for x in l %}{% macro m() %}{{ loop.index }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m() %}{{ loop is defined }}{% endmacro %}{% for x in l %}{{ m() }}{% endfor %}", "{{ m() }}{% macro m() %}{% endmacro %}",
 "{% macro m(c) %}[{{ caller() }}]{% endmacro %}{% call m(1) %}body{{ n }}{% endcall %}", "{% macro m() %}{% for x in l %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(y) m() %}<{{ y }}>{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{% call m() %}b{% endcall %}", "{% call s() %}{% endcall %}", "{% call n %}{% endcall %}",
 "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}", "{% macro m(a, b) %}{{ caller(a, b) }}{% endmacro %}{% call(x, y=9) m(1, 2) %}{{ x }}{{ y }}{% endcall %}{% call(x, y=9) m(1) %}{{ x }}{{ y }}{% endcall %}", "{% macro a() %}{{ caller() }}{% endmacro %}{% macro b() %}{% call a() %}in{{ caller() }}{% endcall %}{% endmacro %}{% call b() %}out{% endcall %}",
 "{% macro m(x) %}{{ x }}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.caller }}{{ m.catch_kwargs }}", "{% macro m(x) %}{% endmacro %}{{ m }}", "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'x': 2}) }}", "{% macro m() %} a {% endmacro %}{{ m()|trim }}{{ m() is string }}", "{% macro m(x) %}{{ x|upper }}{% endmacro %}{{ ls|map('upper')|map('lower')|join }}{{ m('q') }}",
 "{% macro m(a, b='x', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1, c=2) }}", "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}{{ inner is defined }}", "{% if t %}{% macro m() %}in if{% endmacro %}{% endif %}{{ m() }}", "{% macro m(d) %}{{ d.a }}{% endmacro %}{{ m(d) }}", "{% macro m(caller) %}{% endmacro %}", "{% macro m(x) %}{{ x }}{% endmacro %}{% set f2 = m %}{{ f2('y') }}",
 "{% macro m(x) %}{% for i in range(x) %}{{ i }}{{ m(x - 1) }}{% endfor %}{% endmacro %}{{ m(3) }}", "{% macro m() %}{{ n }}{% endmacro %}{% with n = 99 %}{{ n }}{{ m() }}{% endwith %}",
 # filter blocks, with, raw, block, generation, print
 "{% filter upper %}abc {{ s }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}aa{% endfilter %}", "{% filter trim %}  x {% set q = 1 %}{% endfilter %}{{ q }}", "{% filter nofilter %}{% endfilter %}", "{% with %}{% set z = 1 %}{{ z }}{% endwith %}{{ z }}", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}", "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with a, b = 1, 2 %}{% endwith %}", "{% with (a, b) = (1, 2) %}{{ a }}{{ b }}{% endwith %}",
 "{% raw %}{{ x }}{% if %}{% endraw %}", "a {%- raw -%} {{ x }} {%- endraw -%} b", "{% raw %}\n{{ x }}\n{% endraw %}\nb", "  {% raw %} a {% endraw %}  b", "{% raw %}a", "{% block b %}x{{ n }}{% endblock %}", "{% block b %}x{% endblock b %}{% block b %}{% endblock %}", "{% set q = 1 %}{% block b %}{{ q }}{% set q = 2 %}{% endblock %}{{ q }}", "{% for i in l %}{% block b %}{{ i }}{% endblock %}{% endfor %}", "{% for i in l %}{% block b scoped %}{{ i }}{% endblock %}{% endfor %}",
 "{% generation %}a{{ n }}{% endgeneration %}", "{% for m in msgs %}{% generation %}{{ m.role }}{% set z = 1 %}{% endgeneration %}{{ z }}{% endfor %}", "{% generation %}", "{% print n %}{% print n, s %}", "{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}", "{% from 'x' import y %}", "{% do 1 %}", "{% trans %}a{% endtrans %}", "{% nope %}", "{% %}", "{% endif %}", "{% if 1 %}", "{% for x in l %}", "{% if 1 %}{% endfor %}", "{% macro %}", "{{ n", "{% if", "{#", "{# a", "a{# b #}c", "{# {{ x }} {% if %} #}d",
 # white space
 "a\n{% if 1 %}\nb\n{% endif %}\nc\n", "a\n  {% if 1 %}\n  b\n  {% endif %}\nc", "a {%- if 1 -%} b {%- endif -%} c", "a\n\n{%- if 1 -%}\n\nb\n\n{%- endif -%}\n\nc", "a\n  {{ n }}  \nb", "a\n  {{- n -}}  \nb", "a  {{- n }} b", "  {% set x = 1 %}\n  {{ x }}", "x  {% set y = 1 %}  z", "\n\n{% if 1 %}\n\na{% endif %}", "a\n  {#- c -#}\n  b", "a\n  {# c #}\n  b", "a  {# c #}  b", "\t{% if 1 %}\tx{% endif %}\n",
 "a\n  {%+ if 1 %}b{% endif %}", "a{% if 1 +%}\nb{% endif +%}\nc", "  {%+ set x = 1 +%}\n  y", "a\n", "a\n\n", "\n", "", "a\r\nb\rc\r\n", "{% if 1 %}\r\nx\r\n{% endif %}\r\n", "{{ 'a\r\nb' }}", "a{{ 1 }}\n{{ 2 }}\n", "{% for x in l %}\n  {{ x }}\n{% endfor %}\n", "{% for x in l -%}\n  {{ x }}\n{%- endfor %}\n", "{%- for x in l %}\n  {{- x }}\n{%- endfor %}\n", "{{- 'a' -}}   {{- 'b' -}}", "\u00a0{%- if 1 -%}\u3000x\u2003{%- endif -%}", "a{%-if 1-%}b{%-endif-%}c", "{{-1}}", "{{ -1 }}", "{{+1}}", "{{- -1 }}", "{%if 1%}a{%endif%}", "{{1}}{{2}}", "{{ '}}' }}", "{{ '%}' }}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ {'a':{}} }}", "{% if {'a': 1} %}x{% endif %}", "{{'{{'}}", "{ { } } {x} %} }} #}", "{", "{{ '{%' }}{", "a{", "{{\n1\n}}", "{{ 1\n+\n2 }}", "{% set x\n=\n1 %}{{ x }}", "{%\nif 1\n%}\nx\n{%\nendif\n%}", "   {% if 1 %}   {% if 1 %}   x   {% endif %}   {% endif %}   ", "\n   {% if 1 %}\n   {% if 1 %}\n   x\n   {% endif %}\n   {% endif %}\n   ", "{# a #}\n{# b #}\n  {# c #}  \nx", "x {# a -#}  \n y", "{% if 1 -%}\n\n  a\n\n{%- else -%} b {%- endif %}", "<div>\n  {% for x in l %}\n    <p>{{ x }}</p>\n  {% endfor %}\n</div>\n",
 # sandbox and strings in real use
 "{{ msgs|tojson }}", "{{ msgs[2].tool_calls[0].function.arguments|tojson }}", "{% for tc in msgs[2].tool_calls %}{% set f3 = tc.function %}{{ f3.name }}{{ f3.arguments|items|list }}{% endfor %}", "{% for m in msgs %}{% if m.content is string %}{{ m.content }}{% elif m.content is none %}-{% endif %}{% endfor %}", "{{ msgs[0]['role'] ~ ': ' ~ msgs[0].content }}", "{{ msgs[0]['role'] + msgs[2]['content'] }}", "{% if msgs[0].role == 'system' %}{% set rest = msgs[1:] %}{% endif %}{{ rest|length }}", "{% if 'tool_calls' in msgs[2] and msgs[2]['tool_calls'] is not none %}yes{% endif %}", "{{ (msgs|last).tool_calls is defined }}", "{{ msgs[-1].tool_calls[0]['function']['arguments'].items()|list }}",
 "{{ raise_exception('a ' ~ n) }}", "{% if n %}{{ s|nofilter }}{% endif %}", "{% if no %}{{ s|nofilter }}{% endif %}ok", "{{ (s|nofilter) if no else 'ok' }}", "{% for x in le %}{{ x|nofilter }}{% endfor %}", "{% if no %}{% for x in l %}{{ x|nofilter }}{% endfor %}{% endif %}", "{% if no %}{{ 1 is notest }}{% endif %}ok", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}", "{% set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{% set j = joiner() %}{{ j() }}a{{ j() }}b", "{{ d.items()|sort }}{{ d.values()|sum }}", "{{ '%s' % (d|tojson) }}", "{{ ('<b>' ~ html)|e }}", "{% set parts = s.split(' ') %}{{ parts[0] }}|{{ parts[-1] }}|{{ parts|length }}", "{{ 'yes' if 'x' not in s else 'no' }}", "{{ (d.a if d.a is defined else 0) + 1 }}", "{{ l|map('string')|map('length')|list }}", "{{ [1, [2, [3, [4]]]] }}{{ {'a': {'b': {'c': ()}}} }}",
]
CASES += [(t, None) for t in TEMPLATES]

# --- methods and filters over many inputs
for text in ["", "a", "Abc def", "  pad\t", "ÉCOLE ñandú", "x" * 12, "a,b;c", "ǅ ǆ", "1.5e3", "\u1e9e ŉ"]:
    expr = "[s.upper(), s.lower(), s.title(), s.capitalize(), s.swapcase(), s.strip(), s.split(), s[::-1], s|title, s|length, s|wordcount, s.isalnum(), s.istitle(), s.center(9, '.'), s|urlencode, s|tojson]"
    CASES.append(("{{ " + expr + " }}", {"s": text}))
for x in [0, 1, -1, 12345, 1.0, -1.5, 0.1, 1e22, 1e-9, 123456.789, 2 ** 53, 1e15 + 0.3, 1e16, 100, 99.995, 0.5, 1.5, -0.5, 1234567890123456789]:
    CASES.append(("{{ [x, x|string, x|int, x|float, x|abs, x|round, x|round(1), x|round(-1), '%.3f' % x, '%g' % x, '%e' % x, '{:.2f}'.format(x), '{:,}'.format(x), x|tojson] }}", {"x": x}))
    CASES.append(("{{ [x // 7, x % 7, x / 7, -x, x * 2, x - 0.5, x ** 2 if x < 1000000 else 0, x == x|int, x > 1, x|filesizeformat] }}", {"x": x}))
for text in ["The quick brown fox", "a well-known, state-of-the-art e-mail--or so -- they say", "  led by blanks  and ended   ", "one\n\n two three\n", "", "Zoë's über-große 日本語日本語日本語", "aaaa bbbbbbbbbbbb-cccccccccc-d 1-2-3 --opt -x", "x-yz-ab a--b ab-cd--ef ---- a-b-c-d", "tab\there\u00a0nbsp \u00a0 end"]:
    for width in (1, 2, 4, 5, 10, 79):
        CASES.append(("{{ [s|wordwrap(" + str(width) + "), s|wordwrap(" + str(width) + ", false), s|wordwrap(width=" + str(width) + ", break_on_hyphens=false, wrapstring='/')] }}", {"s": text}))
CASES += [(t, {}) for t in ("{{ 'ab cd'|wordwrap(0) }}", "{{ ''|wordwrap(0) }}", "{{ 'ab'|wordwrap('x') }}", "{{ undefd|wordwrap }}", "{{ none|wordwrap }}", "{{ 5|wordwrap }}", "{{ ('word ' * 40)|wordwrap }}")]
for lo in ["", "0", "1", "-2", "9"]:
    for hi in ["", "2", "-1", "-9"]:
        CASES.append(("{{ [" + ", ".join(f"{v}[{lo}:{hi}{st}]" for v in ("l", "s") for st in ("", ":2", ":-1", ":-2")) + "] }}", {"l": [0, 1, 2, 3], "s": "aé日b"}))
values = ["none", "true", "3", "2.5", "''", "'a'", "[]", "[1]", "(1,)", "{}", "{'a': 1}", "range(2)", "undefd", "range"]
for v in values:
    CASES.append(("{{ [" + ", ".join(f"{v} is {t}" for t in ("defined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable", "callable", "true", "false", "escaped")) + "] }}", {}))
    CASES.append(("{{ 'T' if " + v + " else 'F' }}{{ [" + ", ".join(f"{v} == {w}" for w in values) + "] }}", {}))
    for op in ["+", "*", "<", "in", "%"]:
        for w in ["none", "3", "'a'", "[1]", "undefd"]:
            CASES.append((f"{{{{ {v} {op} {w} }}}}", {}))
    for f in ["length", "list", "first", "join('-')", "sum", "upper", "int", "float", "tojson", "default('D')", "sort", "items|list", "trim", "replace('a', 'b')", "reverse|list", "abs", "round"]:
        if not (v == "range" and f in ("upper", "trim", "replace('a', 'b')", "default('D')")): CASES.append((f"{{{{ {v}|{f} }}}}", {}))

counts = {"expect": 0, "error": 0}
with open(sys.argv[1], "w", encoding="utf8") as out:
    for template, given in CASES:
        if given is None:
            try: given = {k: VARS[k] for k in sorted(meta.find_undeclared_variables(env.parse(template))) if k in VARS}
            except Exception: given = {}
        rec = {"template": template, "vars": given}
        try: rec["expect"] = env.from_string(template).render(**given)
        except Exception: rec["error"] = True
        if " at 0x" in rec.get("expect", ""): continue
        counts["expect" if "expect" in rec else "error"] += 1
        out.write(json.dumps(rec, ensure_ascii=False) + "\n")
print(counts)
