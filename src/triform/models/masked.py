"""The encoder of a classifier with a head that predicts masked tokens, for pretraining."""

from __future__ import annotations

from torch import Tensor, nn

from triform.config import DataSizes, ModelConfig
from triform.models.decoder import build_lm_head
from triform.models.encoder import Encoder
from triform.models.recurrent import RecurrentEncoder
from triform.nn.attention import Attention
from triform.nn.initialisation import initialise_weights
from triform.nn.layouts import LayoutLike
from triform.nn.loss import HeadLoss, lm_head_loss


class MaskedLM(nn.Module):
    """A masked language model. Its encoder has the names and shapes of the encoder of a classifier.

    Example:
        >>> import torch
        >>> config = ModelConfig(d_model=8, d_ff=16, n_layers=2, n_heads=2)
        >>> model = MaskedLM(config, DataSizes(vocab_size=100, max_len=16))
        >>> model(torch.tensor([[1, 2, 3]])).shape  # logits (B, T, V)
        torch.Size([1, 3, 100])
    """

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        super().__init__()
        self.encoder = (RecurrentEncoder if config.is_recurrent else Encoder)(config, sizes)
        self.lm_head = build_lm_head(config, self.encoder.embedding)
        self.head_loss: HeadLoss = lm_head_loss
        initialise_weights(self, 0 if config.is_recurrent else config.n_layers)

    def forward(self, tokens: Tensor, keep: LayoutLike = None) -> Tensor:
        """Return the logits (B, T, V) of the token at each position; for the arguments see `Encoder.forward`."""
        return self.lm_head(self.encoder(tokens, keep))

    def attention_stacks(self) -> dict[str, list[Attention]]:
        """Return the attention layers by the name of their stack. Recurrent encoders have none."""
        return self.encoder.attention_stacks() if isinstance(self.encoder, Encoder) else {}
