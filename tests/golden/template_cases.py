"""Writes template_cases.jsonl: small Jinja templates and what transformers' own environment (Jinja2 3.1.6) makes of them.

Run it with transformers and jinja2 installed:  python tests/golden/template_cases.py > tests/golden/template_cases.jsonl
Each line: {"template", "output"} or {"template", "error"}; all are rendered with the variables VARS below, which the
first line holds.
"""
import json

from transformers.utils.chat_template_utils import _compile_jinja_template

VARS = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Grüß Gott — ¿qué tal?\n\"quoted\" 'single' <tag> & more"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": [1.0, True, None]}}}]},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
        {"role": "user", "content": [{"type": "text", "text": "part 1"}, {"type": "image"}, "str"]},
    ],
    "bos_token": "<s>",
    "eos_token": "</s>",
    "add_generation_prompt": True,
    "n": 7, "neg": -7, "f": 2.5, "big": 123456789012345678901234567890, "e": 1e-7, "whole": 3.0, "t": True, "none": None,
    "s": "Hello World", "u": "naïve ÇA ß ﬁ Σίσυφος ΣΑΣ 日本語 😀", "ws": " \t two  words \u00a0\n", "empty": "",
    "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "d": {"b": 1, "a": {"x": [1, 2, {"y": None}]}, "items": "shadow", "get": 5},
    "mixed": [1, 1.0, True, "1", None, [1], {"k": "v"}], "users": [
        {"name": "Zoë", "age": 30, "city": {"n": "Ulm"}}, {"name": "adam", "age": 25, "city": {"n": "Bonn"}},
        {"name": "Bob", "age": 30}],
    "nl": "a\r\nb\rc\u2028d\n\ne", "lines": "one\ntwo\n\nfour",
}

E = []  # expressions, each rendered as {{ [x] }} or {{ x }} on its own
T = []  # whole templates


def e(text):
    E.extend(line.strip() for line in text.strip().splitlines() if line.strip())


