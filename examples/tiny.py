"""What the small examples share: a Llama with random weights and a tokenizer of single characters. No download."""

from pydoc_data.topics import topics

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEXTS = [topics[name] for name in ("class", "import", "with", "numeric-types")]


def tiny_model() -> LlamaForCausalLM:
    """Two layers, grouped key heads, random weights: it writes nonsense, at the speed of an example."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable character; 0 ends a text."""
    characters = ["<end>", "\n", *map(chr, range(32, 127))]
    tokenizer = Tokenizer(models.WordLevel({c: n for n, c in enumerate(characters)}, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
