"""The random numbers of C++ programs: `std::mt19937` and the distributions of libstdc++ over it, as numpy columns.

The engine is that of Matsumoto and Nishimura, "Mersenne Twister" (ACM TOMACS 8(1), 1998). Bounded integers are drawn
as in Lemire, "Fast Random Integer Generation in an Interval" (ACM TOMACS 29(1), 2019), which libstdc++ does from its
release 11 on.
"""

import math

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

_WORD = np.uint64(32)
_LOW_WORD = np.uint64(0xFFFF_FFFF)
_RANGE = 1 << 32
_STATE_WORDS = 624
_BLOCK = 16_384


class Mersenne:
    """One engine; draws in the order in which a C++ program makes them give the numbers of that program.

    Only the lower 32 bits of the seed count, as in C++.
    """

    def __init__(self, seed: int) -> None:
        state = [seed % _RANGE]
        for i in range(1, _STATE_WORDS):
            state.append((1_812_433_253 * (state[-1] ^ (state[-1] >> 30)) + i) % _RANGE)
        self._engine = np.random.MT19937()
        self._engine.state = {
            "bit_generator": "MT19937",
            "state": {"key": np.array(state, np.uint32), "pos": _STATE_WORDS},
        }
        self._unread: Words = np.empty(0, np.uint64)

    def uniform(self, count: int) -> Floats:
        """Draw numbers of [0, 1); shape (count,)."""
        words = self._words(2 * count).astype(np.float64)
        # A number is made of two words, of which the lower comes first; it is rounded below 1.
        return np.minimum((words[0::2] + words[1::2] * _RANGE) / 2.0**64, math.nextafter(1.0, 0.0))

    def exponential_ns(self, count: int, rate: float) -> Integers:
        """Draw exponential gaps of a mean of 1 / `rate` seconds in whole nanoseconds, rounded down; shape (count,)."""
        uniform = self.uniform(count)
        ns = -np.log(1 - uniform) / rate * 1e9
        # numpy's logarithm may differ from that of the C library in the last bit. Where that could change the whole
        # number, the C library decides.
        for i in np.flatnonzero(np.abs(ns - np.rint(ns)) <= 8 * np.spacing(ns)).tolist():
            ns[i] = -math.log(1 - float(uniform[i])) / rate * 1e9
        return np.asarray(ns, np.int64)

    def below(self, bounds: Integers) -> Integers:
        """Draw an integer of [0, bound) for each of the `bounds`, which are at most 2**32 - 1; the same shape (n,)."""
        drawn = np.empty(len(bounds), np.int64)
        done, block = 0, _BLOCK
        while done < len(bounds):
            filled = self._below(bounds[done : done + block].astype(np.uint64), drawn[done : done + block])
            done += filled
            # Large bounds refuse many words, and the rest of a block is then in vain.
            block = min(_BLOCK, 2 * filled + 1)
        return drawn

    def shuffle(self, values: Integers) -> Integers:
        """Return the values in the order that `std::shuffle` gives them."""
        shuffled: list[int] = values.tolist()
        for i, j in enumerate(self.shuffle_positions(len(values)).tolist(), 1):
            shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
        return np.array(shuffled, np.int64)

    def shuffle_positions(self, size: int) -> Integers:
        """Draw the positions with which `std::shuffle` swaps those from 1 to `size` - 1, in that order.

        As long as two positions fit into one word, one number is drawn for both; one is left over if `size` is even.
        """
        if size < 2:
            return np.empty(0, np.int64)
        places = np.arange(2, size + 1)
        if size > (_RANGE - 1) // size:
            return self.below(places)
        single = places[: (size - 1) % 2]
        pairs = places[len(single) :].reshape(-1, 2)
        drawn = self.below(np.concatenate((single, pairs[:, 0] * pairs[:, 1])))
        both = drawn[len(single) :]
        return np.concatenate(
            (drawn[: len(single)], np.stack((both // pairs[:, 1], both % pairs[:, 1]), axis=1).reshape(-1))
        )

    def _below(self, bounds: Words, drawn: Integers) -> int:
        """Fill `drawn` up to the first word that is not used, for lack of fairness; returns how many were filled."""
        words = self._words(len(bounds))
        products = words * bounds
        low = products & _LOW_WORD
        refused = np.flatnonzero((low < bounds) & (low < (_RANGE - bounds) % bounds))
        filled = int(refused[0]) if len(refused) else len(bounds)
        drawn[:filled] = products[:filled] >> _WORD
        if len(refused):
            self._unread = np.concatenate((words[filled + 1 :], self._unread))
        return filled

    def _words(self, count: int) -> Words:
        """The next words of the engine."""
        taken, self._unread = self._unread[:count], self._unread[count:]
        if len(taken) == count:
            return taken
        return np.concatenate((taken, self._engine.random_raw(count - len(taken))))
