"""Short stories made by rules, for language models: later sentences depend on earlier ones.

A story introduces people, things and places and returns to them: a thing is found where it was last put, an answer
counts what is left, the way home goes through the same places in reverse. A model that reads only neighbouring
words cannot predict these; a model that attends to the whole story can.

    search   somebody puts a thing away, somebody else may move it, and in the end it is found
    count    somebody has a number of things and gives some away; what is left is the difference
    journey  somebody walks through three places and comes home through the same places in reverse
    swap     two people exchange what they have, and each leaves with what the other one brought
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from triform.errors import DataError

SPLIT_SIZES = {"train": 1600, "valid": 200, "test": 200}  # stories

Item = TypeVar("Item")

# ---------------------------------------------------------------------------------------------- words

# fmt: off
WOMEN = (
    "Ada", "Alice", "Anna", "Clara", "Dora", "Ella", "Emma", "Grace", "Hilda", "Ida", "Jane", "Julia", "Laura",
    "Lena", "Lucy", "Martha", "Nora", "Olga", "Rosa", "Vera",
)
MEN = (
    "Adam", "Alfred", "Ben", "Carl", "David", "Edgar", "Felix", "Frank", "George", "Henry", "Hugo", "Jacob", "Leo",
    "Martin", "Oscar", "Paul", "Peter", "Robert", "Simon", "Walter",
)
JOBS = (
    "baker", "carpenter", "doctor", "farmer", "fisher", "gardener", "miller", "painter", "potter", "sailor",
    "shepherd", "smith", "tailor", "teacher", "watchmaker", "writer",
)
COLOURS = ("black", "blue", "brown", "golden", "green", "grey", "purple", "red", "silver", "white", "yellow")
THINGS = (
    "bell", "book", "bottle", "box", "button", "candle", "clock", "coat", "cup", "drum", "flute", "hammer", "hat",
    "jug", "kettle", "key", "kite", "knife", "lamp", "letter", "map", "mirror", "needle", "ring", "rope", "scarf",
    "spoon", "stone", "umbrella", "whistle",
)
HIDING_PLACES = (
    "behind the door", "behind the mirror", "behind the stove", "in the barn", "in the basket", "in the boat",
    "in the cellar", "in the chest", "in the cupboard", "in the kitchen", "in the well house", "on the roof",
    "on the shelf", "on the windowsill", "under the bed", "under the bench", "under the carpet", "under the stairs",
    "under the table", "under the apple tree",
)
LANDMARKS = (
    "the bakery", "the bridge", "the castle", "the chapel", "the farm", "the forest", "the harbour", "the hill",
    "the inn", "the lake", "the lighthouse", "the market", "the meadow", "the mill", "the mountain", "the school",
    "the station", "the tower",
)
GOODS = (
    "apples", "beans", "buttons", "cakes", "candles", "carrots", "cherries", "coins", "eggs", "feathers", "lemons",
    "marbles", "nails", "nuts", "onions", "pears", "plums", "ribbons", "roses", "shells",
)
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
SEASONS = ("spring", "summer", "autumn", "winter")
HOUSES = ("crooked", "large", "little", "narrow", "new", "old", "quiet", "tall", "warm")
# fmt: on

WEATHER = (
    "It had rained since {weekday}.",
    "The sun was shining.",
    "A cold wind blew from {landmark}.",
    "It was a foggy {season} day.",
    "Snow lay on the roofs.",
    "The evening was warm and still.",
    "A storm was coming, and the windows rattled.",
)
FEELINGS = ("content", "curious", "glad", "happy", "hungry", "proud", "tired", "very pleased")
ACTIVITIES = (
    "was asleep",
    "was at {landmark}",
    "was feeding the hens",
    "was out in the garden",
    "was reading by the fire",
    "was singing in the kitchen",
    "was talking to a neighbour",
    "was washing the dishes",
)


@dataclass(frozen=True)
class Person:
    """A character with a name, a job and pronouns."""

    name: str
    job: str
    she: str
    her: str  # as in "told her"
    hers: str  # as in "her house"


def pick(rng: Random, options: Sequence[Item]) -> Item:
    """Choose one option. Only `random()` is guaranteed to be the same in every version of Python."""
    return options[int(rng.random() * len(options))]


def pick_several(rng: Random, options: Sequence[Item], count: int) -> list[Item]:
    """Choose different options, in random order."""
    remaining = list(options)
    return [remaining.pop(int(rng.random() * len(remaining))) for _ in range(count)]


def pick_people(rng: Random) -> tuple[Person, Person]:
    """Return two people with different names and jobs."""
    names, jobs = pick_several(rng, (*WOMEN, *MEN), 2), pick_several(rng, JOBS, 2)
    first, second = (
        Person(name, job, "she", "her", "her") if name in WOMEN else Person(name, job, "he", "him", "his")
        for name, job in zip(names, jobs, strict=True)
    )
    return first, second


def capitalise(text: str) -> str:
    """Return the text with its first letter in upper case and the others unchanged."""
    return text[0].upper() + text[1:]


def article(text: str) -> str:
    """Return the text with "a" or "an" before it."""
    return f"an {text}" if text[0] in "aeiou" else f"a {text}"


# -------------------------------------------------------------------------------------------- sentences


def tell_weather(rng: Random) -> str:
    """Return a sentence about the weather, which nothing else depends on."""
    return pick(rng, WEATHER).format(
        weekday=pick(rng, WEEKDAYS), landmark=pick(rng, LANDMARKS), season=pick(rng, SEASONS)
    )


def introduce(rng: Random, person: Person, friend: Person) -> str:
    """Return the sentences that introduce the people of a story."""
    house, landmark = article(f"{pick(rng, HOUSES)} house"), pick(rng, LANDMARKS)
    opening = pick(
        rng,
        (
            f"{person.name} was {article(person.job)} and lived in {house} near {landmark}.",
            f"In {house} near {landmark} lived {person.name}, {article(person.job)}.",
            f"Once there was {article(person.job)} called {person.name}, who lived near {landmark}.",
        ),
    )
    meeting = pick(
        rng,
        (
            f"{capitalise(person.hers)} best friend was {friend.name} the {friend.job}.",
            f"{friend.name}, {article(friend.job)}, often came to see {person.her}.",
            f"Every {pick(rng, WEEKDAYS)} {friend.name} the {friend.job} came to visit.",
        ),
    )
    return f"{opening} {meeting}"


def conclude(rng: Random, person: Person, friend: Person) -> str:
    """Return the last sentence, which says how the people feel."""
    return pick(
        rng,
        (
            f"{person.name} was {pick(rng, FEELINGS)}, and so was {friend.name}.",
            f"{friend.name} was {pick(rng, FEELINGS)}, and {person.name} the {person.job} went to bed early.",
            f"Then the {friend.job} and the {person.job} had tea together.",
            f"That night {person.name} the {person.job} slept well.",
        ),
    )


# ---------------------------------------------------------------------------------------------- stories

Story = tuple[str, list[str]]  # title, sentences


def tell_search(rng: Random) -> Story:
    """Tell how a thing is put away, perhaps moved, and found where it was last put."""
    owner, friend = pick_people(rng)
    thing = f"{pick(rng, COLOURS)} {pick(rng, THINGS)}"
    place, other_place = pick_several(rng, HIDING_PLACES, 2)
    origin = pick(
        rng,
        (
            f"One {pick(rng, SEASONS)} morning {owner.name} found {article(thing)} near {pick(rng, LANDMARKS)}.",
            f"On {pick(rng, WEEKDAYS)} {owner.name} bought {article(thing)} at the market.",
            f"One evening {friend.name} gave {owner.name} {article(thing)}.",
        ),
    )
    storing = pick(
        rng,
        (
            f"{capitalise(owner.she)} put the {thing} {place}.",
            f"{capitalise(owner.she)} kept it {place} and told nobody but {friend.name}.",
            f"{owner.name} hid the {thing} {place}.",
        ),
    )
    sentences = [introduce(rng, owner, friend), origin, storing]
    if rng.random() < 0.5:
        activity = pick(rng, ACTIVITIES).format(landmark=pick(rng, LANDMARKS))
        moving = f"{friend.name} took the {thing} from its place and put it {other_place}"
        sentences.append(f"While {owner.name} {activity}, {moving}.")
        place = other_place
    if rng.random() < 0.5:
        sentences.append(tell_weather(rng))
    sentences += [
        f'"Where is my {thing}?" asked {owner.name}.',
        pick(rng, (f'"It is {place}," said {friend.name}.', f'{friend.name} said: "Look {place}."')),
        pick(
            rng,
            (
                f"{owner.name} looked {place}, and there was the {thing}.",
                f"And {place} {owner.name} found the {thing}.",
            ),
        ),
        conclude(rng, owner, friend),
    ]
    return f"The {thing}", sentences


def tell_count(rng: Random) -> Story:
    """Tell how somebody gives some things away and counts the rest."""
    owner, friend = pick_people(rng)
    goods = pick(rng, GOODS)
    total = 3 + int(rng.random() * 10)
    given = 1 + int(rng.random() * (total - 1))
    left = total - given
    place = pick(rng, HIDING_PLACES)
    start = pick(
        rng,
        (
            f"On {pick(rng, WEEKDAYS)} {owner.name} had {NUMBERS[total]} {goods}.",
            f"{owner.name} found {NUMBERS[total]} {goods} {place}.",
            f"{owner.name} had bought {NUMBERS[total]} {goods} at the market.",
        ),
    )
    gift = pick(
        rng,
        (
            f"{capitalise(owner.she)} gave {NUMBERS[given]} of them to {friend.name}.",
            f"{friend.name} asked for {NUMBERS[given]} of them, and {owner.name} gave them to {friend.her}.",
        ),
    )
    sentences = [introduce(rng, owner, friend), start, gift]
    if rng.random() < 0.5:
        sentences.append(tell_weather(rng))
    verb = "was" if left == 1 else "were"
    reason = f"for {NUMBERS[given]} and {NUMBERS[left]} make {NUMBERS[total]}"
    sentences += [
        f'"How many {goods} are left?" asked {friend.name}.',
        pick(
            rng,
            (
                f"{owner.name} counted them: there {verb} {NUMBERS[left]}, {reason}.",
                f"{capitalise(NUMBERS[left])} of the {NUMBERS[total]} {verb} left.",
            ),
        ),
        conclude(rng, owner, friend),
    ]
    return f"{capitalise(NUMBERS[total])} {goods}", sentences


def tell_journey(rng: Random) -> Story:
    """Tell how somebody walks through three places and returns through them in reverse."""
    traveller, friend = pick_people(rng)
    first, second, third = pick_several(rng, LANDMARKS, 3)
    sentences = [introduce(rng, traveller, friend)]
    sentences.append(
        pick(
            rng,
            (
                f"One {pick(rng, SEASONS)} day {traveller.name} went to see {friend.name}.",
                f"On {pick(rng, WEEKDAYS)} {traveller.name} wanted to bring {friend.name} a letter.",
            ),
        )
    )
    sentences.append(f"{capitalise(traveller.she)} walked to {first}, then to {second}, and then to {third}.")
    if rng.random() < 0.5:
        sentences.append(tell_weather(rng))
    sentences += [
        f"At {third} {traveller.she} met {friend.name}, and they talked for an hour.",
        f"On the way home {traveller.name} passed {second} first, and {first} last.",
        conclude(rng, traveller, friend),
    ]
    return f"The way to {third}", sentences


def tell_swap(rng: Random) -> Story:
    """Tell how two people exchange what they have."""
    buyer, seller = pick_people(rng)
    one, other = (f"{colour} {thing}" for colour, thing in zip(
        pick_several(rng, COLOURS, 2), pick_several(rng, THINGS, 2), strict=True))  # fmt: skip
    sentences = [
        introduce(rng, buyer, seller),
        f"{buyer.name} had {article(one)}, and {seller.name} had {article(other)}.",
    ]
    if rng.random() < 0.5:
        sentences.append(tell_weather(rng))
    sentences += [
        f'"Will you give me your {other} for my {one}?" asked {buyer.name}.',
        pick(
            rng,
            (
                f'"Gladly," said {seller.name}, and took the {one}.',
                f"{seller.name} thought about it and took the {one}.",
            ),
        ),
        f"So {buyer.name} went home with the {other}, and {seller.name} with the {one}.",
        conclude(rng, buyer, seller),
    ]
    return f"The {one} and the {other}", sentences


PLOTS: tuple[Callable[[Random], Story], ...] = (tell_search, tell_search, tell_count, tell_journey, tell_swap)


def stories(split: str) -> str:
    """Return the stories of a split as one text.

    Each story has a title and a paragraph, and a blank line separates the stories.
    """
    if split not in SPLIT_SIZES:
        raise DataError(f"the stories have no split {split!r}; choose one of {', '.join(SPLIT_SIZES)}")
    rng = Random("stories")
    texts: dict[str, None] = {}  # dicts keep insertion order
    while len(texts) < sum(SPLIT_SIZES.values()):
        title, sentences = pick(rng, PLOTS)(rng)
        texts[f"{title}\n{' '.join(sentences)}\n"] = None
    start = sum(SPLIT_SIZES[name] for name in list(SPLIT_SIZES)[: list(SPLIT_SIZES).index(split)])
    return "\n".join(list(texts)[start : start + SPLIT_SIZES[split]])
