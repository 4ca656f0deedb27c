# SPDX-License-Identifier: Apache-2.0
"""Small templates for test_jinja.py. Those that must fail are among them: then both have to."""

VARIABLES = {
    "s": "Hello World",
    "u": "Ünïcödé ß 漢字 🎉",
    "e": "",
    "n": 5,
    "z": 0,
    "neg": -7,
    "f": 2.5,
    "t": True,
    "no": False,
    "nil": None,
    "l": [3, 1, 2],
    "ls": ["b", "A", "c"],
    "d": {"b": 1, "a": "x", "items": [1]},
    "dd": [{"n": "x", "v": 1, "g": {"k": "K"}}, {"n": "Y", "v": 3, "g": {"k": "a"}}, {"n": "z", "v": 2}],
    "nest": [[1, 2], [3, 4]],
    "multi": "line one\nline two\r\n\n  three",
    "q": "it's \"q\" \\ \n\t\x01\x7f\u200b",
    "ws": "  \t pad \n ",
}

# Separated by " ; ".
EXPRESSIONS = {
    "strings": r"""
        s|upper ; s|lower ; s|title ; s|capitalize ; u|upper ; u|lower ; u|title ; u|capitalize ; u|length ; u[0]
        u[-1] ; u[2:5] ; u[::-1] ; u[::2] ; u[-3:] ; u[10:2:-2] ; s[100] ; s[1:100] ; s[:-1] ; s[3:1]
    """,
    "numbers": r"""
        n+1 ; n-8 ; n*3 ; n/2 ; n//2 ; neg//2 ; neg%3 ; n%-3 ; neg//-2 ; n**2 ; n**-1 ; 2**3**2 ; -n**2 ; -(n)|abs
        -7|abs ; f+n ; f*2 ; f//1 ; f%1 ; -f//1 ; -f%1 ; 7.5%-2 ; 1e308*10 ; 1/3 ; 10/5 ; 1e16 ; 1e15 ; 123456789.0
        1e-5 ; 0.0001 ; 1.0 ; -0.0 ; 1e22 ; 0.1+0.2 ; 100000000000000000000.0 ; 5e-324 ; 1_000 ; 0x1F ; 0o17 ; 0b11
        1_0.5e1 ; 2e3 ; 1e400
    """,
    "division and overflow": r"""
        1/0 ; 1//0 ; 1%0 ; 1.0/0 ; 1.0%0 ; 0**-1
    """,
    "logic": r"""
        true+1 ; true and 1 ; 0 or 'a' ; none or 'x' ; not 1 ; not '' ; 1 and 2 ; '' or none ; 1 if true ; 1 if false
        (1 if false) is defined ; 1 if 0 else 2 if 0 else 3
    """,
    "joining and patterns": r"""
        'a'+'b' ; 'a' 'b' "c" ; 'a'~1~none~true~2.5 ; 'a'+1 ; 1+'a' ; none+1 ; [1]+[2] ; [1]+(2,) ; (1,)+(2,) ; 'a'*3
        3*'a' ; 'a'*-1 ; [0]*3 ; 'a'*2.0 ; 'a'-'b' ; '%s-%d'%('x',3) ; '%s'%'x' ; '%s %s'%('a',) ; '%d'%'x'
        '%5.2f|%-5s|%05d|%x|%r'%(3.14159,'ab',42,255,'q') ; '%%' ; '%s'%[1] ; '%s'%((1,2),) ; '%(a)s'%{'a':1}
        '%s'%none ; '%e'%12345.678 ; '%g'%0.00001 ; '%+d'%3 ; '%c'%'x' ; '%5s|'%'é' ; '%.2s'%'abc' ; 'abc'%() ; 'abc'%1
        'abc' % {}
    """,
    "comparisons": r"""
        1==1.0 ; 1==true ; 'a'=='a' ; [1,2]==[1,2] ; (1,2)==[1,2] ; {'a':1}=={'a':1.0} ; none==false ; x==y ; x==none
        1<2<3 ; 1<3<2 ; 'a'<'b' ; 'a'<1 ; [1,2]<[1,3] ; [1]<[1,0] ; none<1 ; (1,2)<(1,'a') ; 1<=1.0 ; 2>=3 ; 1!=2
        'a'!='a' ; 1 in [1,2] ; 1 not in [1,2] ; 'a' in 'abc' ; 1 in 'abc' ; 'a' in {'a':1} ; none in [none] ; x in [1]
        '' in 'a' ; 'b' in d ; true in [1] ; 1 in n
    """,
    "tests": r"""
        1 is odd ; 2 is even ; 4 is divisibleby 2 ; 4 is divisibleby(3) ; s is string ; n is number ; f is float
        n is integer ; t is integer ; t is number ; t is boolean ; t is true ; no is false ; nil is none
        nil is not none ; x is undefined ; x is defined ; s is defined ; l is sequence ; l is iterable ; d is mapping
        d is sequence ; s is iterable ; n is iterable ; s is sequence ; n is sequence ; x is iterable ; x is sequence
        range is callable ; s is callable ; x is callable ; 'ab' is lower ; 'AB' is upper ; 'a1' is lower ; '1' is upper
        1 is sameas 1 ; none is sameas none ; 1 is eq 1 ; 1 is equalto 2 ; 1 is ne 2 ; 3 is gt 2 ; 3 is ge 3 ; 1 is lt 2
        1 is le 0 ; 3 is greaterthan 2 ; 1 is in [1] ; 'a' is in 'abc' ; 1 is == 1 ; 'upper' is filter ; 'foo' is filter
        'odd' is test ; s is foo ; n is odd and t ; not n is odd ; l|length is odd ; 'x' is string and 1
        (l|map('string')) is iterable ; (l|map('string')) is sequence ; f is odd ; 'a' is odd ; s is escaped
        (s|safe) is escaped ; d.items() is sequence ; d.keys() is iterable ; d.items() is mapping
    """,
    "printing": r"""
        l ; ls ; d ; (1,) ; (1,2) ; () ; [] ; {} ; [none,true,1.5,'a'] ; {'a':[1,{'b':none}]} ; q ; [q] ; ['it\'s']
        ["it's"] ; ['a"b'] ; ['\'"'] ; [u] ; nil ; t ; no ; f ; x ; [x] ; {1:2,none:3,(1,2):4,true:5} ; range(3)
        range(1,10,3)|list ; range(5,0,-2)|list ; range(0) ; range(1,5) ; range(1,9,2) ; range(5)[1:3] ; range(5)[::-1]
        range(5)[2] ; range(10)|length ; range(3) is sequence ; d.keys() ; d.values() ; d.items() ; d.items()|list
        d|items|list ; d|list ; d|length ; namespace(a=1).a ; namespace(a=1).b ; namespace({'a':2}).a ; dict(a=1,b=2)
        dict([('a',1)],b=3) ; dict({'z':1}) ; namespace(a=1)
    """,
    "attributes and elements": r"""
        d.b ; d['b'] ; d['items'] ; d.get('b') ; d.get('zz') ; d.get('zz',9) ; d.zz ; d.zz.y ; d['zz']['y'] ; x.y
        x['y'] ; s.foo ; s.foo.bar ; l[0] ; l[-1] ; l[5] ; l.0 ; l['a'] ; l.foo ; nil.foo ; nil.foo.bar ; n.foo
        d.a.upper() ; s['upper']() ; s.__class__ ; s.__class__.__mro__ ; ''.__class__.__mro__ ; d._x ; d.__init__
        l.append(1) ; l.append ; d.update({}) ; d.pop('b') ; l.pop() ; d.copy() ; l.copy() ; l.index(2) ; l.index(9)
        l.count(1) ; (1,2).count(1) ; l.sort() ; nest[0][1] ; nest[1][-1] ; l[1:] ; l[::-1] ; l[:2] ; (1,2,3)[1:]
        d[1:2] ; n[1:2] ; x[1:2] ; l['0'] ; l[1.0] ; l[true] ; d[none] ; d[[1]] ; d.items()[0] ; l[none:2]
    """,
    "string methods": r"""
        s.strip() ; ws.strip() ; ws.lstrip() ; ws.rstrip() ; 'xxaxx'.strip('x') ; 'abcba'.strip('ab') ; '漢a漢'.strip('漢')
        s.split() ; s.split('o') ; s.split('o',1) ; s.rsplit('o',1) ; s.split('') ; ' a  b '.split()
        ' a  b c '.split(none,1) ; ' a  b c '.rsplit(none,1) ; ' a b '.split(' ') ; 'a,b,c'.split(',')[-1]
        'a,b,c'.rsplit(',',1)[0] ; s.split(maxsplit=1) ; s.split(sep='l') ; multi.splitlines() ; multi.splitlines(true)
        'a\n'.splitlines() ; ''.splitlines() ; ''.split() ; ''.split(',') ; s.startswith('He')
        s.startswith(('x','He')) ; s.endswith('ld') ; s.endswith(('x',)) ; s.startswith('lo',3) ; s.startswith(1)
        s.find('o') ; s.find('o',5) ; s.find('o',5,6) ; s.rfind('o') ; s.find('zz') ; s.index('zz') ; s.index('W')
        s.count('o') ; s.count('') ; u.find('漢') ; u.count('') ; u.rfind('ö') ; s.replace('l','L')
        s.replace('l','L',1) ; s.replace('','-') ; s.replace('','-',2) ; u.replace('','-') ; s.upper() ; s.lower()
        s.title() ; "it's a dog's".title() ; s.capitalize() ; s.swapcase() ; 'ß'.upper() ; 'ǆ'.title() ; 'ﬁ'.upper()
        'İ'.lower() ; s.join(['a','b']) ; ','.join([1]) ; ','.join('abc') ; ','.join(l|map('string'))
        '{} {}'.format(1,'a') ; '{0}{0}{1}'.format('a','b') ; '{a}'.format(a=3)
        '{:>5}|{:<5}|{:^5}'.format('a','b','c') ; '{:05d}'.format(42) ; '{:,}'.format(1234567)
        '{:.2f}'.format(3.14159) ; '{:x}'.format(255) ; '{!r}'.format('a') ; '{{}}'.format() ; '{0[0]}'.format([1])
        '{0.a}'.format({'a':1}) ; '{}'.format() ; '{:*^9}'.format('x') ; '{:+}'.format(3) ; '{:e}'.format(12345.6789)
        '{:%}'.format(0.25) ; '{:>{w}}'.format('a',w=4) ; '{:d}'.format('a') ; '{:s}'.format(1)
        '{:.3}'.format('abcdef') ; '{:b}'.format(5) ; '{:#x}'.format(255) ; '{:08.3f}'.format(3.14159)
        '{:g}'.format(0.00001234) ; '{}'.format(none) ; '{:5}'.format(true) ; '{:10}'.format(1.5)
        '{:.3}'.format(1234.5678) ; '{:_}'.format(1234567) ; '{:c}'.format(65) ; '{'.format() ; '}'.format()
    """,
    "characters": r"""
        '123'.isdigit() ; 'a'.isdigit() ; ''.isdigit() ; '²'.isdigit() ; '²'.isdecimal() ; '½'.isnumeric()
        'abc'.isalpha() ; 'a1'.isalnum() ; ' '.isspace() ; '\x1c'.isspace() ; 'Ab'.istitle() ; 'AB'.isupper()
        'ab'.islower() ; 'é'.isascii() ; '漢'.isalpha() ; '5'.zfill(3) ; '-5'.zfill(4) ; '+5'.zfill(2) ; 'a'.center(6)
        'ab'.center(5) ; 'a'.center(4,'*') ; 'a'.ljust(3)~'|' ; 'a'.rjust(3) ; 'a'.rjust(3,'xy')
        'abc'.removeprefix('a') ; 'abc'.removesuffix('c') ; 'abc'.removeprefix('x') ; 'a-b-c'.partition('-')
        'a-b-c'.rpartition('-') ; 'abc'.partition('x') ; 'abc'.rpartition('x') ; 'abc'.partition('') ; 'abc'.foo()
        'abc'.casefold() ; s.strip(1) ; s.strip(none) ; s.strip('a','b')
    """,
    "lists": r"""
        l|sort ; l|sort(reverse=true) ; ls|sort ; ls|sort(case_sensitive=true) ; ls|sort(true)
        dd|sort(attribute='v')|map(attribute='n')|list ; dd|sort(attribute='n,v')|map(attribute='n')|join
        dd|map(attribute='g.k')|list ; dd|map(attribute='g.k',default='D')|list ; dd|map(attribute='zz')|list
        dd|selectattr('v','gt',1)|map(attribute='n')|list ; dd|rejectattr('g')|map(attribute='n')|list
        dd|selectattr('g','defined')|list|length ; dd|selectattr('v')|list|length
        dd|selectattr('n','equalto','x')|list ; dd|selectattr('n','in',['x','z'])|map(attribute='n')|join(',')
        l|select('odd')|list ; l|reject('odd')|list ; l|select|list ; l|select('foo')|list ; l|map('string')|list
        ls|map('upper')|join('-') ; ls|map('replace','b','X')|list ; l|map|list ; l|sum ; dd|sum(attribute='v')
        l|sum(start=10) ; ls|sum ; []|sum ; [[1],[2]]|sum(start=[]) ; [1.5,2]|sum ; l|min ; l|max ; ls|min ; ls|max
        ls|max(case_sensitive=true) ; []|min ; dd|max(attribute='v') ; l|first ; l|last ; []|first ; []|last ; s|first
        s|last ; ''|first ; d|first ; d|last ; range(3)|last ; (l|map('string'))|first ; (l|map('string'))|last
        (l|map('string'))|length ; (l|map('string'))[0] ; l|reverse|list ; s|reverse ; u|reverse ; d|reverse|list
        l|reverse|first ; x|last ; x|first ; x|list ; x|length ; x|join ; x|upper ; x|sort ; x|sum ; x|max
        x|items|list ; n|list ; s|list ; d|dictsort ; {'b':1,'A':2,'c':0}|dictsort ; {'b':1,'A':2,'c':0}|dictsort(true)
        {'b':1,'A':2,'c':0}|dictsort(by='value') ; {'b':1,'A':2}|dictsort(reverse=true) ; {'b':1}|dictsort(by='x')
        [1,1,2,'a','A']|unique|list ; ['a','A']|unique(true)|list ; dd|unique(attribute='v')|map(attribute='v')|list
        range(7)|batch(3)|list ; range(7)|batch(3,'x')|list ; range(7)|slice(3)|list ; range(7)|slice(3,'x')|list
        range(2)|slice(3)|list ; dd|groupby('v')|list|length ; [{'a':1,'b':2},{'a':1,'b':3},{'a':0,'b':4}]|groupby('a')
        [{'a':'x'},{'a':'X'}]|groupby('a') ; [{'a':'x'},{'a':'X'}]|groupby('a',case_sensitive=true)
        [{'a':1},{}]|groupby('a',default=0) ; ([{'a':1}]|groupby('a'))[0].grouper ; ([{'a':1}]|groupby('a'))[0].list
        l|join ; l|join(', ') ; l|join(1) ; ls|join('-')|upper ; dd|join(',',attribute='n') ; nest|join ; s|join('.')
        d|join(',') ; n|join ; [none,true]|join(' ')
    """,
    "defaults and numbers": r"""
        x|default('D') ; nil|default('D') ; nil|default('D',true) ; e|default('D') ; e|default('D',true) ; x|d
        x|d(boolean=true) ; x.y|default('D') ; d.zz|default('D') ; d.zz.y|default('D') ; n|default ; '3'|int ; '3.7'|int
        'x'|int ; 'x'|int(5) ; 'x'|int(default=7) ; '0x1f'|int(base=16) ; '1f'|int(0,16) ; '0b11'|int(0,0) ; 3.9|int
        -3.9|int ; none|int ; true|int ; x|int ; []|int ; ' 12 '|int ; '1_000'|int ; '__1'|int ; '1e3'|int ; 'inf'|int
        'nan'|int ; '3.5'|float ; 'x'|float ; 'x'|float(1.5) ; none|float ; 3|float ; '1e5'|float ; 'inf'|float
        '-inf'|float ; 'nan'|float ; '1_0.5'|float ; '.5'|float ; '5.'|float ; 'infinity'|float ; true|float ; 2.5|round
        3.5|round ; 2.567|round(2) ; 2.5|round(0,'ceil') ; 2.4|round(method='ceil') ; 2.9|round(method='floor')
        -2.5|round ; 1234|round(-2) ; 1250|round(-2) ; 1350|round(-2) ; 1234.5|round(-2) ; 5|round ; 5|round(2)
        2.675|round(2) ; 'a'|round ; 1.5|round(1,'x') ; true|round ; -3|abs ; 3.5|abs ; 'a'|abs ; true|abs ; none|abs
    """,
    "text filters": r"""
        s|replace('l','L') ; s|replace('l','L',1) ; n|replace('5','6') ; ws|trim ; 'xxaxx'|trim('x') ; n|trim
        none|trim ; s|string ; n|string~1 ; l|string ; s|length ; d|count ; n|length ; none|length ; '<a&"\'>'|e
        '<a>'|escape|escape ; '<a>'|safe ; ('<a>'|safe)+'<b>' ; '<b>'+('<a>'|e) ; ('<a>'|safe)~'<b>' ; '<a>'|forceescape
        ('<a>'|e)|forceescape ; [('<a>'|safe)] ; ('<'|safe)*2 ; ('<%s>'|safe)%'<' ; multi|indent ; multi|indent(2)
        multi|indent(2,true) ; multi|indent(2,true,true) ; multi|indent('>>',blank=true) ; ''|indent ; 'a'|indent
        'a\n'|indent ; '\na'|indent(first=true) ; n|indent ; x|indent ; 'a b c d e f'|truncate(9)
        'a b c d e f g h i j'|truncate(9) ; 'a b c d e f g h i j'|truncate(9,true)
        'a b c d e f g h i j'|truncate(9,false,'…',0) ; 'abc'|truncate(2) ; s|center(20)~'|' ; s|wordcount
        "it's a-b c_d"|wordcount ; u|wordcount ; 'a b&c/d'|urlencode ; u|urlencode ; {'a':1,'b c':'d&e'}|urlencode
        [('a',1)]|urlencode ; n|urlencode ; '%s-%s'|format(1,2) ; '%(a)s'|format(a=1) ; '%s'|format(1,a=2)
        {'a':1,'b':none,'c':'<'}|xmlattr ; {'a b':1}|xmlattr ; {'a':1}|xmlattr(false) ; 1000|filesizeformat
        1|filesizeformat ; 999|filesizeformat ; 123456789|filesizeformat ; 123456789|filesizeformat(true) ; d|attr('b')
        d|attr('zz') ; s|attr('__class__') ; s|foo ; s|upper(1) ; s|replace('a') ; s|replace ; s|join(1,2,3)
    """,
    "json": r"""
        d|tojson ; l|tojson ; q|tojson ; u|tojson ; u|tojson(ensure_ascii=true) ; nil|tojson ; t|tojson ; f|tojson
        1e16|tojson ; 1.0|tojson ; x|tojson ; [x]|tojson ; (1,2)|tojson ; {1:2}|tojson ; {none:1,true:2,1.5:3}|tojson
        {(1,2):3}|tojson ; d|tojson(indent=2) ; d|tojson(indent=4)|indent(2) ; []|tojson(indent=2) ; {}|tojson(indent=2)
        [[],{}]|tojson(indent=1) ; d|tojson(separators=(',',':')) ; d|tojson(indent=2,separators=(',',':'))
        d|tojson(sort_keys=true) ; {'b':{'z':1,'y':2},'a':3}|tojson(sort_keys=true) ; d|tojson(indent='--')
        d|tojson(indent=0) ; d|tojson(indent=-1) ; range(3)|tojson ; (l|map('string'))|tojson ; d.items()|tojson
        'inf'|float|tojson ; 'nan'|float|tojson ; '</script>&\'"'|tojson ; namespace(a=1)|tojson ; ('<'|safe)|tojson
        {1:1,'a':2}|tojson(sort_keys=true) ; '\u2028\x7f\x00\x1f'|tojson ; d|tojson|upper ; (d|tojson)['a']
        s|tojson|length ; d|tojson(true) ; d|tojson(foo=1) ; d|tojson(none,2) ; d|tojson(indent=true)
    """,
    "functions": r"""
        range() ; range('a') ; range(1,2,0) ; range(100001) ; range(1,2,3,4) ; range(1.5) ; dict(1) ; foo() ; s()
        none() ; raise_exception('boom') ; raise_exception() ; strftime_now('%Y-%m-%d') ; strftime_now('%d %b %Y')
        strftime_now('%A %B %H:%M:%S %j %%') ; strftime_now('') ; strftime_now() ; strftime_now('é %Y')
        cycler('a','b').next() ; joiner(',')() ; cycler()
    """,
    "literals": r"""
        [1,2,]|length ; (1,)|length ; {'a':1,}|length ; [1,2][0] ; 'abc'[1] ; (1,2)[1] ; {'a':1}.a ; {'a':1}['a']
        'a'.upper().lower() ; (1).foo ; 1.foo ; "a\x41\u00e9\U0001F389\n\t\\\'\"\101\q" ; '\x4' ; '\u12' ; '\' ; 'é'
        "\/"
    """,
    "syntax": r"""
        1,2 ; 1, ; (1,2),3 ; a b ; 1 + ; +1 ; --1 ; -'a' ; +'a' ; +true ; -true ; -none ; not none ; [1 ; {1} ; {'a'}
        (1 ; x. ; x| ; |x ; 1 2 ; 'a' ; ] ; } ; a=1 ; a== ; .a ; 1. ; 1..2 ; 1.e5 ; .5 ; @ ; $ ; ` ; ! ; !1 ; a!= ; &
        a&b ; a?b ; a<>b ; # ; \ ; 1 ; 2
    """,
    "broken syntax": r"""
        'a' if x else ; 'a' if ; if ; else ; x is ; x is not ; x is not not defined ; x is defined is defined
        x not defined ; x in ; in x ; x not in ; not ; and ; or 1 ; 1 or ; *l ; [*l] ; {**d} ; f(*l) ; lambda x: x
        x := 1 ; [i for i in l] ; x[ ; x[] ; x[1,2] ; x[:,:] ; d['b',] ; f"x" ; b'x' ; r'x' ; True ; False ; None ; TRUE
        true.x ; none|string ; loop ; caller ; varargs ; x.y.z is defined ; d.zz is defined ; d.zz.q is defined
        (d.zz).q|default(1)
    """,
    "case": r"""
        u.upper().lower() ; 'ΑΣΑ'.lower() ; 'Σ'.lower() ; 'ŉ'.upper() ; 'ΐ'.upper() ; 'ᾳ'.title() ; 'ǅ'.lower()
        'Å'.lower() ; 'ÀÉ'.title() ; "o'neil mc-donald (foo) [bar] {baz} <qux>"|title ; "o'neil mc-donald"|capitalize
        'éa'|capitalize ; 'ﬁx'|capitalize ; 'ﬁx'|title
    """,
    "mapping": r"""
        l|map('int')|sum ; 'a'|map('upper')|list ; d|map('upper')|list ; n|map('upper')|list ; 0|map('upper')|list
        none|map('upper')|list ; l|select('gt',1)|list ; l|select('in',[1])|list ; l|select('divisibleby',3)|list
        ls|select('equalto','A')|list ; l|batch(2)|map('join','-')|list ; l|map('default','x')|list
        dd|map('attr','get')|list|length ; dd|map('length')|list ; l|map(attribute='foo')|list ; nest|map('first')|list
        nest|map('sum')|list ; nest|map(attribute=0)|list ; nest|map(attribute='1')|list ; nest|sum(start=[])
        nest|sort(attribute='1',reverse=true) ; [3,'a']|sort ; [none,1]|sort ; [[2,1],[1,2]]|sort ; [true,0]|sort
        [(1,'b'),(1,'a')]|sort ; ['b',['a']]|sort ; [{},{}]|sort ; [{}]|sort ; [[1],[1]]|unique|list ; [{}]|unique|list
    """,
}


