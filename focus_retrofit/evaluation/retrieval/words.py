"""Plain words: names for needles, and kinds of things with labels that say nothing of them."""

from __future__ import annotations


def _words(*lines: str) -> list[str]:
    return " ".join(lines).split()


ADJECTIVES = _words(
    "amber ancient brave bright calm clever cold cosmic curious dusty eager early empty fancy fierce foggy gentle",
    "giddy golden grand happy heavy hidden hollow honest humble icy idle jolly keen kind late lively lonely lucky",
    "mellow mighty misty modest narrow nimble noble odd pale plain proud quick quiet rapid rare robust round rusty",
    "salty sharp shiny silent simple sleepy slow small smooth solid spicy steady stormy sturdy sunny sweet swift",
    "tall tame tender thin tidy tiny vast velvet vivid warm wild windy wise young",
)

NOUNS = _words(
    "anchor apron arrow attic badge bakery barrel basin beacon blanket bottle branch bridge brook bucket button cabin",
    "candle canyon carpet castle cellar chapel chimney circus cliff closet cloud compass cottage cradle curtain desert",
    "drawer engine feather ferry fiddle forest fountain garden gate glacier hammer harbor hammock harvest hedge island",
    "jacket jungle kettle ladder lantern library lighthouse locket marble market meadow mirror monument museum needle",
    "orchard paddle palace pantry parade pebble pencil piano pillow planet pocket pottery prairie puzzle quarry",
    "railway ribbon saddle sailor school shelter signal station statue temple theater thicket tower tunnel valley",
    "village violin wagon window workshop",
)

KINDS = {
    "animal": _words("dog cat horse cow sheep goat pig lion tiger bear wolf fox deer rabbit mouse elephant monkey"),
    "clothing": _words("shirt coat hat shoe sock glove scarf dress skirt belt boot sweater jacket trousers cap vest"),
    "food": _words("bread cheese butter soup rice pasta cake pie salad honey sugar salt pepper sausage cookie pizza"),
    "transport": _words("car bus train truck boat ship plane bicycle tram taxi van wagon ferry canoe tractor yacht"),
}

LABELS = _words("blue red green north south east west iron gold silver stone paper glass wood")
