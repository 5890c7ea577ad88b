"""From a model to a trained adapter and back: retrofit, train on strings, save, load, generate. Seconds on a CPU."""

from tiny import TEXTS, tiny_model, tiny_tokenizer

from focus_retrofit import FocusConfig, load_adapter, retrofit
from focus_retrofit.training import TrainConfig, train

model, tokenizer = tiny_model(), tiny_tokenizer()
retrofit(model, FocusConfig(num_groups=4, top_k=1, window=16))
print(f"{model.focus.num_parameters():,} of {model.num_parameters():,} parameters train")

config = TrainConfig(length=128, fit_windows=4, fit_steps=20, steps=4, eval_every=0)
found = train(model, tokenizer, TEXTS[:3], "runs/train_tiny", held_out=[TEXTS[3][:1000]], config=config)
print(f"held-out perplexity {found['stages']['train']['perplexity']:.1f} (random weights)")

served = load_adapter(tiny_model(), "runs/train_tiny/adapter")  # a fresh base model and the adapter on disk
prompt = tokenizer(TEXTS[0][:300], return_tensors="pt", return_token_type_ids=False)
out = served.generate(**prompt, max_new_tokens=8, do_sample=False)
assert (out == model.generate(**prompt, max_new_tokens=8, do_sample=False)).all()
print(served.focus.report())
