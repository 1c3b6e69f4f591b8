"""Fit the linear part of a classifier, `TermClassifier`, which gradient descent would not bring to its optimum.

Before the first step, a logistic regression with an L2 penalty is fitted to the training texts. Words that share
letters share a part of their weight: beside its own weight, a word has those of its character n-grams, and the sum
of all is what the model gets. At each validation, the weights of the encoder and of the linear part are fitted to
the validation texts, so that a part counts for as much as it knows about texts that it has not seen. With
`train.refit_linear_part`, the linear part is fitted once more after training, to the validation texts as well. The
latest checkpoint keeps the one that has not seen them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.errors import CheckpointError
from triform.models.wide import TermClassifier
from triform.nn.layouts import as_layout
from triform.tasks.batch import Dataset
from triform.tasks.classification_data import ClassificationDataset
from triform.tasks.classify import Classify, iter_inputs
from triform.tasks.task import Task
from triform.text import Tokenizer
from triform.training.embeddings import piece_words
from triform.training.run_folder import RunFolder
from triform.world import broadcast_value

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
SparseMatrix = Any  # scipy.sparse.csr_matrix, which has no types
C_GRID = (10.0, 30.0, 100.0)  # candidates for the inverse regularisation strength
N_FOLDS = 5
MAX_CROSS_VALIDATION_ROWS = 2_000  # with more texts, one of the folds is enough to choose from the candidates
MIN_PAIR_DF = 2  # a pair must occur in this number of texts; most occur in one and carry little information
NGRAM_LENGTHS = (2, 5)  # of the characters of a word
NGRAM_SCALE = 0.5  # the part of a word's weight that comes from its character n-grams
MAX_NGRAM_TOKENS = 500_000  # tokens of training text; with more, words are seen often enough
MISSING_LABEL_LOGIT = -10.0  # of a label without training texts
MIN_PROBABILITY = 1e-9  # of a label that a fold does not know
MIXTURE_PENALTY = 10.0  # of the squared distance from the linear part alone; about as strong as ten texts
TOLERANCE, MAX_ITERATIONS = 1e-5, 500


def find_linear_part(model: nn.Module) -> TermClassifier | None:
    """Return the linear part of a model, or None if it has none."""
    part = getattr(model, "linear_part", None)
    return part if isinstance(part, TermClassifier) else None


@torch.inference_mode()
def fit_linear_part(task: Task, *sets: Dataset) -> None:
    """Fit the linear part of a model to labelled texts.

    Args:
        task: The task with the model.
        *sets: The texts.
    """
    part = find_linear_part(task.model)
    if part is None:
        return
    from scipy.sparse import vstack

    assert isinstance(task, Classify)
    texts = [data for data in sets if isinstance(data, ClassificationDataset)]
    labels = np.concatenate([data.labels for data in texts])
    frequencies = vstack([_term_frequencies(task, data, part) for data in texts]).tocsr()
    document_frequency = frequencies.getnnz(axis=0)
    is_kept = document_frequency >= np.where(np.arange(len(part.idf)) < part.vocab_size, 1, MIN_PAIR_DF)
    idf = np.where(is_kept, np.log((1 + len(labels)) / (1 + document_frequency)) + 1, 0.0)
    part.idf.copy_(torch.from_numpy(idf))
    if len(set(labels.tolist())) < 2:
        return
    features = _normalise_rows(frequencies @ _diagonal(idf))
    n_tokens = sum(int(data.lengths.sum()) for data in texts)
    sharing = _build_sharing(task.tokenizer, part) if n_tokens <= MAX_NGRAM_TOKENS else None
    weight, bias = _fit_logistic_regression(features, labels, sharing, n_labels=len(part.bias))
    part.weight.copy_(torch.from_numpy(weight))
    part.bias.copy_(torch.from_numpy(bias))


def select_fitted(tensors: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """Return the tensors that `fit_linear_part` sets, by their names without a prefix."""
    names = [f"linear_part.{name}" for name in ("idf", "weight", "bias")]
    return {name: tensors[prefix + name] for name in names if prefix + name in tensors}


@torch.inference_mode()
def restore_linear_part(model: nn.Module, folder: RunFolder) -> None:
    """Give a model the linear part of the latest checkpoint of its run, which has not seen the validation texts."""
    latest = folder.read_latest_checkpoint()
    if latest is None:
        raise CheckpointError(
            f"{folder.path} has no checkpoint, and its model has learned the validation texts "
            "(train.refit_linear_part); name another file to evaluate"
        )
    for name, tensor in select_fitted(latest[1], prefix="model.").items():
        model.get_parameter(name).copy_(tensor)


def _term_frequencies(task: Classify, data: ClassificationDataset, part: TermClassifier) -> SparseMatrix:
    """Return the sublinear frequency of each term in each text."""
    from scipy.sparse import csr_matrix

    rows, ids, values = [], [], []
    for indices, tokens, keep in iter_inputs(task, data):
        terms = part.count_terms(tokens, as_layout(keep))
        is_real = terms.frequencies > 0
        rows.append(np.repeat(indices, is_real.sum(dim=1).cpu().numpy()))
        ids.append(terms.ids[is_real].cpu().numpy())
        values.append(terms.frequencies[is_real].double().cpu().numpy())
    coordinates = np.concatenate(rows), np.concatenate(ids)
    return csr_matrix((np.concatenate(values), coordinates), shape=(len(data.labels), len(part.idf)))


def _build_sharing(tokenizer: Tokenizer, part: TermClassifier) -> SparseMatrix | None:
    """Return how much of each character n-gram's weight each term has; None if no two words share letters."""
    from scipy.sparse import csr_matrix, vstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=NGRAM_LENGTHS, lowercase=False, min_df=2)
    try:
        ngrams = vectorizer.fit_transform(piece_words(tokenizer))
    except ValueError:  # scikit-learn found no n-gram in two words
        return None
    return NGRAM_SCALE * vstack([ngrams, csr_matrix((part.n_buckets, ngrams.shape[1]))]).tocsr()


