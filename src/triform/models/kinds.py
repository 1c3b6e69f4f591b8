"""Which class a form is, by `model.kind`: a Transformer or its recurrent twin."""

from __future__ import annotations

from triform.config import ModelConfig, Sizes
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier
from triform.models.recurrent import RecurrentClassifier, RecurrentDecoder, RecurrentSeq2Seq
from triform.models.seq2seq import Seq2Seq

AnyClassifier = Classifier | RecurrentClassifier
AnyDecoder = Decoder | RecurrentDecoder
AnySeq2Seq = Seq2Seq | RecurrentSeq2Seq


def make_classifier(config: ModelConfig, sizes: Sizes) -> AnyClassifier:
    return (RecurrentClassifier if config.is_recurrent else Classifier)(config, sizes)


def make_decoder(config: ModelConfig, sizes: Sizes) -> AnyDecoder:
    return (RecurrentDecoder if config.is_recurrent else Decoder)(config, sizes)


def make_seq2seq(config: ModelConfig, sizes: Sizes) -> AnySeq2Seq:
    return (RecurrentSeq2Seq if config.is_recurrent else Seq2Seq)(config, sizes)
