"""Fit the linear part of a classifier, `TermClassifier`, which gradient descent would not bring to its optimum.

Before the first step, a logistic regression with an L2 penalty is fitted to the training texts. Its features are
the terms of a text and, with little text, two kinds of character n-grams. Words that share letters share a part of
their weight: beside its own weight, a word has those of its n-grams. The n-grams of all words of a text are also
features, with the weights of TF-IDF. The model gets sums of these weights for each term and token.
In long texts, terms that are much more frequent with one label than with others may count for more. Held-out texts
decide whether they do, and how strong the penalty is.

At each validation, the weights of the encoder and of the linear part are fitted to the validation texts, so that
a part counts for as much as it knows about texts that it has not seen. With `train.refit_linear_part`, the linear
part is fitted once more after training, to the validation texts as well. The latest checkpoint keeps the one that
has not seen them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config.model import NGRAM_PROJECTION_SIZE
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
NGRAM_SCALE = 0.5  # of the n-gram features that are added to the feature of a word
MAX_NGRAM_TOKENS = 500_000  # tokens of training text; with more, words are seen often enough
MIN_RATIO_TOKENS = 50  # mean length of texts; in shorter ones, log-count ratios gave worse results
MISSING_LABEL_LOGIT = -10.0  # of a label without training texts
MIN_PROBABILITY = 1e-9  # of a label that a fold does not know
MIXTURE_PENALTY = 10.0  # of the squared distance from the linear part alone; about as strong as ten texts
TOLERANCE, MAX_ITERATIONS = 1e-5, 500


def find_linear_part(model: nn.Module) -> TermClassifier | None:
    """Return the linear part of a model, or None if it has none."""
    part = getattr(model, "linear_part", None)
    return part if isinstance(part, TermClassifier) else None


@torch.inference_mode()
def fit_linear_part(task: Task, train: Dataset, *others: Dataset) -> None:
    """Fit the linear part of a model to labelled texts.

    Args:
        task: The task with the model.
        train: The training texts. Their number and length decide which features are used.
        *others: Further texts.
    """
    part = find_linear_part(task.model)
    if part is None:
        return
    from scipy.sparse import vstack

    assert isinstance(task, Classify)
    texts = [data for data in (train, *others) if isinstance(data, ClassificationDataset)]
    labels = np.concatenate([data.labels for data in texts])
    frequencies = vstack([_term_frequencies(task, data, part) for data in texts]).tocsr()
    document_frequency = frequencies.getnnz(axis=0)
    is_kept = document_frequency >= np.where(np.arange(len(part.idf)) < part.vocab_size, 1, MIN_PAIR_DF)
    idf = np.where(is_kept, np.log((1 + len(labels)) / (1 + document_frequency)) + 1, 0.0)
    part.idf.copy_(torch.from_numpy(idf))
    if len(set(labels.tolist())) < 2:
        return
    features = _normalise_rows(frequencies @ _diagonal(idf))
    lengths = texts[0].lengths  # of the training texts, so that a second fit has the same features
    has_ngrams, has_long_texts = lengths.sum() <= MAX_NGRAM_TOKENS, bool(lengths.mean() >= MIN_RATIO_TOKENS)
    blocks = [features]
    ngrams = _NgramFeatures.build(task.tokenizer, part, frequencies) if has_ngrams else None
    if ngrams is not None:
        blocks += [features @ ngrams.sharing, ngrams.of_texts]
    weights, bias = _fit_logistic_regression(blocks, labels, n_labels=len(part.bias), try_ratios=has_long_texts)
    if ngrams is not None:
        weights[0] += ngrams.sharing @ weights[1]
        part.ngram_logits.copy_(torch.from_numpy(ngrams.of_tokens @ weights[2]))
        part.ngram_projection.copy_(torch.from_numpy(ngrams.projection))
    part.weight.copy_(torch.from_numpy(weights[0]))
    part.bias.copy_(torch.from_numpy(bias))


def refit_linear_part(task: Task, train: Dataset, valid: Dataset | None) -> bool:
    """Fit the linear part of a trained model to the validation texts as well, and return whether it was."""
    if valid is None or not task.config.train.refit_linear_part or find_linear_part(task.model) is None:
        return False
    fit_linear_part(task, train, valid)
    return True


def select_fitted(tensors: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """Return the tensors that `fit_linear_part` sets, by their names without a prefix."""
    fitted = ("idf", "weight", "bias", "ngram_logits", "ngram_projection")
    names = [f"linear_part.{name}" for name in fitted]
    return {name: tensors[prefix + name] for name in names if prefix + name in tensors}


def restore_linear_part(task: Task, folders: Sequence[RunFolder]) -> Task:
    """Return the task with the linear parts from before they were refitted on the validation texts.

    Args:
        task: The task, whose model is that of a run or of an ensemble.
        folders: The run folders. Their latest checkpoints have the linear parts that have not seen these texts.

    Raises:
        CheckpointError: A run has no checkpoint.
    """
    configs = [task.config] if len(folders) == 1 else [folder.read_config() for folder in folders]
    is_refitted = [config.train.refit_linear_part and config.model.term_buckets > 0 for config in configs]
    if not any(is_refitted):
        return task
    task = copy(task)
    task.model = deepcopy(task.model)
    models = getattr(task.model, "members", [task.model])
    for model, folder in compress(zip(models, folders, strict=True), is_refitted):
        latest = folder.read_latest_checkpoint()
        if latest is None:
            raise CheckpointError(
                f"{folder.path} has no checkpoint with the linear part from before it was refitted on the "
                "validation texts (train.refit_linear_part); name another file to evaluate"
            )
        for name, tensor in select_fitted(latest[1], prefix="model.").items():
            model.get_parameter(name).data.copy_(tensor)
    return task


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


class _NgramFeatures(NamedTuple):
    """Character n-grams of words, as matrices of term, token or text × n-gram."""

    sharing: SparseMatrix  # how much of the weight of each n-gram a term has
    of_tokens: SparseMatrix  # count · idf of the n-grams of each token
    of_texts: SparseMatrix  # the sum over the tokens of a text, divided by its length
    projection: FloatArray  # of the n-grams of each token (tokens, projection)

    @classmethod
    def build(cls, tokenizer: Tokenizer, part: TermClassifier, frequencies: SparseMatrix) -> _NgramFeatures | None:
        """Return the features for texts with these term frequencies; None if no two words share letters."""
        from scipy.sparse import csr_matrix, vstack
        from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

        counter = CountVectorizer(analyzer="char_wb", ngram_range=NGRAM_LENGTHS, lowercase=False, min_df=2)
        special = tokenizer.special_tokens
        special_ids = {special.pad, special.unk, special.bos, special.eos}
        words = ["" if token in special_ids else word for token, word in enumerate(piece_words(tokenizer))]
        try:
            counts = counter.fit_transform(words)
        except ValueError:  # scikit-learn found no n-gram in two words
            return None
        of_words = TfidfTransformer().fit_transform(counts)
        sharing = NGRAM_SCALE * vstack([of_words, csr_matrix((part.n_buckets, of_words.shape[1]))]).tocsr()
        token_counts = frequencies[:, : part.vocab_size].astype(np.float64)
        token_counts.data = np.exp(token_counts.data - 1)  # a frequency is 1 + ln(count)
        sums = token_counts @ counts
        document_frequency = sums.getnnz(axis=0)
        idf = np.where(document_frequency > 1, np.log((1 + sums.shape[0]) / (1 + document_frequency)) + 1, 0.0)
        of_tokens = (counts @ _diagonal(idf)).tocsr()
        directions = np.random.default_rng(0).choice([-1.0, 1.0], (len(idf), NGRAM_PROJECTION_SIZE))
        projection = of_tokens @ directions / NGRAM_PROJECTION_SIZE**0.5
        lengths = np.linalg.norm(token_counts @ projection, axis=1)
        of_texts = (_diagonal(1 / np.where(lengths > 0, lengths, 1.0)) @ (token_counts @ of_tokens)).tocsr()
        return cls(sharing, of_tokens, of_texts, projection)


class RegressionSettings(NamedTuple):
    """Settings of a logistic regression."""

    c: float  # the inverse regularisation strength
    uses_ratios: bool

    def fit(self, inputs: SparseMatrix, labels: IntArray) -> Any:
        """Return a `LogisticRegression` of scikit-learn that is fitted to texts."""
        from sklearn.linear_model import LogisticRegression

        scale = log_count_ratios(inputs, labels) if self.uses_ratios else np.ones(inputs.shape[1])
        classifier = LogisticRegression(C=self.c, tol=TOLERANCE, max_iter=MAX_ITERATIONS)
        classifier.fit(inputs @ _diagonal(scale), labels)
        classifier.coef_ *= scale  # for inputs that are not multiplied
        return classifier


def log_count_ratios(inputs: SparseMatrix, labels: IntArray) -> FloatArray:
    """Return how much the frequency of each feature differs between the labels (Wang and Manning, 2012).

    With two labels, this is the absolute value of the log-count ratio of Naive Bayes; with more, twice the standard
    deviation of the logarithms of its frequencies.
    """
    counts = np.stack([inputs[labels == label].getnnz(axis=0) for label in np.unique(labels)])
    log_frequencies = np.log((1 + counts) / (1 + counts).sum(axis=1, keepdims=True))
    ratios: FloatArray = 2 * log_frequencies.std(axis=0)
    return ratios


def _fit_logistic_regression(
    blocks: Sequence[SparseMatrix], labels: IntArray, *, n_labels: int, try_ratios: bool
) -> tuple[list[FloatArray], FloatArray]:
    """Return the weights of each block of features (features, labels), and biases (labels)."""
    from scipy.sparse import hstack

    inputs = hstack(blocks).tocsr()
    inputs.eliminate_zeros()  # of rare pairs, which have an idf of 0
    weight, bias = np.zeros((inputs.shape[1], n_labels)), np.full(n_labels, MISSING_LABEL_LOGIT)
    is_present = inputs.getnnz(axis=0) > 0  # most buckets are empty
    inputs = inputs[:, is_present]
    classifier = select_settings(inputs, labels, try_ratios=try_ratios).fit(inputs, labels)
    coefficients, intercept = classifier.coef_, classifier.intercept_
    if len(coefficients) == 1:  # scikit-learn has one vector for two labels
        coefficients, intercept = np.vstack([-coefficients, coefficients]) / 2, np.tile(intercept, 2) * [-0.5, 0.5]
    weight[np.ix_(is_present, classifier.classes_)], bias[classifier.classes_] = coefficients.T, intercept
    ends = np.cumsum([block.shape[1] for block in blocks])
    return np.split(weight, ends[:-1]), bias


def select_settings(inputs: SparseMatrix, labels: IntArray, *, try_ratios: bool) -> RegressionSettings:
    """Return the settings with the lowest loss on texts that were held out."""
    folds = np.random.default_rng(0).permutation(len(labels)) % N_FOLDS
    n_held_out = N_FOLDS if len(labels) <= MAX_CROSS_VALIDATION_ROWS else 1
    candidates = [RegressionSettings(c, uses_ratios) for uses_ratios in sorted({False, try_ratios}) for c in C_GRID]
    losses = dict.fromkeys(candidates, 0.0)
    for fold in range(n_held_out):
        rows, held_out = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        if len(set(labels[rows].tolist())) < 2:
            continue
        for candidate in candidates:
            classifier = candidate.fit(inputs[rows], labels[rows])
            probs = np.zeros((len(held_out), labels.max() + 1))
            probs[:, classifier.classes_] = classifier.predict_proba(inputs[held_out])  # rare labels may be missing
            true_probs = probs[np.arange(len(held_out)), labels[held_out]]
            losses[candidate] -= float(np.log(true_probs + MIN_PROBABILITY).sum())
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
