import { writeFileSync } from 'node:fs';
import { parse } from 'node:path';
import { sweepFigure } from '../../bench/figures.ts';
import { type LayerKind, layerKinds } from '../../bench/layer.ts';
import { type SweepAxis, type SweepOptions, type SweepResult, sweep, sweepAxes } from '../../bench/sweep.ts';
import { modes } from '../../clipping/plan.ts';
import { GhostgradError } from '../../errors.ts';
import { isModelName, modelNames } from '../../models/index.ts';
import { unknownName } from '../../suggest.ts';
import { define } from '../command.ts';
import { table } from '../text.ts';
import { asModes, integers, positiveInteger } from '../values.ts';

interface Options {
  readonly over: string;
  readonly values?: readonly number[];
  readonly mode?: string;
  readonly layer: string;
  readonly batchSize?: number;
  readonly positions: number;
  readonly width: number;
  readonly model?: string;
  readonly sequence?: number;
  readonly threads?: number;
  readonly repeats?: number;
  readonly processes?: number;
  readonly svg?: string;
}

const defaults: Readonly<Record<SweepAxis, { readonly values: readonly number[]; readonly modes: string }>> = {
  positions: { values: [16, 64, 256, 1024], modes: 'non-private,ghost,instantiate,book-keeping' },
  width: { values: [32, 64, 128, 256, 512], modes: 'non-private,ghost,instantiate,book-keeping' },
  batch: { values: [8, 16, 32, 64], modes: 'non-private,book-keeping' },
  logical: { values: [64, 128, 256, 512], modes: 'non-private,book-keeping' },
};

export const sweepCommand = define<Options>({
  name: 'sweep',
  summary: 'time and memory of a step while one size grows, with the fitted curves',
  configure: (command) =>
    command
      .requiredOption('--over <size>', `what grows, one of ${sweepAxes.join(', ')}; the first two for one layer alone`)
      .option('--values <numbers>', 'its values, with commas between', integers)
      .option('--mode <names>', `one or more of ${modes.join(', ')}, with commas between`)
      .option('--layer <kind>', `one of ${layerKinds.join(', ')}`, 'linear')
      .option('--positions <T>', 'positions of the layer while its width grows', positiveInteger, 64)
      .option('--width <d>', 'inputs and outputs of the layer while its positions grow', positiveInteger, 128)
      .option('--batch-size <rows>', 'physical batch, where it is not what grows (default: 8, or 32 of a model)', positiveInteger)
      .option('--model <name>', `over batch and logical, one of ${modelNames.join(', ')}`)
      .option('--sequence <n>', 'tokens of an example, for models of text (default: 128)', positiveInteger)
      .option('--threads <n>', 'threads (default: one for each core)', positiveInteger)
      .option('--repeats <n>', 'timed rounds at each value (default: 5)', positiveInteger)
      .option('--processes <n>', 'fresh processes for each figure of memory (default: 3)', positiveInteger)
      .option('--svg <file>', 'draw time into this file, and memory into one beside it (x.svg, x-memory.svg)'),
  run: async (_, { svg, ...options }, io) => {
    const result = await sweep({ ...asSweep(options), onProgress: (message) => io.stderr.write(`${message}\n`) });
    if (svg !== undefined) {
      const { dir, name, ext } = parse(svg);
      writeFileSync(svg, sweepFigure(result, 'time'));
      writeFileSync(`${dir === '' ? '' : `${dir}/`}${name}-memory${ext}`, sweepFigure(result, 'memory'));
    }
    return { json: result, text: describe(result) };
  },
});

function asSweep({ over, layer, model, sequence, mode, values, batchSize, positions, width, ...common }: Omit<Options, 'svg'>): SweepOptions {
  const axis = sweepAxes.find((name) => name === over);
  if (axis === undefined) throw unknownName('size', over, sweepAxes, '--over');
  const shared = { ...common, values: values ?? defaults[axis].values, modes: asModes(mode ?? defaults[axis].modes) };
  if (axis === 'positions' || axis === 'width') {
    return { ...shared, over: axis, layer: asLayer(layer), batchSize: batchSize ?? 8, positions, width };
  }
  if (model === undefined) {
    throw new GhostgradError({
      what: 'no model', where: '--model', expected: `one of ${modelNames.join(', ')}, for --over ${axis}`, fix: 'for example --model vgg11',
    });
  }
  if (!isModelName(model)) throw unknownName('model', model, modelNames, '--model');
  return { ...shared, model, sequence, ...(axis === 'batch' ? { over: axis } : { over: axis, batchSize: batchSize ?? 32 }) };
}

function asLayer(name: string): LayerKind {
  const layer = layerKinds.find((kind) => kind === name);
  if (layer === undefined) throw unknownName('layer', name, layerKinds, '--layer');
  return layer;
}

function describe({ over, setting, threads, points, fits }: SweepResult): string {
  const isLayer = over === 'positions' || over === 'width';
  const still = Object.entries(setting).map(([name, value]) => `${name} ${value}`).join(', ');
  const measured = table(
    [over, 'mode', 'norm', 'median ms', 'least ms', 'peak MiB', ...(isLayer ? ['predicted Mflop', 'predicted MiB'] : [])],
    points.map(({ value, mode, norm = '', medianMs, minMs, peakMiB, predictedFlops = 0, predictedMiB = 0 }) => [
      value, mode, norm, round(medianMs), round(minMs), round(peakMiB),
      ...(isLayer ? [round(predictedFlops / 1e6), round(predictedMiB)] : []),
    ]),
  );
  const exponent = (k: number | undefined): string => k?.toFixed(2) ?? '';
  const fitted = isLayer
    ? table(
        ['mode', 'norm', 'points', 'time exponent', 'predicted', 'memory exponent', 'predicted'],
        fits.map(({ mode, norm = '', points: count, time, memory }) => [
          mode, norm, count, exponent(time.exponent), exponent(time.predicted), exponent(memory.exponent), exponent(memory.predicted),
        ]),
      )
    : table(
        ['mode', 'ms each', 'R²', 'MiB each', 'MiB fixed', 'R²', 'memory, most / least'],
        fits.map(({ mode, time, memory }) => [
          mode, exponent(time.line?.slope), time.line?.rSquared.toFixed(4) ?? '', memory.line?.slope.toFixed(3) ?? '',
          exponent(memory.line?.intercept), memory.line?.rSquared.toFixed(4) ?? '', exponent(memory.spread),
        ]),
      );
  return `${still}, ${threads} threads\n\n${measured}\n\n${fitted}`;
}

const round = (x: number): number => Number(x.toPrecision(4));
