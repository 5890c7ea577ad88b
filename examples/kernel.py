"""The operation by itself, on tensors: exact against one dense mask, forwards and backwards."""

import torch

from focus_kernels import available_backends, focus_attention, reference_attention, which_backend

torch.manual_seed(0)
tokens, num_groups, top_k = 600, 8, 2
q = torch.randn(1, 4, tokens, 32, requires_grad=True)  # [B, Hq, T, D]
k = torch.randn(1, 2, tokens, 32, requires_grad=True)  # [B, Hkv, T, D]: grouped heads stay as they are
v = torch.randn(1, 2, tokens, 32, requires_grad=True)
groups = torch.rand(1, tokens, num_groups).topk(top_k).indices  # [B, T, k], best first; a router's in earnest
options = {"num_groups": num_groups, "window": 64, "sinks": 4}

print("backends here:", ", ".join(available_backends()))
print("chosen:", which_backend(q, k, v, groups, **options))
out = focus_attention(q, k, v, groups, **options)
want = reference_attention(q, k, v, groups, **options)
grad = torch.randn_like(out)
found = torch.autograd.grad(out, (q, k, v), grad)
wanted = torch.autograd.grad(want, (q, k, v), grad)
errors = [float((a - b).detach().abs().max()) for a, b in zip((out, *found), (want, *wanted), strict=True)]
print("largest difference of output, dq, dk, dv:", ", ".join(f"{error:.1e}" for error in errors))
assert max(errors) < 1e-4

full = focus_attention(q, k, v, groups, **{**options, "window": tokens})
plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
print(f"a window over everything is plain attention, to {float((full - plain).detach().abs().max()):.1e}")
