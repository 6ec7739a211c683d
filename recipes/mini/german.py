"""German: sentences similar to the English ones; nouns have capitals, as in German spelling."""

from recipes.mini.language import Grammar, Language

GRAMMAR: Grammar = {
    "sentence": (
        # trains and times
        "Der {vehicle} nach {city} fährt um {time}",
        "Der {vehicle} nach {city} hat {number} Minuten Verspätung",
        "Der {vehicle} aus {city} hält heute {where}",
        "Bitte {count} Fahrkarten nach {city} für {day}",
        "{name} kommt am {day} {part} aus {city}",
        "Fährt vor {time} noch ein {vehicle} nach {city}",
        "Bitte {name} morgen um {time} wecken",
        "Wir treffen uns um {time} {where}",
        # dates
        "{name} zieht im {month} nach {city}",
        "Die {event} ist am {day} im {month}",
        "Im {month} regnet es in {city} an {number} Tagen",
        # numbers
        "Meine Nummer ist {digit} {digit} {digit} {digit} {digit}",
        "Ruf {name} an unter {digit} {digit} {digit} {digit}",
        "Wie viel ist {number} plus {number}",
        "In {city} sind es {number} Grad",
        "{name} wohnt in der {street} {number}",
        # places
        "Biegen Sie {where} {side} in die {street} ab",
        "Die {street} beginnt {where}",
        "{name} hat {thing} {where} verloren",
        "Wie weit ist es von {city} nach {city}",
        # orders
        "Ein {drink} {extra} bitte",
        "Bitte {count} {plural} und ein {drink}",
        "{name} möchte {count} {plural} {extra}",
        "{name} trinkt {part} gern {drink}",
        "Ein Tisch für {count} am {day} um {time}",
        # at home
        "Schalte {device} {room} {switch}",
        "Stelle {device} auf {number}",
        "{name} sucht {thing} {room}",
        "Es sind noch {count} {plural} {room}",
        "Öffne um {time} das Fenster {room}",
        # weather
        "In {city} gibt es am {day} {weather} und {weather}",
        "{weather} aus {direction} am {day} {part}",
    ),
    "time": ("{hour} Uhr", "halb {hour}", "Viertel nach {hour}", "Viertel vor {hour}", "{hour} Uhr {ten}"),
    "number": ("{hour}", "{teen}", "{ten}"),
    "digit": ("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"),
    "count": ("zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"),
    "hour": ("zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"),
    "teen": ("dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"),
    "ten": ("zwanzig", "dreißig", "vierzig", "fünfzig"),
    "month": (
        *("Januar", "Februar", "März", "April", "Mai", "Juni"),
        *("Juli", "August", "September", "Oktober", "November", "Dezember"),
    ),
    "day": ("Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag", "Sonntag"),
    "part": ("früh", "mittags", "nachmittags", "spät"),
    "city": (
        *("Köln", "München", "Zürich", "Düsseldorf", "Nürnberg"),
        *("Berlin", "Hamburg", "Dresden", "Wien", "Leipzig"),
    ),
    "name": ("Jürgen", "Käthe", "Jörg", "Günther", "Anna", "Peter", "Maria"),
    "vehicle": ("Zug", "Bus", "Nachtzug", "Dampfer"),
    "event": ("Prüfung", "Hochzeit", "Führung", "Wahl"),
    "where": (
        *("am Bahnhof", "an der Brücke", "vor dem Schloss", "hinter der Bücherei", "gegenüber der Kirche"),
        *("neben dem Café", "an der Mühle", "vor dem Krankenhaus", "hinter dem Markt", "am Hafen"),
    ),
    "side": ("links", "rechts"),
    "direction": ("Norden", "Süden", "Osten", "Westen"),
    "street": ("Hauptstraße", "Grünstraße", "Schloßallee", "Gartenstraße", "Blücherstraße"),
    "thing": ("den Schlüssel", "die Mütze", "das Gemälde", "die grüne Tüte", "den weißen Koffer", "die große Kiste"),
    "drink": ("Kaffee", "Tee", "Glühwein", "Apfelsaft", "Früchtetee"),
    "plural": ("Brötchen", "Äpfel", "Würstchen", "Klöße", "Eier", "Pfannkuchen"),
    "extra": ("mit Käse", "ohne Öl", "mit Nüssen", "ohne Zucker", "mit süßer Soße", "zum Mitnehmen"),
    "room": ("in der Küche", "in der Garage", "im Büro", "im Gästezimmer", "im Flur"),
    "device": ("die Lampe", "den Lüfter", "das Radio", "den Ofen", "die Klingel"),
    "switch": ("ein", "aus"),
    "weather": ("Regen", "Schnee", "Stürme", "Böen", "Sonne", "Nebel"),
}

GERMAN = Language(GRAMMAR, unlike=("city", "weather"), accents=("de",), code="de")
