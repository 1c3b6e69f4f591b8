"""English to French in words: numbers, dates and times, made by rules.

The French is a function of the English, so a translation is right or wrong and never a matter of taste.
Spelling is the traditional one: hyphens inside numbers below one hundred ("quatre-vingt-un") but not around
"et" ("vingt et un").
"""

from __future__ import annotations

from datetime import date, timedelta
from random import Random

from triform.errors import DataError

SPLIT_SIZES = {"train": 15000, "valid": 500, "test": 1000}

EnglishFrench = tuple[str, str]  # English, French

# ------------------------------------------------------------------------------------------------ words

# fmt: off
ENGLISH_UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
    "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
)
ENGLISH_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
ENGLISH_ORDINALS = (
    "zeroth", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth",
    "tenth", "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth",
    "eighteenth", "nineteenth", "twentieth", "twenty-first", "twenty-second", "twenty-third", "twenty-fourth",
    "twenty-fifth", "twenty-sixth", "twenty-seventh", "twenty-eighth", "twenty-ninth", "thirtieth",
    "thirty-first",
)
FRENCH_UNITS = (
    "zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf",
    "dix", "onze", "douze", "treize", "quatorze", "quinze", "seize", "dix-sept", "dix-huit", "dix-neuf",
)
# Seventy is sixty and ten, ninety is four twenties and ten: both go on to nineteen before the next ten.
FRENCH_TENS = (
    "", "", "vingt", "trente", "quarante", "cinquante", "soixante", "soixante",
    "quatre-vingt", "quatre-vingt",
)
# fmt: on

MONTHS = (
    ("january", "janvier"),
    ("february", "février"),
    ("march", "mars"),
    ("april", "avril"),
    ("may", "mai"),
    ("june", "juin"),
    ("july", "juillet"),
    ("august", "août"),
    ("september", "septembre"),
    ("october", "octobre"),
    ("november", "novembre"),
    ("december", "décembre"),
)
WEEKDAYS = (
    ("monday", "lundi"),
    ("tuesday", "mardi"),
    ("wednesday", "mercredi"),
    ("thursday", "jeudi"),
    ("friday", "vendredi"),
    ("saturday", "samedi"),
    ("sunday", "dimanche"),
)

# ---------------------------------------------------------------------------------------------- numbers


def english_number(n: int) -> str:
    """0 to 999,999 as the British say it: "two hundred and one", "five thousand and six"."""
    assert 0 <= n < 1_000_000
    if n < 20:
        return ENGLISH_UNITS[n]
    if n < 100:
        tens, unit = divmod(n, 10)
        return ENGLISH_TENS[tens] + (f"-{ENGLISH_UNITS[unit]}" if unit else "")
    size, name = (100, "hundred") if n < 1000 else (1000, "thousand")
    count, rest = divmod(n, size)
    prefix = f"{english_number(count)} {name}"
    if not rest:
        return prefix
    return f"{prefix} and {english_number(rest)}" if rest < 100 else f"{prefix} {english_number(rest)}"


def french_number(n: int, *, is_cardinal: bool = True, feminine: bool = False) -> str:
    """0 to 999,999 in French.

    `counts` is false where a number only ranks (a year) or stands before "mille": there "vingt" and "cent"
    take no s.
    """
    assert 0 <= n < 1_000_000
    if n < 100:
        return french_below_100(n, is_cardinal=is_cardinal, feminine=feminine)
    size, name = (100, "cent") if n < 1000 else (1000, "mille")
    count, rest = divmod(n, size)
    prefix = (
        name if count == 1 else f"{french_number(count, is_cardinal=False)} {name}"
    )  # never "un cent", "un mille"
    if rest:
        return f"{prefix} {french_number(rest, is_cardinal=is_cardinal, feminine=feminine)}"
    return f"{prefix}s" if name == "cent" and count > 1 and is_cardinal else prefix  # deux cents, but deux mille


