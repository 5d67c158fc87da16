"""The two small models: shapes, initial weights, and the MTP head that transformers leaves out.

The trunk is transformers' own Qwen3_5 classes. The head is the released one: a full-attention layer over fc(norm(embedding of token i+1), norm(hidden state i)),
sharing the embedding and the output matrix; its logits at position i are for token i+2.
"""
import torch
from torch import nn
from transformers import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig

VOCAB = 2048
ROPE = {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25, "mrope_interleaved": True, "mrope_section": [3, 3, 2]}
COMMON = dict(vocab_size=VOCAB, hidden_size=128, num_attention_heads=4, num_key_value_heads=2, head_dim=64, linear_num_key_heads=2, linear_num_value_heads=4,
              linear_key_head_dim=32, linear_value_head_dim=32, linear_conv_kernel_dim=4, max_position_embeddings=4096, rope_parameters=ROPE,
              eos_token_id=2002, pad_token_id=2000)
DENSE = dict(COMMON, num_hidden_layers=8, intermediate_size=384, tie_word_embeddings=True)
MOE = dict(COMMON, num_hidden_layers=4, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=128, shared_expert_intermediate_size=128, tie_word_embeddings=False,
           output_router_logits=False, router_aux_loss_coef=0.001)


class Mtp(nn.Module):
    """One draft head. forward: hidden [B, T, H] after the trunk's final norm and the embeddings [B, T, H] of the tokens that follow -> [B, T, H] before the output matrix."""

    def __init__(self, trunk):
        super().__init__()
        config = trunk.config
        layer, norm = type(trunk.layers[0]), type(trunk.norm)
        self.layers = nn.ModuleList([layer(config, config.layer_types.index("full_attention"))])
        self.norm = norm(config.hidden_size, eps=config.rms_norm_eps)
        self.pre_fc_norm_embedding = norm(config.hidden_size, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = norm(config.hidden_size, eps=config.rms_norm_eps)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)

    def forward(self, trunk, hidden, embedded):
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)], -1))
        positions = torch.arange(x.shape[1]).view(1, 1, -1).expand(3, x.shape[0], -1)
        rotary = trunk.rotary_emb(x, positions)
        return self.norm(self.layers[0](x, position_embeddings=rotary, attention_mask=None))


def build(kind):
    """(model, head) with initial weights; kind: dense or moe."""
    if kind == "moe":
        model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**MOE))
    else:
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**DENSE))
    model.config._attn_implementation = "sdpa"
    head = Mtp(model.model)
    depth = model.config.num_hidden_layers
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *head.named_parameters()]:
            if "embed_tokens" in name:
                p.normal_(0, 0.09)  # 1 / sqrt(hidden)
            elif p.dim() >= 2 and "conv1d" not in name:
                p.normal_(0, p.shape[-1] ** -0.5 * (0.5 if "gate.weight" in name else 1.0))
                if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")):
                    p.mul_((2 * depth) ** -0.5)
            elif name.endswith("A_log"):
                p.copy_(torch.linspace(-2, 0, p.numel()) * 2.302585)  # memories of 300 tokens down to 3
            elif name.endswith("dt_bias"):
                p.fill_(-1.0)
        for number, layer in enumerate(model.model.layers):
            look_back(layer, number, model.config)
    return model, head


LOOK_BACK = [(1.0,), (1.0, 0.8), (1.0, 0.8, 0.6)]  # of the tokens that are matched, the last first


def look_back(layer, number, c):
    """Initial weights with which a layer finds what it has seen before: a key is made as a query is, and in every second Gated DeltaNet layer of the tokens before, so that a token finds
    what came after it the last time: the first such layer by one token, the second by two, the others by three. What to do with what was found is learned. From an ordinary start, copying
    had not begun after 2 million tokens.
    """
    if hasattr(layer, "self_attn"):
        a = layer.self_attn
        group = c.num_attention_heads // c.num_key_value_heads
        for kv in range(c.num_key_value_heads):  # a head's rows of q_proj: head_dim of the query, then as many of the gate
            q = a.q_proj.weight[2 * c.head_dim * group * kv:][:c.head_dim]
            a.k_proj.weight[c.head_dim * kv:c.head_dim * (kv + 1)] = q
        return
    keys = c.linear_num_key_heads * c.linear_key_head_dim
    m = layer.linear_attn
    m.in_proj_qkv.weight[keys:2 * keys] = m.in_proj_qkv.weight[:keys]
    taps = m.conv1d.weight.normal_(0, 0.1)       # [channels, 1, 4], the last is the token itself
    taps[:, 0, 3] += 1.0
    if number % 2 == 0:
        taps[:2 * keys, 0, 3] -= 1.0
        for back, share in enumerate(LOOK_BACK[min(number // 2, 2)]):
            taps[:keys, 0, 3 - back] += share
            taps[keys:2 * keys, 0, 2 - back] += share