def _fit_logistic_regression(
    features: SparseMatrix, labels: IntArray, sharing: SparseMatrix | None, *, n_labels: int
) -> tuple[FloatArray, FloatArray]:
    """Return the weights (terms, labels) and biases (labels) of a logistic regression."""
    from scipy.sparse import hstack
    from sklearn.linear_model import LogisticRegression

    def fit(c: float, rows: IntArray) -> LogisticRegression:
        return LogisticRegression(C=c, tol=TOLERANCE, max_iter=MAX_ITERATIONS).fit(inputs[rows], labels[rows])

    inputs = features if sharing is None else hstack([features, features @ sharing]).tocsr()
    classifier = fit(_select_c(fit, inputs, labels), np.arange(len(labels)))
    weight, bias = np.zeros((inputs.shape[1], n_labels)), np.full(n_labels, MISSING_LABEL_LOGIT)
    coefficients, intercept = classifier.coef_, classifier.intercept_
    if len(coefficients) == 1:  # scikit-learn has one vector for two labels
        coefficients, intercept = np.vstack([-coefficients, coefficients]) / 2, np.tile(intercept, 2) * [-0.5, 0.5]
    weight[:, classifier.classes_], bias[classifier.classes_] = coefficients.T, intercept
    own, shared = weight[: features.shape[1]], weight[features.shape[1] :]
    return own if sharing is None else own + sharing @ shared, bias


def _select_c(fit: Callable[[float, IntArray], Any], inputs: SparseMatrix, labels: IntArray) -> float:
    """Return the inverse regularisation strength with the lowest loss on texts that were held out."""
    folds = np.random.default_rng(0).permutation(len(labels)) % N_FOLDS
    n_held_out = N_FOLDS if len(labels) <= MAX_CROSS_VALIDATION_ROWS else 1
    losses = dict.fromkeys(C_GRID, 0.0)
    for fold in range(n_held_out):
        rows, held_out = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        if len(set(labels[rows].tolist())) < 2:
            continue
        for c in C_GRID:
            classifier = fit(c, rows)
            probs = np.zeros((len(held_out), labels.max() + 1))
            probs[:, classifier.classes_] = classifier.predict_proba(inputs[held_out])  # rare labels may be missing
            losses[c] -= float(np.log(probs[np.arange(len(held_out)), labels[held_out]] + MIN_PROBABILITY).sum())
    return min(losses, key=losses.__getitem__)


def _normalise_rows(matrix: SparseMatrix) -> SparseMatrix:
    norms = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    return (_diagonal(1 / np.where(norms > 0, norms, 1.0)) @ matrix).tocsr()


def _diagonal(values: FloatArray) -> SparseMatrix:
    from scipy.sparse import diags

    return diags(values)


@torch.inference_mode()
def fit_mixture(task: Task, data: Dataset | None) -> None:
    """Fit the weights of the encoder and of the linear part to the validation texts.

    They minimise the loss and `MIXTURE_PENALTY` times the squared distance from the linear part alone. Of several
    processes, each computes all texts, and uses the weights of the main one.
    """
    part = find_linear_part(task.model)
    if part is None or data is None:
        return
    assert isinstance(task, Classify)
    assert isinstance(data, ClassificationDataset)
    n_labels = len(part.bias)
    logits = torch.zeros(2, len(data), n_labels, dtype=torch.float64)  # of the encoder, of the terms
    mixture = part.mixture.clone()
    for index in range(2):
        part.mixture.copy_(torch.eye(2)[index])
        for indices, tokens, layout in iter_inputs(task, data):
            logits[index, torch.from_numpy(indices)] = task.model(tokens, layout).double().cpu()
    part.mixture.copy_(mixture)
    part.mixture.copy_(torch.tensor(broadcast_value(solve_mixture(logits, torch.from_numpy(data.labels)))))


def solve_mixture(logits: Tensor, labels: Tensor) -> list[float]:
    """Return the weights of the encoder and of the linear part, both at least 0.

    Args:
        logits: The logits of the encoder and of the linear part (2, texts, labels), in float64.
        labels: The label of each text.
    """
    from scipy.optimize import minimize

    start = torch.tensor([0.0, 1.0], dtype=torch.float64)

    def loss_and_gradient(values: FloatArray) -> tuple[float, FloatArray]:
        with torch.inference_mode(False), torch.enable_grad():
            weights = torch.tensor(values, requires_grad=True)
            loss = F.cross_entropy(
                torch.einsum("m,mnc->nc", weights, logits.clone()), labels.clone(), reduction="sum"
            )
            loss = loss + MIXTURE_PENALTY / 2 * (weights - start).square().sum()
            (gradient,) = torch.autograd.grad(loss, weights)
        return loss.item(), gradient.numpy()

    bounds = [(0.0, None)] * 2
    result = minimize(loss_and_gradient, start.numpy(), jac=True, method="L-BFGS-B", bounds=bounds)
    return [float(value) for value in result.x]
