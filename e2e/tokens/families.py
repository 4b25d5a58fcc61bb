# SPDX-License-Identifier: Apache-2.0
# Makes a tokenizer of each family, trained on the spot with the settings that the family is known by, and encodes the
# same texts with each: families.py FOLDER [TEXTS]. Beside them, vocabularies that ship with mistral-common, converted as
# transformers does it, and folders whose config files transformers heeds. FOLDER gets texts.json, and NAME/tokenizer.json and
# NAME/ids.json per family: for each text the ids without special tokens, and with. families.py small FILE makes what
# package tokens keeps in its testdata.
import glob
import json
import os
import random
import sys
import sysconfig

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

rnd = random.Random(20260901)

SENTENCES = """
The quick brown fox jumps over the lazy dog; it's what they'd've done, isn't it? I'M SURE HE'LL SAY "WE'RE THERE".
Größere Übungen für Straßenbahnfahrer: Äpfel, Öl und süße Füße – 12.345,67 € (inkl. MwSt.)
L'été dernier, j'ai mangé des crêpes à Orléans; où étiez-vous, cher ami ? « Voilà ! »
El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío. ¿Añoraba a su querido cachorro? ¡Sí!
À noite, vovô Kowalsky vê o ímã cair no pé do pinguim queixoso e vovó põe açúcar no chá de tâmaras.
Pchnąć w tę łódź jeża lub ośm skrzyń fig. Zażółć gęślą jaźń.
Příliš žluťoučký kůň úpěl ďábelské ódy. Nechť již hříšné saxofony ďáblů rozezvučí síň.
Árvíztűrő tükörfúrógép; jó foxim és don Quijote húszwattos lámpánál ülve egy pár bűvös cipőt készít.
Pijamalı hasta yağız şoföre çabucak güvendi. İstanbul'da ılık bir gün, IĞDIR'da ise değil.
Съешь же ещё этих мягких французских булок, да выпей чаю. Широкая электрификация южных губерний даст мощный толчок.
Чуєш їх, доцю, га? Кумедна ж ти, прощайся без ґольфів! Ще 25 хвилин — і все.
Ξεσκεπάζω την ψυχοφθόρα σας βδελυγμία. Τάχιστη αλώπηξ βαφής ψημένη γη, δρασκελίζει υπέρ νωθρού κυνός.
דג סקרן שט בים מאוכזב ולפתע מצא חברה. איך הקליטה? שָׁלוֹם עֲלֵיכֶם
صِف خَلقَ خَودِ كَمِثلِ الشَمسِ إِذ بَزَغَت — يَحظى الضَجيعُ بِها نَجلاءَ مِعطارِ. ١٢٣٤٥ مرحبا بالعالم
ژاله با خشم فریاد زد: «پوچ است!» و رفت. می‌خواهم نمی‌دانم ۱۲۳۴۵۶
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले विष्णुवतार भगवान श्रीराम। १२३
আমার সোনার বাংলা, আমি তোমায় ভালোবাসি। চিরদিন তোমার আকাশ, তোমার বাতাস ১২৩৪
யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் இனிதாவது எங்கும் காணோம்
ఆంధ్రప్రదేశ్ రాష్ట్రంలో తెలుగు మాట్లాడే ప్రజలు ఎక్కువ.
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ๑๒๓๔
ສະບາຍດີ ປະເທດລາວ ເປັນປະເທດທີ່ສວຍງາມ
မြန်မာနိုင်ငံသည် အရှေ့တောင်အာရှရှိ နိုင်ငံတစ်ခုဖြစ်သည်။
ការធ្វើដំណើរទៅភ្នំពេញត្រូវចំណាយពេលពីរម៉ោង។
កុំព្យូទ័រ និង ព័ត៌មានវិទ្យា
ქართული ენა ერთ-ერთი უძველესი ენაა მსოფლიოში. აბგდევზთ
Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ։
ሰው ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው።
我能吞下玻璃而不伤身体。今天天气怎么样?二〇二六年九月一日,北京。「你好」,他说:“再见!”
我能吞下玻璃而不傷身體。繁體中文測試,臺灣台北101大樓。
いろはにほへと ちりぬるを わかよたれそ つねならむ。私はガラスを食べられます。ｶﾀｶﾅ ＡＢＣ１２３
키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. 다람쥐 헌 쳇바퀴에 타고파.
Do bạch kim rất quý nên sẽ dùng để lắp vô xương. Việt Nam đất nước tôi yêu, phở bò 50.000₫.
Saya bisa makan kaca dan tidak sakit. Hari ini tanggal 17-08-1945.
Kaŭze de ĉiu ŝanĝiĝo, la ĝojo eĥiĝas ĉiuĵaŭde.
Haıtı ƏƏ ǅ ǆ Ǆ ﬁ ﬂ ﬀ ŉ ẞß ſs 'ſ K Å Ω ½ ² ³ № ℃ ㎏ ⅷ Ⅷ ①②③ ㊙ 🄰
""".strip().split("\n")

EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇯🇵", "❤️", "☕", "🤦🏼‍♂️", "1️⃣", "🧑‍💻", "𝒳𝔂𝟘", "🀄", "🫠", "\U0001fae8", "✅✅✅"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\n\n\n", " \n", "\n ", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028",
          "\u0085", "\x0b", "\x0c", "\ufeff", "\u202f", "      ", "\t\t", " \t ", "\r", "\u180e", "\u1680"]
ODD = ["\u0301", "e\u0301", "n\u0303", "\u0000", "\x01\x02", "\x7f", "\ufffd", "\ufffe", "\U0010ffff", "\ue000", "\u200d", "\u202e",
       "가", "각", "\u1112\u1161\u11ab", "ｆｕｌｌ", "\u0340", "\u0f73", "\u2126", "\U0001d15e", "\ufb2c", "\u0958", "▁", "▁▁x", "Ġ",
       "Ċ", "<0x41>", "##ing", "’s", "'S", "'lL", "'RE", "don't", "I'M", "_", "__init__", "a_b", "²³", "٣٤", "12345678901", "3.14159e-10",
       "1,000,000.00", "0x1F", "http://example.org/a/b?c=d&e=f#g", "me@example.com", "C:\\dir\\file.txt", "/usr/bin/env", "-->", "!=", "===",
       "...", "…", "!!!???", "((()))", "[[]]", "{{}}", "<a href='x'>y</a>", "\\n\\t", "``` ```", "#!/bin/sh", "\u1c89\u1c8a", "\U00010d4e",
       "\U0001cc00", "\u0897", "\U0002ebf0", "A" * 300, "ab" * 200, "=" * 150, " " * 130, "\n" * 120, "的" * 130, "0" * 100]
SPECIAL = ["<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<think>", "</think>", "[INST]", "[/INST]",
           "<|user|>", "<mask>", "[MASK]", "[CLS]", "Word", "word", "ÄNDERUNG", "<tool_call>", "<|im_start", "im_end|>", "<<s>>", " <s> ", "<s><s>",
           "<|x|>", "  <mask>  ", "<start_of_turn>", "\n\n\n\n", "<｜User｜>"]


def code():
    lines = []
    for path in sorted(glob.glob(os.path.join(sysconfig.get_path("stdlib"), "*.py")))[:60]:
        with open(path, encoding="utf-8", errors="ignore") as f:
            lines += f.read(30000).split("\n")
    return lines


CODE = code()


