"""Questions, answers and headlines from templates, so that the model also meets text that is no caption and no article.

A template set says one thing in several ways: two sentences of one set with the same fillers are paraphrases, of
another set with the same fillers related, of other fillers and another set unrelated.
"""

import random
from dataclasses import dataclass
from string import Formatter

from generation.demo_lm.words import listed

_PLACES = listed("""
    France Germany Spain Italy China India Japan Canada Brazil Mexico Egypt Syria Iraq Iran Israel Turkey Russia
    Ukraine Pakistan Afghanistan Nigeria Kenya Greece Poland Thailand Vietnam Indonesia Australia Sudan Libya
    Yemen Cuba Chile Peru Nepal Belgium Sweden Norway Denmark Finland Ireland Scotland London Paris Berlin Moscow
    Beijing Cairo Baghdad Damascus Texas California Florida Boston Chicago Tokyo Delhi Mumbai Karachi Kabul Gaza
    Crimea Bangkok Manila
""")
_COUNTRIES = _PLACES[:42]
_TEAMS = listed("""
    Arsenal | Chelsea | Barcelona | Real Madrid | Bayern Munich | Liverpool | Ajax | Milan | Yankees | Lakers |
    Celtics | Red Sox | Everton | Juventus | Porto | Bulls | Giants | Rangers
""")
_COMPANIES = listed("""
    Apple | Google | Microsoft | Samsung | Toyota | Boeing | Sony | Nokia | Ford | Shell | Intel | Amazon |
    Facebook | Siemens | Nestle | General Motors | IBM | Oracle | Yahoo | Twitter
""")
_ACTIONS = listed("""
    clean fix repair replace paint move store sell buy ship install remove protect choose build keep use test
    cover open carry order return cut measure wash dry heat cool hide mount
""")
_THINGS = listed("""
    carpet | sink | laptop | bicycle | lawn mower | kitchen table | old camera | lens | tripod | phone | printer |
    washing machine | fridge | window | bathroom floor | garden fence | water pipe | car battery | guitar | piano
    | backpack | tent | sleeping bag | raincoat | wool sweater | leather jacket | wedding dress | cake | chicken
    soup | rice | pizza dough | coffee machine | tomato plant | apple tree | rose bush | cat | puppy | fish tank |
    parrot | hamster | old book | manuscript | research paper | poster | thesis | spreadsheet | web site |
    database | password | hard drive | wooden door | brick wall | ceiling | light switch | power cable | telescope
    | compass | map
""")
_SKILLS = listed("""
    learn Spanish | learn to swim | write a novel | lose weight | run a marathon | get rid of ants | travel with a
    baby | apply for a visa | find a cheap flight | train a dog | stop snoring | sleep better | cook rice | bake
    bread without an oven | take pictures at night | photograph the moon | grow tomatoes | publish a paper | cite
    a web page | ask for a raise | quit my job | write a cover letter | prepare for an interview | teach my son to
    read | talk to my teenager | fall asleep faster | remove a red wine stain | save money for college | invest a
    small sum | start a blog | improve my English | read faster | memorize a speech | find a roommate | rent a car
    abroad | build muscle at home | fix a slow computer | recover deleted files | keep my cat off the table | stop
    my dog from barking | make friends in a new city | drink more water | get over a cold | raise backyard
    chickens | sharpen a knife | store fresh herbs | clean a cast iron pan | choose a good university
""")
_LEADERS = listed("""
    president | prime minister | foreign minister | opposition leader | king | army chief | police chief
""")
_EVENTS = listed("""
    bomb blast | car bombing | plane crash | bus crash | train crash | building collapse | factory fire | flood |
    earthquake | landslide | shooting | suicide attack | ferry accident | gas explosion
""")
_POLICIES = listed("""
    new tax law | peace plan | budget deal | trade agreement | nuclear deal | ceasefire offer | immigration bill |
    gun control law | election result | aid package | smoking ban | health reform | climate treaty | debt plan
""")
FILLERS: dict[str, list[str]] = {
    "place": _PLACES,
    "country": _COUNTRIES,
    "other": _COUNTRIES,
    "team": _TEAMS,
    "rival": _TEAMS,
    "company": _COMPANIES,
    "do": [f"{a} {d} {t}" for a in _ACTIONS for t in _THINGS for d in ("my",)] + _SKILLS * 20,
    "thing": _THINGS,
    "leader": _LEADERS,
    "event": _EVENTS,
    "policy": _POLICIES,
    "count": [str(n) for n in range(2, 60)],
    "score": ["1-0", "2-0", "2-1", "3-0", "3-1", "3-2", "4-1", "4-2"],
    "percent": [str(n) for n in range(1, 30)],
    "day": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
}
SETS: list[list[str]] = [
    [
        "How do I {do}?",
        "How can I {do}?",
        "What is the best way to {do}?",
        "What's a good way to {do}?",
        "Is there an easy way to {do}?",
        "Does anyone know how to {do}?",
        "How should I {do}?",
    ],
    ["Should I {do}?", "Is it a good idea to {do}?", "Would you recommend that I {do}?", "Is it worth it to {do}?"],
    ["How long does it take to {do}?", "How much time do I need to {do}?", "How many days will it take me to {do}?"],
    ["How much does it cost to {do}?", "What does it cost to {do}?", "What will I have to pay to {do}?"],
    ["Why is it so hard to {do}?", "Why do I find it difficult to {do}?", "What makes it so hard to {do}?"],
    ["What do I need to know before I {do}?", "What should I learn before I {do}?"],
    ["You can easily {do} if you take your time.", "If you take your time, it is easy to {do}."],
    ["I would not {do} without help.", "I wouldn't {do} unless someone helps me.", "Without help I would not {do}."],
    ["It depends on why you want to {do}.", "That depends on your reason to {do}."],
    ["I tried to {do} last week, but it did not work.", "Last week I attempted to {do} and failed."],
    ["Where can I find a {thing}?", "Where can I buy a {thing}?", "What is a good place to get a {thing}?"],
    ["What kind of {thing} should I buy?", "Which {thing} would you recommend?", "Which {thing} is the best to buy?"],
    ["What is wrong with my {thing}?", "Why does my {thing} not work?", "What could be the problem with my {thing}?"],
    ["Can I take a {thing} to {place}?", "Am I allowed to bring a {thing} to {place}?"],
    ["Do I need a visa to travel to {country}?", "Is a visa required for a trip to {country}?"],
    [
        "What is the best time of year to visit {place}?",
        "When should I visit {place}?",
        "When is it best to go to {place}?",
    ],
    [
        "{count} killed in {place} {event}",
        "{event} in {place} kills {count}",
        "{event} kills {count} in {place}",
        "{place} {event} leaves {count} dead",
        "At least {count} dead after {event} in {place}",
    ],
    [
        "{event} in {place} injures {count}",
        "{count} injured in {place} {event}",
        "{count} people hurt in {event} in {place}",
    ],
    [
        "{country} {leader} visits {other}",
        "{country}'s {leader} arrives in {other}",
        "{leader} of {country} on visit to {other}",
    ],
    [
        "{country} and {other} hold talks on {policy}",
        "{country}, {other} discuss {policy}",
        "{policy}: {country} in talks with {other}",
    ],
    ["{country} rejects {policy}", "{policy} rejected by {country}", "{country} says no to {policy}"],
    ["{country} approves {policy}", "{policy} approved in {country}", "{country} parliament passes {policy}"],
    ["{country} {leader} resigns over {policy}", "{leader} of {country} steps down over {policy}"],
    ["Thousands protest against {policy} in {place}", "{place}: thousands march against {policy}"],
    ["{team} beat {rival} {score}", "{rival} lose {score} to {team}", "{team} win {score} against {rival}"],
    [
        "{company} shares rise {percent} percent",
        "{company} stock climbs {percent}%",
        "Shares of {company} up {percent} percent",
    ],
    [
        "{company} profit falls {percent} percent",
        "{company} earnings drop {percent}%",
        "Profit at {company} down {percent} percent",
    ],
    [
        "{company} to cut {count} hundred jobs in {country}",
        "{company} plans to lay off {count} hundred workers in {country}",
    ],
    ["{company} opens new plant in {country}", "New {company} factory opens in {country}"],
    ["{country} to hold elections on {day}", "Voters in {country} go to the polls on {day}"],
    [
        "The {leader} said on {day} that the {policy} would help {country}.",
        "On {day}, the {leader} stated that {country} would profit from the {policy}.",
    ],
    [
        "{company} said on {day} that it would buy a {thing} maker in {country}.",
        "A {thing} maker in {country} will be bought by {company}, the company announced on {day}.",
    ],
    [
        "Police in {place} arrested {count} people on {day}.",
        "On {day}, {count} people were detained by police in {place}.",
    ],
]
_KEYS = [sorted({name for _, name, _, _ in Formatter().parse(group[0]) if name}) for group in SETS]


