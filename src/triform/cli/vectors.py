"""`triform vectors`: train, query, evaluate and plot word vectors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from triform.cli.completion import complete_from
from triform.cli.help import DATA, OUTPUT, TRAINING, HelpCommand, argument, flag, new_group, option
from triform.cli.options import JsonOption, print_json
from triform.cli.shorthands import TextColumnOption
from triform.formatting import echo, format_metric, print_table

if TYPE_CHECKING:
    from triform.vectors import VectorEvaluation

vectors = new_group(
    "vectors",
    """
    Train, query and evaluate word vectors (word2vec).

    Examples:
        triform vectors train story.txt --out vectors.txt
        triform vectors nearest vectors.txt king
    """,
)
VectorsArgument = Annotated[Path, argument("FILE", "File of word vectors: .txt, .vec, .bin or .safetensors.")]
TopOption = Annotated[int, option(OUTPUT, "N", "Number of words to show.")]


@vectors.command(cls=HelpCommand)
def train(
    texts: Annotated[list[str], argument("TEXT", "Text files, tables or builtin:NAME.")],
    out: Annotated[Path, option(OUTPUT, "FILE", "File to write: .txt, .bin or .safetensors.")],
    text_column: TextColumnOption = "",
    lowercase: Annotated[bool, flag(DATA, "--lowercase", "Convert text to lower case.")] = False,
    min_count: Annotated[int, option(DATA, "N", "Leave out words that occur less often.")] = 5,
    sample: Annotated[
        float, option(DATA, "RATE", "Downsampling threshold for frequent words; 0 keeps all of them.")
    ] = 1e-3,
    phrases: Annotated[
        int, option(DATA, "N", "Number of passes that join frequent phrases, such as new_york.")
    ] = 0,
    kind: Annotated[
        str,
        option(
            TRAINING,
            "KIND",
            "Algorithm: skipgram, or cbow, which is faster but worse for rare words.",
            complete=complete_from(("skipgram", "cbow")),
            name="--kind",
        ),
    ] = "skipgram",
    size: Annotated[int, option(TRAINING, "N", "Dimension of the vectors.")] = 100,
    window: Annotated[int, option(TRAINING, "N", "Number of context words on either side.")] = 5,
    negative: Annotated[int, option(TRAINING, "N", "Number of negative samples for each context word.")] = 5,
    epochs: Annotated[int, option(TRAINING, "N", "Number of passes over the text.")] = 5,
    lr: Annotated[float, option(TRAINING, "RATE", "Initial learning rate.")] = 0.025,
    seed: Annotated[int, option(TRAINING, "N", "Random seed for initialisation and sampling.")] = 0,
    workers: Annotated[int, option(TRAINING, "N", "Number of threads. Results are reproducible only with 1.")] = 1,
    json_: JsonOption = False,
) -> None:
    """Learn a vector for each word from the words around it.

    Needs gensim, which the extra vectors installs. Texts are split into words as by tokenizer.kind=word, so that
    triform train --embeddings can use the vectors.

    Examples:
        triform vectors train story.txt --out vectors.txt
        triform vectors train reviews.csv story.txt --kind cbow --out vectors.bin
    """
    from triform.vectors import Word2VecConfig, WordVectors, train_word2vec
    from triform.vectors.files import check_writable

    check_writable(out)  # before training
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


@vectors.command(cls=HelpCommand)
def nearest(
    file: VectorsArgument,
    words: Annotated[list[str], argument("WORD", "Words to look up.")],
    top: TopOption = 10,
    json_: JsonOption = False,
) -> None:
    """List the words with the highest cosine similarity to a word.

    Examples:
        triform vectors nearest vectors.txt king
        triform vectors nearest vectors.txt king queen --top 5 --json
    """
    from triform.vectors import WordVectors

    word_vectors = WordVectors.load(file)
    neighbors_by_word = {word: word_vectors.nearest(word, top) for word in words}
    if json_:
        print_json({word: _neighbors_to_dicts(neighbors) for word, neighbors in neighbors_by_word.items()})
        return
    rows = [
        [word, neighbor, f"{cosine:.4f}"]
        for word, neighbors in neighbors_by_word.items()
        for neighbor, cosine in neighbors
    ]
    print_table([["word", "neighbour", "cosine"], *rows], align="llr")


def _neighbors_to_dicts(neighbors: list[tuple[str, float]]) -> list[dict[str, object]]:
    return [{"word": word, "cosine": cosine} for word, cosine in neighbors]


@vectors.command(cls=HelpCommand)
def evaluate(
    file: VectorsArgument,
    analogies: Annotated[
        list[str] | None, option(DATA, "FILE", "Analogies in the format of questions-words.txt. Repeatable.")
    ] = None,
    pairs: Annotated[
        list[str] | None, option(DATA, "FILE", "Word pairs with their similarity, separated by tabs. Repeatable.")
    ] = None,
    data: Annotated[str, option(DATA, "FOLDER", "Folder that holds the dataset word_eval; see triform data.")] = "",
    json_: JsonOption = False,
) -> None:
    """Evaluate word vectors on analogies and word similarity.

    Without files, the vectors are evaluated on the Google analogies, SimLex-999 and WordSim-353 of the dataset
    word_eval. The metrics equal those of gensim.

    Examples:
        triform vectors evaluate vectors.txt
        triform vectors evaluate vectors.txt --pairs similarity.tsv
    """
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
    print_table(
        [["questions", "with vectors", "total", "result"], *(_format_result_row(result) for result in results)]
    )


def _format_result_row(result: VectorEvaluation) -> list[str]:
    metrics = result.metrics
    if not result.n_covered:
        metrics_text = "no vectors for any question"
    elif "accuracy" in metrics:
        metrics_text = f"accuracy {format_metric('accuracy', metrics['accuracy'])}"
    else:
        metrics_text = f"Spearman {metrics['spearman']:.4f}, Pearson {metrics['pearson']:.4f}"
    return [result.name, f"{result.n_covered:,}", f"{result.n_questions:,}", metrics_text]
