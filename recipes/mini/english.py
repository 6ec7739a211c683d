"""English: everyday sentences about trains and times, directions, orders, and a voice-controlled house."""

from recipes.mini.language import Grammar, Language

GRAMMAR: Grammar = {
    "sentence": (
        # trains and times
        "the {vehicle} to {city} leaves at {time}",
        "the {vehicle} to {city} is {number} minutes late",
        "the {part} {vehicle} from {city} is cancelled",
        "{count} tickets to {city} on {day} please",
        "{name} arrives from {city} on {day} {part}",
        "is there a {vehicle} to {city} before {time}",
        "the {vehicle} from {city} stops at platform {number}",
        "wake {name} at {time} tomorrow",
        "we meet {where} the {place} at {time}",
        # dates
        "the {place} is closed in {month}",
        "{name} moves to {city} in {month}",
        "the {event} was in {month} nineteen {ten} {unit}",
        "the {event} is on a {day} in {month}",
        # numbers
        "my number is {digit} {digit} {digit} {digit} {digit}",
        "call {name} on {digit} {digit} {digit} {digit}",
        "the code for the {room} door is {digit} {digit} {digit}",
        "{number} plus {number} is not {number}",
        "it is {number} degrees in {city}",
        "{name} lives at {number} {colour} street",
        # places
        "the {place} is {where} the {place}",
        "turn {side} at the {place} on {colour} street",
        "the {place} is on the {side} of the {place}",
        "walk {direction} past the {place} to {colour} street",
        "{name} lost a {colour} {thing} near the {place}",
        "how far is the {place} from the {place}",
        # orders
        "a {size} {drink} {extra} please",
        "{count} {plural} and a {size} {drink} please",
        "we would like the {dish} {extra}",
        "one {dish} and one {drink} for {name}",
        "{name} wants {count} {plural} {extra}",
        "no {food} in the {dish} for {name} please",
        "{name} drinks {drink} in the {part}",
        "a table for {count} on {day} at {time}",
        # at home
        "switch the {device} in the {room} {switch}",
        "set the {device} to {number}",
        "the {colour} {thing} is in the {room}",
        "{name} bought a {size} {colour} {thing}",
        "bring {count} {plural} to the {room}",
        "open the window in the {room} at {time}",
        "play some {music} music at {time}",
        "the {music} concert is on {day} {part}",
        # weather
        "{weather} and {weather} in {city} on {day}",
        "{weather} from the {direction} this {part}",
    ),
    "time": ("{hour} o'clock", "half past {hour}", "quarter past {hour}", "quarter to {hour}", "{hour} {ten}"),
    "number": ("{unit}", "{teen}", "{ten} {unit}"),
    "digit": ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    "unit": ("two", "three", "four", "five", "six", "seven", "eight", "nine"),
    "count": ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    "hour": ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    "teen": ("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
    "ten": ("twenty", "thirty", "forty", "fifty"),
    "month": (
        *("january", "february", "march", "april", "may", "june"),
        *("july", "august", "september", "october", "november", "december"),
    ),
    "day": ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
    "part": ("morning", "afternoon", "evening"),
    "city": (
        *("london", "paris", "berlin", "madrid", "dublin"),
        *("lisbon", "oslo", "vienna", "boston", "chicago"),
    ),
    "name": ("anna", "peter", "maria", "oscar", "julia", "thomas"),
    "vehicle": ("train", "bus", "ferry", "tram", "flight"),
    "event": ("wedding", "concert", "election"),
    "place": (
        *("museum", "library", "station", "market", "bridge", "hospital"),
        *("castle", "church", "cinema", "hotel", "harbour", "school"),
    ),
    "where": ("behind", "beside", "opposite", "near", "inside"),
    "side": ("left", "right"),
    "direction": ("north", "south", "east", "west"),
    "colour": ("red", "blue", "green", "yellow", "purple", "silver"),
    "thing": ("jacket", "umbrella", "bicycle", "camera", "guitar", "suitcase"),
    "size": ("small", "large", "medium"),
    "drink": ("coffee", "tea", "lemonade", "apple juice", "hot chocolate"),
    "dish": ("chicken soup", "tomato salad", "pasta", "fish pie", "vegetable curry"),
    "plural": ("sandwiches", "pancakes", "burgers", "bananas", "biscuits"),
    "food": ("onion", "cheese", "pepper", "butter"),
    "extra": ("with {food}", "without {food}", "with sugar", "without ice", "to take away"),
    "room": ("kitchen", "bedroom", "bathroom", "office", "garden"),
    "device": ("lamp", "heater", "radio", "oven", "alarm"),
    "switch": ("on", "off"),
    "music": ("jazz", "piano", "dance"),
    "weather": ("rain", "snow", "wind", "thunder", "sunshine"),
}

# espeak-ng's names of accents: `en` is British. Accents with shifted vowels or consonants (Scotland, Caribbean, West
# Midlands, Received Pronunciation) are excluded, because one hour of speech is too little to learn more accents.
ENGLISH = Language(GRAMMAR, unlike=("place", "weather"), accents=("en", "en-us"), code="en")