def words():
    kind = rnd.randrange(12)
    if kind < 4:
        w = rnd.choice(SENTENCES).split(" ")
        i = rnd.randrange(len(w))
        return " ".join(w[i:i + rnd.randrange(1, 12)])
    if kind == 4:
        i = rnd.randrange(len(CODE) - 10)
        return "\n".join(CODE[i:i + rnd.randrange(1, 8)])
    if kind == 5:
        return "".join(rnd.choice(EMOJI) for _ in range(rnd.randrange(1, 4)))
    if kind == 6:
        return rnd.choice(ODD)
    if kind == 7:
        return rnd.choice(SPECIAL)
    if kind == 8:
        lo, hi = rnd.choice([(0x20, 0x7f), (0xa0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xe00), (0x1100, 0x1200),
                             (0x1e00, 0x2100), (0x2000, 0x2c00), (0x3000, 0x3400), (0x4e00, 0xa000), (0xa640, 0xa800), (0xac00, 0xd7a4),
                             (0xf900, 0xfb50), (0xfb50, 0xfe00), (0xfe00, 0xfff0), (0x10000, 0x11000), (0x1d400, 0x1d800), (0x1f300, 0x1fb00)])
        return "".join(chr(rnd.randrange(lo, hi)) for _ in range(rnd.randrange(1, 9)))
    if kind == 9:
        return "".join(rnd.choice("aAbBzZ019'\" .,;-_\n\t\r/\\éßÉ的あ") for _ in range(rnd.randrange(1, 24)))
    if kind == 10:
        return rnd.choice(SENTENCES).upper() if rnd.random() < .5 else rnd.choice(SENTENCES).title()
    return str(rnd.randrange(10 ** rnd.randrange(1, 15)))


def texts(n):
    out = ["", " ", "\n", "a", "Hello, world!", *SENTENCES, *EMOJI, *SPACES, *ODD, *SPECIAL]
    while len(out) < n:
        parts = []
        for _ in range(rnd.randrange(1, 9)):
            parts.append(words())
            if rnd.random() < .7:
                parts.append(rnd.choice(SPACES) if rnd.random() < .5 else " ")
        out.append("".join(parts))
    return out


