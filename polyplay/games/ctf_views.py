"""Capture the flag: observations of players, and images for people.

A first-person image is drawn by casting one ray per column of pixels through the cells of the map. The field of view is
90° horizontally and vertically. A player's pitch moves the horizon up or down.

Depth is the distance along the player's heading, not along the ray. With H = PIXELS_HALF, the ray of the pixel in
column x and row r moves, for each cell of depth, (x + 0.5 - H) / H cells to the right and (r + 0.5 - horizon) / H cells
down. In each column, the wall reaches from row `top` to row `bottom`, with a dark strip from `top` to `coping`.

The teams' colors differ only in that red and blue are swapped, so neither team has a better image.
"""

from __future__ import annotations

from math import ceil, floor, sqrt

import numpy as np

from polyplay.core.compiled import cached_njit, compiled
from polyplay.core.tree import Batch
from polyplay.games import ctf_rules as rules
from polyplay.games.ctf_rules import BODY, CARRIED, COS, SEEN, SIN, TURN, WALL, WIDTH, FlagMatches

# Cell [i, j] of the window view is 5 - i cells ahead of the player and j - 5 cells to the right. A cell is dark
# (hidden) if the way from the player to the cell, in steps of half a cell, meets a wall.


HALF = SEEN // 2
SHOWN = 255  # value of a set byte; networks scale bytes to [0, 1]

uncounted = cached_njit(_nrt=False)  # no reference counts: these functions allocate no array


def _ways() -> tuple[np.ndarray, np.ndarray]:
    """Return the lines of sight from the middle of the window to the other 120 cells, nearest cells first.

    The first array, int64 [120, 2], has each cell and the cell before it on its line. The second array, float64 [120,
    2, 2], has the coordinates (ahead, right) of the cell, and of the point half way to the cell before it.
    """
    cells = [(i, j) for i in range(SEEN) for j in range(SEEN) if (i, j) != (HALF, HALF)]
    cells.sort(key=lambda cell: max(abs(cell[0] - HALF), abs(cell[1] - HALF)))
    ways = []
    for i, j in cells:
        far = max(abs(i - HALF), abs(j - HALF))
        before = [HALF + round((k - HALF) * (far - 1) / far) for k in (i, j)]
        ways.append((i * SEEN + j, before[0] * SEEN + before[1]))
    rows, columns = np.divmod(np.array(ways), SEEN)
    ends = np.stack([HALF - rows, columns - HALF], -1).astype(np.float64)
    return np.array(ways), np.stack([ends[:, 0], ends.mean(1)], 1)


_WAYS, _STEPS = _ways()


@uncounted
def _is_wall(grid: np.ndarray, x: float, y: float) -> bool:
    size = len(grid)
    return not (0.0 <= x < size and 0.0 <= y < size) or grid[int(y), int(x)] == WALL


@uncounted
def _look(grid: np.ndarray, x: float, y: float, yaw: int, out: np.ndarray) -> None:
    """Draw the planes "dark" (hidden cells) and "wall" of a player at (x, y) into `out`, uint8 [planes, 121]."""
    c, s = COS[yaw], SIN[yaw]
    for k in range(len(_WAYS)):
        cell, before = _WAYS[k, 0], _WAYS[k, 1]
        ahead, right = _STEPS[k, 1, 0], _STEPS[k, 1, 1]
        if out[0, before] or out[1, before]:
            out[0, cell] = SHOWN
            continue
        hidden = _is_wall(grid, x + ahead * c - right * s, y + ahead * s + right * c)
        ahead, right = _STEPS[k, 0, 0], _STEPS[k, 0, 1]
        wall = _is_wall(grid, x + ahead * c - right * s, y + ahead * s + right * c)
        out[1, cell] = SHOWN if wall else 0
        out[0, cell] = SHOWN if hidden and not wall else 0


@uncounted
def _show(plane: np.ndarray, dark: np.ndarray, dx: float, dy: float, yaw: int) -> None:
    """Mark the cell at the distance (dx, dy) from the player, unless it is dark or outside the window."""
    i = int(np.floor(HALF - (dx * COS[yaw] + dy * SIN[yaw]) + 0.5))
    j = int(np.floor(HALF + (dy * COS[yaw] - dx * SIN[yaw]) + 0.5))
    if 0 <= i < SEEN and 0 <= j < SEEN and not dark[i * SEEN + j]:
        plane[i * SEEN + j] = SHOWN


