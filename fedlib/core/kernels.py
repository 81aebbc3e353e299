# pyright: reportCallIssue=false, reportArgumentType=false
# numba calls an intrinsic without its first argument, and compiles what is typed here
"""Convolution and pooling of many clients in one call, compiled by numba.

Arrays are float32 and hold the batch innermost, ``[K, C, H, W, B]``: one row of an
image is ``W * B`` neighbouring values, a shift by one pixel is a shift by ``B``, and a
vector of the processor holds one pixel of several samples. The inner loops are written
in LLVM's vectors, because numba's own loops keep their sums in memory: here a tile of
sums stays in registers while the window passes over the input.

Each client's numbers depend on that client alone, not on how many are computed with it.
"""

from itertools import product

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8  # floats in a vector, of AVX2 (NEON takes two)
SPAN = 2 * LANES  # neighbouring outputs of a tile of `_correlate`
TILES = (4, 5, 6)  # channels of a tile of `_correlate`: twice as many vectors of sums
PAIR = 2  # channels of a tile of `_gradient`: 2 x size vectors of sums
SIZES = (3, 5)  # of windows that have tiles

# Sums in any order, so that they run in vectors; what is no number stays none. A helper
# with such sums stands in its caller (`forceinline`): compiled by itself and compiled
# with the caller it may add in two orders, and the process that compiles would take the
# one, all that read the compilation from disk the other.
_SUMS = {"reassoc", "contract", "nsz"}

_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
_BYTES = ir.VectorType(ir.IntType(8), LANES)
_WHOLE = ir.VectorType(ir.IntType(32), LANES)  # as wide as floats: one mask serves both


def _int(value: int):
    return ir.Constant(ir.IntType(64), value)


def _vector_at(b, array, at, kind):
    """Return the place in an array as that of a vector."""
    return b.bitcast(b.gep(array, [at]), kind.as_pointer())


def _load(b, array, at):
    """Load a vector that need not be aligned."""
    return b.load(_vector_at(b, array, at, _VECTOR), align=4)


def _spread(b, array, at):
    """Load one value into all lanes."""
    nothing, first = ir.Constant(_VECTOR, ir.Undefined), ir.IntType(32)(0)
    vector = b.insert_element(nothing, b.load(b.gep(array, [at])), first)
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return b.shuffle_vector(vector, nothing, lanes)


def _add_product(b, total, left, right):
    """Add ``left * right`` to the sum at ``total``, fused where the processor can."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    name = f"llvm.fmuladd.v{LANES}f32"
    fused = cgutils.get_or_insert_function(b.module, kind, name)
    b.store(b.call(fused, [left, right, b.load(total)]), total)


def _total(b, vector):
    """Return the sum of a vector's lanes."""
    kind = ir.FunctionType(_FLOAT, [_FLOAT, _VECTOR])
    name = f"llvm.vector.reduce.fadd.v{LANES}f32"
    reduce = cgutils.get_or_insert_function(b.module, kind, name)
    return b.call(reduce, [_FLOAT(0.0), b.load(vector)], fastmath=("reassoc",))


def _pointers(context, b, kinds, arrays):
    """Return a tuple of arrays as pointers to their data."""
    unpacked = cgutils.unpack_tuple(b, arrays)
    return [
        context.make_array(kind)(context, b, one).data
        for kind, one in zip(kinds, unpacked, strict=True)
    ]


