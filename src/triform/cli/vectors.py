"""`triform vectors`: train, query, evaluate and plot word vectors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triform.cli.options import JsonOption, print_json
from triform.cli.shorthands import SHORTHANDS
from triform.formatting import echo, format_metric, print_table

if TYPE_CHECKING:
    from triform.vectors import VectorEvaluation

vectors = typer.Typer(help="Train, query, evaluate and plot word vectors (word2vec).", rich_markup_mode=None)
VectorsArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="A file of word vectors: .txt, .vec, .bin or .safetensors.")
]
TopOption = Annotated[int, typer.Option(help="How many words to show.")]


@vectors.command()
def train(
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help="Text files, tables or builtin:NAME.")],
    out: Annotated[Path, typer.Option(help="The file to write: .txt, .bin or .safetensors.")],
    kind: Annotated[
        str, typer.Option(help="skipgram, or cbow, which is faster but weaker on rare words.")
    ] = "skipgram",
    size: Annotated[int, typer.Option(help="Dimension of the vectors.")] = 100,
    window: Annotated[int, typer.Option(help="Number of context words on either side.")] = 5,
    min_count: Annotated[int, typer.Option(help="Leave out words that occur less often.")] = 5,
    negative: Annotated[int, typer.Option(help="Negative samples per context word.")] = 5,
    sample: Annotated[
        float, typer.Option(help="Downsampling threshold for frequent words; 0 turns it off.")
    ] = 1e-3,
    epochs: Annotated[int, typer.Option(help="Number of passes over the text.")] = 5,
    lr: Annotated[float, typer.Option(help="Initial learning rate.")] = 0.025,
    phrases: Annotated[
        int, typer.Option(help="Passes that join frequent phrases, such as new_york; 0 turns it off.")
    ] = 0,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Convert text to lower case.")] = False,
    text_column: Annotated[str, typer.Option(metavar="NAME", help=SHORTHANDS["--text-column"].help)] = "",
    seed: Annotated[int, typer.Option(help="Random seed for initialisation and sampling.")] = 0,
    workers: Annotated[int, typer.Option(help="Number of threads. Results are reproducible only with 1.")] = 1,
    json_: JsonOption = False,
) -> None:
    """Learn a vector for each word from the words around it (needs gensim, the extra `vectors`).

    Texts are split into words as by tokenizer.kind=word, so that `triform train --embeddings` finds them.
    """
    from triform.vectors import Word2VecConfig, WordVectors, train_word2vec
    from triform.vectors.files import check_writable

    check_writable(out)  # fail now rather than after training
    config = Word2VecConfig(
        kind=kind,  # type: ignore[arg-type]
        size=size, window=window, min_count=min_count, negative=negative, sample=sample, epochs=epochs,
        lr=lr, phrases=phrases, lowercase=lowercase, seed=seed, workers=workers,
    )  # fmt: skip
    result = train_word2vec(texts, config, text_column=text_column, log=lambda line: echo(line, err=True))
    WordVectors(result.words, result.matrix, result.metadata).save(out)
    if json_:
        summary = {"words": len(result.words), "width": size, "tokens": result.n_tokens, "seconds": result.seconds}
        print_json({"vectors": str(out), **summary, "words_per_second": result.words_per_second})
        return
    echo(f"{result}")
    echo(f"vectors: {out}")


@vectors.command()
def nearest(
    file: VectorsArgument,
    words: Annotated[list[str], typer.Argument(metavar="WORD", help="Words to look up.")],
    top: TopOption = 10,
    json_: JsonOption = False,
) -> None:
    """List the words with the highest cosine similarity to each WORD."""
    from triform.vectors import WordVectors

    word_vectors = WordVectors.load(file)
    neighbors_by_word = {word: word_vectors.nearest(word, top) for word in words}
    if json_:
        print_json({word: _neighbors_to_dicts(neighbors) for word, neighbors in neighbors_by_word.items()})
        return
    for word, neighbors in neighbors_by_word.items():
        echo(f"{word}:")
        _print_neighbors(neighbors)


@vectors.command()
def analogy(
    file: VectorsArgument,
    a: Annotated[str, typer.Argument(metavar="A")],
    b: Annotated[str, typer.Argument(metavar="B")],
    c: Annotated[str, typer.Argument(metavar="C")],
    top: TopOption = 10,
    json_: JsonOption = False,
) -> None:
    """Find what is to C as B is to A, for example `analogy FILE man king woman`."""
    from triform.vectors import WordVectors

    neighbors = WordVectors.load(file).analogy(a, b, c, top)
    if json_:
        print_json(_neighbors_to_dicts(neighbors))
        return
    echo(f"{a} : {b} :: {c} :")
    _print_neighbors(neighbors)


def _neighbors_to_dicts(neighbors: list[tuple[str, float]]) -> list[dict[str, object]]:
    return [{"word": word, "cosine": cosine} for word, cosine in neighbors]


def _print_neighbors(neighbors: list[tuple[str, float]]) -> None:
    width = max((len(word) for word, _ in neighbors), default=0)
    for word, cosine in neighbors:
        echo(f"  {word:<{width}}  {cosine:.4f}")


@vectors.command()
def evaluate(
    file: VectorsArgument,
    analogies: Annotated[
        list[str] | None,
        typer.Option(metavar="F", help="A file of analogies in the format of questions-words.txt. Repeatable."),
    ] = None,
    pairs: Annotated[
        list[str] | None,
        typer.Option(metavar="F", help="A file of word pairs with their similarity, tab-separated. Repeatable."),
    ] = None,
    data: Annotated[str, typer.Option(metavar="DIR", help="The folder of datasets that holds word_eval.")] = "",
    json_: JsonOption = False,
) -> None:
    """Evaluate on analogies, SimLex-999 and WordSim-353, or on your own files. The metrics equal gensim's."""
    from triform.data.catalogue import get_dataset, verify_dataset
    from triform.vectors import WordVectors, evaluate_analogies, evaluate_similarity

    if not analogies and not pairs:
        known_files = {name: str(path) for name, path in verify_dataset(get_dataset("word_eval"), data).items()}
        analogies, pairs = (
            [known_files["questions-words.txt"]],
            [known_files["simlex999.txt"], known_files["wordsim353.tsv"]],
        )
    word_vectors = WordVectors.load(file)
    results = [
        analogy_result for name in analogies or () for analogy_result in evaluate_analogies(word_vectors, name)
    ]
    results += [evaluate_similarity(word_vectors, name) for name in pairs or ()]
    if json_:
        print_json(
            [
                {"name": result.name, "covered": result.n_covered, "asked": result.n_questions} | result.metrics
                for result in results
            ]
        )
        return
    print_table([["questions", "covered", "of", "score"], *(_format_result_row(result) for result in results)])


def _format_result_row(result: VectorEvaluation) -> list[str]:
    metrics = result.metrics
    if not result.n_covered:
        metrics_text = "no vectors for any of them"
    elif "accuracy" in metrics:
        metrics_text = f"{format_metric('accuracy', metrics['accuracy'])} right"
    else:
        metrics_text = f"Spearman {metrics['spearman']:.4f}, Pearson {metrics['pearson']:.4f}"
    return [result.name, f"{result.n_covered:,}", f"{result.n_questions:,}", metrics_text]


@vectors.command("map")
def map_(
    file: VectorsArgument,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORD", help="Words to plot with their neighbours; the default is the most frequent."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The image to write: .png or .svg.")] = Path("map.png"),
    max_words: Annotated[int, typer.Option(metavar="N", help="Show at most N words.")] = 100,
) -> None:
    """Plot words by the first two principal components of their vectors."""
    from triform.vectors import WordVectors
    from triform.vectors.figure import draw_map

    n_labelled = draw_map(WordVectors.load(file), out, words or (), max_words)
    echo(f"map: {out}, {n_labelled} words labelled")
