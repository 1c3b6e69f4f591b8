"""Reviews whose label depends on word order: negation, contrast, irony and expectation.

A review is built bottom-up from phrases, and every phrase has a meaning: `sign` is +1 for praise and -1 for
blame. The rules are those of ordinary English:

    claim        "the soup was tasty"                     the sign of the adjective
    negation     "the soup was far from tasty"            flips it
    framing      "nobody could claim that the soup ..."   flips it, so two flips may meet: a double negation
    contrast     "although A, B"  "B, although A"         the main clause B decides
    irony        "As if A!"  "Oh great, A."               flips it
    expectation  "I expected A, but it was not"           the outcome keeps or flips what was expected

Flips are so frequent that an adjective alone says little: its position in the sentence decides. TF-IDF with
logistic regression, which ignores word order, misclassifies a third of the reviews.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from triform.errors import DataError

SPLIT_SIZES = {"train": 10000, "valid": 1000, "test": 1000}
FLIP_PROBABILITY = 0.3  # at one half, words alone would say nothing about the label
LABELS = {1: "positive", -1: "negative"}

# A pattern, and +1 if it keeps the sign of what it holds, -1 if it flips it.
Patterns = tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Phrase:
    """A piece of text and its meaning: +1 praise, -1 blame."""

    text: str
    sign: int


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A kind of review: subjects, adjectives by sign, and neutral sentences."""

    subjects: tuple[str, ...]
    adjectives: dict[int, tuple[str, ...]]
    fillers: tuple[str, ...]


# ---------------------------------------------------------------------------------------------- words

POSITIVE_ADJECTIVES = (
    "good",
    "great",
    "excellent",
    "wonderful",
    "superb",
    "lovely",
    "impressive",
    "brilliant",
    "fine",
    "delightful",
)
NEGATIVE_ADJECTIVES = (
    "bad",
    "awful",
    "terrible",
    "dreadful",
    "horrible",
    "poor",
    "disappointing",
    "mediocre",
    "lousy",
    "miserable",
)

DOMAINS = (
    Domain(
        subjects=(
            "the food",
            "the soup",
            "the service",
            "the wine",
            "the dessert",
            "the menu",
            "the coffee",
            "the bread",
        ),
        adjectives={
            1: (*POSITIVE_ADJECTIVES, "memorable", "charming"),
            -1: (*NEGATIVE_ADJECTIVES, "overpriced", "careless"),
        },
        fillers=(
            "We had dinner there on Friday.",
            "We booked a table by the window.",
            "My sister chose this place for her birthday.",
            "The restaurant is next to the station.",
            "A waiter brought our coats after an hour.",
            "Lunch for four people cost fifty pounds.",
        ),
    ),
    Domain(
        subjects=(
            "the plot",
            "the acting",
            "the ending",
            "the music",
            "the dialogue",
            "the story",
            "the opening",
            "the cast",
        ),
        adjectives={1: (*POSITIVE_ADJECTIVES, "moving", "clever"), -1: (*NEGATIVE_ADJECTIVES, "boring", "silly")},
        fillers=(
            "I watched it with my sister on Friday.",
            "It is a film about two brothers.",
            "We saw it at the cinema next to the station.",
            "It runs for about two hours.",
            "The director also wrote the novel.",
            "There were ten people in our row.",
        ),
    ),
    Domain(
        subjects=(
            "the battery",
            "the screen",
            "the sound",
            "the design",
            "the camera",
            "the keyboard",
            "the charger",
            "the handle",
        ),
        adjectives={1: (*POSITIVE_ADJECTIVES, "reliable", "solid"), -1: (*NEGATIVE_ADJECTIVES, "faulty", "shoddy")},
        fillers=(
            "I bought it for my brother in the spring.",
            "It came in a box on Friday.",
            "I have had this phone for about two months.",
            "My sister has the same model.",
            "I use it every day on the train to work.",
            "The shop sells it in black, white and green.",
        ),
    ),
)

# -------------------------------------------------------------------------------------------- patterns
# Each table lists patterns that keep the sign and patterns that flip it. Whether to flip is chosen first, then a
# pattern, so the share of flips does not depend on the length of the lists.

