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


QUIET = 0.05  # of what layers write at first, but for what look_back sets: embeddings are of norm 1


def build(kind, twins=()):
    """(model, head) with initial weights; kind: dense or moe; twins: pairs of ids that are one word with a space before it and without."""
    if kind == "moe":
        model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**MOE))
    else:
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**DENSE))
    model.config._attn_implementation = "sdpa"
    head = Mtp(model.model)
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *head.named_parameters()]:
            if "embed_tokens" in name:
                p.normal_(0, 0.09)  # 1 / sqrt(hidden)
            elif p.dim() >= 2 and "conv1d" not in name:
                p.normal_(0, p.shape[-1] ** -0.5 * (0.5 if "gate.weight" in name else 1.0))
                if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")):
                    p.mul_(QUIET)
            elif name.endswith("A_log"):
                p.copy_(torch.linspace(-2, 0, p.numel()) * 2.302585)  # memories of 300 tokens down to 3
            elif name.endswith("dt_bias"):
                p.fill_(-1.0)
        look_back(model, twins)
    return model, head


CONSTANT = 0.3        # dimension 0 of every embedding: what gates and step sizes can rest on, since no projection has a bias; as part of the output matrix it adds the same to every logit
SPACE = 0.3           # dimension 1: whether a word has a space before it
OWN, BACK = 64, 21    # dimensions of the residual stream that a token's embedding fills at first, and that each of the three tokens before it is written to


def place(back):
    """Where the residual stream holds the token itself (0) or the one so many places before it (1 to 3)."""
    return slice(1, 1 + OWN) if back == 0 else slice(1 + OWN + (back - 1) * BACK, 1 + OWN + back * BACK)


def look_back(model, twins):
    """Initial weights with which the model finds what it has seen before; what to do with what was found is learned. From an ordinary start, copying had not begun after 2 million tokens.

    The first three layers are Gated DeltaNet: one head of layer i writes the token i + 1 places back, shortened to BACK dimensions, to a place of its own in the residual stream (the convolution of the
    values takes it from there; step sizes near 1 make a state hold the last token only). The first attention layer matches: a query is made of the last three tokens, a key of the three before its own, and the
    value is its own token, the one that came next then. The output matrix adds it to where a token's own embedding is, so it is read as the prediction. (Olsson et al. 2022 call this an induction head.)
    """
    c = model.config
    keys, d = c.linear_num_key_heads * c.linear_key_head_dim, c.linear_value_head_dim
    assert c.layer_types[:4] == ["linear_attention"] * 3 + ["full_attention"] and BACK <= d and 1 + OWN + 3 * BACK == c.hidden_size
    table = model.model.embed_tokens.weight
    table.normal_(0, OWN ** -0.5)
    for spaced, plain in twins:  # a word is copied to the beginning of an answer, where it has no space; from unrelated embeddings that is learned word by word
        table[spaced] = 0.9 * table[plain] + 0.44 * table[spaced]
    table[:, 1 + OWN:] = 0
    table[:, 0] = CONSTANT
    table[:, 1] = -SPACE
    table[[spaced for spaced, _ in twins], 1] = SPACE
    if not c.tie_word_embeddings:
        model.lm_head.weight.copy_(table)
    shorten = torch.randn(BACK, OWN) * OWN ** -0.5
    for number, layer in enumerate(model.model.layers):
        if hasattr(layer, "self_attn"):
            if number == 3:
                match(layer.self_attn, shorten, c)
            continue
        m = layer.linear_attn
        m.in_proj_qkv.weight[keys:2 * keys] = m.in_proj_qkv.weight[:keys]
        taps = m.conv1d.weight.normal_(0, 0.02)  # [channels, 1, 4], the last is the token itself
        taps[:, 0, 3] += 1.0
        if number < 3:  # value head 0
            v = slice(2 * keys, 2 * keys + d)
            taps[v, 0, 3] -= 1.0
            taps[v, 0, 2 - number] += 1.0
            m.in_proj_qkv.weight[v] = 0
            m.in_proj_qkv.weight[v][:BACK, place(0)] = 0.5 * shorten  # small: SiLU is nearly linear there
            m.in_proj_b.weight[0] = 0
            m.in_proj_b.weight[0, 0] = 1.5
            m.in_proj_z.weight[:d] = 0
            m.in_proj_z.weight[:d, 0] = 0.5
            m.out_proj.weight[:, :d] = 0
            m.out_proj.weight[place(number + 1), :BACK] = 0.1 * torch.eye(BACK)
        else:
            taps[keys:2 * keys, 0, 3] -= 1.0  # keys of the token before: what came after it
            taps[keys:2 * keys, 0, 2] += 1.0


def match(a, shorten, c):
    """Induction in the first attention layer (in two of them the dense model had more to unlearn): the first query head of each key head matches three tokens. Rotary dimensions are left out of it."""
    d, group, rotary = c.head_dim, c.num_attention_heads // c.num_key_value_heads, int(c.head_dim * ROPE["partial_rotary_factor"])
    each = (d - rotary) // 3
    a.q_norm.weight.fill_(0.7)
    a.k_norm.weight.fill_(0.7)
    for kv in range(c.num_key_value_heads):
        head = kv * group
        q = a.q_proj.weight[2 * d * head:][:d]
        k = a.k_proj.weight[d * kv:d * (kv + 1)]
        v = a.v_proj.weight[d * kv:d * (kv + 1)]
        q.mul_(0.05)
        k.mul_(0.05)
        v.mul_(0.05)
        for i in range(3):
            rows, mix = slice(rotary + i * each, rotary + (i + 1) * each), torch.randn(each, BACK) * BACK ** -0.5
            q[rows, place(i)] += 1.2 * mix @ shorten if i == 0 else mix
            k[rows, place(i + 1)] += mix
        v[:, place(0)] += torch.eye(OWN)
        a.o_proj.weight[place(0), d * head:d * (head + 1)] += 0.2 * torch.eye(OWN)
