"""Word lists written for this project: synonyms, exchangeable words, verbs. Data, no logic beyond parsing."""


def listed(block: str) -> list[str]:
    """The words of a block of text; the entries of a block with bars."""
    return [" ".join(entry.split()) for entry in block.split("|")] if "|" in block else block.split()


def _groups(block: str) -> list[list[str]]:
    return [[w.replace("_", " ") for w in line.split()] for line in block.strip().splitlines()]


# Words of one line may stand for each other.
SYNONYMS = _groups("""
man guy gentleman
woman lady
child kid youngster
children kids youngsters
people persons individuals
dog canine
big large
small little tiny
huge enormous massive
road street
bicycle bike
motorcycle motorbike
photo picture photograph
couch sofa
jumping leaping
jumps leaps
running sprinting
talking speaking chatting
talks speaks chats
looking gazing staring
looks gazes stares
watching observing
smiling grinning
smiles grins
several numerous multiple
many numerous
crowd group
ocean sea
hat cap
coat jacket
store shop
car vehicle automobile
rock stone
rocks stones
forest woods
trousers pants
outside outdoors
climbing scaling
throwing tossing
throws tosses
near beside by
holding carrying
holds carries
grabbing grasping
cooking preparing
sleeping napping
eating consuming
resting relaxing
toddler infant
teenager adolescent
performer entertainer
worker laborer
workers laborers
sidewalk pavement
trail path
stage platform
blond blonde
gray grey
colorful bright
beautiful lovely pretty
happy glad cheerful
said stated declared
says states declares
began started commenced
begin start
begins starts
beginning start
finished completed concluded
finish complete
ended concluded
also additionally
however nevertheless
although though
because since
area region zone
located situated
known recognized
made created produced
make create produce
makes creates produces
used utilized employed
use utilize
uses utilizes
received obtained
receive obtain
built constructed
build construct
called named
approximately about around roughly
initial first
often frequently
usually typically normally
company firm
companies firms
film movie
films movies
help assist aid
helped assisted aided
attack assault
attacks assaults
killed slain
buy purchase
bought purchased
get obtain
need require
needs requires
needed required
want wish
important significant
main principal primary
final last
after following
during throughout
inside within
quickly rapidly swiftly
very extremely really
maybe perhaps
town city
house home
job position
work labor
answer reply
ask inquire
think believe
thinks believes
thought believed
problem issue
problems issues
way method
good fine
great excellent
wrong incorrect
right correct
easy simple
hard difficult tough
teacher instructor
student pupil
students pupils
doctor physician
agreement deal accord
rise increase
rises increases
rose increased climbed
fall drop decline
falls drops declines
fell dropped declined
probe investigation inquiry
talks discussions
blast explosion
injured wounded hurt
injures wounds hurts
arrested detained
announced revealed
announces reveals
show display
shows displays
showed displayed
allow permit
allowed permitted
allows permits
try attempt
tried attempted
tries attempts
keep retain
kept retained
choose select pick
chose selected picked
chosen selected picked
leave depart
left departed
moved relocated
moves relocates
member participant
members participants
part portion section
whole entire
entire whole complete
rich wealthy
famous well-known
fast quick rapid
new fresh
near close_to
award prize
awards prizes
war conflict
battle fight
soldiers troops
army military
law statute
leader head chief
leaders heads chiefs
official authority
officials authorities
article piece
book volume
song tune
songs tunes
match game
team squad
won claimed
win claim
wins claims
lost forfeited
led headed
leads heads
lead head
given granted
gave granted
give grant
took seized
reached attained
included contained
includes contains
different distinct
similar alike
common usual
rare uncommon
various diverse
currently presently now
recently lately
later afterwards
then subsequently
finally eventually
almost nearly
nearly almost
mostly mainly largely
together jointly
likely probable
possible feasible
ship vessel
plane airplane aircraft
boat vessel
cash money
money funds
price cost
boss manager
friend companion
friends companions
mother mom
father dad
parents guardians
baby infant
wife spouse
husband spouse
dead deceased
died perished
dies perishes
lives resides
lived resided
returned came_back
appeared showed_up
published released issued
wrote authored
described depicted portrayed
describes depicts portrays
developed designed
established founded formed
founded established
joined entered
served acted
remained stayed
remains stays
continued carried_on
considered regarded
replaced substituted
supported backed
support back
supports backs
rejected refused
rejects refuses
reject refuse
warns cautions
warned cautioned
urges presses
calls asks
cut reduce
cuts reduces
raise lift
raises lifts
ban prohibit
bans prohibits
banned prohibited
protest demonstration
protesters demonstrators
protests demonstrations
victory win triumph
defeat loss
storm tempest
quake earthquake
fire blaze
crash collision
police cops
prison jail
court tribunal
border frontier
election vote
country nation
nation country
countries nations
world globe
global worldwide
""")