@uncounted
def draw_windows(s: FlagMatches, out: np.ndarray) -> None:
    """Draw the cells around each player into `out`, uint8 [n, P, planes, 11, 11], which must be zeros. The planes are
    ctf_rules.PLANES, with values 0 or SHOWN.
    """
    n, P = s.yaw.shape
    for m in range(n):
        at, base, flag_at, carrier = s.at[m], s.base[m], s.flag_at[m], s.carrier[m]
        for p in range(P):
            view, x, y, turned = out[m, p].reshape(out.shape[2], SEEN * SEEN), at[p, 0], at[p, 1], s.yaw[m, p]
            _look(s.grid[m], x, y, turned, view)
            own = 0 if p < P // 2 else 1
            for q in range(P):
                if q != p:
                    plane = 2 if (q < P // 2) == (p < P // 2) else 3
                    if carrier[0] == q or carrier[1] == q:
                        plane += 2
                    _show(view[plane], view[0], at[q, 0] - x, at[q, 1] - y, turned)
            for team in range(2):
                away = 0 if team == own else 1
                if carrier[team] < 0:
                    _show(view[6 + away], view[0], flag_at[team, 0] - x, flag_at[team, 1] - y, turned)
                _show(view[8 + away], view[0], base[team, 0] - x, base[team, 1] - y, turned)


@uncounted
def know(s: FlagMatches, length: int, out: np.ndarray) -> None:
    """Write everything that each player observes, except the view, into `out`, float32 [n, P, 12].

    The 12 numbers are: score difference / 5; fraction of the match that is left; the state of the team's flag as
    one-hot (home, carried, dropped); the state of the opponents' flag as one-hot; whether the player carries that flag;
    fraction of the reload time that is left; pitch / STEEPEST; height of the feet in cells.
    """
    n, P = s.z.shape
    out[:] = 0.0
    for m in range(n):
        for p in range(P):
            own, facts = (0 if p < P // 2 else 1), out[m, p]
            facts[0] = (s.score[m, own] - s.score[m, 1 - own]) / 5.0
            facts[1] = 1.0 - s.age[m] / length
            facts[2 + s.flag[m, own]] = 1.0
            facts[5 + s.flag[m, 1 - own]] = 1.0
            facts[8] = 1.0 if s.carrier[m, 1 - own] == p else 0.0
            facts[9] = s.loads[m, p] / rules.RELOAD
            facts[10] = s.pitch[m, p] / rules.STEEPEST
            facts[11] = s.z[m, p]


PIXELS = 84  # pixels per side of a first-person image
PIXELS_HALF = 42.0
NEAR = 0.1  # least depth, in cells, at which players and flags are drawn
DISC = 0.45  # radius of a base's disc on the floor, in cells
TINTED = 2.3  # distance from a base, in cells, within which walls have the base's color
COPING = 0.12  # height of the dark strip at the top of a wall, in cells
STRIP = 6  # rows of pixels at the bottom of a flag carrier's image that show the flag's color
HEAD, NECK, FACE = 0.15, 0.48, 0.55  # half the head's width; heights at which head and face begin, in cells
POLE, CLOTH, FLAG = 0.03, 0.4, 0.95  # half the pole's width, the cloth's width, height of a standing flag, in cells
CARRIED_FLAG = 1.05
LEVELS, NEARER = 16, 1.6  # number of shades of walls; shades per cell of distance

RED, BLUE, DARK_RED, DARK_BLUE, RED_FLOOR, BLUE_FLOOR, SKIN, WHITE, SKY, TILE, OTHER_TILE = range(11)
_HEX = "eb1e14 141eeb 6e0a05 050a6e be463c 3c46be e1cde1 ffffff acbeac 3a423a 4a544a"
COLORS = np.array([[*bytes.fromhex(color)] for color in _HEX.split()], np.uint8)


def _wall_colors() -> np.ndarray:
    # axes of the result: base nearby (2: none), side hit by the ray, joint, shade, coping or below, RGB
    tint = np.array([(205, 125, 120), (120, 125, 205), (150, 145, 150)])[:, None, None, None, None]
    side = np.array([1.0, 0.72])[:, None, None, None, None]
    joint = np.array([1.0, 0.7])[:, None, None, None]
    shade = (1 / (1 + 0.09 * np.arange(LEVELS)))[:, None, None]
    return (tint * side * joint * shade * np.array([0.6, 1.0])[:, None]).astype(np.uint8)


WALLS = _wall_colors()
RAYS = (np.arange(PIXELS) + 0.5 - PIXELS_HALF) / PIXELS_HALF  # cells to the right per cell of depth, by column


@compiled
def draw_first_person(s: FlagMatches, out: np.ndarray) -> None:
    """Draw each seat's first-person image into `out`, uint8 [n, P, 3, 84, 84], RGB."""
    n, seats = s.z.shape
    depth, edges = np.empty(PIXELS), np.empty((3, PIXELS), np.uint8)
    paint, tiles = np.empty((2, 3, PIXELS), np.uint8), np.empty((3, PIXELS), np.uint8)
    far, what = np.empty(seats + 2), np.empty(seats + 2, np.int64)
    for m in range(n):
        at, base = s.at[m], s.base[m]
        for seat in range(seats):
            picture, tilt, heading = out[m, seat], s.pitch[m, seat] % TURN, s.yaw[m, seat] % TURN
            horizon = PIXELS_HALF + PIXELS_HALF * SIN[tilt] / COS[tilt]
            view = (at[seat, 0], at[seat, 1], rules.EYE + s.z[m, seat], COS[heading], SIN[heading], horizon)
            _cast(view, s.grid[m], base, depth, edges, paint)
            _fill(view, edges, paint, tiles, picture)
            for team in range(2):
                _mark(view, base[team], RED_FLOOR + team, edges[2], picture)
            found = _find(view, at, s.flag[m], s.flag_at[m], far, what)
            for i in range(found):
                _show_pixel(view, s, m, what[i], far[i], depth, picture)
            for team in range(2):
                if s.carrier[m, team] == seat:
                    _rectangle(PIXELS - STRIP, PIXELS, 0, PIXELS, RED + team, picture)


@compiled
def _cast(
    view: tuple, grid: np.ndarray, base: np.ndarray, depth: np.ndarray, edges: np.ndarray, paint: np.ndarray
) -> None:
    """Compute how each column shows a wall: `depth` [84], `edges` [3, 84], and colors `paint` [2, RGB, 84]."""
    x, y, eye, ahead_x, ahead_y, horizon = view
    for column in range(PIXELS):
        ray = RAYS[column]
        right, down = ahead_x - ray * ahead_y, ahead_y + ray * ahead_x
        t, side = _hit(grid, x, y, right, down)
        depth[column] = t
        hit_x, hit_y = x + t * right, y + t * down
        scale = PIXELS_HALF / t
        high, low = horizon - (1 - eye) * scale, horizon + eye * scale
        edges[0, column] = _first(high)
        edges[1, column] = _first(high + COPING * scale)
        edges[2, column] = _first(low)
        first = (hit_x - base[0, 0]) ** 2 + (hit_y - base[0, 1]) ** 2
        second = (hit_x - base[1, 0]) ** 2 + (hit_y - base[1, 1]) ** 2
        tinted = min(first, second) < TINTED * TINTED and first != second
        near = (0 if first < second else 1) if tinted else 2
        along = hit_y if side == 0 else hit_x
        joint = 1 if abs(along - floor(along) - 0.5) > 0.44 else 0
        color = WALLS[near, side, joint, min(int(t * NEARER), LEVELS - 1)]
        for channel in range(3):
            paint[0, channel, column] = color[0, channel]
            paint[1, channel, column] = color[1, channel]


@compiled
def _hit(grid: np.ndarray, x: float, y: float, right: float, down: float) -> tuple[float, int]:
    """Follow a ray in the direction (right, down) from (x, y) to a wall or the edge of the map. Return the ray's length
    in multiples of (right, down), and the side that it hits: 0 for a vertical side on the map, 1 for a horizontal one.
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
    """Return the first pixel in a row or column whose center is at or beyond the coordinate `at`."""
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
            line, sky, ground = picture[channel, number], COLORS[SKY, channel], tiles[channel]
            upper, lower = paint[0, channel], paint[1, channel]
            for column in range(PIXELS):  # 32 pixels at once: bytes only, and all values are read, needed or not
                value, above, highest = ground[column], lower[column], upper[column]
                value = above if row < bottom[column] else value
                value = highest if row < coping[column] else value
                line[column] = sky if row < top[column] else value


@compiled
def _tile(view: tuple, row: int, tiles: np.ndarray) -> None:
    """Draw a row of pixels of the floor, a checkerboard of the map's cells, into `tiles`, uint8 [RGB, 84]."""
    x, y, eye, ahead_x, ahead_y, horizon = view
    t = eye * PIXELS_HALF / (row + 0.5 - horizon)
    unit = 1 << 20  # integers, so that four or eight pixels are computed at once
    begin_x, begin_y = x + t * (ahead_x - RAYS[0] * ahead_y), y + t * (ahead_y + RAYS[0] * ahead_x)
    from_x, from_y = floor(begin_x * unit + 0.5), floor(begin_y * unit + 0.5)
    step_x, step_y = floor(-ahead_y * t / PIXELS_HALF * unit + 0.5), floor(ahead_x * t / PIXELS_HALF * unit + 0.5)
    for channel in range(3):
        line, light, dark = tiles[channel], COLORS[TILE, channel], COLORS[OTHER_TILE, channel]
        for column in range(PIXELS):
            odd = ((from_x + column * step_x) ^ (from_y + column * step_y)) & unit
            line[column] = dark if odd else light


@compiled
def _mark(view: tuple, center: np.ndarray, color: int, bottom: np.ndarray, picture: np.ndarray) -> None:
    """Draw a disc around the point `center` on the floor, except where a wall hides the disc."""
    eye, horizon = view[2], view[5]
    t, right = _seen_from(view, center)
    if t + DISC < NEAR:
        return
    first = _first(horizon + PIXELS_HALF * eye / (t + DISC))
    last = _first(horizon + PIXELS_HALF * eye / (t - DISC)) if t - DISC > NEAR else PIXELS
    for row in range(first, last):
        away = PIXELS_HALF * eye / (row + 0.5 - horizon)
        chord = DISC * DISC - (away - t) ** 2
        if chord > 0:
            begin = _first(PIXELS_HALF + PIXELS_HALF * (right - sqrt(chord)) / away)
            end = _first(PIXELS_HALF + PIXELS_HALF * (right + sqrt(chord)) / away)
            for channel in range(3):
                line, value = picture[channel, row], COLORS[color, channel]
                for column in range(begin, end):
                    line[column] = value if row >= bottom[column] else line[column]


@compiled
def _seen_from(view: tuple, place: np.ndarray) -> tuple[float, float]:
    """Return how far the point `place` lies ahead of the viewer, and how far to the right, in cells."""
    x, y = place[0] - view[0], place[1] - view[1]
    return x * view[3] + y * view[4], y * view[3] - x * view[4]


@compiled
def _find(view: tuple, at: np.ndarray, flag: np.ndarray, flag_at: np.ndarray, far: np.ndarray, what: np.ndarray) -> int:
    """Find the players and standing flags in front of the viewer, farthest first. Return their number. Write their
    depths into `far`, and their numbers into `what`: a player's seat, or P and P + 1 for the flags.
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
def _show_pixel(
    view: tuple, s: FlagMatches, m: int, thing: int, t: float, depth: np.ndarray, picture: np.ndarray
) -> None:
    """Draw a player or a standing flag, except in columns where a wall is nearer."""
    z, seats = s.z[m], s.z.shape[1]
    right = _seen_from(view, s.at[m, thing] if thing < seats else s.flag_at[m, thing - seats])[1]
    end, last = 0, _first(PIXELS_HALF + PIXELS_HALF * (right + WIDTH + CLOTH) / t)
    begin = _first(PIXELS_HALF + PIXELS_HALF * (right - WIDTH) / t)
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
                if s.carrier[m, team] == thing:
                    _flag(view, where, z[thing] + NECK, z[thing] + CARRIED_FLAG, team, picture)
            _player(view, where, z[thing], s.yaw[m, thing] % TURN, thing * 2 // seats, picture)
        begin = end


@compiled
def _player(view: tuple, where: tuple, feet: float, heading: int, team: int, picture: np.ndarray) -> None:
    """Draw a body in the team's color, a dark head, and the face on the side to which the player looks."""
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
    """Draw a white pole and a cloth in the team's color with a white bar."""
    _box(view, where, -POLE, POLE, low, high, WHITE, picture)
    _box(view, where, POLE, POLE + CLOTH, high - 0.35, high, WHITE, picture)
    _box(view, where, POLE, POLE + CLOTH - 0.04, high - 0.31, high - 0.04, RED + team, picture)


@compiled
def _box(
    view: tuple, where: tuple, left: float, right: float, low: float, high: float, color: int, picture: np.ndarray
) -> None:
    """Draw an upright rectangle, at least one pixel wide and high. `where`: depth, position, first and last column.

    `left`, `right`: edges, in cells from the middle of the player or flag.
    `low`, `high`: edges, in cells above the floor.
    """
    eye, horizon = view[2], view[5]
    t, middle, begin, end = where
    scale = PIXELS_HALF / t
    side, above = PIXELS_HALF + (middle + left) * scale, horizon - (high - eye) * scale
    top, start = _first(above), _first(side)
    bottom = _first(max(horizon - (low - eye) * scale, above + 1))
    stop = _first(max(PIXELS_HALF + (middle + right) * scale, side + 1))
    _rectangle(top, bottom, max(start, int(begin)), min(stop, int(end)), color, picture)


@compiled
def _rectangle(top: int, bottom: int, left: int, right: int, color: int, picture: np.ndarray) -> None:
    for channel in range(3):
        value = COLORS[color, channel]
        for row in range(top, bottom):
            for column in range(left, right):
                picture[channel, row, column] = value


VIEW, FRAME = 2 * PIXELS, 4  # pixels per side of an enlarged view; width of the frame around a view
SIDE = 2 * (VIEW + 2 * FRAME)  # pixels per side of the image of the map
STONE = (150, 145, 150)
PLAYER, NOSE, SCREEN_CLOTH = 0.3, 0.45, 0.22  # in cells: a player's radius, distance of the nose, half a flag's side


def draw_match(s: Batch, m: int) -> np.ndarray:
    """Return an image of match `m`, uint8 [H, W, 3], with the map and the players' first-person views."""
    match = FlagMatches(*(x[m : m + 1] for x in FlagMatches.of(s)))
    seen = np.empty((1, match.yaw.shape[1], 3, PIXELS, PIXELS), np.uint8)
    draw_first_person(match, seen)
    large = seen[0].transpose(0, 2, 3, 1).repeat(VIEW // PIXELS, 1).repeat(VIEW // PIXELS, 2)
    n, side = len(large) // 2, VIEW + 2 * FRAME
    out = np.empty((SIDE, SIDE + n * side, 3), np.uint8)
    out[:, :SIDE] = _map(FlagMatches(*(x[m] for x in FlagMatches.of(s))))
    for seat, view in enumerate(large):
        team, column = divmod(seat, n)
        framed = out[team * side : (team + 1) * side, SIDE + column * side : SIDE + (column + 1) * side]
        framed[:] = COLORS[(RED, BLUE)[team]]
        framed[FRAME:-FRAME, FRAME:-FRAME] = view
    return out


def _map(s: FlagMatches) -> np.ndarray:
    """Draw the map from above. Bases are squares, flags are diamonds, and players are discs with a nose."""
    size = len(s.grid)
    y, x = np.mgrid[:SIDE, :SIDE] * (size / SIDE)
    wall = s.grid[y.astype(int), x.astype(int)] == WALL
    out = np.where(wall[..., None], np.array(STONE, np.uint8), COLORS[TILE])
    for team in range(2):
        base_x, base_y = s.base[team]
        out[(abs(x - base_x) < 0.5) & (abs(y - base_y) < 0.5)] = COLORS[(RED_FLOOR, BLUE_FLOOR)[team]]
    for seat, (at_x, at_y) in enumerate(s.at):
        color = COLORS[(RED, BLUE)[seat >= len(s.at) // 2]]
        out[(x - at_x) ** 2 + (y - at_y) ** 2 < PLAYER**2] = color
        yaw = s.yaw[seat] % len(COS)
        nose_x, nose_y = at_x + NOSE * COS[yaw], at_y + NOSE * SIN[yaw]
        out[(x - nose_x) ** 2 + (y - nose_y) ** 2 < (PLAYER / 3) ** 2] = COLORS[SKIN]
    for team in range(2):
        carried = s.flag[team] == CARRIED
        flag_x, flag_y = s.at[s.carrier[team]] if carried else s.flag_at[team]
        far = abs(x - flag_x) + abs(y - flag_y)
        out[far < SCREEN_CLOTH * 1.4] = COLORS[WHITE]
        out[far < SCREEN_CLOTH] = COLORS[(RED, BLUE)[team]]
    return out
