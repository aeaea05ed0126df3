import { type LineChart, lineChart } from '../bench/plot.ts';
import type { CurvePoint } from './attacker.ts';
import { smoothed, thinned } from './curves.ts';
import { type Html, html, trusted } from './html.ts';
import type { MetricsLine } from './run.ts';

type Point = readonly [number, number];

const figure = (chart: LineChart & { readonly id: string }): Html => html`<figure>${trusted(lineChart(chart))}</figure>`;
const step = { label: 'step' };

/** ε while the run went on, and what it was planned to spend. */
export function epsilonPlot(spent: readonly Point[], planned: { readonly steps: number; readonly epsilon: number }): Html {
  const end = Math.max(planned.steps, spent.at(-1)?.[0] ?? 0);
  return figure({
    id: 'epsilon', title: 'Privacy spent, step by step', description: `ε after each step, up to ${show(spent.at(-1)?.[1] ?? 0)}; planned: ${show(planned.epsilon)}`,
    x: step, y: { label: 'ε' },
    series: [
      { name: 'ε spent', points: spent, marked: false },
      { name: 'ε planned', points: [[0, planned.epsilon], [end, planned.epsilon]], dashed: true },
    ],
  });
}

/** δ against ε: the guarantee is one point of it, and holds at all. */
export function curvePlot(curve: readonly CurvePoint[], claimed: CurvePoint): Html {
  const shown = curve.filter(({ delta }) => delta > 1e-12).map(({ epsilon, delta }): Point => [epsilon, delta]);
  return figure({
    id: 'curve', title: 'The whole guarantee: δ for every ε', description: `The guarantee holds at every point of the curve; the one claimed is ε = ${show(claimed.epsilon)}, δ = ${claimed.delta}`,
    x: { label: 'ε' }, y: { label: 'δ', scale: 'log' },
    series: [{ name: 'δ(ε)', points: shown, marked: false }, { name: 'claimed', points: [[claimed.epsilon, claimed.delta]], colour: 1 }],
  });
}

/** A plot of one number of each line, or of numbers by name; none where there are no two of them. */
export function metricPlot(
  lines: readonly MetricsLine[], key: string, text: { readonly id: string; readonly title: string; readonly label: string; readonly window?: number },
): Html | null {
  const series = seriesIn(lines, key).filter(([, points]) => points.length > 1);
  if (series.length === 0) return null;
  const { window = 1 } = text;
  const plotted = fewest(series).flatMap(([name, points], colour) => {
    const shown = name === '' ? text.label : name;
    if (window <= 1) return [{ name: shown, points: thinned(points), marked: false, colour }];
    return [{ name: `${shown}, mean of ${window}`, points: thinned(smoothed(points, window)), marked: false, colour }];
  });
  return figure({ id: text.id, title: text.title, description: `${text.title}, over ${series[0]![1].length} steps`, x: step, y: { label: text.label }, series: plotted });
}

/** The numbers at `key` by step, each with a name where there are several. */
function seriesIn(lines: readonly MetricsLine[], key: string): readonly (readonly [name: string, points: readonly Point[]])[] {
  const found = new Map<string, Point[]>();
  for (const line of lines) {
    const { step: at, [key]: value } = line;
    if (typeof at !== 'number') continue;
    const named = typeof value === 'object' && value !== null ? Object.entries(value) : [['', value] as const];
    for (const [name, y] of named) {
      if (typeof y !== 'number' || !Number.isFinite(y)) continue;
      if (!found.has(name)) found.set(name, []);
      found.get(name)!.push([at, y]);
    }
  }
  return [...found];
}

/** Of many series, those that end lowest, in the middle and highest. */
function fewest<S extends readonly [string, readonly Point[]]>(series: readonly S[]): readonly S[] {
  if (series.length <= 6) return series;
  const sorted = [...series].sort(([, a], [, b]) => a.at(-1)![1] - b.at(-1)![1]);
  return [0, 0.25, 0.5, 0.75, 1].map((share) => sorted[Math.round(share * (sorted.length - 1))]!);
}

/** A number as people read it. */
export const show = (x: number): string => String(Number(x.toPrecision(4)));
