import { type LineChart, barChart, lineChart } from './plot.ts';
import type { BenchResult } from './step.ts';
import type { SweepPoint, SweepResult } from './sweep.ts';

/** Bars of each mode's time and memory, relative to the step without privacy, or in their own units without that mode. */
export function stepFigure(result: BenchResult): string {
  const { model, sequence, batchSize, results, ratios } = result;
  const isRelative = results.every(({ mode }) => ratios[mode] !== undefined);
  const setting = `${model}${sequence === undefined ? '' : `, ${sequence} tokens`}, batch ${batchSize}`;
  const value = (mode: string, of: 'time' | 'memory', own: number): number => ratios[mode]?.[of] ?? own;
  const title = `A training step: ${setting}`;
  return barChart({
    title,
    description: `${title}. Time and peak memory by mode${isRelative ? ', relative to the step without privacy' : ', in milliseconds and MiB'}: ${
      results.map(({ mode, medianMs, peakMiB }) => `${mode} ${value(mode, 'time', medianMs).toFixed(2)} and ${value(mode, 'memory', peakMiB).toFixed(2)}`).join('; ')}.`,
    y: isRelative ? 'relative to non-private' : 'ms, MiB',
    groups: results.map(({ mode }) => mode),
    series: [
      { name: 'time', values: results.map(({ mode, medianMs }) => value(mode, 'time', medianMs)) },
      { name: 'peak memory', values: results.map(({ mode, peakMiB }) => value(mode, 'memory', peakMiB)) },
    ],
    ...(isRelative && { reference: 1 }),
  });
}

const axisLabels = {
  positions: 'positions T', width: 'width d = p', batch: 'physical batch', logical: 'logical batch',
} as const;

/** Time or memory against what grew, one line a mode, with the complexity model's prediction where there is one. */
export function sweepFigure(result: SweepResult, of: 'time' | 'memory'): string {
  const { over, setting, points } = result;
  const modes = [...new Set(points.map(({ mode }) => mode))];
  const measured = (point: SweepPoint): number => (of === 'time' ? point.medianMs : point.peakMiB);
  const predicted = (point: SweepPoint): number | undefined => (of === 'time' ? point.predictedFlops : point.predictedMiB);
  // The model counts operations: they become times by the rate that the measured points of all modes have in the middle.
  const rates = points.flatMap((point) => (predicted(point) === undefined ? [] : [measured(point) / predicted(point)!])).sort((a, b) => a - b);
  const scale = of === 'memory' ? 1 : rates[rates.length >> 1] ?? 1;
  const lines = modes.map((mode, colour): LineChart['series'][number] => ({
    name: mode, colour, points: points.filter((point) => point.mode === mode).map((point) => [point.value, measured(point)]),
  }));
  const predictions = modes.map((mode, colour): LineChart['series'][number] => ({
    name: `${mode}, predicted`, colour, dashed: true,
    points: points.flatMap((point) => {
      const value = predicted(point);
      return point.mode === mode && value !== undefined ? [[point.value, value * scale] as const] : [];
    }),
  }));
  const still = Object.entries(setting).map(([name, value]) => `${name} ${value}`).join(', ');
  const isLayer = over === 'positions' || over === 'width';
  const title = `${of === 'time' ? 'Time' : 'Peak memory'} of a step against ${axisLabels[over]} (${still})`;
  return lineChart({
    title,
    description: `${title}, by mode: ${lines.map(({ name, points: own }) =>
      `${name} ${own.map(([x, y]) => `${y.toPrecision(3)} at ${x}`).join(', ')}`).join('; ')}.`,
    x: { label: axisLabels[over], scale: isLayer ? 'log' : 'linear' },
    y: { label: of === 'time' ? 'ms' : 'MiB', scale: isLayer ? 'log' : 'linear' },
    series: [...lines, ...predictions],
  });
}
