"""The estimators of `triform.scratch`: classifier, language model and translator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Self

import numpy as np

from triform.config import DataSizes, DecodeConfig
from triform.errors import DataError
from triform.scratch import generation
from triform.scratch.attention import padding_mask, softmax
from triform.scratch.batches import batches_by_length, pad, resolve_batch_rows
from triform.scratch.loss import IGNORE_INDEX
from triform.scratch.models import EncoderClassifier, EncoderDecoder, TransformerDecoder
from triform.scratch.module import Array, SharedInput
from triform.scratch.numpy_estimator import NumpyEstimator
from triform.scratch.training import TrainingBatch, TrainingData, epoch_sampler, window_sampler
from triform.scratch.validation import derive_row_seeds, resolve_label_names
from triform.text import BOS, EOS, Tokenizer, train_tokenizer

MAX_PREDICT_TOKENS = 8_192  # tokens in a batch of predictions


class TextClassifier(NumpyEstimator):
    """Classify texts with an encoder.

    Args:
        config: The settings; unset sizes get defaults for small data.

    >>> from triform.config import Config, ModelConfig, TrainConfig
    >>> model = ModelConfig(d_model=16, n_layers=1, n_heads=2)
    >>> config = Config(model=model, train=TrainConfig(max_steps=40, lr=0.01))
    >>> classifier = TextClassifier(config).fit(["good soup", "bad soup"] * 4, ["yes", "no"] * 4)
    >>> classifier.predict(["good soup", "bad soup"])
    ['yes', 'no']
    """

    task = "classify"
    model_class = EncoderClassifier

    def sizes(self) -> DataSizes:
        return replace(super().sizes(), n_labels=len(self.labels))

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order of the probabilities."""
        return self.config.data.labels

    def fit(self, texts: Iterable[str], labels: Iterable[str]) -> Self:
        """Train on texts and their labels.

        Args:
            texts: The texts.
            labels: The label of each text.

        Raises:
            ConfigError: A setting is not supported.
            DataError: The data cannot be used, for example because there is only one label.
            DivergedError: Training diverged.
        """
        return self.fit_copy(texts, labels)

    def prepare_data(self, texts: Iterable[str], labels: Iterable[str]) -> TrainingData:
        self.reset_config()
        texts, labels = self.check_pairs(texts, labels, "texts", "labels")
        labels = [label.strip() for label in labels]  # the torch implementation strips labels too
        names = resolve_label_names(labels, self.initial_config.data.labels)
        self.config = replace(self.config, data=replace(self.config.data, labels=names))
        self.tokenizers = {"tokenizer.json": train_tokenizer(self.config.tokenizer, texts)}
        label_ids = np.array([names.index(label) for label in labels])
        rows = self.encode_texts(texts)
        self.resolve_max_len(max(map(len, rows)), 512)
        rows = [row[: self.config.data.max_len] for row in rows]
        self.build_model()

        def make_batch(indices: Array) -> TrainingBatch:
            tokens, keep = pad([rows[row] for row in indices.tolist()])
            return TrainingBatch({"tokens": tokens, "labels": label_ids[indices], "keep": keep}, len(indices))

        return TrainingData(*epoch_sampler(np.array([len(row) for row in rows]), self.config), make_batch)

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        return [row or [EOS] for row in self.tokenizer.encode_batch(texts)]

    def predict_proba(self, texts: Iterable[str]) -> Array:  # -> (texts, labels)
        """Compute the probability of each label.

        Args:
            texts: The texts.

        Returns:
            One row for each text, one column for each of `labels`.

        Raises:
            DataError: The model is not fitted yet.
        """
        self.check_fitted()
        rows = [
            row[: self.config.data.max_len]
            for row in self.encode_texts(self.check_texts(texts, "texts", allow_empty=True))
        ]
        probabilities = np.zeros((len(rows), len(self.labels)))
        for indices in batches_by_length([len(row) for row in rows], MAX_PREDICT_TOKENS):
            logits, _ = self.model(*pad([rows[row] for row in indices.tolist()]))
            probabilities[indices] = softmax(logits)
        return probabilities

    def predict(self, texts: Iterable[str]) -> list[str]:
        """Return the most likely label of each text.

        Args:
            texts: The texts.

        Returns:
            One of `labels` for each text.

        Raises:
            DataError: The model is not fitted yet.
        """
        return [self.labels[index] for index in self.predict_proba(texts).argmax(axis=-1).tolist()]