# literals, output, repr
e(r"""
1
-1
1.5
1e3
1E-7
0x1F
0b101
0o17
1_000
1_0.0_1
1.0
100000000000000000000.0
1e16
123456789.123456789
0.1 + 0.2
1e22
5e-324
1.7976931348623157e308
true
True
false
none
None
'a' 'b' "c"
"tab\tnl\nq\"'"
'\x41\u00e9\U0001F600\101\q'
'multi' ~ 1 ~ none ~ 1.0 ~ true ~ [1, 'x']
[1, 'a', "it's", 'say "x"', 'both \' and "', none, true, 1.0]
(1,)
(1, 2)
()
{'a': 1, 'b': [1, {'c': (1, 2)}]}
{}
{1: 2, none: 3, true: 4, 1.0: 5}
['\n\t\\', 'é', '\x00\x7f\x80', '\u200b', '\U0001F600', '\u00a0']
big
[big, e, whole, f]
u
[u]
messages
mixed
undefined_name
[undefined_name]
undefined_name.attr
undefined_name[0]
undefined_name + 1
undefined_name ~ 'x'
undefined_name == undefined_name
undefined_name == none
undefined_name in [undefined_name]
1 in undefined_name
undefined_name < 1
undefined_name()
-undefined_name
undefined_name|length
undefined_name|list
undefined_name|string
undefined_name|int
undefined_name|upper
undefined_name|tojson
undefined_name|default('d')
undefined_name or 'x'
not undefined_name
d.missing
d.missing.more
d['missing']
l[10]
l['x']
none.x
none['x']
n.x
n[0]
s.x
s['x']
""")
# operators
e(r"""
7 / 2
8 / 2
7 // 2
-7 // 2
7 // -2
7 % 3
-7 % 3
7 % -3
-7.5 % 2
7.5 // 2
-7.5 // 2
2 ** 10
2 ** -1
2 ** 0.5
2 ** 3 ** 2
-2 ** 2
1 / 0
1 % 0
1.0 // 0
1 + 1.0
true + true
true + 1.5
'a' + 'b'
'a' + 1
1 + 'a'
'a' * 3
3 * 'ab'
[1] * 3
[1] + [2]
(1,) + (2,)
[1] + (2,)
'a' - 'b'
[] * -1
'x' * true
none + 1
{} + {}
+n
-f
- -n
not n
-s
1 < 2
1 < 2 < 3
3 > 2 > 2
1 == 1.0
1 == true
'a' < 'b'
'a' < 1
[1, 2] < [1, 3]
(1, 2) < (1,)
[1] < 'a'
none < none
none == false
[1, [2, 3]] == [1.0, [2, 3]]
(1,) == [1]
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
1 != 1
'1' == 1
s == 'Hello World'
big == big
big > 5
big > f
'World' in s
'' in s
1 in s
'x' not in s
1 in l
1.0 in l
'b' in d
[1] in [[1]]
[1] in {}
1 in 5
1 in none
2 in range(5)
not 1 in l
1 and 2
0 and 2
0 or 2
'' or [] or none
1 and '' or 'z'
not true and false
'yes' if n > 5 else 'no'
'yes' if n < 5
('yes' if n < 5) is defined
'a' if false else 'b' if false else 'c'
n is number and f is number
1 if 2 if 0 else 3 else 4
9007199254740993 == 9007199254740992.0
0.1 + 0.7
1e300 * 1e10
-1e300 * 1e10
1e300 * 1e10 - 1e300 * 1e10
3 ~ 4
'%s-%s' % (1, 'x')
'%d%%' % 5
'%5.2f|%-6s|%06d|%+d|%x|%X|%o|%e|%g' % (3.14159, 'ab', 42, 7, 255, 255, 8, 12345.678, 0.0001)
'%s' % none
'%s' % [1]
'%r' % 'q'
'%(a)s %(b)d' % {'a': 'x', 'b': 3}
'%d' % 'x'
'%d' % 3.9
'%s %s' % 'x'
'%s' % (1, 2)
'no' % 1
'%c%c' % (65, 'z')
'%5s|%-5s|%.2s' % ('a', 'b', 'abcdef')
'%*d' % (5, 3)
'%#x %#o' % (255, 8)
'%z' % 1
'%' % 1
'%i %u' % (1, 2)
'% d' % 5
'%010.3f' % -3.14159
""")
# access and slices
e(r"""
s[0]
s[-1]
s[1:4]
s[::-1]
s[::2]
s[-5:-1]
s[10:2:-3]
s[100:]
s[:-100]
s[::0]
s['a':]
u[3:9]
u[::-1]
u[-1]
u[-3:]
l[1:]
l[:-1]
l[::-1]
l[-1]
l[true]
l[1.0]
l[5:1]
l[none:2]
(1, 2, 3)[1:]
(1, 2, 3)[-1]
range(10)[2:5]|list
range(10)[-1]
range(10)[::3]|list
range(0)
range(1, 5)
range(5, 1, -2)|list
range(1, 5, 2)
range(1, 2, 0)
range(200000)
range(1.5)
range(3)|length
messages[1:][0].role
messages[-1]['content'][0].text
messages[::-1]|map(attribute='role')|list
d.b
d['b']
d.items
d['items']
d.get
d['get']
d.get('b')
d.get('zz')
d.get('zz', 'dflt')
d.a.x[2].y
d.a.x.2.y
d.a['x'][0]
d.items()|list
d.keys()|list
d.values()|list
d.keys()
d.items()
d.values()
d.keys()|length
d.keys()[0]
'a' in d.keys()
1 in d.values()
d.__class__
s.__class__
l.__len__
d.update({'x': 1})
d.pop('b')
l.append(1)
l.sort()
l.index(1)
l.index(99)
l.count(3)
l.copy()
d.copy()
dict(a=1, b=2)
dict([('x', 1), ('y', 2)])
dict({'q': 1}, z=2)
dict([1])
dict(missing)
dict(missing, a=1)
namespace(missing)
d[[1]]
d[{}]
d[(1, 2)]
{(1, 2): 'tup'}[(1, 2)]
{1: 'one'}[true]
{1: 'one'}[1.0]
[[1, 2], [3, 4]][1][0]
5[0]
d[1:]
(1, 2).count(1)
(1, 2).index(2)
1.5.is_integer()
f.is_integer()
whole.is_integer()
namespace(a=1).a
namespace(a=1).b
namespace({'q': 2}).q
namespace(a=1)
namespace(_x=1)
cycler('a', 'b').next()
cycler()
joiner('|')() ~ 'x'
raise_exception('boom ' ~ n)
""")
# string methods
e(r"""
s.upper()
s.lower()
u.upper()
u.lower()
u.title()
u.capitalize()
u.swapcase()
u.casefold()
s.title()
"it's a dog's life".title()
'hELLO wORLD 3rd'.capitalize()
ws.strip()
[ws.lstrip(), ws.rstrip()]
'xxhixx'.strip('x')
'abchicba'.strip('abc')
'éxé'.strip('é')
'abc'.lstrip('a').rstrip('c')
s.strip(none)
s.strip(1)
s.split()
ws.split()
'a,b,,c'.split(',')
'a,b,,c'.split(',', 1)
'a,b,,c'.rsplit(',', 1)
' a  b c '.split(none, 1)
' a  b c '.rsplit(none, 1)
' a  b c '.split(maxsplit=1)
'a'.split('')
''.split()
''.split(',')
'aXXbXXc'.split('XX')
'</think>x</think>y'.split('</think>')[-1]
nl.splitlines()
nl.splitlines(true)
''.splitlines()
'a-b-c'.partition('-')
'a-b-c'.rpartition('-')
'abc'.partition('-')
'abc'.rpartition('-')
', '.join(['a', 'b'])
', '.join([1])
', '.join('abc')
', '.join(d)
s.find('o')
s.find('o', 5)
s.find('zz')
s.rfind('o')
u.find('日')
s.index('zz')
s.rindex('o')
s.count('l')
s.count('')
s.count('l', 4)
'aaaa'.count('aa')
s.startswith('Hello')
s.startswith(('x', 'Hel'))
s.startswith('World', 6)
s.endswith('World')
s.endswith('')
s.startswith(1)
s.removeprefix('Hello ')
s.removesuffix('x')
s.replace('l', 'L')
s.replace('l', 'L', 2)
'abc'.replace('', '-')
'abc'.replace('', '-', 2)
'日本'.replace('', '.')
s.replace(1, 2)
'5'.zfill(3)
'-5'.zfill(4)
'a'.ljust(4) ~ '|'
'a'.rjust(4, '.')
'a'.center(4) ~ '|'
'ab'.center(5) ~ '|'
'a'.center(5, 'é')
'a\tb'.expandtabs()
'a\tb'.expandtabs(4)
'12'.isdigit()
'1.2'.isdigit()
'²'.isdigit()
'²'.isdecimal()
'½'.isnumeric()
'abc'.isalpha()
'abç'.isalpha()
'ab1'.isalnum()
' \t'.isspace()
''.isspace()
'ABC'.isupper()
'AbC'.isupper()
'abc1'.islower()
'Abc Def'.istitle()
'abc'.isidentifier()
'1abc'.isidentifier()
'abc'.isascii()
'é'.isascii()
'a\n'.isprintable()
'{} {}'.format(1, 'b')
'{0} {1} {0}'.format('a', 'b')
'{x} {y!r}'.format(x=1, y='q')
'{:>5}|{:<5}|{:^5}|'.format('a', 'b', 'c')
'{:05d} {:+d} {:x} {:#x} {:b} {:,}'.format(42, 1, 255, 255, 5, 1234567)
'{:.2f} {:e} {:g} {:%} {:.1%}'.format(3.14159, 1234.5, 0.00001, 0.25, 0.5)
'{:*^9}'.format('mid')
'{:.3}'.format('abcdef')
'{:10.3f}|'.format(3.14159)
'{{}} {}'.format(1)
'{a[0]} {b.x}'.format(a=[9], b={'x': 8})
'{a[k]}'.format(a={'k': 'v'})
'{:{w}}|'.format('a', w=4)
'{}'.format()
'{'.format()
'}'.format()
'{0} {}'.format(1, 2)
'{!z}'.format(1)
'{:d}'.format('x')
'{:s}'.format(1)
'{}'.format(none)
'{:>4}'.format(none)
'{}'.format(1.0)
'{:.3}'.format(3.14159)
'{:5}'.format(1)
'{:5}'.format(true)
'{x}'.format_map({'x': 1})
s.nosuch()
s.encode
""")
# filters
e(r"""
s|upper
s|lower
u|upper
u|title
u|capitalize
"it's a dog's life (oh-no) <x> [y] {z}"|title
'ÉCOLE normale'|title
''|title
5|upper
none|title
ws|trim
'xxaxx'|trim('x')
5|trim
s|replace('l', 'L')
s|replace('l', 'L', 1)
5|replace(5, 6)
s|replace(o='x')
s|length
u|length
d|length
5|length
none|length
l|count
s|list
d|list
5|list
l|first
s|first
[]|first
d|first
5|first
l|last
s|last
d|last
[]|last
(l|map('string'))|last
l|reverse|list
s|reverse
d|reverse|list
l|reverse
l|sort
l|sort(reverse=true)
ls|sort
ls|sort(case_sensitive=true)
ls|sort(true, true)
users|sort(attribute='name')|map(attribute='name')|join(',')
users|sort(attribute='age,name')|map(attribute='name')|join(',')
users|sort(attribute='age', reverse=true)|map(attribute='name')|join(',')
[1, 'a']|sort
[none, 1]|sort
[[2], [1]]|sort
d|sort
[3, 1.5, true]|sort
ls|unique|list
ls|unique(true)|list
[1, 1.0, true, 2]|unique|list
users|unique(attribute='age')|map(attribute='name')|list
[[1], [1]]|unique|list
l|join
l|join(',')
l|join(1)
users|join(', ', attribute='name')
s|join('-')
5|join
d|join(',')
mixed|join('|')
d|items|list
none|items|list
undefined_name|items|list
d|items
{'b': 1, 'A': 2, 'c': 0}|dictsort
{'b': 1, 'A': 2, 'c': 0}|dictsort(true)
{'b': 1, 'A': 2, 'c': 0}|dictsort(by='value')
{'b': 1, 'A': 2, 'c': 0}|dictsort(false, 'value', true)
{'b': 1}|dictsort(by='x')
{1: 'a', 'b': 2}|dictsort
l|dictsort
l|map('string')|list
l|map('float')|list
ls|map('upper')|join(',')
users|map(attribute='name')|list
users|map(attribute='city.n')|list
users|map(attribute='city.n', default='?')|list
users|map(attribute='zip', default='none')|list
users|map(attribute='city')|list
l|map
l|map|list
l|map('nosuch')|list
l|map(attribute='x', foo=1)|list
[[1, 2], [3]]|map('first')|list
[[1, 2], [3]]|map(attribute=0)|list
[[1, 2], [3]]|map('join', '-')|list
users|map('length')|list
none|map('upper')|list
5|map('upper')|list
l|select('odd')|list
l|reject('odd')|list
l|select('>', 1)|list
l|select|list
[0, 1, '', 'a', none]|select|list
[0, 1, '', 'a', none]|reject|list
messages|selectattr('role', 'equalto', 'user')|list|length
messages|selectattr('role', 'eq', 'user')|map(attribute='content')|first
messages|rejectattr('role', 'in', ['user', 'system'])|map(attribute='role')|list
messages|selectattr('tool_calls')|list|length
messages|selectattr('tool_calls', 'defined')|map(attribute='role')|list
messages|selectattr('content', 'none')|list|length
messages|selectattr('content', 'string')|map(attribute='content')|join('|')
messages|selectattr('role', 'nosuch')|list
messages|selectattr()|list
messages|selectattr('role', 'equalto', 'nobody')|first
(messages|selectattr('role', 'equalto', 'nobody')) is defined
'yes' if messages|selectattr('role', 'equalto', 'nobody') else 'no'
messages|selectattr('role', 'equalto', 'user')|length
(l|select('odd'))[0]
l|map('string')|tojson
l|select('odd') + [1]
l|sum
[0.1, 0.2]|sum
users|sum(attribute='age')
users|sum('age', 10)
['a']|sum
l|min
l|max
ls|min
ls|max(true)
users|max(attribute='age')|string|length
[]|min
['a', 1]|min
neg|abs
-2.5|abs
-1|abs
'x'|abs
2.5|round
3.5|round
2.675|round(2)
1234.5678|round(-2)
7|round
1250|round(-2)
2.1|round(method='ceil')
-0.1|round(method='ceil')
(-0.1)|round(1, 'ceil')
(-0.01)|round(1, 'ceil')
2.19|round(1, 'floor')
2.5|round(method='x')
'x'|round
2.5|int
-2.5|int
'42'|int
' 42 '|int
'42.7'|int
'1e3'|int
'abc'|int
'abc'|int(5)
'ff'|int(base=16)
'0xff'|int(0, 16)
'0b11'|int(0, 2)
'1_000'|int
''|int
none|int
true|int
[]|int(9)
'2.5'|float
' 1e3 '|float
'inf'|float
'nan'|float
'x'|float
'x'|float(1.5)
none|float
3|float
true|float
'1_0.5'|float
'0x10'|float
none|default('d')
none|default('d', true)
''|default('d', true)
''|d('d')
d.zz|default
d.zz|default(none)
0|default(1, boolean=true)
1|default(1, 2, 3)
1|default(nope=3)
5|string
none|string
1.0|string ~ 'x'
[1, 'a']|string
s|safe
('<b>'|safe) + '<i>'
'<i>' + ('<b>'|safe)
('<b>'|safe) ~ '<i>'
['<b>'|safe]
'<a href="x">&\'</a>'|escape
'<b>'|e|e
'<b>'|safe|e
'<b>'|e|forceescape
5|e
('<b>'|safe)|upper
('<b>'|safe)[1:]
('<b>'|safe).replace('b', '<c>')
('<%s>'|safe) % '<x>'
('<{}>'|safe).format('<x>')
('%s'|safe) % ('<b>'|safe)
('%r %d'|safe) % ('<', 1)
('-'|safe).join(['<', '>'|safe])
'<b>'|safe == '<b>'
('<b>'|safe)|length
('<b>'|safe)|tojson
s|wordcount
'a-b c_d é'|wordcount
'hello world foo'|truncate(9)
'hello world foo'|truncate(9, true)
'hello world foo'|truncate(5, true, '')
'hello world'|truncate(9)
'hello world foo bar'|truncate(11, end='…', leeway=0)
'x'|truncate(1)
'ab'|center(6) ~ '|'
'abc'|center(6) ~ '|'
lines|indent
lines|indent(2)
lines|indent(2, true)
lines|indent(2, true, true)
lines|indent('>>', first=true)
lines|indent(width=1, blank=true)
''|indent
5|indent
'a b/c?d=é&'|urlencode
{'a b': 'c/d', 'x': 1}|urlencode
[('q', '1 2')]|urlencode
5|urlencode
'%s and %s'|format('a', 1)
'%(x)s'|format(x=5)
'%s'|format
'%s'|format(1, x=2)
range(7)|batch(3)|list
range(7)|batch(3, 'x')|list
range(7)|slice(3)|list
range(7)|slice(3, 'x')|list
range(7)|slice(0)|list
users|groupby('age')|map(attribute='grouper')|list
users|groupby('age')|map('last')|map('length')|list
users|groupby('city.n', default='-')|map('first')|list
users|groupby('name')|map(attribute=0)|list
s|attr('upper')
d|attr('b')
s|attr('upper')()
s|nosuch
s|upper|lower|title
s|upper()
s|upper(1)
-1|abs
l|length + 1
l|length == 3 and s|length == 11
'a'|upper ~ 'b'|upper
('a' ~ 'b')|upper
s|batch
""")
# tojson
e(r"""
messages|tojson
messages[2]|tojson(indent=2)
d|tojson(indent=4)
[]|tojson(indent=2)
[[], {}, [[]]]|tojson(indent=1)
{'a': [], 'b': {}}|tojson(indent=2)
u|tojson
u|tojson(ensure_ascii=true)
u|tojson(true)
'\x00\x1f\x7f\x80"\\/\b\f\n\r\t<>&\u2028'|tojson
'\x00\x1f\x7f\x80"\\/\b\f\n\r\t<>&\u2028'|tojson(ensure_ascii=true)
d|tojson(separators=(',', ':'))
d|tojson(indent=2, separators=(',', ': '))
d|tojson(sort_keys=true)
{'b': 1, 'a': 2}|tojson(false, none, none, true)
{1: 1, none: 2, true: 3, 2.5: 4}|tojson
{(1, 2): 1}|tojson
[1, 1.0, 1e16, 1e-7, 0.1, true, none, big]|tojson
(1, 2)|tojson
['inf'|float, -('inf'|float), 'nan'|float]|tojson
d.items()|tojson
range(3)|tojson
d|tojson(indent='  ')
d|tojson(indent='\t')
d|tojson(indent=0)
[1, 2]|tojson(indent=-1)
s|tojson|length
5|tojson
none|tojson
s|tojson(nope=1)
{'1': 1, 1: 2}|tojson(sort_keys=true)
""")
# tests
for v in ["n", "f", "t", "none", "s", "l", "d", "(1,)", "undefined_name", "range(2)", "d.items()", "l|map('string')", "big",
          "s.upper", "namespace()", "range", "('x'|safe)", "1", "joiner()"]:
    E.append("[" + ", ".join(f"({v}) is {t}" for t in [
        "defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string", "mapping",
        "sequence", "iterable", "callable", "escaped"]) + "]")
