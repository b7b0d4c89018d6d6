"""How questions are put, how often each kind comes up, and how often frequent answers are kept."""

from __future__ import annotations

WORDINGS: dict[str, tuple[str, ...]] = {
    "light": (
        "what colour is the traffic light?",
        "what does the traffic light show?",
        "is there a traffic light, and what colour is it?",
    ),
    "distance": (
        "how far is the nearest car ahead?",
        "what is the distance to the nearest car ahead?",
        "how many metres to the next car ahead?",
    ),
    "ahead": ("what is ahead of us?", "what do you see ahead?", "what is in front of the car?"),
    "why": ("why are you braking?", "why do you slow down?", "why are you stopping?", "what are you waiting for?"),
    "may": ("may i {move} now?", "can i {move} now?", "is it allowed to {move} now?"),
    "pedestrian": (
        "is there a pedestrian near the road?",
        "do you see a pedestrian?",
        "is anybody on foot near the road?",
    ),
    "count": (
        "how many cars do you see ahead?",
        "how many cars are in the front camera?",
        "how many cars are ahead of us?",
    ),
    "weather": ("what is the weather like?", "how is the weather?", "is it raining, foggy, cloudy or sunny?"),
    "daytime": ("is it day or night?", "what time of day is it?"),
    "wet": ("is the road wet?", "is the road wet or dry?"),
    "next": ("we shall {text}. what do you do now?", "the instruction is to {text}. what do you do now?"),
    "lane": (
        "are you in the middle of your lane?",
        "is the car in the middle of the lane?",
        "where in the lane are you?",
    ),
    "junction": ("is there a junction ahead?", "do we come to a junction?"),
    "bend": ("where does the road go?", "does the road bend?"),
    "brake_lights": ("is the car ahead braking?", "are the brake lights of the car ahead on?"),
}
WEIGHTS = {
    "light": 4.0,
    "distance": 2.5,
    "ahead": 2.0,
    "why": 3.0,
    "may": 2.5,
    "pedestrian": 2.5,
    "count": 2.0,
    "weather": 1.0,
    "daytime": 0.5,
    "wet": 0.7,
    "next": 2.0,
    "lane": 1.0,
    "junction": 1.0,
    "bend": 1.0,
    "brake_lights": 1.0,
}
KEEP = {  # answers that would be given too often are asked for less often
    "there is no light.": 0.3,
    "a junction.": 0.4,
    "it is sunny.": 0.5,
    "we are in the junction.": 0.6,
    "yes, on the right.": 0.45,
    "there is a car ahead.": 0.7,
    "no, there is no junction.": 0.6,
    "there is no car ahead.": 0.4,
    "i am not braking.": 0.25,
    "no.": 0.4,
    "i see no car.": 0.4,
    "a free road.": 0.3,
    "no, there is no junction here.": 0.3,
    "it is day.": 0.35,
    "no, the road is dry.": 0.4,
    "i follow the road.": 0.3,
    "yes, in the middle.": 0.5,
    "the road goes straight on.": 0.35,
    "no, it is not braking.": 0.5,
}