DEGREE_PATTERNS: Patterns = (
    ("{}", 1),
    ("really {}", 1),
    ("very {}", 1),
    ("truly {}", 1),
    ("quite {}", 1),
    ("rather {}", 1),
    ("not {}", -1),
    ("not really {}", -1),
    ("not very {}", -1),
    ("never {}", -1),
    ("hardly {}", -1),
    ("far from {}", -1),
    ("anything but {}", -1),
)

FRAME_PATTERNS: Patterns = (
    ("in short, {}", 1),
    ("I would say that {}", 1),
    ("anybody could claim that {}", 1),
    ("it is true that {}", 1),
    ("I would never say that {}", -1),
    ("nobody could claim that {}", -1),
    ("it is not true that {}", -1),
)

IRONY_PATTERNS: Patterns = (
    ("yes, indeed, {}.", 1),
    ("the critics told us that {}, and they are right.", 1),
    ("thanks to the critics: they told us that {}, and it is true.", 1),
    ("as if {}!", -1),
    ("oh great, {}. Yeah, right.", -1),
    ("thanks for nothing, critics: you told us that {}.", -1),
)

EXPECTATION_PATTERNS = (
    "I expected {subject} to be {adjective}",
    "I was sure that {subject} would be {adjective}",
    "I had heard that {subject} would be {adjective}",
    "my brother told me that {subject} would be {adjective}",
)

OUTCOME_PATTERNS: Patterns = (
    ("{}, and it was.", 1),
    ("{}, and so it was.", 1),
    ("{}, and that was right.", 1),
    ("{}, and it was not.", -1),
    ("{}, but it was not.", -1),
    ("{}, but it was nothing of the kind.", -1),
    ("{}, but that was wrong.", -1),
)

AGREEMENT_PATTERNS = ("{first}, and {second}.", "{first}. What is more, {second}.", "{first}, and {second} too.")

CONTRAST_PATTERNS = (
    "although {aside}, {main}.",
    "even though {aside}, {main}.",
    "{main}, although {aside}.",
    "{main}, even though {aside}.",
    "{aside}, but {main}.",
    "{aside}, yet {main}.",
    "{aside}. Still, {main}.",
)

# ---------------------------------------------------------------------------------- rules of composition


def apply_pattern(signed_pattern: tuple[str, int], phrase: Phrase) -> Phrase:
    """Put a phrase into a pattern that keeps or flips its sign."""
    pattern, sign = signed_pattern
    return Phrase(text=pattern.format(phrase.text), sign=sign * phrase.sign)


def build_claim(subject: str, quality: Phrase) -> Phrase:
    """Say that a subject has a quality; the claim has the sign of the quality."""
    return Phrase(text=f"{subject} was {quality.text}", sign=quality.sign)


def build_expectation(pattern: str, subject: str, adjective: Phrase) -> Phrase:
    """Say what was expected; the outcome, which decides the sign, is added later."""
    return Phrase(text=pattern.format(subject=subject, adjective=adjective.text), sign=adjective.sign)


def build_agreement(pattern: str, first: Phrase, second: Phrase) -> Phrase:
    """Join two claims of the same sign."""
    assert first.sign == second.sign
    return Phrase(text=pattern.format(first=first.text, second=second.text), sign=first.sign)


def build_contrast(pattern: str, main: Phrase, aside: Phrase) -> Phrase:
    """Join a main clause and an aside of the opposite sign; the main clause decides."""
    assert main.sign == -aside.sign
    return Phrase(text=pattern.format(main=main.text, aside=aside.text), sign=main.sign)


# ------------------------------------------------------------------------------------------- sampling


def choose_pattern(rng: Random, patterns: Patterns) -> tuple[str, int]:
    """Choose whether to flip, then a pattern that does so."""
    wanted_sign = -1 if rng.random() < FLIP_PROBABILITY else 1
    return rng.choice([option for option in patterns if option[1] == wanted_sign])


def sample_adjective(rng: Random, domain: Domain, sign: int) -> Phrase:
    """Return an adjective with the given sign."""
    return Phrase(text=rng.choice(domain.adjectives[sign]), sign=sign)


