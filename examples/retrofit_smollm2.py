"""Five lines from checkpoint to sparse generation, and what happened inside. Needs no network: see load_pretrained."""

from pydoc_data.topics import topics

from focus_retrofit import FocusConfig, load_pretrained, retrofit

model, tokenizer = load_pretrained("smollm2-135m")
model = retrofit(model, FocusConfig(num_groups=4, top_k=2, window=128))
model.focus.balance(tokenizer(topics["import"], return_tensors="pt").input_ids[:, :1024])

prompt = tokenizer(topics["class"][:4000], return_tensors="pt")
out = model.generate(**prompt, max_new_tokens=24, do_sample=False)
print(tokenizer.decode(out[0, prompt.input_ids.shape[1] :]))
print(model.focus.report())
model.focus.save_pretrained("runs/retrofit_smollm2/adapter")
print("written: runs/retrofit_smollm2/adapter")
