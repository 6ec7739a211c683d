"""Reverberation augmentation with simulated impulse responses of box-shaped rooms."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

import torch
from torch import Tensor

from asr.base.audio.reverberate import reverberate
from asr.base.settings.rule import Fraction, span
from asr.components.augment.draws import happens, uniform

SPEED = 343.0  # speed of sound at 20 degrees Celsius, in m/s
MAX_DECAY_DB = 40.0  # the response ends at this decay; computing its inaudible rest would take most of the time
WALL_DISTANCE = 0.5  # m, the smallest distance of speaker and microphone from a wall
MIN_DISTANCE = 0.1  # m, the smallest distance between speaker and microphone

Point = Sequence[float]  # x, y, z in m


@dataclass
class SimulatedRoom:
    """Convolve an utterance with the impulse response between two random points in a random room.

    The direct sound is not delayed, and the power of the utterance does not change.

    *Source*: Allen and Berkley 1979, "Image method for efficiently simulating small-room acoustics"; reflections that
    invert the sign, so that no high-pass filter is needed: Lehmann and Johansson 2008, "Prediction of energy
    decay in room impulse responses simulated with an image-source model"; absorption by Eyring's formula.

    *Differs from the paper*: all walls reflect equally; arrival times are rounded to the nearest sample.

    Args:
        probability: probability of a room for each utterance.
        width_metres: range of the room's width and length.
        height_metres: range of the room's height.
        rt60_seconds: range of the reverberation time, in which sound decays by 60 dB.
    """

    stage = "waveform"
    max_added_seconds = 0.0

    sample_rate: int
    _: KW_ONLY
    probability: Fraction
    width_metres: Annotated[list[float], span(1.5, 100)]
    height_metres: Annotated[list[float], span(1.5, 100)]
    rt60_seconds: Annotated[list[float], span(0.05, 1.5)]

    def __call__(self, waveform: Tensor) -> Tensor:
        """Map (S,) to (S,)."""
        if not happens(self.probability):
            return waveform
        size = [uniform(span) for span in (self.width_metres, self.width_metres, self.height_metres)]
        source, microphone = ([uniform((WALL_DISTANCE, length - WALL_DISTANCE)) for length in size] for _ in range(2))
        rt60 = uniform(self.rt60_seconds)
        response = impulse_response(
            size, source, microphone, reflection(size, rt60), self.sample_rate, rt60 * MAX_DECAY_DB / 60
        )
        return reverberate(waveform, response, _arrival(math.dist(source, microphone), self.sample_rate))


def reflection(size: Point, rt60_seconds: float) -> float:
    """Return the walls' reflection coefficient (of the amplitude) in a room with this reverberation time."""
    width, length, height = size
    volume, surface = width * length * height, 2 * (width * length + width * height + length * height)
    return math.exp(-12 * math.log(10) * volume / (SPEED * surface * rt60_seconds))


def impulse_response(
    size: Point, source: Point, microphone: Point, reflection: float, sample_rate: int, seconds: float
) -> Tensor:
    """Sum the arrivals from all images of a source in the walls of a box; amplitudes decrease as 1 / distance.

    Args:
        size: size of the box, which has a corner at the origin.
        source: position of the source, within the box.
        microphone: position of the microphone, within the box.
        reflection: factor by which each reflection scales the amplitude; a reflection also inverts its sign.
        sample_rate: Hz.
        seconds: length of the response; it always includes the direct path.

    Shapes:
        returns: (R,) float64
    """
    direct = math.dist(source, microphone)
    reach = max(seconds * SPEED, direct)
    response = torch.zeros(_arrival(max(reach, MIN_DISTANCE), sample_rate) + 1, dtype=torch.float64)
    axes = [_images(*axis, reach) for axis in zip(size, source, microphone, strict=True)]
    (x, x_walls), (y, y_walls), (z, z_walls) = axes
    plane, plane_walls = x[:, None] ** 2 + y**2, x_walls[:, None] + y_walls
    for height, walls in zip(z.tolist(), z_walls.tolist(), strict=True):
        distance = (plane + height**2).sqrt().clamp(min=MIN_DISTANCE)
        audible = distance <= max(reach, MIN_DISTANCE)
        amplitude = (-reflection) ** (plane_walls[audible] + walls).double() / distance[audible]
        arrival = (distance[audible] / SPEED * sample_rate).round().long()
        response.index_add_(0, arrival, amplitude)
    return response


def _images(length: float, source: float, microphone: float, reach: float) -> tuple[Tensor, Tensor]:
    """Return each image in two opposite walls: its position relative to the microphone, its number of reflections."""
    most = math.ceil((reach + length) / (2 * length))
    rooms = torch.arange(-most, most + 1)
    upright, mirrored = 2 * rooms * length + source, 2 * rooms * length - source
    distance = torch.cat([upright, mirrored]).double() - microphone
    return distance, torch.cat([2 * rooms.abs(), rooms.abs() + (rooms - 1).abs()])


def _arrival(distance: float, sample_rate: int) -> int:
    return round(max(distance, MIN_DISTANCE) / SPEED * sample_rate)