def french_below_100(n: int, *, is_cardinal: bool, feminine: bool) -> str:
    if n == 1 and feminine:
        return "une"
    if n < 20:
        return FRENCH_UNITS[n]
    if n == 80:
        return "quatre-vingts" if is_cardinal else "quatre-vingt"
    tens = FRENCH_TENS[n // 10]
    rest = n % 20 if n >= 60 else n % 10  # from sixty on the French count by twenties
    if rest == 0:
        return tens
    joiner = " et " if rest in (1, 11) and n < 80 else "-"  # vingt et un, soixante et onze, but quatre-vingt-un
    return f"{tens}{joiner}{french_below_100(rest, is_cardinal=is_cardinal, feminine=feminine)}"


def number_pair(n: int) -> EnglishFrench:
    return english_number(n), french_number(n)


# ------------------------------------------------------------------------------------------------ dates


def english_year(year: int) -> str:
    """A year by its halves: "nineteen ninety-four", "nineteen oh five", "nineteen hundred".

    The first decade of the third millennium is said as a number: "two thousand and five".
    """
    if 2000 <= year < 2010:
        return english_number(year)
    century, rest = divmod(year, 100)
    if rest == 0:
        return f"{english_number(century)} hundred"
    return f"{english_number(century)} {'oh ' if rest < 10 else ''}{english_number(rest)}"


def date_pair(day: date, *, weekday: bool = False) -> EnglishFrench:
    """A day in words: "the third of march nineteen ninety-four", "le trois mars mille neuf cent ...".

    In French only the first of a month is an ordinal, "le premier mai".
    """
    english_month, french_month = MONTHS[day.month - 1]
    english = f"the {ENGLISH_ORDINALS[day.day]} of {english_month} {english_year(day.year)}"
    french_day = "premier" if day.day == 1 else french_number(day.day)
    french = f"{french_day} {french_month} {french_number(day.year, is_cardinal=False)}"
    if not weekday:
        return english, f"le {french}"
    english_weekday, french_weekday = WEEKDAYS[day.weekday()]
    return f"{english_weekday} {english}", f"le {french_weekday} {french}"


# ------------------------------------------------------------------------------------------------ times


def time_pair(hour: int, minute: int, *, weekday: int | None = None) -> EnglishFrench:
    """A time of day: past the hour up to the half, to the next hour after it, in both languages.

    Quarters and fives are said bare ("ten past two"), other minutes by name ("eleven minutes past two").
    """
    past_half = minute > 30
    english_hour, french_hour, english_part, french_part = name_hour((hour + past_half) % 24)
    count = 60 - minute if past_half else minute
    if count == 0:
        english = english_hour if not english_part else f"{english_hour} o'clock"
    else:
        english = f"{english_minutes(count)} {'to' if past_half else 'past'} {english_hour}"
    french = french_hour + french_minutes(count, past_half=past_half, masculine=not french_part)
    english, french = english + english_part, french + french_part
    if weekday is None:
        return english, french
    english_weekday, french_weekday = WEEKDAYS[weekday]
    return f"{english_weekday} at {english}", f"{french_weekday} à {french}"


def name_hour(hour: int) -> tuple[str, str, str, str]:
    """An hour of 24 as English hour, French hour, English part of day, French part of day."""
    if hour in (0, 12):  # these two name their part of the day themselves
        return ("midnight", "minuit", "", "") if hour == 0 else ("noon", "midi", "", "")
    count = hour % 12
    french = f"{french_number(count, feminine=True)} heure{'s' if count > 1 else ''}"
    if hour < 12:
        return english_number(count), french, " in the morning", " du matin"
    if hour < 18:
        return english_number(count), french, " in the afternoon", " de l'après-midi"
    return english_number(count), french, " in the evening", " du soir"


def english_minutes(count: int) -> str:
    if count in (15, 30):
        return "a quarter" if count == 15 else "half"
    if count % 5 == 0:
        return english_number(count)
    return f"{english_number(count)} minute{'s' if count > 1 else ''}"


def french_minutes(count: int, *, past_half: bool, masculine: bool) -> str:
    """What follows the hour: minutes are feminine ("vingt et une"), and so is the half but after noon."""
    if count == 0:
        return ""
    if count == 15:
        return " moins le quart" if past_half else " et quart"
    if count == 30:
        return " et demi" if masculine else " et demie"
    return f"{' moins' if past_half else ''} {french_number(count, feminine=True)}"


# ----------------------------------------------------------------------------------------------- splits

BASICS_REPEATS = 5
N_BASICS = 101  # numbers from zero to a hundred are always in train: words such as "zero" occur nowhere else


def build_mixture() -> list[EnglishFrench]:
    """As many numbers as dates as times, each English source once, shuffled; the basics first."""
    rng = Random("numbers")
    share = sum(SPLIT_SIZES.values()) // 3
    small, large = range(N_BASICS, 10_000), range(10_000, 1_000_000)
    sampled_numbers = rng.sample(small, share * 3 // 4)
    sampled_numbers += rng.sample(large, share - N_BASICS - len(sampled_numbers))
    first_day = date(1800, 1, 1)
    days = [first_day + timedelta(days=n) for n in rng.sample(range((date(2100, 1, 1) - first_day).days), share)]
    clock_times = [(h, m, day) for h in range(24) for m in range(60) for day in (None, *range(7))]
    pairs = [number_pair(n) for n in sampled_numbers]
    pairs += [date_pair(day, weekday=rng.random() < 0.5) for day in days]
    pairs += [time_pair(h, m, weekday=day) for h, m, day in rng.sample(clock_times, share)]
    rng.shuffle(pairs)
    return [number_pair(n) for n in range(N_BASICS)] + pairs


def numbers(split: str) -> list[EnglishFrench]:
    """The pairs of a split as (English, French), each English source in one split only."""
    if split not in SPLIT_SIZES:
        raise DataError(f"the numbers have no split {split!r}; choose one of {', '.join(SPLIT_SIZES)}")
    start = sum(SPLIT_SIZES[name] for name in list(SPLIT_SIZES)[: list(SPLIT_SIZES).index(split)])
    pairs = build_mixture()[start : start + SPLIT_SIZES[split]]
    if split == "train":  # small numbers are what people try first, and a random draw has too few of them
        pairs += [number_pair(n) for n in range(N_BASICS)] * BASICS_REPEATS
        Random(split).shuffle(pairs)
    return pairs
