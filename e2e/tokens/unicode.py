# SPDX-License-Identifier: Apache-2.0
# Writes tokens/categories.bin: what the tokenizers package knows of each character. unicode.py FILE [NORMALIZED].
# It asks the package itself, whose parts follow four releases of Unicode. NORMALIZED gets, for each normalizer, what becomes
# of each character with two marks behind it, where that is something else.
import json
import sys

from tokenizers import Regex, normalizers as N, pre_tokenizers as P

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
POINTS = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]
TEXT = "".join(map(chr, POINTS))
# Characters with a decomposition, or that take part in one, that normalizers do not know, for they came after Unicode 9.
# Marks they do not know are found below.
NEWER = [(0x32ff, 0x32ff), (0xa7f1, 0xa7f4), (0xab69, 0xab69), (0x105c9, 0x105e4), (0x10780, 0x107bf), (0x11380, 0x113d3),
         (0x11930, 0x11938), (0x16120, 0x16129), (0x16d63, 0x16d6a), (0x1ccd6, 0x1ccf9), (0x1e030, 0x1e06d), (0x1f16c, 0x1f16c), (0x1fbf0, 0x1fbf9)]


def members(regex):
    cut, found = P.Split(Regex("(?:" + regex + ")+"), "removed"), set()
    for i in range(0, len(TEXT), 0x2000):
        chunk, kept = TEXT[i:i + 0x2000], set()
        for piece, _ in cut.pre_tokenize_str(chunk):
            kept.update(piece)
        found.update(ord(c) for c in chunk if c not in kept)
    return found


def normalized(path):
    out = {}
    for name, n in [("NFC", N.NFC()), ("NFD", N.NFD()), ("NFKC", N.NFKC()), ("NFKD", N.NFKD()), ("Lowercase", N.Lowercase()),
                    ("StripAccents", N.StripAccents()), ("Nmt", N.Nmt()), ("BertNormalizer", N.BertNormalizer()), ("Strip", N.Strip())]:
        out[name] = {}
        for c in POINTS:
            text = chr(c) + ("b" if name in ("Strip", "StripAccents", "BertNormalizer") else "\u0323\u0301")
            got = n.normalize_str(text)
            if got != text:
                out[name][c] = got
    with open(path, "w") as f:
        json.dump(out, f)


def main(path):
    low, high = [None] * 0x110000, [0] * 0x110000
    for i, name in enumerate(CATEGORIES):
        for c in members(r"\p{%s}" % name):
            assert low[c] is None
            low[c] = i
    for c in range(0xd800, 0xe000):
        low[c] = CATEGORIES.index("Cs")
    for c in members(r"\w"):
        low[c] |= 0x40
    words, punctuation, accents = P.Whitespace(), P.Punctuation(), N.StripAccents()
    plain = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    clean, strip = N.BertNormalizer(**{**plain, "clean_text": True}), N.BertNormalizer(**{**plain, "strip_accents": True})
    marks = {CATEGORIES.index(m) for m in ("Mn", "Mc", "Me")}
    for c in POINTS:
        x = chr(c)
        pieces = words.pre_tokenize_str("a" + x)
        low[c] |= 0x20 if len(pieces) == 1 and len(pieces[0][0]) > 1 else 0
        low[c] |= 0x80 if len(punctuation.pre_tokenize_str("a" + x + "a")) == 3 else 0
        stripped = accents.normalize_str(x) == ""
        newer = any(a <= c <= b for a, b in NEWER) or low[c] & 0x1f in marks and not stripped
        high[c] = ((1 if newer else 0) | (2 if clean.normalize_str(x) == "" else 0) | (4 if stripped else 0) |
                   (8 if strip.normalize_str(x) == "" else 0))
    with open(path, "wb") as f:
        last = None
        for c in range(0x110000):
            if (low[c], high[c]) != last:
                last = low[c], high[c]
                f.write(c.to_bytes(3, "big") + bytes(last))


main(sys.argv[1])
if len(sys.argv) > 2:
    normalized(sys.argv[2])
