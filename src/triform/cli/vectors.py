"""`triform vectors`: word vectors learned, looked up, judged and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triform.cli.options import Json, print_json, print_table
from triform.formatting import echo, format_metric

if TYPE_CHECKING:
    from triform.vectors import Judged

vectors = typer.Typer(help="Word vectors (word2vec): learn, look up, judge, draw.", rich_markup_mode=None)
VectorsFile = Annotated[Path, typer.Argument(metavar="FILE", help="Vectors: .txt, .vec, .bin or .safetensors.")]
Top = Annotated[int, typer.Option(help="How many words to show.")]


@vectors.command()
def train(
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help="Text files, tables, builtin:NAME.")],
    out: Annotated[Path, typer.Option(help="Where the vectors go: .txt, .bin or .safetensors.")],
    kind: Annotated[str, typer.Option(help="skipgram, or cbow: faster, weaker on rare words.")] = "skipgram",
    size: Annotated[int, typer.Option(help="Numbers a vector.")] = 100,
    window: Annotated[int, typer.Option(help="Neighbours on either side.")] = 5,
    min_count: Annotated[int, typer.Option(help="Rarer words have no vector.")] = 5,
    negative: Annotated[int, typer.Option(help="Words drawn against each true neighbour.")] = 5,
    sample: Annotated[float, typer.Option(help="Below it, frequent words are skipped more; 0: none.")] = 1e-3,
    epochs: Annotated[int, typer.Option(help="How often the text is read.")] = 5,
    lr: Annotated[float, typer.Option(help="Learning rate at the start.")] = 0.025,
    phrases: Annotated[int, typer.Option(help="Passes that join words, as new_york; 0: none.")] = 0,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="As tokenizer.lowercase.")] = False,
    text_column: Annotated[str, typer.Option(help="Of tables: a name or number; else found.")] = "",
    seed: Annotated[int, typer.Option(help="Of initial numbers and draws.")] = 0,
    workers: Annotated[int, typer.Option(help="Threads; only one gives the same vectors again.")] = 1,
    json_: Json = False,
) -> None:
    """Learn a vector for each word from the words around it (needs gensim, the extra `vectors`).

    Words are cut as tokenizer.kind=word cuts them, so that `train --embeddings` finds them.
    """
    from triform.vectors import Recipe, WordVectors, learn
    from triform.vectors.files import check_writable

    check_writable(out)  # better told now than after the work
    recipe = Recipe(
        kind=kind,  # type: ignore[arg-type]
        size=size, window=window, min_count=min_count, negative=negative, sample=sample, epochs=epochs,
        lr=lr, phrases=phrases, lowercase=lowercase, seed=seed, workers=workers,
    )  # fmt: skip
    made = learn(texts, recipe, text_column=text_column, say=lambda line: echo(line, err=True))
    WordVectors(made.words, made.matrix, made.about).save(out)
    if json_:
        told = {"words": len(made.words), "width": size, "tokens": made.n_tokens, "seconds": made.seconds}
        print_json({"vectors": str(out), **told, "words_per_second": made.speed})
        return
    echo(f"{made}")
    echo(f"vectors: {out}")


@vectors.command()
def nearest(
    file: VectorsFile,
    words: Annotated[list[str], typer.Argument(metavar="WORD", help="Words to look up.")],
    top: Top = 10,
    json_: Json = False,
) -> None:
    """The words whose vectors point most nearly the same way, with cosines."""
    from triform.vectors import WordVectors

    table = WordVectors.load(file)
    found = {word: table.nearest(word, top) for word in words}
    if json_:
        print_json({word: _plain(near) for word, near in found.items()})
        return
    for word, near in found.items():
        echo(f"{word}:")
        _print_near(near)


@vectors.command()
def analogy(
    file: VectorsFile,
    a: Annotated[str, typer.Argument(metavar="A")],
    b: Annotated[str, typer.Argument(metavar="B")],
    c: Annotated[str, typer.Argument(metavar="C")],
    top: Top = 10,
    json_: Json = False,
) -> None:
    """What is to C as B is to A: `analogy FILE man king woman`."""
    from triform.vectors import WordVectors

    near = WordVectors.load(file).analogy(a, b, c, top)
    if json_:
        print_json(_plain(near))
        return
    echo(f"{a} : {b} :: {c} :")
    _print_near(near)


def _plain(near: list[tuple[str, float]]) -> list[dict[str, object]]:
    return [{"word": word, "cosine": cosine} for word, cosine in near]


def _print_near(near: list[tuple[str, float]]) -> None:
    width = max((len(word) for word, _ in near), default=0)
    for word, cosine in near:
        echo(f"  {word:<{width}}  {cosine:.4f}")


@vectors.command()
def evaluate(
    file: VectorsFile,
    analogies: Annotated[
        list[str] | None, typer.Option(metavar="F", help="Analogies, as questions-words.txt; repeatable.")
    ] = None,
    pairs: Annotated[
        list[str] | None, typer.Option(metavar="F", help="WORD, WORD, NUMBER between tabs; repeatable.")
    ] = None,
    data: Annotated[str, typer.Option(metavar="DIR", help="Folder of sets, with word_eval in it.")] = "",
    json_: Json = False,
) -> None:
    """Analogies, SimLex-999 and WordSim-353, or files of your own; figures are those that gensim gives."""
    from triform.data.catalogue import checked, known_set
    from triform.vectors import WordVectors, judge_analogies, judge_pairs

    if not analogies and not pairs:
        known = {name: str(path) for name, path in checked(known_set("word_eval"), data).items()}
        analogies, pairs = [known["questions-words.txt"]], [known["simlex999.txt"], known["wordsim353.tsv"]]
    table = WordVectors.load(file)
    found = [judged for name in analogies or () for judged in judge_analogies(table, name)]
    found += [judge_pairs(table, name) for name in pairs or ()]
    if json_:
        print_json(
            [{"name": each.name, "covered": each.covered, "asked": each.asked} | each.scores for each in found]
        )
        return
    print_table([["questions", "covered", "of", "score"], *(_row(each) for each in found)])


def _row(judged: Judged) -> list[str]:
    scores = judged.scores
    if not judged.covered:
        said = "no vectors for any of them"
    elif "accuracy" in scores:
        said = f"{format_metric('accuracy', scores['accuracy'])} right"
    else:
        said = f"Spearman {scores['spearman']:.4f}, Pearson {scores['pearson']:.4f}"
    return [judged.name, f"{judged.covered:,}", f"{judged.asked:,}", said]


@vectors.command("map")
def map_(
    file: VectorsFile,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="WORD", help="Words to show with their nearest.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The picture: .png or .svg.")] = Path("map.png"),
    most: Annotated[int, typer.Option(help="How many words in all.")] = 100,
) -> None:
    """Draw words where their two main directions put them: those given with their nearest, or the most frequent."""
    from triform.vectors import WordVectors
    from triform.vectors.picture import draw

    labelled = draw(WordVectors.load(file), out, words or (), most)
    echo(f"map: {out}, {labelled} words labelled")
