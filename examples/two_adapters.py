"""Two adapters beside one base model, switched by name; the base is never touched."""

import torch
from tiny import TEXTS, tiny_model, tiny_tokenizer

from focus_retrofit import FocusConfig, retrofit

model, tokenizer = tiny_model(), tiny_tokenizer()
ids = tokenizer(TEXTS[0][:400], return_tensors="pt").input_ids
base = model(ids).logits.detach()

config = FocusConfig(num_groups=4, top_k=1, window=16)
for seed, (name, text) in enumerate(zip(("classes", "imports"), TEXTS, strict=False)):  # in earnest: two trainings
    retrofit(model, config, seed=seed)
    model.focus.balance(tokenizer(text[:1000], return_tensors="pt").input_ids)
    model.focus.save_pretrained(f"runs/two_adapters/{name}")
    model.focus.unload()

retrofit(model, config)
for name in ("classes", "imports"):
    model.focus.add_adapter(name, f"runs/two_adapters/{name}")
logits = {}
with torch.inference_mode():
    for name in ("classes", "imports"):
        model.focus.set_adapter(name)
        logits[name] = model(ids, use_cache=False).logits
        print(f"{name}: logits move by up to {(logits[name] - base).abs().max():.4f} from the base's")
    with model.focus.disabled():
        assert torch.equal(model(ids, use_cache=False).logits, base)
assert not torch.equal(logits["classes"], logits["imports"])
print("adapters:", ", ".join(model.focus.adapters))
