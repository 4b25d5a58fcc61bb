# SPDX-License-Identifier: Apache-2.0
"""Makes a model folder that vLLM serves with random weights (--load-format dummy).

    tiny_model.py FOLDER

Two layers of Qwen2 and a byte-level tokenizer trained on Python's standard library: enough for real
scheduling, real prefix caching and real metrics, a second of work, and nothing to download.
"""
import json
import sys
import sysconfig
from pathlib import Path

from tokenizers import ByteLevelBPETokenizer

CONTEXT, VOCABULARY = 8192, 4096

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 2,
}

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    texts = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:60]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train([str(t) for t in texts], vocab_size=VOCABULARY, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