# Phrases that may stand for each other (both directions).
PHRASES = [
    ("in front of", "before"),
    ("next to", "beside"),
    ("a lot of", "many"),
    ("a group of people", "several people"),
    ("a couple of", "two"),
    ("a bunch of", "a group of"),
    ("a number of", "several"),
    ("is able to", "can"),
    ("such as", "like"),
    ("as well as", "and also"),
    ("because of", "due to"),
    ("in order to", "to"),
    ("more than", "over"),
    ("less than", "under"),
    ("at least", "no fewer than"),
    ("a man and a woman", "a couple"),
    ("dressed in", "wearing"),
    ("on top of", "on"),
    ("down the street", "along the street"),
    ("close to", "near"),
    ("at the same time", "simultaneously"),
    ("for example", "for instance"),
    ("according to", "as reported by"),
    ("a large crowd", "a big group of people"),
    ("young boy", "little boy"),
    ("young girl", "little girl"),
    ("young man", "young guy"),
    ("taking a picture of", "photographing"),
    ("have to", "must"),
    ("would like to", "want to"),
    ("as a result", "consequently"),
    ("in addition", "moreover"),
    ("prior to", "before"),
    ("a variety of", "various"),
    ("per cent", "percent"),
    ("the majority of", "most of"),
    ("does not", "doesn't"),
    ("do not", "don't"),
    ("did not", "didn't"),
    ("is not", "isn't"),
    ("are not", "aren't"),
    ("was not", "wasn't"),
    ("were not", "weren't"),
    ("cannot", "can't"),
    ("will not", "won't"),
    ("would not", "wouldn't"),
    ("it is", "it's"),
    ("that is", "that's"),
    ("there is", "there's"),
    ("I am", "I'm"),
    ("you are", "you're"),
    ("they are", "they're"),
    ("we are", "we're"),
    ("I have", "I've"),
]

# Words of one line exclude or at least differ from each other: swapping one changes what the sentence says.
SWAPS = _groups("""
man woman boy girl
men women boys girls
dog cat horse bird
dogs cats horses birds
child adult
children adults
red blue green yellow black white orange purple brown pink
guitar piano violin drum trumpet flute
soccer football basketball baseball tennis hockey volleyball
bike motorcycle horse skateboard scooter
car truck bus train boat
shirt jacket dress sweater vest hat
beach park street field forest kitchen
water sand snow grass mud
river lake mountain road
city village farm desert
one two three four five six
first second third fourth last
young old
big small
tall short
happy sad angry
hot cold
day night morning
inside outside
sitting standing running sleeping dancing swimming
sits stands runs sleeps dances swims
walking jumping riding climbing
walks jumps rides climbs
eating drinking cooking buying
eats drinks cooks buys
playing watching losing
singing reading talking fighting
holding throwing dropping
smiling crying laughing
up down
left right
front back
table bench chair bed floor
ball book phone camera cup
food coffee bread fruit
north south east west
northern southern eastern western
January March May July September November
February April June August October December
born died
won lost
win lose
before after
many few
more fewer
all some none
always sometimes never
father mother brother sister
son daughter
king queen president minister
war peace
album film book song
actor singer writer painter player
school hospital church museum hotel
university company government army
American British French German Italian Chinese Indian
England France Germany Spain Italy China India Japan Canada
London Paris Berlin Tokyo Chicago Moscow
football cricket rugby tennis
history science music art
increased decreased
rise fall
rises falls
began ended
opened closed
built destroyed
bought sold
killed rescued
arrested released
accepted rejected
support oppose
""")

ADJECTIVES = frozenset(
    listed("""
    red blue green yellow black white orange purple brown pink gray grey tan young old elderly little small large
    big tall short long dark light bright colorful blond blonde happy beautiful pretty busy crowded snowy sandy
    grassy rocky dirty wet empty open wooden metal plastic striped plaid blue-collar shirtless bald bearded asian
    african-american indoor outdoor local national famous popular new late early main major major minor former
    several various very quite highly really also now currently still recently only other certain special public
    private modern traditional heavy strong huge middle-aged lone single hard nice great good
""")
)

# More general words, for entailed sentences.
HYPERNYMS = {
    "man": "person", "woman": "person", "boy": "child", "girl": "child", "men": "people", "women": "people",
    "boys": "children", "girls": "children", "dog": "animal", "dogs": "animals", "cat": "animal", "horse": "animal",
    "bird": "animal", "guitar": "instrument", "piano": "instrument", "drums": "instruments", "violin": "instrument",
    "soccer": "sport", "football": "sport", "car": "vehicle", "truck": "vehicle", "bus": "vehicle", "bike": "vehicle",
    "sitting": "resting", "shirt": "top", "jacket": "coat", "beach": "shore", "apple": "fruit", "bread": "food",
    "running": "moving", "walking": "moving", "toddler": "child", "lady": "person", "guy": "person",
}  # fmt: skip

NUMBERS = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
    "ten": "10", "eleven": "11", "twelve": "12", "twenty": "20",
}  # fmt: skip

VERBS = listed("""
    play walk run sit stand jump ride hold wear look watch talk sing dance eat drink cook climb swim read write
    work smile laugh throw catch kick hit push pull carry sleep rest wait sell buy paint draw cut build fix wash
    clean dig fish sail row drive fly skate ski surf bike race perform practice pose point reach lean kneel lie
    lay bend stretch lift roll slide swing spin chase bark bite fetch play fight wrestle box shoot aim serve pour
    mix stir bake grill prepare make take give show speak listen sweep shop travel hike camp explore enjoy cross
    enter leave follow lead march protest celebrate gather meet greet hug kiss feed pet brush comb dress tie open
    close gaze stare leap sprint chat grab attempt try cheer juggle balance photograph record type study teach
    learn bounce dive splash float crawl
""")