e(r"""
[n is odd, n is even, neg is odd, 2.0 is even]
n is divisibleby 7
n is divisibleby(2)
s is odd
undefined_name is odd
'abc' is lower
'ABC' is upper
1 is upper
n is not none
n is not divisibleby 2
not n is none
n is sameas n
none is sameas none
1 is sameas true
n is in [7]
7 is in l
n is eq 7
n is ne 7
n is gt 5
n is lt 5
n is ge 7
n is le 7
n is equalto 7
n is greaterthan 3
n is lessthan 3
'upper' is filter
'nosuch' is filter
'odd' is test
'nosuch' is test
n is nosuch
n is divisibleby
n is defined and s is string
n is number or foo
s is string is defined
d.a is mapping and d.a.x is sequence and d.a.x is not string
messages[0] is mapping
n is none is not none
1 is eq 1 if true else 2
(n is not defined) ~ 'x'
""")
# syntax errors
for t in ["{{ 1 +", "{{ }}", "{% if %}", "{% if x %}", "{% endif %}", "{% for x in %}{% endfor %}", "{% for 1 in l %}{% endfor %}",
          "{% set 1 = 2 %}", "{% set x %}", "{% nosuch %}", "{{ 'abc }}", "{{ a b }}", "{{ (1, 2 }}", "{{ [1 }}", "{{ {1} }}",
          "{# open", "{% raw %}x", "{{ x | }}", "{{ x. }}", "{{ x[ }}", "{{ f(a=1, 2) }}", "{{ f(**a, *b) }}",
          "{% macro m(a=1, b) %}{% endmacro %}", "{% break %}", "{% call 5 %}{% endcall %}", "{{ ) }}", "{{ x ! y }}",
          "{% if true %}{% else %}{% elif x %}{% endif %}", "{% endfor %}", "{{ 5 is 6 }}", "{% for x in l recursive", "{{ a = 1 }}",
          "{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}", "{{ x|nosuch }}", "{{ x is nosuch }}",
          "{% if false %}{{ x|nosuch }}{% endif %}ok", "{% if true %}{{ x|nosuch }}{% endif %}",
          "{{ 1 if true else x|nosuch }}", "{{ 1 if x is nosuch else 2 }}", "{% if false %}{% for i in l %}{{ i|nosuch }}{% endfor %}{% endif %}",
          "{{ '\\u12' }}", "{{ '\\N{DIGIT ONE}' }}" if False else "{{ 1 }}", "{%- -%}", "{{ @ }}", "{{ `x` }}", "{{ x ~ }}", "{{ not }}"]:
    T.append(t)