GPT4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = "|".join([r"[^\r\n\p{L}\p{N}]?" + UP + "*" + LOW + "+" + ENDS, r"[^\r\n\p{L}\p{N}]?" + UP + "+" + LOW + "*" + ENDS, r"\p{N}{1,3}",
                  r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
KUP, KLOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
KIMI = "|".join([r"[\p{Han}]+", r"[^\r\n\p{L}\p{N}]?" + KUP + "*" + KLOW + "+" + ENDS, r"[^\r\n\p{L}\p{N}]?" + KUP + "+" + KLOW + "*" + ENDS,
                 r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""


def split(regex, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(regex), behavior, invert)


def byte_level(*before, prefix=False, regex=False):
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)
    return pre_tokenizers.Sequence([*before, last]) if before else last


def bpe(pre=None, norm=None, special=(), corpus=None, size=2000, alphabet=True, post=None, **model):
    t = Tokenizer(models.BPE(**model))
    if pre:
        t.pre_tokenizer = pre
    if norm:
        t.normalizer = norm
    extra = dict(initial_alphabet=pre_tokenizers.ByteLevel.alphabet()) if alphabet else dict(limit_alphabet=400)
    if model.get("byte_fallback"):
        special = list(special) + [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), show_progress=False, max_token_length=24, **extra)
    t.train_from_iterator(corpus, trainer)
    if post:
        t.post_processor = post(t)
    return t


def template(single, *names):
    return lambda t: processors.TemplateProcessing(single=single, special_tokens=[(n, t.token_to_id(n)) for n in names])


def families(corpus):
    chatml = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    yield "gpt2", bpe(byte_level(regex=True), special=["<|endoftext|>"], corpus=corpus, post=lambda t: processors.ByteLevel(trim_offsets=False))
    yield "llama3", bpe(byte_level(split(GPT4 % "{1,3}")), special=["<s>", "<|eot_id|>", "<|endoftext|>"], corpus=corpus, ignore_merges=True,
                        post=lambda t: processors.Sequence([processors.ByteLevel(trim_offsets=False), template("<s> $A", "<s>")(t)]))
    t = bpe(byte_level(split(GPT4 % "")), norm=normalizers.NFC(), special=chatml, corpus=corpus, post=lambda t: processors.ByteLevel(trim_offsets=False))
    t.add_tokens([AddedToken(x, normalized=False) for x in ["<tool_call>", "<think>", "</think>"]])
    yield "qwen2", t
    yield "gpt_oss", bpe(byte_level(split(O200K)), special=["<|endoftext|>"], corpus=corpus)
    yield "kimi", bpe(byte_level(split(KIMI)), special=["<|im_end|>"], corpus=corpus)
    t = bpe(byte_level(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK)), norm=normalizers.Sequence([]),
            special=["<s>", "</s>"], corpus=corpus, post=lambda t: processors.ByteLevel(trim_offsets=False))
    t.add_special_tokens([AddedToken("<｜User｜>", normalized=False)])
    t.add_tokens([AddedToken("<think>", normalized=True), AddedToken("</think>", normalized=True)])
    yield "deepseek", t
    yield "falcon", bpe(pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
                                                 pre_tokenizers.Digits(individual_digits=False), split("[0-9][0-9][0-9]")]),
                        special=["<|endoftext|>"], corpus=corpus)
    yield "starcoder", bpe(byte_level(pre_tokenizers.Digits(individual_digits=True), regex=True), special=["<|endoftext|>"], corpus=corpus)
    yield "roberta", bpe(byte_level(prefix=True, regex=True), special=["<s>", "</s>", "<mask>"], corpus=corpus,
                         post=lambda t: processors.RobertaProcessing(("</s>", 1), ("<s>", 0), add_prefix_space=True))
    t = bpe(byte_level(regex=True), norm=normalizers.NFKC(), special=["<|endoftext|>"], corpus=corpus)
    t.add_tokens([AddedToken(" " * n, normalized=True) for n in range(2, 9)])
    yield "phi", t
    spm = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    spm_kw = dict(alphabet=False, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    meta = [" ".join(x.split(" ")) for x in corpus]
    pre_train = dict(special=["<unk>", "<s>", "</s>"], corpus=meta, **spm_kw)
    t = bpe(pre_tokenizers.Metaspace(), post=template("<s> $A", "<s>"), **pre_train)
    t.pre_tokenizer = None
    t.normalizer = spm
    yield "llama2", t
    t = bpe(pre_tokenizers.Metaspace(prepend_scheme="first"), post=template("<s> $A", "<s>"), **pre_train)
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    t.add_special_tokens([AddedToken("[INST]", normalized=False), AddedToken("[/INST]", normalized=False)])
    yield "mistral", t
    t = bpe(pre_tokenizers.Metaspace(), **pre_train)
    t.pre_tokenizer = None
    t.normalizer = spm
    t.add_special_tokens([AddedToken("<|user|>", normalized=False, rstrip=True), AddedToken("<|endoftext|>", normalized=False, rstrip=True)])
    yield "phi3", t
    t = bpe(split(" ", "merged_with_previous"), norm=normalizers.Replace(" ", "▁"), special=["<pad>", "<eos>", "<bos>", "<unk>"],
            corpus=meta, post=template("<bos> $A", "<bos>"), **spm_kw)
    t.add_special_tokens(["<start_of_turn>"])
    t.add_tokens([AddedToken("\n" * n, normalized=False) for n in range(2, 6)] + [AddedToken("▁" * n, normalized=False) for n in range(2, 6)])
    yield "gemma", t
    yield "nounk", bpe(pre_tokenizers.Whitespace(), alphabet=False, special=["<s>"], corpus=corpus)
    yield "suffix", bpe(pre_tokenizers.BertPreTokenizer(), norm=normalizers.Lowercase(), alphabet=False, unk_token="<unk>", special=["<unk>"],
                        end_of_word_suffix="</w>", continuing_subword_prefix="##", corpus=corpus)
    t = bpe(pre_tokenizers.WhitespaceSplit(), norm=normalizers.Sequence([normalizers.Strip(), normalizers.Lowercase()]), alphabet=False,
            unk_token="<unk>", special=["<unk>"], corpus=corpus)
    t.add_tokens([AddedToken("Word", single_word=True), AddedToken("<mask>", lstrip=True, normalized=False), AddedToken("ÄNDERUNG", normalized=True),
                  AddedToken("word", normalized=False, single_word=True), AddedToken("<|x|>", lstrip=True, rstrip=True)])
    yield "added", t
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(corpus, trainers.WordPieceTrainer(vocab_size=1500, limit_alphabet=300, show_progress=False,
                                                            special_tokens=["[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    t.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    yield "bert", t
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=None)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(corpus, trainers.WordPieceTrainer(vocab_size=1500, limit_alphabet=300, show_progress=False, special_tokens=["[UNK]"]))
    yield "bert_cased", t
    for name, norm in [("unigram", normalizers.NFKC()), ("unigram_strip", normalizers.Sequence([
            normalizers.Nmt(), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]))]:
        t = Tokenizer(models.Unigram())
        t.normalizer = norm
        t.pre_tokenizer = pre_tokenizers.Metaspace()
        t.train_from_iterator(SENTENCES + CODE[:2000], trainers.UnigramTrainer(
            vocab_size=3000, unk_token="<unk>", special_tokens=["<unk>", "<s>", "</s>"], show_progress=False))
        t.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
        yield name, t
    yield "splits", bpe(pre_tokenizers.Sequence([split(r"\s", "merged_with_next"), split("[,.]", "merged_with_previous"), split("[0-9]", "contiguous"),
                                                 split("[a-z]+", "removed", True), split("x", "removed")]),
                        alphabet=False, unk_token="<unk>", special=["<unk>"], corpus=corpus)


def sentencepiece_unigram(folder):
    """A sentencepiece model with its usual normalization, as transformers converts it."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    text = os.path.join(folder, "sentences.txt")
    with open(text, "w") as f:
        f.write("\n".join((SENTENCES + CODE[:3000]) * 2))
    sentencepiece.SentencePieceTrainer.train(input=text, model_prefix=os.path.join(folder, "spm"), vocab_size=2500, character_coverage=1.0,
                                             byte_fallback=True, normalization_rule_name="nmt_nfkc", minloglevel=9)
    m = sentencepiece_model_pb2.ModelProto()
    with open(os.path.join(folder, "spm.model"), "rb") as f:
        m.ParseFromString(f.read())
    t = Tokenizer(models.Unigram([(p.piece, p.score) for p in m.pieces], m.trainer_spec.unk_id, True))
    t.normalizer = normalizers.Sequence([normalizers.Precompiled(m.normalizer_spec.precompiled_charsmap), normalizers.Replace(Regex(" {2,}"), "▁")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    t.add_special_tokens(["<s>", "</s>"])
    return t


def shipped():
    """Vocabularies that packages carry, as transformers converts them."""
    import mistral_common
    from transformers.convert_slow_tokenizer import SentencePieceExtractor
    from transformers.integrations.mistral.tokenizer import MistralConverter
    data = os.path.join(os.path.dirname(mistral_common.__file__), "data")
    yield "tekken", MistralConverter(os.path.join(data, "tekken_240911.json")).converted()
    kw = SentencePieceExtractor(os.path.join(data, "mistral_instruct_tokenizer_240323.model.v3")).extract(models.BPE)
    vocab = kw["vocab"] if isinstance(kw["vocab"], dict) else {p[0]: i for i, p in enumerate(kw["vocab"])}
    t = Tokenizer(models.BPE(vocab=vocab, merges=kw["merges"], fuse_unk=True, byte_fallback=True, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    t.add_special_tokens([x for x in ("<unk>", "<s>", "</s>", "[INST]", "[/INST]") if x in vocab])
    t.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", vocab["<s>"])])
    yield "mistral_v3", t


def folders(corpus):
    """Folders as on the hub, whose other files change what tokenizer.json says: NAME, tokenizer, files."""
    meta = dict(special=["<unk>", "<s>", "</s>"], corpus=corpus, alphabet=False, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    t = bpe(pre_tokenizers.Metaspace(), post=template("<s> $A", "<s>"), **meta)
    t.pre_tokenizer = None
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    base = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    yield "llama_first", t, {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "legacy": False, **base}, "config.json": llama}
    yield "llama_legacy", t, {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizerFast", "legacy": True, **base}, "config.json": llama}
    yield "llama_fast", t, {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **base}, "config.json": llama}
    yield "phi3_class", t, {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "legacy": False, **base}, "config.json": {**llama, "model_type": "phi3"}}
    q = bpe(byte_level(split(GPT4 % "")), norm=normalizers.NFC(), special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], corpus=corpus,
            post=lambda t: processors.ByteLevel(trim_offsets=False))
    added = {"2003": {"content": "<think>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": False},
             "2004": {"content": "<mask>", "lstrip": True, "normalized": False, "rstrip": True, "single_word": False, "special": True}}
    yield "qwen_added", q, {"tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
                                                      "added_tokens_decoder": added, "add_bos_token": True, "bos_token": None},
                            "config.json": {**llama, "model_type": "qwen2"}}
    yield "named_new", q, {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "bos_token": "<|im_start|>",
                                                     "pad_token": {"__type": "AddedToken", "content": "[MASK]", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}}}


def main(folder, n=10500):
    os.makedirs(folder, exist_ok=True)
    corpus = [x[:400] for x in texts(2500)]
    tests = texts(n)
    with open(os.path.join(folder, "texts.json"), "w") as f:
        json.dump(tests, f)

    def write(name, t, files=None):
        path = os.path.join(folder, name)
        os.makedirs(path, exist_ok=True)
        t.save(os.path.join(path, "tokenizer.json"), pretty=False)
        for file, content in (files or {}).items():
            with open(os.path.join(path, file), "w") as f:
                json.dump(content, f)
        if files:
            from transformers import AutoTokenizer
            t = AutoTokenizer.from_pretrained(path)
            both = [t(tests, add_special_tokens=s)["input_ids"] for s in (False, True)]
        else:
            t = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
            both = [[e.ids for e in t.encode_batch(tests, add_special_tokens=s)] for s in (False, True)]
        with open(os.path.join(path, "ids.json"), "w") as f:
            json.dump(list(zip(*both)), f, separators=(",", ":"))
        print(name, flush=True)

    for name, t, files in folders(corpus):
        write(name, t, files)
    for name, t in families(corpus):
        write(name, t)
    write("spm_unigram", sentencepiece_unigram(folder))
    for name, t in shipped():
        write(name, t)


def small(path):
    """A few families, small enough to be kept: one file with texts, tokenizers and ids."""
    corpus = [x[:200] for x in SENTENCES + CODE[:300]]
    tests = [x[:90] for x in texts(400)[250:290]] + ODD[:-8:2] + SPECIAL[::2] + EMOJI[:3] + SPACES[::3]
    out = []
    special = {"bpe": dict(size=420), "spm": dict(special=["<unk>", "<s>", "</s>"], alphabet=False, unk_token="<unk>", fuse_unk=True, byte_fallback=True, size=600)}
    t = bpe(byte_level(split(GPT4 % "{1,3}")), special=["<s>", "<|eot_id|>"], corpus=corpus, ignore_merges=True, post=template("<s> $A", "<s>"), **special["bpe"])
    out.append(("llama3", t))
    out.append(("o200k", bpe(byte_level(split(O200K)), norm=normalizers.NFC(), special=["<|endoftext|>"], corpus=corpus, **special["bpe"])))
    t = bpe(pre_tokenizers.Metaspace(), corpus=[x[:60] for x in SENTENCES], post=template("<s> $A", "<s>"), **special["spm"])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    t.add_special_tokens([AddedToken("[INST]", normalized=False, rstrip=True), AddedToken("<mask>", lstrip=True, normalized=False)])
    t.add_tokens([AddedToken("Word", single_word=True)])
    out.append(("mistral", t))
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(corpus, trainers.WordPieceTrainer(vocab_size=300, limit_alphabet=100, show_progress=False, special_tokens=["[UNK]", "[CLS]", "[SEP]"]))
    t.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    out.append(("bert", t))
    with open(path, "w") as f:
        json.dump({"texts": tests, "families": [{"name": n, "tokenizer": json.loads(t.to_str()),
                   "ids": [t.encode(x, add_special_tokens=True).ids for x in tests]} for n, t in out]}, f, separators=(",", ":"), ensure_ascii=False)
        f.write("\n")


if __name__ == "__main__":
    if sys.argv[1] == "small":
        small(sys.argv[2])
    else:
        main(sys.argv[1], *map(int, sys.argv[2:]))
