"""Builds the model of each task: a Transformer or its recurrent twin, as `model.kind` says."""

from __future__ import annotations

from triform.config import DataSizes, ModelConfig
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier
from triform.models.masked import MaskedLM
from triform.models.recurrent import RecurrentClassifier, RecurrentDecoder, RecurrentSeq2Seq
from triform.models.seq2seq import Seq2Seq
from triform.models.wide import WideClassifier

AnyClassifier = Classifier | RecurrentClassifier
AnyDecoder = Decoder | RecurrentDecoder
AnySeq2Seq = Seq2Seq | RecurrentSeq2Seq


def build_classifier(config: ModelConfig, sizes: DataSizes) -> AnyClassifier:
    """Build a classifier.

    Example:
        >>> sizes = DataSizes(vocab_size=100, max_len=16, n_labels=3)
        >>> model = build_classifier(ModelConfig(kind="gru", d_model=8), sizes)
        >>> type(model).__name__
        'RecurrentClassifier'
    """
    transformer_class = WideClassifier if config.term_buckets else Classifier
    return (RecurrentClassifier if config.is_recurrent else transformer_class)(config, sizes)


def build_decoder(config: ModelConfig, sizes: DataSizes) -> AnyDecoder:
    """Build a language model."""
    return (RecurrentDecoder if config.is_recurrent else Decoder)(config, sizes)


def build_seq2seq(config: ModelConfig, sizes: DataSizes) -> AnySeq2Seq:
    """Build a translator."""
    return (RecurrentSeq2Seq if config.is_recurrent else Seq2Seq)(config, sizes)


def build_masked_lm(config: ModelConfig, sizes: DataSizes) -> MaskedLM:
    """Build the encoder of a classifier with a head that predicts masked tokens."""
    return MaskedLM(config, sizes)