def sample_claim(rng: Random, domain: Domain, subject: str, sign: int) -> Phrase:
    """Return a claim with the given sign. The adjective depends on whether the degree flips it."""
    degree = choose_pattern(rng, DEGREE_PATTERNS)
    return build_claim(subject, apply_pattern(degree, sample_adjective(rng, domain, sign * degree[1])))


def sample_statement(rng: Random, domain: Domain) -> Phrase:
    """Return a sentence with one claim."""
    subject, sign = rng.choice(domain.subjects), rng.choice((1, -1))
    framed = apply_pattern(choose_pattern(rng, FRAME_PATTERNS), sample_claim(rng, domain, subject, sign))
    return Phrase(text=f"{framed.text}.", sign=framed.sign)


def sample_agreement(rng: Random, domain: Domain) -> Phrase:
    """Return a sentence with two claims of the same sign."""
    (first_subject, second_subject), sign = rng.sample(domain.subjects, 2), rng.choice((1, -1))
    first, second = (sample_claim(rng, domain, subject, sign) for subject in (first_subject, second_subject))
    return build_agreement(rng.choice(AGREEMENT_PATTERNS), first, second)


def sample_contrast(rng: Random, domain: Domain) -> Phrase:
    """Return a sentence with two claims of opposite signs, of which the main clause decides."""
    (main_subject, aside_subject), sign = rng.sample(domain.subjects, 2), rng.choice((1, -1))
    main, aside = sample_claim(rng, domain, main_subject, sign), sample_claim(rng, domain, aside_subject, -sign)
    return build_contrast(rng.choice(CONTRAST_PATTERNS), main, aside)


def sample_irony(rng: Random, domain: Domain) -> Phrase:
    """Return a claim that may be meant ironically."""
    subject, sign = rng.choice(domain.subjects), rng.choice((1, -1))
    return apply_pattern(choose_pattern(rng, IRONY_PATTERNS), sample_claim(rng, domain, subject, sign))


def sample_expectation(rng: Random, domain: Domain) -> Phrase:
    """Return an expectation and whether it was met."""
    subject, sign = rng.choice(domain.subjects), rng.choice((1, -1))
    expected = build_expectation(rng.choice(EXPECTATION_PATTERNS), subject, sample_adjective(rng, domain, sign))
    return apply_pattern(choose_pattern(rng, OUTCOME_PATTERNS), expected)


# Contrast is listed twice because it is twice as frequent.
SENTENCE_SAMPLERS = (
    sample_statement,
    sample_agreement,
    sample_contrast,
    sample_contrast,
    sample_irony,
    sample_expectation,
)


def sample_review(rng: Random) -> Phrase:
    """Return one review: a judgement, in half of the cases followed by a neutral sentence."""
    domain = rng.choice(DOMAINS)
    core = rng.choice(SENTENCE_SAMPLERS)(rng, domain)
    sentence = core.text[0].upper() + core.text[1:]
    filler = rng.choice(domain.fillers)
    text = rng.choice((sentence, f"{sentence} {filler}"))
    return Phrase(text=text, sign=core.sign)


def reviews(split: str) -> list[tuple[str, str]]:
    """Return the reviews of a split as (text, label). Half are positive, and each text is in one split only."""
    if split not in SPLIT_SIZES:
        raise DataError(f"the reviews have no split {split!r}; choose one of {', '.join(SPLIT_SIZES)}")
    rng = Random("reviews")
    half = sum(SPLIT_SIZES.values()) // 2
    texts_by_sign: dict[int, dict[str, None]] = {1: {}, -1: {}}  # dicts keep insertion order
    while min(map(len, texts_by_sign.values())) < half:
        sampled = sample_review(rng)
        texts_by_sign[sampled.sign].setdefault(sampled.text)
    start = sum(SPLIT_SIZES[name] for name in list(SPLIT_SIZES)[: list(SPLIT_SIZES).index(split)]) // 2
    stop = start + SPLIT_SIZES[split] // 2
    rows = [(text, LABELS[sign]) for sign, texts in texts_by_sign.items() for text in list(texts)[start:stop]]
    rng.shuffle(rows)
    return rows
