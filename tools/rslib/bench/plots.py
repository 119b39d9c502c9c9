"""Plots of a table's rates or costs, as PNG, by gnuplot. Without gnuplot there are none."""
import os
import shutil
import subprocess

COLOURS = ('#2a6fbb', '#c8702a', '#4c9a5b', '#8a5bb0', '#777777', '#b04a5b')


def series(table, results, names):
    """What to draw: (what it is, [(title of a row, {series: median})]); series are guest and column."""
    what = 'instructions' if any(cell.mode == 'cost' for row in table.rows for cell in row.cells.values()) and \
        table.kind in ('costs', 'variants') else 'rate'
    rows = []
    for row in table.rows:
        points = {}
        for key, title in table.columns.items():
            cell = row.cells.get(key)
            if cell is None or cell.mode != ('rate' if what == 'rate' else 'cost'):
                continue
            for name in names:
                value = results.values(cell, name, what)
                if value and value.median > 0:
                    alone = table.kind == 'costs' and name != names[0]      # our guest's variants are not its
                    points[name if alone else f'{name}, {title}'] = value.median
        if points:
            rows.append((' '.join(map(str, row.labels)), points))
    return what, rows


def script(title, what, rows, picture):
    """A gnuplot script: bars in groups, one group a row, logarithmic."""
    names = list(dict.fromkeys(name for _, points in rows for name in points))
    lines = [f'set terminal pngcairo size {max(700, 120 + 28 * len(rows) * (len(names) + 1))},520 font "sans,10"',
             f'set output {quoted(picture)}', 'set bmargin 7', f'set title {quoted(title)} noenhanced', 'set style data histograms',
             'set style histogram clustered gap 1', 'set style fill solid 0.9 border -1', 'set boxwidth 0.9', 'set logscale y',
             'set grid ytics', 'set key outside top horizontal noenhanced', 'set xtics rotate by -30 noenhanced',
             f'set ylabel {quoted(what + " (logarithmic)")}', '$data << EOD']
    for label, points in rows:
        lines.append(f'"{label}" ' + ' '.join(f'{points[n]:g}' if n in points else '?' for n in names))
    lines += ['EOD', 'set datafile missing "?"']
    lines.append('plot ' + ', '.join(f'$data using {i + 2}:xtic(1) title {quoted(n)} linecolor rgb "{COLOURS[i % len(COLOURS)]}"'
                                     for i, n in enumerate(names)))
    return '\n'.join(lines) + '\n'


def quoted(text):
    """A gnuplot string."""
    return "'" + text.replace("'", "''") + "'"


def draw(table, results, names, folder):
    """Draws one table into the folder; returns the picture's name, None if there is nothing to draw or to draw with."""
    what, rows = series(table, results, names)
    return bars(table.name, table.title, what, rows, folder)


def bars(base, title, what, rows, folder):
    """Draws rows, (label, {series: value}), as BASE.png; returns its name, None if there is nothing to draw or to draw with."""
    if not rows or not shutil.which('gnuplot'):
        return None
    name = f'{base}.png'
    done = subprocess.run(['gnuplot'], input=script(title, what, rows, os.path.join(folder, name)), text=True,
                          capture_output=True, timeout=60, check=False)
    return name if done.returncode == 0 else None