# white space
T += [
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "  {% if true %}  x  {% endif %}  y", "  {%+ if true %}  x{% endif +%}\ny", "a  {%- if true -%}  b  {%- endif -%}  c",
    "x {{- ' y ' -}} z", "x\n  {{ 1 }}\n  {{- 2 }}\n", "a {# c #} b", "a\n  {# c #}\nb", "a\n{#- c -#}\n b", "a {#- c #}\n b", "{# {{ x }} #}", "a {# x -#}   \n b",
    "{% raw %}{{ x }}{% endraw %}", "a\n  {% raw %}\n {% if %}\n  {% endraw %}\nb", "a {%- raw -%}  x  {%- endraw -%}  b", "{% raw -%}\n x {%+ endraw +%}\nb",
    "line\r\n{% if true %}\r\nx\r{% endif %}\r\ny", "trailing\n\n", "trailing\n", "\n\n", "", " ", "\n", "{{ 1 }}\n\n",
    "\t{% set x = 1 %}\n\tz", "a\u00a0{%- if true %}b{% endif %}", "{% if true -%}\n\n  x\n\n{%- endif %}", "{{ '{% raw %}' }}", "{{ {'a': {'b': 1}} }}", "{{ {'a': 1}['a']}}",
    "{{ '}}' }}{{ \"%}\" }}", "{ { x } } {x} {", "{% if true %}{% endif %}\n{% if true %}{% endif %}\nx", "{{ 1\n+\n2 }}", "{%\nif\ntrue\n%}x{%endif%}", "{%-if true-%}x{%-endif-%}",
    "  {{- 1 }}", "a{{+ 1 }}", "{{ 1 +}}", "{{ 1 -}}  b", "a\n   {%- set x = 1 %}\nb", "{% set x = 1 -%}\n   \n b", "{# a #}{# b #}\nx", "x{#\n multi \n#}\ny",
    "{% if true %}a{% endif %}   \nb", "  {# c #}  x", "{% print 1, 2 %}" if False else "{% print 1 %}",
]
# statements
T += [
    "{% for i in l %}{{ i }}{% endfor %}", "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for i in l %}[{{ loop.previtem }},{{ loop.nextitem }}]{% endfor %}", "{% for i in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}", "{% for i in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for i in [1, 1, 2, 2, 1] %}{{ loop.changed(i) }} {% endfor %}", "{% for i in [] %}x{% else %}none{% endfor %}", "{% for i in l %}x{% else %}none{% endfor %}",
    "{% for i in l if i > 1 %}{{ loop.index }}/{{ loop.length }}:{{ i }} {% endfor %}", "{% for i in l if i > 5 %}x{% else %}e{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|items %}{{ k }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for c in u %}{{ c }}|{% endfor %}", "{% for a, b in [[1, 2], [3, 4]] %}{{ a + b }}{% endfor %}",
    "{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% for x in 5 %}{% endfor %}", "{% for x in none %}{% endfor %}",
    "{% for x in undefined_name %}y{% else %}e{% endfor %}", "{% for i in range(3) %}{% for j in range(i) %}{{ loop.index }}{{ j }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% else %}e{% endfor %}",
    "{% for i in l %}{% break %}{% else %}else{% endfor %}", "{% for i in l %}{% continue %}{% else %}else{% endfor %}", "{% for i in l %}{% for j in l %}{% if j == 1 %}{% break %}{% endif %}{{ j }}{% endfor %},{% endfor %}",
    "{% for i in l %}{% for j in [] %}{% else %}{% break %}{% endfor %}{{ i }}{% endfor %}", "{% for i in l %}{% with %}{% if i == 1 %}{% break %}{% endif %}{% endwith %}{{ i }}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}", "{% for i in l %}{% if loop.first %}{% set y = 5 %}{% endif %}{{ y }}|{% endfor %}{{ y }}",
    "{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.b = ns.a + 1 %}{{ ns.b }}", "{% set d.x = 1 %}", "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set a, b = [1] %}", "{% set ns = namespace() %}{% set ns.a, b = 1, 2 %}{{ ns.a }}{{ b }}", "{% set x %}a{{ 1 }}b{% endset %}[{{ x }}]",
    "{% set x | upper | replace('A', 'z') %}abc{% endset %}{{ x }}", "{% set x %}  sp  {% endset %}{{ x|trim }}|", "{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}", "{% if true %}{% set z = 3 %}{% endif %}{{ z }}",
    "{% if false %}a{% elif 0 %}b{% elif 'x' %}c{% else %}d{% endif %}", "{% if [] %}a{% elif {} %}b{% elif '' %}c{% else %}d{% endif %}", "{% if none is none %}x{% endif %}",
    "{% if l|map('string') %}gen is true{% endif %}", "{% if 0.0 %}a{% else %}b{% endif %}{% if range(0) %}a{% else %}b{% endif %}{% if d.items() %}a{% endif %}",
    "{% macro m(a, b=2, c='x') %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='y') }}{{ m() }}{{ m(b=1, a=0) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(zz=1) }}",
    "{% macro m(a) %}{{ a.b }}{% endmacro %}{{ m() }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a) %}{{ a }}{{ varargs|length }}{% endmacro %}{{ m(1, 2, 3) }}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}body{% endcall %}", "{% macro m() %}[{{ caller('x', 2) }}]{% endmacro %}{% call(a, b=1) m() %}{{ a }}{{ b }}{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}",
    "{% macro m() %}x{% endmacro %}{% call m() %}b{% endcall %}", "{% macro m(caller=none) %}{{ caller is none }}{% endmacro %}{{ m() }}", "{% macro fact(n) %}{% if n <= 1 %}1{% else %}{{ n * fact(n - 1)|int }}{% endif %}{% endmacro %}{{ fact(10) }}",
    "{% macro rec(n) %}{{ rec(n + 1) }}{% endmacro %}{{ rec(0) }}", "{% set g = 1 %}{% macro m() %}{{ g }}{% endmacro %}{% set g = 2 %}{{ m() }}", "{% macro m() %}{{ s }}{% endmacro %}{{ m() }}",
    "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{{ m }}{% macro m() %}{% endmacro %}", "{% macro m() %}{% endmacro %}{{ m.name }}{{ m }}",
    "{% macro m(x, y=x) %}{{ x }}{{ y }}{% endmacro %}{{ m(3) }}", "{% macro m(a, b) %}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 1, 'b': 5}) }}{{ m(1, **{'b': 6}) }}", "{% macro m() %}  text  {% endmacro %}[{{ m()|trim }}]{{ m() is string }}",
    "{% macro m(x) %}{% set x = x ~ '!' %}{{ x }}{% endmacro %}{{ m('a') }}{{ x is defined }}", "{% set ns = namespace(v=1) %}{% macro inc() %}{% set ns.v = ns.v + 1 %}{% endmacro %}{{ inc() }}{{ ns.v }}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "{% with %}{% set q = 1 %}{% endwith %}{{ q is defined }}", "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% filter upper %}abc {{ s }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}banana{% endfilter %}", "{% block x %}in block {{ s }}{% endblock %}", "{% block x %}a{% endblock x %}",
    "{% generation %}gen {{ s }}{% endgeneration %}", "{% for m in messages %}{% if m.role == 'user' %}{% generation %}{{ loop.index }}{% set z = 1 %}{{ z }}{% endgeneration %}{{ z is defined }}{% endif %}{% endfor %}",
    "{% for item in [{'n': 1, 'c': [{'n': 2, 'c': []}, {'n': 3, 'c': [{'n': 4, 'c': []}]}]}] recursive %}{{ item.n }}({{ loop.depth }}{{ loop.depth0 }}){{ loop(item.c) }}{% endfor %}", "{% for i in l %}{{ loop(i) }}{% endfor %}",
    "{% set x = cycler('a', 'b') %}{{ x.next() }}{{ x.next() }}{{ x.next() }}{{ x.current }}{% set _ = x.reset() %}{{ x.current }}", "{% set j = joiner() %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}",
    "{% for g in users|groupby('age') %}{{ g.grouper }}:{{ g.list|length }} {% endfor %}", "{% for age, us in users|groupby('age') %}{{ age }}={{ us|map(attribute='name')|join('+') }} {% endfor %}",
    "{% set gen = l|map('string') %}{{ gen|first }}{{ gen|first }}{{ gen|list }}{{ gen|list }}", "{% set gen = l|select('odd') %}{% for x in gen %}{{ x }}{% endfor %}{% for x in gen %}{{ x }}{% else %}empty{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for i in [1, 2, 3, 4] if not ns.stop %}{{ i }}{% if i == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}", "{% for i in l|map('string') %}{{ loop.length }}{{ loop.last }}{{ i }}{% endfor %}",
    "{% for i in l %}{% set loop = 1 %}{% endfor %}" if False else "ok", "{{ loop }}", "{{ caller }}", "{{ self }}" if False else "ok2", "{% set x = 5 %}{{ x }}{% set x = x + 1 %}{{ x }}", "{% set bos_token = 'B' %}{{ bos_token }}{{ eos_token }}",
    "{% set messages = messages[1:] %}{{ messages|length }}{% for m in messages %}{{ m.role }} {% endfor %}", "{% if messages[0]['role'] == 'system' %}{% set sm = messages[0]['content'] %}{% set messages = messages[1:] %}{% endif %}{{ sm }}{{ messages|length }}",
    "{% for m in messages %}{{ m.content if m.content is string else m.content|tojson }}\n{% endfor %}", "{{ raise_exception('Conversation roles must alternate') }}", "{{ {'a': 1}.items()|list }}{{ [1, 2, 3][1:]|first }}",
    "{{ messages[2].tool_calls[0].function.arguments|tojson }}", "{{ messages[2].tool_calls[0]['function'].arguments.b[0] }}", "{% for k, v in messages[2].tool_calls[0].function.arguments|items %}{{ k }}={{ v }} {% endfor %}",
    "{% set tc = messages[2].tool_calls[0] %}{% if tc.function %}{% set tc = tc.function %}{% endif %}{{ tc.name }}", "{% for a in [1] %}{% set x = 1 %}{% for b in [1] %}{{ x }}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}{% endfor %}",
    "{% set x = 'o' %}{% macro m(x) %}{{ x }}{% endmacro %}{{ m('i') }}{{ x }}{{ m() }}", "{% set x = 'outer' %}{% macro m() %}{% if false %}{% set x = 1 %}{% endif %}{{ x }}{% endmacro %}{{ m() }}", "{{ 'a' if t }}{{ 'b' if not t }}|",
    "{% for x in l %}{{ x }}{{ ',' if not loop.last }}{% endfor %}", "{% for x in [[1, 2], [3]] %}{% for y in x %}{{ loop.index }}{{ loop.last }}{% endfor %}|{{ loop.last }}{% endfor %}",
    "{{ [x for x in l] }}", "{{ lambda: 1 }}", "{{ s if s else none }}", "{{ 1, 2 }}", "{{ 'x' , }}", "{% set x = (1, 2) %}{{ x[0] }}{{ x|length }}", "{{ ((((1)))) }}", "{{ d['a']['x'][-1] }}", "{{ 'a.b'.split('.')[1] }}",
    "{{ loop is defined }}{% for i in [1] %}{{ loop is defined }}{% endfor %}", "{% for i in l %}{% endfor %}{{ i is defined }}", "{{ range(3)|list }}{{ range(3) }}", "{{ dict }}" if False else "ok3", "{{ namespace }}" if False else "ok4",
    "{%- for i in l -%}\n  {{ i }}\n{%- endfor -%}\n", "{% set x = 1 if false %}{{ x is defined }}{{ x }}", "{{ (1 if false).x }}", "{{ 'é'|length }}{{ '😀'|length }}{{ u[-1] }}", "{{ u|list|length }}",
    "{% for i in [1] %}{{ messages|length }}{% endfor %}{% set messages = [1] %}{{ messages|length }}", "{% macro m() %}{{ s }}{% endmacro %}{{ m() }}{% set s = 'late' %}{{ m() }}", "{% for i in [1, 2] %}{{ v }}{% endfor %}{% set v = 5 %}",
    "{% if true %}{% for i in [1] %}{{ s }}{% endfor %}{% set s = 'late' %}{% endif %}{{ s }}", "{% for i in [1, 2] %}{% for j in [1] %}{{ s }}{% endfor %}{% set s = i %}{{ s }}{% endfor %}", "{{ s }}{% for i in [1] %}{{ s }}{% set s = 2 %}{{ s }}{% endfor %}{{ s }}",
    "{% macro m(s=s) %}{{ s }}{% endmacro %}{{ m() }}", "{% with s = s ~ '!' %}{{ s }}{% endwith %}", "{% set s = s ~ '?' %}{{ s }}", "{% for s in s %}{{ s }}{% endfor %}", "{% for x in l if x in l2 %}{% else %}n{% endfor %}{% set l2 = [1] %}",
]
for x in E:
    T.append("{{ " + x + " }}")
seen = set()
print(json.dumps({"vars": VARS}, ensure_ascii=False))
for t in T:
    if t in seen:
        continue
    seen.add(t)
    row = {"template": t}
    try:
        row["output"] = _compile_jinja_template(t).render(**VARS)
    except Exception as err:  # noqa: BLE001  every refusal counts
        row["error"] = f"{type(err).__name__}: {err}"[:200]
    if " at 0x" in row.get("output", ""):
        continue  # an address: not a result to compare with
    print(json.dumps(row, ensure_ascii=False))
