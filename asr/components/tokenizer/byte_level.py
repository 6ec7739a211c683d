"""Byte-level pieces, whose characters are bytes of UTF-8.

*Source*: `bytes_to_unicode` of GPT-2, Radford et al. 2019.
"""

from asr.base.text.words import BYTE

TYPE = "ByteLevel"  # name of the pre-tokenizer and of the decoder in Hugging Face's tokenizers library


def _characters() -> dict[str, int]:
    """Return the byte that each character of a piece represents: bytes that are not printable are moved past 255."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + number): byte for number, byte in enumerate(others)}


BYTES = _characters()


def spelt_bytes(name: str) -> bytes:
    """Return the bytes that a piece spells; an added token with another character spells its own name."""
    return bytes(BYTES[character] for character in name) if BYTES.keys() >= set(name) else name.encode()


def readable(piece: str) -> str:
    """Return the name of a piece: its text, in which the byte 0xE2 of a character that is not whole is <0xE2>."""
    return BYTE.sub(lambda match: f"<0x{ord(match[0]) - 0xDC00:02X}>", piece)
