"""The linear part of a classifier computes TF-IDF and a linear layer as scikit-learn does, in every layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer

from triform.analysis.parameters import count_parameters
from triform.config import DataSizes, ModelConfig
from triform.config.settings import build_config
from triform.models.wide import TermClassifier, WideClassifier
from triform.nn.kernels.packing import pack
from triform.nn.layouts import as_layout, pad

VOCAB_SIZE, N_BUCKETS, N_LABELS = 12, 64, 3
TEXTS = [[4, 5, 4, 4, 6], [7], [8, 9, 4, 5], [5, 5, 5, 5, 5, 5, 10]]


@pytest.fixture
def part() -> TermClassifier:
    generator = torch.Generator().manual_seed(0)
    part = TermClassifier(VOCAB_SIZE, N_BUCKETS, N_LABELS).double().eval()
    for parameter in part.parameters():
        parameter.data = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
    return part


def test_values_equal_those_of_scikit_learn(part: TermClassifier) -> None:
    texts = [" ".join(f"t{token}" for token in text) for text in TEXTS]
    vectorizer = TfidfVectorizer(token_pattern=r"\S+", sublinear_tf=True)
    expected = vectorizer.fit_transform(texts).toarray()
    columns = [int(term[1:]) for term in vectorizer.get_feature_names_out()]
    part.idf.data.zero_()
    part.idf.data[columns] = torch.from_numpy(vectorizer.idf_)
    tokens, keep = pad(TEXTS)
    ids, values = part.features(tokens, as_layout(keep))
    dense = torch.zeros(len(TEXTS), VOCAB_SIZE + N_BUCKETS, dtype=torch.float64).scatter_add(1, ids, values)
    np.testing.assert_allclose(dense[:, columns].numpy(), expected, rtol=1e-12)


def test_terms_are_counted_among_the_tokens_of_their_text(part: TermClassifier) -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCAB_SIZE, (20, 13), generator=generator)
    lengths = torch.randint(14, (20,), generator=generator)
    keep = torch.arange(13) < lengths[:, None]
    ids, counts, frequencies = part.count_terms(tokens, as_layout(keep))
    for row, length in enumerate(lengths.tolist()):
        is_real = torch.cat([keep[row], keep[row] & (torch.arange(13) > 0)])
        terms = ids[row][is_real].tolist()
        assert len(terms) == max(0, 2 * length - 1)
        assert counts[row][is_real].tolist() == [terms.count(term) for term in terms]
        assert not frequencies[row][~is_real].any()


def test_packed_and_padded_texts_have_the_same_logits(part: TermClassifier) -> None:
    tokens, keep = pad(TEXTS, fill=9)
    packed, layout = pack(TEXTS)
    expected = torch.cat([part.term_logits(torch.tensor([text]), as_layout(None)) for text in TEXTS])
    torch.testing.assert_close(part.term_logits(tokens, as_layout(keep)), expected)
    torch.testing.assert_close(part.term_logits(packed, layout), expected)


def test_the_order_of_words_changes_the_pairs_but_not_the_tokens(part: TermClassifier) -> None:
    (ids,), _ = part.features(torch.tensor([[4, 5, 6]]), as_layout(None))
    (other,), _ = part.features(torch.tensor([[6, 5, 4]]), as_layout(None))
    assert set(ids[:3].tolist()) == set(other[:3].tolist()) == {4, 5, 6}
    assert set(ids[4:].tolist()) != set(other[4:].tolist())
    assert min(ids[3:].tolist()) >= VOCAB_SIZE


def test_contributions_add_up_to_the_logits(part: TermClassifier) -> None:
    tokens = torch.tensor([TEXTS[0]])
    total = part.contributions(tokens, as_layout(None)).sum(dim=1) + part.mixture[1] * part.bias
    torch.testing.assert_close(total, part.mixture[1] * part.term_logits(tokens, as_layout(None)))


def test_a_text_without_known_terms_has_the_bias_as_logits(part: TermClassifier) -> None:
    for parameter in (part.idf, part.ngram_logits, part.ngram_projection):
        parameter.data.zero_()
    torch.testing.assert_close(part.term_logits(torch.tensor([[4, 5]]), as_layout(None))[0], part.bias.data)


def test_the_encoder_trains_alone_and_answers_together_with_the_linear_part() -> None:
    sizes = DataSizes(vocab_size=VOCAB_SIZE, max_len=8, n_labels=N_LABELS)
    config = ModelConfig(d_model=8, d_ff=8, n_layers=1, n_heads=2, dropout=0.0, term_buckets=N_BUCKETS)
    model = WideClassifier(config, sizes)
    model.linear_part.bias.data += torch.arange(3.0)
    tokens = torch.tensor([TEXTS[0]])
    torch.testing.assert_close(model.eval()(tokens), model.train()(tokens) + torch.arange(3.0))
    model(tokens).sum().backward()
    assert all(parameter.grad is None for parameter in model.linear_part.parameters())


def test_the_number_of_parameters_is_known_before_the_model_is_built() -> None:
    sizes = DataSizes(vocab_size=VOCAB_SIZE, max_len=8, n_labels=N_LABELS)
    settings = {"d_model": 8, "d_ff": 8, "n_layers": 1, "n_heads": 2, "term_buckets": N_BUCKETS}
    config = build_config({"task": "classify", **{f"model.{name}": value for name, value in settings.items()}})
    model = WideClassifier(config.model, sizes)
    assert count_parameters(config, sizes).total == sum(parameter.numel() for parameter in model.parameters())