class LanguageModel(NumpyEstimator):
    """Continue texts with a decoder.

    Args:
        config: The settings; unset sizes get defaults for small data.

    >>> from triform.config import Config, ModelConfig, TrainConfig
    >>> model = ModelConfig(d_model=16, n_layers=1, n_heads=2)
    >>> config = Config(model=model, train=TrainConfig(max_steps=60, lr=0.01))
    >>> language_model = LanguageModel(config).fit("to be or not to be. " * 30)
    >>> language_model.generate(["to be or"], DecodeConfig(strategy="greedy", max_new_tokens=2))
    [' not to']
    """

    task = "generate"
    model_class = TransformerDecoder

    def fit(self, texts: str | Iterable[str]) -> Self:
        """Train on one text or on several documents.

        Args:
            texts: One text, or documents that end with an end token each.

        Raises:
            ConfigError: A setting is not supported.
            DataError: There is too little text.
            DivergedError: Training diverged.
        """
        return self.fit_copy(texts)

    def prepare_data(self, texts: str | Iterable[str]) -> TrainingData:
        self.reset_config()
        documents = [texts] if isinstance(texts, str) else self.check_texts(texts, "texts", allow_empty=True)
        self.tokenizers = {"tokenizer.json": train_tokenizer(self.config.tokenizer, documents)}
        encoded = self.tokenizer.encode_batch(documents)
        end_tokens = [] if isinstance(texts, str) else [EOS]
        stream = np.array([token for row in encoded for token in chain(row, end_tokens)], np.int64)
        self.resolve_max_len(len(stream) // 4, 128)
        width = self.config.data.max_len
        if len(stream) <= width:
            raise DataError(f"only {len(stream)} tokens to train on, and data.max_len={width} needs more; lower it")
        self.config = resolve_batch_rows(self.config, width)
        self.build_model()

        def make_batch(starts: Array) -> TrainingBatch:
            windows_tokens = stream[starts[:, None] + np.arange(width + 1)]  # (B, T + 1)
            return TrainingBatch(
                {"tokens": windows_tokens[:, :-1], "expected": windows_tokens[:, 1:]}, len(starts) * width
            )

        return TrainingData(*window_sampler(len(stream) - width, width, self.config), make_batch)

    def generate(
        self, prompts: Iterable[str], decode_config: DecodeConfig | None = None, seed: int | None = None
    ) -> list[str]:
        """Return a continuation of each prompt.

        Args:
            prompts: The texts to continue. An empty prompt starts a new line.
            decode_config: Decoding settings. The default is those of the config.
            seed: The random seed for sampling.

        Returns:
            The new text for each prompt, without the prompt.

        Raises:
            DataError: The model is not fitted yet, or a prompt has characters that it does not know.
        """
        self.check_fitted()
        decode_config, tokenizer, max_len = (
            decode_config or self.config.decode,
            self.tokenizer,
            self.config.data.max_len,
        )
        prompt_tokens = [
            self.encode_prompt(text) for text in self.check_texts(prompts, "prompts", allow_empty=True)
        ]

        def compute_logits(rows: Array, texts: list[list[int]]) -> Array:
            contexts = [generation.slide_context(text, max_len) for text in texts]
            states, _ = self.model.states(pad(contexts)[0])
            return self.model.lm_head(states[np.arange(len(contexts)), [len(text) - 1 for text in contexts]])[0]

        limits = [decode_config.max_new_tokens or 200] * len(prompt_tokens)
        request = generation.DecodeRequest(
            compute_logits,
            [text[-max_len:] for text in prompt_tokens],
            limits,
            derive_row_seeds(self.config, seed, len(prompt_tokens)),
        )
        new_tokens = generation.generate_tokens(request, decode_config, default="sample")
        pairs = zip(prompt_tokens, new_tokens, strict=True)
        return [generation.decode_continuation(tokenizer, *pair) for pair in pairs]

    predict = generate

    def encode_prompt(self, text: str) -> list[int]:
        """Encode a prompt. An empty one becomes a newline or, if the vocabulary has none, an end token.

        Args:
            text: The prompt.

        Returns:
            At least one token.

        Raises:
            DataError: The prompt has words or characters that are not in the vocabulary.
        """
        if unknown := self.tokenizer.find_unknown(text):
            examples = ", ".join(map(repr, unknown[:5]))
            raise DataError(f"the prompt contains text that is not in the vocabulary: {examples}; remove it")
        tokens = self.tokenizer.encode(text)
        return tokens or ([EOS] if self.tokenizer.find_unknown("\n") else self.tokenizer.encode("\n")) or [EOS]


class Translator(NumpyEstimator):
    """Translate sentences with an encoder-decoder.

    Args:
        config: The settings; unset sizes get defaults for small data.

    >>> from triform.config import Config, ModelConfig, TrainConfig
    >>> model = ModelConfig(d_model=16, n_layers=1, n_heads=2)
    >>> config = Config(model=model, train=TrainConfig(max_steps=60, lr=0.01))
    >>> translator = Translator(config).fit(["one two", "two three"] * 4, ["un deux", "deux trois"] * 4)
    >>> translator.translate(["two three"])
    ['deux trois']
    """

    task = "translate"
    model_class = EncoderDecoder

    def sizes(self) -> DataSizes:
        return replace(
            super().sizes(), target_vocab_size=self.target_tokenizer.vocab_size if len(self.tokenizers) > 1 else 0
        )

    @property
    def target_tokenizer(self) -> Tokenizer:
        """The tokenizer of the target language."""
        return list(self.tokenizers.values())[-1]

    def fit(self, sources: Iterable[str], targets: Iterable[str]) -> Self:
        """Train on sentences and their translations.

        Args:
            sources: The sentences.
            targets: Their translations, in the same order.

        Raises:
            ConfigError: A setting is not supported.
            DataError: The data cannot be used.
            DivergedError: Training diverged.
        """
        return self.fit_copy(sources, targets)

    def prepare_data(self, sources: Iterable[str], targets: Iterable[str]) -> TrainingData:
        self.reset_config()
        sources, targets = self.check_pairs(sources, targets, "sources", "targets")
        if self.config.tokenizer.joint_vocab:
            self.tokenizers = {"tokenizer.json": train_tokenizer(self.config.tokenizer, [*sources, *targets])}
        else:
            sides = {"source": sources, "target": targets}
            self.tokenizers = {
                f"tokenizer.{side}.json": train_tokenizer(self.config.tokenizer, texts)
                for side, texts in sides.items()
            }
        source_rows = [row or [EOS] for row in self.tokenizer.encode_batch(sources)]
        target_rows = [[BOS, *row, EOS] for row in self.target_tokenizer.encode_batch(targets)]
        longest = max(len(row) for row in chain(source_rows, target_rows))
        self.resolve_max_len(longest + 7, 256)
        max_len = self.config.data.max_len
        source_rows, target_rows = (
            [row[:max_len] for row in source_rows],
            [row[: max_len + 1] for row in target_rows],
        )
        self.build_model()

        def make_batch(indices: Array) -> TrainingBatch:
            source, keep = pad([source_rows[row] for row in indices.tolist()])
            target, _ = pad([target_rows[row][:-1] for row in indices.tolist()])
            expected, _ = pad([target_rows[row][1:] for row in indices.tolist()], fill=IGNORE_INDEX)
            inputs = {"source": source, "target": target, "expected": expected, "source_keep": keep}
            return TrainingBatch(inputs, int((expected != IGNORE_INDEX).sum()))

        lengths = np.array(
            [
                max(len(source_row), len(target_row) - 1)
                for source_row, target_row in zip(source_rows, target_rows, strict=True)
            ]
        )
        return TrainingData(*epoch_sampler(lengths, self.config), make_batch)

    def translate(
        self, texts: Iterable[str], decode_config: DecodeConfig | None = None, seed: int | None = None
    ) -> list[str]:
        """Translate sentences, by default with beam search.

        Args:
            texts: The sentences.
            decode_config: Decoding settings. The default is those of the config.
            seed: The random seed for sampling.

        Returns:
            One translation for each sentence.

        Raises:
            DataError: The model is not fitted yet.
        """
        self.check_fitted()
        decode_config, max_len = decode_config or self.config.decode, self.config.data.max_len
        rows = [
            row[:max_len] or [EOS]
            for row in self.tokenizer.encode_batch(self.check_texts(texts, "texts", allow_empty=True))
        ]
        seeds = derive_row_seeds(self.config, seed, len(rows))
        translations = [""] * len(rows)
        for batch in batches_by_length([len(row) for row in rows], MAX_PREDICT_TOKENS // decode_config.beam_size):
            indices = batch.tolist()
            limits = [min(max_len - 1, decode_config.max_new_tokens or 2 * len(rows[row]) + 16) for row in indices]
            request = generation.DecodeRequest(
                self.build_logits_fn([rows[row] for row in indices]),
                [[BOS]] * len(indices),
                limits,
                [seeds[row] for row in indices],
            )
            for row, tokens in zip(
                indices, generation.generate_tokens(request, decode_config, default="beam"), strict=True
            ):
                translations[row] = self.target_tokenizer.decode(tokens)
        return translations

    predict = translate

    def build_logits_fn(self, sources: list[list[int]]) -> generation.LogitsFn:
        """Return the function that computes logits. The encoder reads the sources only once."""
        source, keep = pad(sources)
        encoded, _ = self.model.encoder(source, keep, None)

        def compute_logits(rows: Array, texts: list[list[int]]) -> Array:
            masks = () if keep is None else (padding_mask(keep[rows], encoded.dtype),)
            states, _ = self.model.decode_states(np.array(texts), SharedInput(encoded[rows]), masks)
            return self.model.lm_head(states[:, -1])[0]

        return compute_logits
