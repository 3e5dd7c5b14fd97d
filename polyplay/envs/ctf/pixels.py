"""What each player sees, as a picture: rays through the cells of the map, one to a column. Imports no torch.

The field of view is 90° both ways, so a pixel at column x and row r looks at (x + 0.5 - HALF) / HALF to the right and
(r + 0.5 - horizon) / HALF downwards for each cell of depth; depth is measured along the heading, not along the ray.
Pitch moves the horizon. Rows are the inner loop, since pixels of a row are neighbours in memory: a column is known by
the rows where its wall begins (`top`), where its coping ends (`coping`) and where it ends (`bottom`).

Swapping the red and the blue channel swaps the teams, so that neither has the better picture.
"""

from __future__ import annotations

from math import ceil, floor, sqrt

import numpy as np

from polyplay.common.compiled import cached_njit
from polyplay.envs.ctf.world import BODY, CARRIED, COS, EYE, SIN, TURN, WALL, WIDTH

PIXELS = 84  # a side
HALF = 42.0
NEAR = 0.1  # depth from which players and flags are drawn
DISC = 0.45  # radius of a base's mark on the floor
TINTED = 2.3  # how far from a base walls have its colour, in cells
COPING = 0.12  # of a wall's height
STRIP = 6  # rows at the bottom of a carrier's picture
HEAD, NECK, FACE = 0.15, 0.48, 0.55  # half its width, where it begins, where the face begins
POLE, CLOTH, FLAG = 0.03, 0.4, 0.95  # half its width, the cloth's width, height of a flag that stands
CARRIED_FLAG = 1.05
LEVELS, NEARER = 16, 1.6  # shades of a wall, how many to a cell

RED, BLUE, DARK_RED, DARK_BLUE, RED_FLOOR, BLUE_FLOOR, SKIN, WHITE, SKY, TILE, OTHER_TILE = range(11)
COLOURS = np.array(
    [
        (235, 30, 20),
        (20, 30, 235),
        (110, 10, 5),
        (5, 10, 110),
        (190, 70, 60),
        (60, 70, 190),
        (225, 205, 225),
        (255, 255, 255),
        (172, 190, 172),
        (58, 66, 58),
        (74, 84, 74),
    ],
    np.uint8,
)


def _wall_colours() -> np.ndarray:
    """uint8 [near which base (2: none), by which side the wall is hit, at a joint, shade, coping or below, RGB]."""
    tint = np.array([(205, 125, 120), (120, 125, 205), (150, 145, 150)])[:, None, None, None, None]
    side = np.array([1.0, 0.72])[:, None, None, None, None]
    joint = np.array([1.0, 0.7])[:, None, None, None]
    shade = (1 / (1 + 0.09 * np.arange(LEVELS)))[:, None, None]
    return (tint * side * joint * shade * np.array([0.6, 1.0])[:, None]).astype(np.uint8)


WALLS = _wall_colours()
RAYS = (np.arange(PIXELS) + 0.5 - HALF) / HALF  # to the right, for each cell of depth

compiled = cached_njit()


@compiled
def draw_first_person(
    grid: np.ndarray,
    base: np.ndarray,
    at: np.ndarray,
    z: np.ndarray,
    yaw: np.ndarray,
    pitch: np.ndarray,
    flag: np.ndarray,
    flag_at: np.ndarray,
    carrier: np.ndarray,
    out: np.ndarray,
) -> None:
    """Draw what each seat sees into out uint8 [n, P, 3, 84, 84], RGB; the rest as World.arrays has it."""
    n, seats = z.shape
    depth, edges = np.empty(PIXELS), np.empty((3, PIXELS), np.uint8)
    paint, tiles = np.empty((2, 3, PIXELS), np.uint8), np.empty((3, PIXELS), np.uint8)
    far, what = np.empty(seats + 2), np.empty(seats + 2, np.int64)
    for m in range(n):
        for seat in range(seats):
            picture, tilt, heading = out[m, seat], pitch[m, seat] % TURN, yaw[m, seat] % TURN
            horizon = HALF + HALF * SIN[tilt] / COS[tilt]
            view = (at[m, seat, 0], at[m, seat, 1], EYE + z[m, seat], COS[heading], SIN[heading], horizon)
            _cast(view, grid[m], base[m], depth, edges, paint)
            _fill(view, edges, paint, tiles, picture)
            for team in range(2):
                _mark(view, base[m, team], RED_FLOOR + team, edges[2], picture)
            found = _find(view, at[m], flag[m], flag_at[m], far, what)
            for i in range(found):
                _show(view, what[i], far[i], depth, at[m], z[m], yaw[m], flag_at[m], carrier[m], picture)
            for team in range(2):
                if carrier[m, team] == seat:
                    _rectangle(PIXELS - STRIP, PIXELS, 0, PIXELS, RED + team, picture)


