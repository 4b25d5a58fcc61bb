# SPDX-License-Identifier: Apache-2.0
"""Makes a model folder that vLLM serves with random weights (--load-format dummy).

    tiny_model.py FOLDER

Two layers of Qwen2 and a byte-level tokenizer trained on Python's standard library: enough for real
scheduling, real prefix caching and real metrics, a second of work, and nothing to download. FOLDER/adapter is a LoRA adapter of it.
"""
import json
import sys
import sysconfig
from pathlib import Path

import numpy
from safetensors.numpy import save_file
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

# The tests of the tokenizers have it, too.
CHAT = Path(__file__).resolve().parent.parent / "tokens" / "templates" / "qwen.jinja"

RANK = 4  # of the adapter


def adapter(folder: Path) -> None:
    """Writes a LoRA adapter as PEFT does, with random weights."""
    folder.mkdir(parents=True, exist_ok=True)
    random = numpy.random.default_rng(6)
    heads, keys, width = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"], CONFIG["hidden_size"]
    out = {"q_proj": width, "v_proj": width // heads * keys}
    weights = {}
    for layer in range(CONFIG["num_hidden_layers"]):
        for name, size in out.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[at + ".lora_A.weight"] = random.normal(0, 1, (RANK, width)).astype(numpy.float32)
            weights[at + ".lora_B.weight"] = random.normal(0, 1, (size, RANK)).astype(numpy.float32)
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": list(out), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=1))


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
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    (folder / "chat_template.jinja").write_text(CHAT.read_text())
    adapter(folder / "adapter")
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