def expressions_of(topic):
    return [each.strip() for line in EXPRESSIONS[topic].splitlines() for each in line.split(" ; ") if each.strip()]


STATEMENTS = [
    # White space.
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n",
    "a\n\t {%- if true -%}\n  b\n  {%- endif %}\n\nc\n\n",
    "  {%+ if true %}\n x{% endif +%}\n y",
    "x {{- 1 -}} y {{+ 1 }} z",
    "{# a #}\nb{#- c -#}  d{#+ e +#}\nf  {# g #}  h",
    "  {# only #}\n  {{ 1 }}\n",
    "{% raw %}{{ x }} {% if %}{% endraw %}\nafter",
    "a  {%- raw -%}  {{ x }}  {%- endraw -%}  b",
    "  {% raw %}\n  x\n  {% endraw %}\ny",
    "a\r\nb\rc\r\n",
    "\n\n{% set x = 1 %}\n\n{{ x }}\n\n",
    "{%- set x = 1 -%}\u00a0 {{ x }}\u2003{%- if x %}y{% endif %}",
    "{% if true %}{% endif %}",
    "{{ '}}' }}{{ '%}' }}{{ {'a': {'b': 1}} }}{{ {'a': {}}}}",
    "{{ \"{% raw %}\" }}",
    "no tags { } {a} %} }} #}",
    # Loops.
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}"
    "{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.previtem }}{{ loop.nextitem }}|{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}",
    "{% for x in [] %}a{% else %}b{% endfor %}{% for x in undefined_name %}a{% else %}b{% endfor %}",
    "{% for x in nil %}{% endfor %}",
    "{% for x in n %}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}",
    "{% for k, v in d | dictsort %}{{ k }}{{ v }}{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{% for a, b in ['xy', 'zw'] %}{{ b }}{{ a }}{% endfor %}{% for c in u %}{{ c }}.{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}:{{ x }} {% else %}none{% endfor %}{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% elif x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% break %}{% else %}else{% endfor %}",
    "{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}({{ loop(x) }}{{ loop.depth }}){% else %}{{ x }}{% endif %}{% endfor %}",
    "{% for x in l %}{{ loop(l) }}{% endfor %}",
    "{% for x in l | map('string') %}{{ loop.length }}{{ loop.last }}{{ x }}{% endfor %}",
    "{% for x in l %}{% set y = x %}{{ y }}{% endfor %}{{ y }}{{ x }}{{ loop }}",
    "{% for x in l %}{{ y }}{% set y = x %}{% endfor %}",
    "{% set x = 0 %}{% for i in l %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}",
    "{% for x in l, %}{{ x }}{% endfor %}{% for x in 1, 2 %}{{ x }}{% endfor %}",
    "{% for x in l recursive if x %}{% endfor %}",
    "{% for loop in l %}{{ loop }}{% endfor %}",
    "{% for x in dd | groupby('v') %}{{ x.grouper }}{{ x[1] | length }}{% endfor %}",
    "{% break %}",
    "{% for x in l %}{% endfor %}{% continue %}",
    "{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for m in dd %}{%- if loop.nextitem is defined and loop.nextitem.v > m.v %}<{% else %}>{% endif %}{% endfor %}",
    # Conditions.
    "{% if n > 3 and s %}a{% elif no %}b{% else %}c{% endif %}{% if e %}a{% elif t %}b{% endif %}",
    "{% if x is defined %}a{% elif x %}b{% else %}c{% endif %}{% if not x %}d{% endif %}",
    "{% if 1, %}a{% endif %}{% if () %}b{% endif %}",
    "{% if x: %}a{% endif %}",
    "{% if %}{% endif %}",
    "{% if 1 %}",
    "{% endif %}",
    "{% else %}",
    "{% if 1 %}{% endfor %}",
    "{% if 1 %}{% else %}{% else %}{% endif %}",
    # Assignments.
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (a, b) = (b, a) %}{{ a }}{{ b }}{% set c = 1, %}{{ c }}",
    "{% set a = b = 1 %}",
    "{% set a.b = 1 %}",
    "{% set d.b = 2 %}",
    "{% set ns = namespace(x=1, y=[]) %}{% for i in l %}{% set ns.x = ns.x + i %}{% set ns.y = ns.y + [i] %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z }}",
    "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}{{ ns }}",
    "{% set x %}a{{ n }}b{% endset %}[{{ x }}]{% set x | upper | replace('A', 'z') %}a{{ n }}b{% endset %}[{{ x }}]",
    "{% set x %}{% set y = 1 %}{% endset %}{{ y }}",
    "{% set true = 1 %}",
    "{% set 1 = 1 %}",
    "{% set x = %}",
    "{% set x == 1 %}",
    "{% if 1 %}{% set z9 = 3 %}{% endif %}{{ z9 }}{% if 0 %}{% set z8 = 3 %}{% endif %}{{ z8 }}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% set c = 2 %}{% endwith %}{{ a }}{{ c }}{% with %}x{% endwith %}",
    "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% print 1 + 2 %}{% print s, n %}",
    # Macros.
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, c=3) }}|{{ m(b=1, a=0) }}",
    "{% macro m(a) %}{{ a }}{{ a is defined }}{% endmacro %}{{ m() }}{{ m(1) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}{{ m() }}{{ m(*[1, 2], **{'q': 1}) }}",
    "{% macro m(a=1, b) %}{% endmacro %}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in{{ n }}{% endcall %}{{ m.name }}{{ m.arguments }}",
    "{% macro m() %}<{{ caller('x', y=2) }}>{% endmacro %}{% call(a, y=1) m() %}{{ a }}{{ y }}{% endcall %}",
    "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}",
    "{% macro m() %}{% if caller %}c{% else %}n{% endif %}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}",
    "{% call s %}{% endcall %}",
    "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}",
    "{% macro f(n) %}{% if n > 1 %}{{ n * f(n - 1) | int }}{% else %}1{% endif %}{% endmacro %}{{ f(5) }}",
    "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro m() %}{{ loop }}{% endmacro %}{% for i in l %}{{ m() }}{% endfor %}",
    "{{ m() }}{% macro m() %}{% endmacro %}",
    "{% macro m() %} x {% endmacro %}{{ m() | trim }}{{ m() ~ m() }}{{ m()|length }}{% if m() %}y{% endif %}",
    "{% macro m(x) %}{% set y = x %}{{ y }}{% endmacro %}{{ m(1) }}{{ y }}",
    "{% macro m(x) %}{{ x.a.b }}{% endmacro %}{{ m({'a': {'b': 1}}) }}{{ m({}) }}",
    "{% macro 1() %}{% endmacro %}",
    "{% macro m %}{% endmacro %}",
    # Other blocks.
    "{% filter upper | replace('A', 'b') %}a{{ s }}{% endfilter %}",
    "{% filter indent(2, true) %}a\nb{% endfilter %}",
    "{% generation %}{{ s }}{% set y = 1 %}{% endgeneration %}{{ y }}",
    "{% for x in l %}{% generation %}{{ x }}{{ loop.index }}{% endgeneration %}{% endfor %}",
    "{% foo %}",
    "{% do l %}",
    "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{% extends 'x' %}",
    "{% 1 %}",
    "{% %}",
    "{%",
    "{{",
    "{# a",
    "{{ 1",
    "{{ 'a }}",
    "{% raw %} ",
    "{{ }}",
    "{{ 1 }",
    "{{ (1 }}",
    "{{ 1) }}",
    "{{ [1) }}",
    # Constructs of chat templates.
    "{% for m in dd %}{{ '<|' ~ m['n'] ~ '|>' + (m.g.k if m.g else 'none') | trim }}\n{% endfor %}",
    "{{ dd[-1]['n'] }}{{ dd[::-1] | map(attribute='n') | join }}{{ dd[1:] | length }}{{ (dd | first).n }}",
    "{% set ns = namespace(found=false) %}{% for m in dd[::-1] %}{% if not ns.found and m.v == 3 %}{% set ns.found = true %}{{ loop.index0 }}{% endif %}{% endfor %}",
    "{{ ws.split('pad')[-1].lstrip('\\n') }}|{{ s.split('o')[0].rstrip() }}|{{ 'a</think>b'.split('</think>')[-1] }}",
    "{{ strftime_now('%d %b %Y') }}{{ strftime_now('%Y-%m-%d %H:%M:%S %a %A %B %p %j') }}",
    "{% if d is mapping and d.zz is not defined %}{{ d | tojson(indent=2) | indent(4) }}{% endif %}",
    "{{ raise_exception('no ' ~ s) if n > 9 }}{{ raise_exception('no') if n < 9 }}",
    "{%- for k in d -%}{{ k }}: {{ d[k] | tojson if d[k] is not string else d[k] }},{%- endfor -%}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}",
    "{% set j = joiner('; ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}",
    "{% set g = l | map('string') %}{{ g | list }}{{ g | list }}{% if l | select('gt', 9) %}always{% endif %}",
]