@compiled
def _cast(
    view: tuple, grid: np.ndarray, base: np.ndarray, depth: np.ndarray, edges: np.ndarray, paint: np.ndarray
) -> None:
    """Find the wall of each column: depth [84], edges [top, coping, bottom; 84], paint [coping, below; RGB; 84]."""
    x, y, eye, ahead_x, ahead_y, horizon = view
    for column in range(PIXELS):
        ray = RAYS[column]
        right, down = ahead_x - ray * ahead_y, ahead_y + ray * ahead_x
        t, side = _hit(grid, x, y, right, down)
        depth[column] = t
        hit_x, hit_y = x + t * right, y + t * down
        scale = HALF / t
        high, low = horizon - (1 - eye) * scale, horizon + eye * scale
        edges[0, column] = _first(high)
        edges[1, column] = _first(high + COPING * scale)
        edges[2, column] = _first(low)
        first = (hit_x - base[0, 0]) ** 2 + (hit_y - base[0, 1]) ** 2
        second = (hit_x - base[1, 0]) ** 2 + (hit_y - base[1, 1]) ** 2
        near = 2
        if min(first, second) < TINTED * TINTED and first != second:
            near = 0 if first < second else 1
        along = hit_y if side == 0 else hit_x
        joint = 1 if abs(along - floor(along) - 0.5) > 0.44 else 0
        colour = WALLS[near, side, joint, min(int(t * NEARER), LEVELS - 1)]
        for channel in range(3):
            paint[0, channel, column] = colour[0, channel]
            paint[1, channel, column] = colour[1, channel]


@compiled
def _hit(grid: np.ndarray, x: float, y: float, right: float, down: float) -> tuple[float, int]:
    """How many times (right, down) it is from (x, y) to a wall or the map's end, and the side that is hit: 0 for one
    that runs up and down the map, 1 for one from left to right.
    """
    by_x, by_y = abs(1 / right) if right != 0 else 1e30, abs(1 / down) if down != 0 else 1e30
    column, row = int(x), int(y)
    step_x, step_y = (1 if right > 0 else -1), (1 if down > 0 else -1)
    to_x = (column + 1 - x if right > 0 else x - column) * by_x
    to_y = (row + 1 - y if down > 0 else y - row) * by_y
    cells, t, side = len(grid), 1e-6, 0
    while 0 <= row < cells and 0 <= column < cells and grid[row, column] != WALL:
        if to_x < to_y:
            t, side = to_x, 0
            to_x += by_x
            column += step_x
        else:
            t, side = to_y, 1
            to_y += by_y
            row += step_y
    return max(t, 1e-6), side


@compiled
def _first(at: float) -> int:
    """The first row whose middle is at or below a height in the picture, or column at or right of a place in it."""
    return ceil(min(max(at, 0.0), PIXELS + 0.0) - 0.5)


@compiled
def _fill(view: tuple, edges: np.ndarray, paint: np.ndarray, tiles: np.ndarray, picture: np.ndarray) -> None:
    """Draw sky, walls and floor, row by row."""
    top, coping, bottom = edges[0], edges[1], edges[2]
    floors = bottom.min()
    for number in range(PIXELS):
        if number >= floors:
            _tile(view, number, tiles)
        row = np.uint8(number)
        for channel in range(3):
            line, sky, ground = picture[channel, number], COLOURS[SKY, channel], tiles[channel]
            upper, lower = paint[0, channel], paint[1, channel]
            for column in range(PIXELS):  # 32 at once: bytes only, and each is read whether it is needed or not
                value, above, highest = ground[column], lower[column], upper[column]
                value = above if row < bottom[column] else value
                value = highest if row < coping[column] else value
                line[column] = sky if row < top[column] else value


@compiled
def _tile(view: tuple, row: int, tiles: np.ndarray) -> None:
    """Draw a row of the floor into tiles uint8 [RGB, 84]: a chequerboard of the map's cells."""
    x, y, eye, ahead_x, ahead_y, horizon = view
    t = eye * HALF / (row + 0.5 - horizon)
    unit = 1 << 20  # in whole numbers, so that four or eight pixels are done at once
    begin_x, begin_y = x + t * (ahead_x - RAYS[0] * ahead_y), y + t * (ahead_y + RAYS[0] * ahead_x)
    from_x, from_y = floor(begin_x * unit + 0.5), floor(begin_y * unit + 0.5)
    step_x, step_y = floor(-ahead_y * t / HALF * unit + 0.5), floor(ahead_x * t / HALF * unit + 0.5)
    for channel in range(3):
        line, light, dark = tiles[channel], COLOURS[TILE, channel], COLOURS[OTHER_TILE, channel]
        for column in range(PIXELS):
            odd = ((from_x + column * step_x) ^ (from_y + column * step_y)) & unit
            line[column] = dark if odd else light


@compiled
def _mark(view: tuple, centre: np.ndarray, colour: int, bottom: np.ndarray, picture: np.ndarray) -> None:
    """Draw a disc on the floor, where no wall hides it."""
    eye, horizon = view[2], view[5]
    t, right = _seen_from(view, centre)
    if t + DISC < NEAR:
        return
    first = _first(horizon + HALF * eye / (t + DISC))
    last = _first(horizon + HALF * eye / (t - DISC)) if t - DISC > NEAR else PIXELS
    for row in range(first, last):
        away = HALF * eye / (row + 0.5 - horizon)
        chord = DISC * DISC - (away - t) ** 2
        if chord > 0:
            begin = _first(HALF + HALF * (right - sqrt(chord)) / away)
            end = _first(HALF + HALF * (right + sqrt(chord)) / away)
            for channel in range(3):
                line, value = picture[channel, row], COLOURS[colour, channel]
                for column in range(begin, end):
                    line[column] = value if row >= bottom[column] else line[column]


