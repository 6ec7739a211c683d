"""Simulated rooms: the utterance as it is heard in a box with walls that reflect, made on the spot."""

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from asr.audio.reverberate import reverberate
from asr.augment.draws import happens, uniform
from asr.settings.rule import Fraction, span

SPEED = 343.0  # of sound, m/s at 20 degrees Celsius
LOST_DB = 40.0  # images are followed until the room has lost so much: the rest is not heard, and costs most
FROM_WALLS = 0.5  # m that speaker and microphone keep from each wall
NEAREST = 0.1  # m that they are apart, at least

Point = Sequence[float]  # x, y, z in m


class SimulatedRoom:
    """Convolve an utterance with the impulse response of a random room, between two random places in it.

    The direct sound is not delayed, and the utterance stays as loud as it is.

    *Source*: Allen and Berkley 1979, "Image method for efficiently simulating small-room acoustics"; walls that turn
    the sign, so that no low frequency is left to be filtered away: Lehmann and Johansson 2008, "Prediction of energy
    decay in room impulse responses simulated with an image-source model"; absorption by Eyring's formula.

    *Differs from the paper*: all walls reflect alike; arrivals are rounded to the nearest sample.

    Args:
        sample_rate: Hz.
        probability: of a room, for each utterance.
        width_metres: between which width and length of the room are drawn.
        height_metres: between which its height is drawn.
        rt60_seconds: between which is drawn how long it takes until a sound has lost 60 dB.
    """

    stage = "waveform"
    max_added_seconds = 0.0

    def __init__(
        self,
        sample_rate: int,
        *,
        probability: Fraction,
        width_metres: Annotated[list[float], span(1.5, 100)],
        height_metres: Annotated[list[float], span(1.5, 100)],
        rt60_seconds: Annotated[list[float], span(0.05, 1.5)],
    ) -> None:
        self.sample_rate = sample_rate
        self.probability = probability
        self.spans = (width_metres, width_metres, height_metres)
        self.rt60_seconds = rt60_seconds

    def __call__(self, waveform: Tensor) -> Tensor:
        """(S,) to (S,)."""
        if not happens(self.probability):
            return waveform
        size = [uniform(span) for span in self.spans]
        source, microphone = ([uniform((FROM_WALLS, length - FROM_WALLS)) for length in size] for _ in range(2))
        rt60 = uniform(self.rt60_seconds)
        response = impulse_response(
            size, source, microphone, reflection(size, rt60), self.sample_rate, rt60 * LOST_DB / 60
        )
        return reverberate(waveform, response, _arrival(math.dist(source, microphone), self.sample_rate))


def reflection(size: Point, rt60_seconds: float) -> float:
    """Return the part of a wave's amplitude that walls give back in a room that takes so long to lose 60 dB."""
    width, length, height = size
    volume, surface = width * length * height, 2 * (width * length + width * height + length * height)
    return math.exp(-12 * math.log(10) * volume / (SPEED * surface * rt60_seconds))


def impulse_response(
    size: Point, source: Point, microphone: Point, reflection: float, sample_rate: int, seconds: float
) -> Tensor:
    """Sum what arrives from all images of a source in the walls of a box, each 1 / distance loud.

    Args:
        size: of the box, which has a corner at 0.
        source: where the sound is made, within it.
        microphone: where it is heard, within it.
        reflection: part of the amplitude that a wall gives back, with its sign turned.
        sample_rate: Hz.
        seconds: after which nothing more is heard; what comes on the direct path is heard in any case.

    Shapes:
        returns: (R,) float64
    """
    direct = math.dist(source, microphone)
    reach = max(seconds * SPEED, direct)
    response = torch.zeros(_arrival(max(reach, NEAREST), sample_rate) + 1, dtype=torch.float64)
    axes = [_images(*axis, reach) for axis in zip(size, source, microphone, strict=True)]
    (x, x_walls), (y, y_walls), (z, z_walls) = axes
    plane, plane_walls = x[:, None] ** 2 + y**2, x_walls[:, None] + y_walls
    for height, walls in zip(z.tolist(), z_walls.tolist(), strict=True):
        distance = (plane + height**2).sqrt().clamp(min=NEAREST)
        heard = distance <= max(reach, NEAREST)
        amplitude = (-reflection) ** (plane_walls[heard] + walls).double() / distance[heard]
        arrival = (distance[heard] / SPEED * sample_rate).round().long()
        response.index_add_(0, arrival, amplitude)
    return response


def _images(length: float, source: float, microphone: float, reach: float) -> tuple[Tensor, Tensor]:
    """A source's images in two walls that face each other: how far each is along the axis, and off how many walls."""
    most = math.ceil((reach + length) / (2 * length))
    rooms = torch.arange(-most, most + 1)
    upright, mirrored = 2 * rooms * length + source, 2 * rooms * length - source
    distance = torch.cat([upright, mirrored]).double() - microphone
    return distance, torch.cat([2 * rooms.abs(), rooms.abs() + (rooms - 1).abs()])


def _arrival(distance: float, sample_rate: int) -> int:
    return round(max(distance, NEAREST) / SPEED * sample_rate)