@intrinsic
def _correlate_tile(typing, arrays, at, out, src, weight, count):
    """Write SPAN outputs of some channels: the bias plus the window on the input.

    ``arrays`` are out, src, weight and bias, ``at`` the places in them. The distances:
    of channels in ``out``; of channels, rows and pixels in ``src``; of output channels,
    input channels and rows in ``weight``. ``count`` are the output's channels, one of
    TILES, the input's, and the window's rows and columns.
    """

    def generate(context, b, signature, args):
        arrays = _pointers(context, b, signature.args[0], args[0])
        places, src, weight, count = (
            cgutils.unpack_tuple(b, args[i]) for i in (1, 3, 4, 5)
        )
        apart, (outputs, channels, rows, columns) = args[2], count
        vectors = range(SPAN // LANES)

        def tile(tall: int, taps: int) -> None:
            sums = [
                [cgutils.alloca_once(b, _VECTOR) for _ in vectors] for _ in range(tall)
            ]
            for i, row in enumerate(sums):
                bias = _spread(b, arrays[3], b.add(places[3], _int(i)))
                for total in row:
                    b.store(bias, total)
            with cgutils.for_range(b, channels) as c, cgutils.for_range(b, rows) as r:
                here = b.add(b.mul(c.index, src[0]), b.mul(r.index, src[1]))
                here = b.add(places[1], here)
                tap = b.add(b.mul(c.index, weight[1]), b.mul(r.index, weight[2]))
                tap = b.add(places[2], tap)
                for k in range(taps):
                    pixel = b.add(here, b.mul(src[2], _int(k)))
                    seen = [
                        _load(b, arrays[1], b.add(pixel, _int(v * LANES)))
                        for v in vectors
                    ]
                    for i, row in enumerate(sums):
                        place = b.add(tap, b.add(b.mul(weight[0], _int(i)), _int(k)))
                        factor = _spread(b, arrays[2], place)
                        for total, value in zip(row, seen, strict=True):
                            _add_product(b, total, factor, value)
            for i, row in enumerate(sums):
                for v, total in enumerate(row):
                    place = b.add(b.mul(apart, _int(i)), _int(v * LANES))
                    place = b.add(places[0], place)
                    into = _vector_at(b, arrays[0], place, _VECTOR)
                    b.store(b.load(total), into, align=4)

        # The sums of a tile are registers, so that every size has code of its own
        most = max(SIZES) + 1
        done = b.append_basic_block()
        cases = b.switch(b.add(b.mul(outputs, _int(most)), columns), done)
        for tall, taps in product(TILES, range(1, most)):
            case = b.append_basic_block()
            cases.add_case(_int(tall * most + taps), case)
            b.position_at_end(case)
            tile(tall, taps)
            b.branch(done)
        b.position_at_end(done)
        return context.get_dummy_value()

    return types.void(arrays, at, out, src, weight, count), generate


@intrinsic(prefer_literal=True)
def _gradient_tile(typing, arrays, size, at, grad, src, out, count):
    """Write the window's gradient for one row of it and PAIR output channels.

    ``arrays`` are grad (of the weights), src and out (the outputs' gradient), ``at``
    the places in them. The distances: of output channels in ``grad``; of rows and
    pixels in ``src``; of channels and rows in ``out``. ``count`` are the rows and the
    values of each, of which the first multiple of LANES counts.
    """
    if not isinstance(size, types.IntegerLiteral):
        return None
    width = size.literal_value

    def generate(context, b, signature, args):
        arrays = _pointers(context, b, signature.args[0], args[0])
        places, src, out, (rows, values) = (
            cgutils.unpack_tuple(b, args[i]) for i in (2, 4, 5, 6)
        )
        apart = args[3]
        sums = [
            [cgutils.alloca_once(b, _VECTOR) for _ in range(width)] for _ in range(PAIR)
        ]
        for row in sums:
            for total in row:
                b.store(_VECTOR([0.0] * LANES), total)
        vectors = b.sdiv(values, _int(LANES))
        with cgutils.for_range(b, rows) as r, cgutils.for_range(b, vectors) as v:
            along = b.mul(v.index, _int(LANES))
            there = b.add(places[2], b.add(b.mul(r.index, out[1]), along))
            here = b.add(places[1], b.add(b.mul(r.index, src[0]), along))
            pulls = [
                _load(b, arrays[2], b.add(there, b.mul(out[0], _int(i))))
                for i in range(PAIR)
            ]
            for k in range(width):
                value = _load(b, arrays[1], b.add(here, b.mul(src[1], _int(k))))
                for row, pull in zip(sums, pulls, strict=True):
                    _add_product(b, row[k], pull, value)
        for i, row in enumerate(sums):
            for k, total in enumerate(row):
                place = b.add(b.mul(apart, _int(i)), _int(k))
                place = b.gep(arrays[0], [b.add(places[0], place)])
                b.store(_total(b, total), place)
        return context.get_dummy_value()

    return types.void(arrays, size, at, grad, src, out, count), generate


@njit(nogil=True, cache=True)
def _tall(outputs):
    """Return the tile of TILES that computes least twice: of two the larger."""
    best = TILES[0]
    for tall in TILES:
        if -(-outputs // tall) * tall <= -(-outputs // best) * best:
            best = tall
    return best


@njit(nogil=True, cache=True)
def _rows(out, src, weight, bias, client, first, y0, y1, top, batch):
    """Write rows ``y0`` to ``y1`` of a tile into ``out`` ``[O, rows, N]``."""
    channels, height, row = src.shape[1:]
    outputs, size = weight.shape[1], weight.shape[3]
    tall, wide = out.shape[1:]
    window = size * size
    arrays = (out, src, weight, bias)
    steps, apart = (height * row, row, batch), (channels * window, window, size)
    for y in range(y0, y1):
        begin = max(0, top - y)
        rows = min(size, height + top - y) - begin
        for block in range(0, wide, SPAN):
            x = min(block, wide - SPAN)  # the last tile may overlap
            # Columns of the window that meet more than the zeros beside the input
            left = max(0, top - (x + SPAN - 1) // batch)
            columns = min(size, row // batch - top - x // batch) - left
            at = (
                (y - y0) * wide + x,
                (client * channels * height + y - top + begin) * row + x + left * batch,
                (client * outputs + first) * channels * window + begin * size + left,
                client * outputs + first,
            )
            count = (len(out), channels, rows, columns)
            _correlate_tile(arrays, at, tall * wide, steps, apart, count)


@njit(nogil=True, cache=True)
def correlate(out, src, weight, bias, top, batch):
    """Write ``out``: every output is its bias plus the window on the input.

    Parameters
    ----------
    out : array ``[K, O, H', N]``
        ``N`` is the width of an output row times the batch, at least SPAN.
    src : array ``[K, C, H, W * B]``
        Padded on the left and right, not above and below.
    weight : array ``[K, O, C, S, S]``
        O at least the least of TILES, S one of SIZES.
    bias : array ``[K, O]``
    top : int
        Rows of zeros that are thought above the input.
    batch : int
        B.
    """
    outputs, height = out.shape[1:3]
    tall = _tall(outputs)
    for client in range(len(out)):
        for block in range(0, outputs, tall):
            first = min(block, outputs - tall)
            into = out[client, first : first + tall]
            _rows(into, src, weight, bias, client, first, 0, height, top, batch)


@njit(nogil=True, cache=True)
def _window_gradient(grad, src, out, client, around, top, batch):
    """Write one client's weight gradient; ``out`` has zeros ``around`` its rows."""
    channels, height, row = src.shape[1:]
    outputs, tall, wide = out.shape
    size = grad.shape[3]
    window = size * size
    values = wide - 2 * around
    arrays = (grad, src, out)
    for block in range(0, outputs, PAIR):
        first = min(block, outputs - PAIR)
        for c in range(channels):
            for tap in range(size):
                begin = max(0, top - tap)
                rows = min(tall, height + top - tap) - begin
                at = (
                    ((client * outputs + first) * channels + c) * window + tap * size,
                    ((client * channels + c) * height + begin + tap - top) * row,
                    (first * tall + begin) * wide + around,
                )
                apart, pulls = channels * window, (tall * wide, wide)
                count = (rows, values)
                if size == 3:
                    _gradient_tile(arrays, 3, at, apart, (row, batch), pulls, count)
                else:
                    _gradient_tile(arrays, 5, at, apart, (row, batch), pulls, count)
    for x in range(values - values % LANES, values):  # what fills no vector
        for o in range(outputs):
            for c in range(channels):
                for tap in range(size):
                    for y in range(max(0, top - tap), min(tall, height + top - tap)):
                        pull = out[o, y, around + x]
                        seen = src[client, c, y + tap - top]
                        for k in range(size):
                            grad[client, o, c, tap, k] += pull * seen[x + k * batch]


@njit(nogil=True, cache=True)
def weight_gradient(grad, src, out, top, batch):
    """Write ``grad`` ``[K, O, C, S, S]``, the gradient of the weights.

    ``src`` and ``top`` are `correlate`'s, ``out`` is the gradient of its outputs.
    """
    for client in range(len(grad)):
        _window_gradient(grad, src, out[client], client, 0, top, batch)


@intrinsic
def _pool_tile(typing, arrays, at, batch, count):
    """Pool LANES samples of ``count`` windows: the largest value, and which it was.

    ``arrays`` are two rows of an image, out and where, ``at`` is the first sample.
    """

    def generate(context, b, signature, args):
        above, below, out, where = _pointers(context, b, signature.args[0], args[0])
        at, batch, count = args[1:]
        with cgutils.for_range(b, count) as window:
            here = b.add(at, b.mul(window.index, batch))
            left = b.add(at, b.mul(b.mul(window.index, _int(2)), batch))
            right = b.add(left, batch)
            best, place = _load(b, above, left), _WHOLE([0] * LANES)
            rest = ((above, right), (below, left), (below, right))
            for corner, (row, start) in enumerate(rest, 1):
                value = _load(b, row, start)
                more = b.fcmp_ordered(">", value, best)
                more = b.or_(more, b.fcmp_unordered("uno", value, value))
                best = b.select(more, value, best)
                place = b.select(more, _WHOLE([corner] * LANES), place)
            place = b.trunc(place, _BYTES)
            b.store(best, _vector_at(b, out, here, _VECTOR), align=4)
            b.store(place, _vector_at(b, where, here, _BYTES), align=1)
        return context.get_dummy_value()

    return types.void(arrays, at, batch, count), generate


@intrinsic
def _unpool_tile(typing, arrays, at, apart, count):
    """Write LANES samples of ``count`` windows: their gradient at the largest, else 0.

    ``arrays`` are grad, where and two rows of an image, ``at`` the first sample in grad
    and in the rows, ``apart`` the distance of pixels.
    """

    def generate(context, b, signature, args):
        grad, where, above, below = _pointers(context, b, signature.args[0], args[0])
        first, start = cgutils.unpack_tuple(b, args[1])
        apart, count = args[2:]
        with cgutils.for_range(b, count) as window:
            here = b.add(first, b.mul(window.index, apart))
            left = b.add(start, b.mul(b.mul(window.index, _int(2)), apart))
            right = b.add(left, apart)
            pull = _load(b, grad, here)
            place = b.load(_vector_at(b, where, here, _BYTES), align=1)
            corners = ((above, left), (above, right), (below, left), (below, right))
            for corner, (row, to) in enumerate(corners):
                same = b.icmp_unsigned("==", place, _BYTES([corner] * LANES))
                value = b.select(same, pull, _VECTOR([0.0] * LANES))
                b.store(value, _vector_at(b, row, to, _VECTOR), align=4)
        return context.get_dummy_value()

    return types.void(arrays, at, apart, count), generate


@njit(nogil=True, cache=True)
def _largest(above, below, out, where, batch):
    """Pool two rows ``[W * B]`` into one of ``[W' * B]``, and say where from."""
    windows = len(out) // batch
    vectored = batch - batch % LANES
    for start in range(0, vectored, LANES):
        _pool_tile((above, below, out, where), start, batch, windows)
    if vectored == batch:
        return
    for x in range(windows):
        for i in range(vectored, batch):
            left = 2 * x * batch + i
            best, place = above[left], 0
            for corner in range(1, 4):
                row = above if corner == 1 else below
                value = row[left + corner % 2 * batch]
                if value > best or value != value:
                    best, place = value, corner
            out[x * batch + i] = best
            where[x * batch + i] = place


@njit(nogil=True, cache=True)
def _floor(values, where):
    """Set what is not above 0 to 0, and its place to 4."""
    for x in range(len(values)):
        if values[x] <= 0:
            values[x] = 0
            where[x] = 4


@njit(nogil=True, cache=True)
def _scatter(grad, where, out, around, batch):
    """Undo `_largest` for an image: ``[H', W' * B]`` to the inside of ``[H, ...]``.

    What is outside of all windows, and ``around`` the rows, keeps its zeros.
    """
    windows = grad.shape[1] // batch
    vectored = batch - batch % LANES
    for y in range(len(grad)):
        above, below = out[2 * y], out[2 * y + 1]
        for start in range(0, vectored, LANES):
            at = (start, around + start)
            _unpool_tile((grad[y], where[y], above, below), at, batch, windows)
        for x in range(windows if vectored < batch else 0):
            for i in range(vectored, batch):
                left = around + 2 * x * batch + i
                for corner in range(4):
                    row = above if corner < 2 else below
                    mine = where[y, x * batch + i] == corner
                    pull = grad[y, x * batch + i] if mine else np.float32(0)
                    row[left + corner % 2 * batch] = pull


@njit(nogil=True, cache=True)
def pool(src, out, where, batch):
    """Write the largest value of every 2 x 2 window, and which of its four it was.

    ``src`` is ``[N, H, W * B]``, ``out`` and ``where`` (uint8) ``[N, H', W' * B]``. Of
    equal values the first counts; what is no number counts as the largest.
    """
    for n in range(len(out)):
        for y in range(out.shape[1]):
            above, below = src[n, 2 * y], src[n, 2 * y + 1]
            _largest(above, below, out[n, y], where[n, y], batch)


@njit(nogil=True, cache=True)
def unpool(grad, where, src, batch):
    """Write into zeros ``[N, H, W * B]`` `pool`'s gradient, at the largest values."""
    for n in range(len(grad)):
        _scatter(grad[n], where[n], src[n], 0, batch)


@njit(nogil=True, cache=True)
def block(out, where, src, weight, bias, top, batch, tall, wide):
    """`correlate`, what is below 0 set to 0, and `pool`, two rows at a time.

    ``tall`` and ``wide`` (times the batch) are the rows before pooling; ``out`` and
    ``where`` ``[K, O, tall // 2, N]``, where 4 in ``where`` stands for a window
    without a value above 0.
    """
    outputs = out.shape[1]
    channels = _tall(outputs)
    rows = np.empty((channels, 2, wide), np.float32)
    for client in range(len(out)):
        for start in range(0, outputs, channels):
            first = min(start, outputs - channels)
            for y in range(tall // 2):
                y0 = 2 * y
                _rows(rows, src, weight, bias, client, first, y0, y0 + 2, top, batch)
                for i in range(channels):
                    o = first + i
                    best, place = out[client, o, y], where[client, o, y]
                    _largest(rows[i, 0], rows[i, 1], best, place, batch)
                    _floor(best, place)


@njit(nogil=True, cache=True, fastmath=_SUMS, forceinline=True)
def _sum_inside(plane, around):
    """Return the sum of ``[H, W * B]``, which has zeros ``around`` its rows."""
    total = np.float32(0)
    for y in range(len(plane)):
        row = plane[y, around : plane.shape[1] - around]
        for i in range(len(row)):
            total += row[i]
    return total


@njit(nogil=True, cache=True)
def bias_gradient(grad, out):
    """Write the sums ``[K, O]`` of the outputs' gradient ``[K, O, H, W * B]``."""
    for client in range(len(grad)):
        for o in range(grad.shape[1]):
            grad[client, o] = _sum_inside(out[client, o], 0)


@njit(nogil=True, cache=True)
def block_gradient(on, grad, where, src, weight, bias, top, batch, tall, wide, inside):
    """Write `block`'s gradients to the weights, the bias and, if ``inside``, the input.

    ``on`` are their places. ``weight`` ``[K, C, O, S, S]`` is `block`'s turned round,
    ``bias`` ``[K, C]`` is 0; the input has no zeros beside it, as ``src`` has.
    """
    on_weight, on_bias, on_src = on
    outputs, size = grad.shape[1], on_weight.shape[3]
    around = (size - 1 - top) * batch if inside else 0
    full = np.zeros((1, outputs, tall, wide + 2 * around), np.float32)
    for client in range(len(grad)):
        for o in range(outputs):
            _scatter(grad[client, o], where[client, o], full[0, o], around, batch)
            on_bias[client, o] = _sum_inside(full[0, o], around)
        _window_gradient(on_weight, src, full[0], client, around, top, batch)
        if inside:
            mine = slice(client, client + 1)
            correlate(
                on_src[mine], full, weight[mine], bias[mine], size - 1 - top, batch
            )


@njit(nogil=True, cache=True, fastmath=_SUMS)
def moments(src, mean, variance):
    """Write the mean and the variance (over n) of every row of ``src`` ``[N, n]``."""
    count = np.float32(src.shape[1])
    for n in range(len(src)):
        row = src[n]
        total = np.float32(0)
        for i in range(len(row)):
            total += row[i]
        middle = total / count
        total = np.float32(0)
        for i in range(len(row)):
            total += (row[i] - middle) * (row[i] - middle)
        mean[n], variance[n] = middle, total / count


@njit(nogil=True, cache=True)
def _line(src, scale, shift, out):
    for i in range(len(src)):
        out[i] = src[i] * scale + shift


@njit(nogil=True, cache=True)
def scaled(src, scale, shift, out):
    """Write ``src * scale + shift`` for every row of ``src`` ``[N, n]``."""
    for n in range(len(src)):
        _line(src[n], scale[n], shift[n], out[n])


@njit(nogil=True, cache=True)
def scaled_block(src, scale, shift, out, where, batch):
    """`scaled`, what is below 0 set to 0, and `pool`; ``src`` ``[N, H, W * B]``."""
    rows = np.empty((2, src.shape[2]), np.float32)
    for n in range(len(out)):
        for y in range(out.shape[1]):
            for half in range(2):
                _line(src[n, 2 * y + half], scale[n], shift[n], rows[half])
            _largest(rows[0], rows[1], out[n, y], where[n, y], batch)
            _floor(out[n, y], where[n, y])


@njit(nogil=True, cache=True, fastmath=_SUMS, forceinline=True)
def _row_gradient(on, sums, grad, src, scale, mean, spread, fixed):
    """Write the gradient of one channel's normalisation, and of its scale and shift."""
    count = np.float32(len(src))
    total, along = np.float32(0), np.float32(0)
    for i in range(len(src)):
        total += grad[i]
        along += grad[i] * (src[i] - mean)
    sums[0], sums[1] = along * spread, total
    if fixed:  # mean and spread are not the batch's
        total, along = np.float32(0), np.float32(0)
    level, slope = total / count, along * spread * spread / count
    for i in range(len(src)):
        on[i] = scale * (grad[i] - level - (src[i] - mean) * slope)


@njit(nogil=True, cache=True)
def scaled_gradient(on, sums, grad, src, scale, mean, spread, fixed):
    """Write `scaled`'s gradient to ``src`` ``[N, n]`` and ``sums`` ``[N, 2]``.

    ``scale`` is the weight times ``spread``, one over the standard deviation, and the
    shift the bias less the mean times it; ``sums`` are the gradients of both.
    """
    for n in range(len(src)):
        _row_gradient(
            on[n], sums[n], grad[n], src[n], scale[n], mean[n], spread[n], fixed
        )


@njit(nogil=True, cache=True)
def scaled_block_gradient(
    on, sums, grad, where, src, scale, mean, spread, fixed, batch
):
    """Write `scaled_block`'s gradient: ``src`` and ``on`` are ``[N, H, W * B]``."""
    full = np.zeros(src.shape[1:], np.float32)
    for n in range(len(src)):
        _scatter(grad[n], where[n], full, 0, batch)
        _row_gradient(
            on[n].reshape(-1),
            sums[n],
            full.reshape(-1),
            src[n].reshape(-1),
            scale[n],
            mean[n],
            spread[n],
            fixed,
        )