class RandomExpressions:
    """Expressions of limited depth, most of them meaningful."""

    ATOMS = (
        "s u e n z neg f t no nil l ls d dd nest multi q ws undefined_name 0 1 2 -3 7 1.5 0.1 'a' 'b c' ' x ' '' \"it's\" "
        "[] [1] ['a','b'] {} {'k':1} (1,2) none true false d.a d.zz l[0] dd[0] dd[0].n s[0] ls[-1] nest[0]"
    ).split(" ")
    FILTERS = (
        "upper lower title capitalize trim length first last list string sort reverse|list unique|list sum min max join join(',') "
        "tojson int float round abs default('D') default('D',true) e count items|list dictsort replace('l','L') batch(2)|list "
        "slice(2)|list indent(2) wordcount map('string')|list map('upper')|list select|list reject|list select('odd')|list "
        "map(attribute='n')|list selectattr('v')|list tojson(indent=1) urlencode center(9) truncate(5,true,'',0) safe"
    ).split(" ")
    METHODS = (
        "strip() upper() lower() split() split('l') title() startswith('H') endswith('d') replace('o','0') find('l') count('l') "
        "items()|list keys()|list values()|list get('a') get('zz',1) index(1) splitlines() isdigit() rsplit('o',1) zfill(8) "
        "partition('o') lstrip('H') rstrip('d') join(['x','y']) format(1,2) capitalize() removeprefix('H') rfind('o')"
    ).split(" ")
    TESTS = (
        "defined undefined none string number mapping sequence iterable boolean true false integer float odd even upper lower "
        "eq(1) ne('a') gt(1) le(2) in([1,'a']) divisibleby(3) sameas(none) callable"
    ).split(" ")
    OPERATORS = "+ - * / // % ** ~ == != < <= > >= and or in".split(" ") + ["not in"]

    def __init__(self, random):
        self.random = random

    def expression(self, depth):
        pick = self.random.choice
        if depth == 0 or self.random.random() < 0.15:
            return pick([atom for atom in self.ATOMS if atom])
        inner = lambda: self.expression(depth - 1)  # noqa: E731
        kind = self.random.randrange(11)
        if kind <= 2:
            return f"({inner()} {pick(self.OPERATORS)} {inner()})"
        if kind <= 4:
            return f"({inner()})|{pick(self.FILTERS)}"
        if kind == 5:
            return f"({inner()}).{pick(self.METHODS)}"
        if kind == 6:
            return f"(({inner()}) is {pick(['', 'not '])}{pick(self.TESTS)})"
        if kind == 7:
            return f"({inner()} if {inner()} else {inner()})"
        if kind == 8:
            return f"({inner()})[{pick(['0', '-1', '1:', ':2', '::-1', '1:3', repr('a'), '9', '-2:', '::2'])}]"
        if kind == 9:
            return f"[{inner()}, {inner()}]"
        return f"({pick(['not ', '-'])}{inner()})"