@dataclass(frozen=True)
class Filled:
    """A template set with its fillers: everything needed to say the same again in other words."""

    group: int
    fillers: dict[str, str]
    variant: int
    text: str


def say(
    group: int, fillers: dict[str, str], rng: random.Random, unlike: int | None = None, variant: int | None = None
) -> Filled:
    """One sentence of a set: of a given variant, or of any but ``unlike``."""
    options = [n for n in range(len(SETS[group])) if n != unlike]
    variant = rng.choice(options) if variant is None else variant
    text = SETS[group][variant].format(**fillers)
    return Filled(group, fillers, variant, text[:1].upper() + text[1:])


def draw(rng: random.Random, group: int | None = None) -> Filled:
    """A random sentence, of a given set if one is given."""
    group = rng.randrange(len(SETS)) if group is None else group
    return say(group, {key: rng.choice(FILLERS[key]) for key in _KEYS[group]}, rng)


def related(first: Filled, rng: random.Random, other_set: float = 0.6) -> Filled:
    """Half the same: other fillers in the same set, or the same fillers in another set."""
    shared = [g for g, keys in enumerate(_KEYS) if g != first.group and set(keys) & set(_KEYS[first.group])]
    if shared and rng.random() < other_set:
        group = rng.choice(shared)
        new = draw(rng, group).fillers
        return say(group, {**new, **{k: v for k, v in first.fillers.items() if k in new}}, rng)
    changed = rng.choice(_KEYS[first.group])
    return say(first.group, {**first.fillers, changed: rng.choice(FILLERS[changed])}, rng, variant=first.variant)


def unrelated(first: Filled, rng: random.Random) -> Filled:
    """Another set without a common filler."""
    while True:
        second = draw(rng)
        if second.group != first.group and not set(second.fillers.values()) & set(first.fillers.values()):
            return second