@compiled
def _seen_from(view: tuple, place: np.ndarray) -> tuple[float, float]:
    """Depth of a place, and how far it is to the right."""
    x, y = place[0] - view[0], place[1] - view[1]
    return x * view[3] + y * view[4], y * view[3] - x * view[4]


@compiled
def _find(view: tuple, at: np.ndarray, flag: np.ndarray, flag_at: np.ndarray, far: np.ndarray, what: np.ndarray) -> int:
    """Write the depths of players (what: their seats) and standing flags (P, P + 1) in front, the farthest first.
    Who looks is at depth 0, so not among them.
    """
    seats, found = len(at), 0
    for thing in range(seats + 2):
        if thing >= seats and flag[thing - seats] == CARRIED:
            continue
        t, right = _seen_from(view, at[thing] if thing < seats else flag_at[thing - seats])
        if t < NEAR or abs(right) > t + WIDTH + CLOTH:
            continue
        place = found
        while place > 0 and far[place - 1] < t:
            far[place], what[place] = far[place - 1], what[place - 1]
            place -= 1
        far[place], what[place] = t, thing
        found += 1
    return found


@compiled
def _show(
    view: tuple,
    thing: int,
    t: float,
    depth: np.ndarray,
    at: np.ndarray,
    z: np.ndarray,
    yaw: np.ndarray,
    flag_at: np.ndarray,
    carrier: np.ndarray,
    picture: np.ndarray,
) -> None:
    """Draw a player or a standing flag in each run of columns where no wall is nearer."""
    seats = len(at)
    right = _seen_from(view, at[thing] if thing < seats else flag_at[thing - seats])[1]
    end, last = 0, _first(HALF + HALF * (right + WIDTH + CLOTH) / t)
    begin = _first(HALF + HALF * (right - WIDTH) / t)
    while begin < last:
        if depth[begin] <= t:
            begin += 1
            continue
        end = begin + 1
        while end < last and depth[end] > t:
            end += 1
        where = (t, right, float(begin), float(end))
        if thing >= seats:
            _flag(view, where, 0.0, FLAG, thing - seats, picture)
        else:
            for team in range(2):
                if carrier[team] == thing:
                    _flag(view, where, z[thing] + NECK, z[thing] + CARRIED_FLAG, team, picture)
            _player(view, where, z[thing], yaw[thing] % TURN, thing * 2 // seats, picture)
        begin = end


@compiled
def _player(view: tuple, where: tuple, feet: float, heading: int, team: int, picture: np.ndarray) -> None:
    """Draw a body in its team's colour, a dark head, and the face on the side of it that the player looks to."""
    _box(view, where, -WIDTH, WIDTH, feet, feet + NECK, RED + team, picture)
    _box(view, where, -HEAD, HEAD, feet + NECK, feet + BODY, DARK_RED + team, picture)
    away = COS[heading] * view[3] + SIN[heading] * view[4]
    right = SIN[heading] * view[3] - COS[heading] * view[4]
    half = 0.45 * HEAD * (0.6 - away)
    if half > 0.1 * HEAD:
        middle = right * (HEAD - half)
        _box(view, where, middle - half, middle + half, feet + FACE, feet + BODY - 0.04, SKIN, picture)


@compiled
def _flag(view: tuple, where: tuple, low: float, high: float, team: int, picture: np.ndarray) -> None:
    """Draw a white pole and a cloth in the team's colour with a white bar."""
    _box(view, where, -POLE, POLE, low, high, WHITE, picture)
    _box(view, where, POLE, POLE + CLOTH, high - 0.35, high, WHITE, picture)
    _box(view, where, POLE, POLE + CLOTH - 0.04, high - 0.31, high - 0.04, RED + team, picture)


@compiled
def _box(
    view: tuple, where: tuple, left: float, right: float, low: float, high: float, colour: int, picture: np.ndarray
) -> None:
    """Draw an upright rectangle, between columns `where` allows; its sides in cells from a thing's middle, its heights
    from the floor. It is at least a pixel wide and high.
    """
    eye, horizon = view[2], view[5]
    t, middle, begin, end = where
    scale = HALF / t
    side, above = HALF + (middle + left) * scale, horizon - (high - eye) * scale
    top, start = _first(above), _first(side)
    bottom = _first(max(horizon - (low - eye) * scale, above + 1))
    stop = _first(max(HALF + (middle + right) * scale, side + 1))
    _rectangle(top, bottom, max(start, int(begin)), min(stop, int(end)), colour, picture)


@compiled
def _rectangle(top: int, bottom: int, left: int, right: int, colour: int, picture: np.ndarray) -> None:
    for channel in range(3):
        value = COLOURS[colour, channel]
        for row in range(top, bottom):
            for column in range(left, right):
                picture[channel, row, column] = value
