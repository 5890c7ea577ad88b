"""Perplexity with full attention, with Focus and with what knows less, at the pairs each computes; then an audit."""

from tiny import TEXTS, tiny_model, tiny_tokenizer

from focus_retrofit import FocusConfig, retrofit
from focus_retrofit.audit import audit
from focus_retrofit.evaluation import evaluate, parse_methods

model, tokenizer = tiny_model(), tiny_tokenizer()
retrofit(model, FocusConfig(num_groups=4, top_k=1, window=16))
ids = tokenizer("\n".join(TEXTS), return_tensors="pt").input_ids
model.focus.balance(ids[:, :1024])

windows = list(ids[0, 1024 : 1024 + 4 * 256].split(256))
for row in evaluate(model, windows, parse_methods("full,window,random,focus,focus:2")):
    print(
        f"{row['method']:24} perplexity {row['perplexity']:7.2f} ({row['over_full']:+.2%} over full) "
        f"at {row['distant']:4.0%} of the distant pairs"
    )

found = audit(model, windows[0], largest_group=0.6)
for check in found.checks:
    print(f"{'holds' if check.holds else 'fails' if check.holds is False else '-':6} {check.name}")
assert found.holds
