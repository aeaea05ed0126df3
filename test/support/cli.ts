import { join } from 'node:path';
import { expect } from 'vitest';
import type { Io } from '../../src/cli/io.ts';
import { main } from '../../src/cli/program.ts';
import { batchOf } from '../../src/data/index.ts';
import { writeModel } from '../../src/graph/file.ts';
import { buildModel } from '../../src/models/index.ts';
import { encodeSafetensors } from '../../src/tensor/safetensors.ts';
import { type Tensor, float32 } from '../../src/tensor/tensor.ts';
import { blobModel, blobs } from './blobs.ts';
import { temporaryFolder } from './temp.ts';

export interface Ran {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

/** Runs the command line in this process. `interruptAt`: asks to stop when a message matches it. */
export async function ghostgrad(
  args: readonly string[],
  { env = {}, interruptAt, isTTY = false }: { env?: Io['env']; interruptAt?: RegExp; isTTY?: boolean } = {},
): Promise<Ran> {
  let out = '';
  let err = '';
  let interrupt = (): void => undefined;
  const code = await main(args, {
    stdout: { isTTY, write: (text) => (out += text) },
    stderr: {
      write: (text) => {
        err += text;
        if (interruptAt?.test(text) === true) interrupt();
      },
    },
    env,
    onInterrupt: (handler) => {
      interrupt = handler;
      return () => undefined;
    },
  });
  return { code, out, err };
}

/** One clear message on stderr: nothing on stdout, no stack. */
export async function refused(args: readonly string[]): Promise<string> {
  const { code, out, err } = await ghostgrad([...args, '--json']);
  expect({ code, out }).toEqual({ code: 1, out: '' });
  expect(err).toMatch(/^error: /);
  expect(err).not.toMatch(/\n +at /);
  expect(err).not.toContain('unexpected');
  return err;
}

export const json = ({ code, out }: Ran): unknown => {
  expect(code).toBe(0);
  expect(out.trim().split('\n')).toHaveLength(1);
  return JSON.parse(out);
};

/** A folder with data, a model and a recipe for them. */
export function project() {
  const { folder, write } = temporaryFolder();
  const { features, labels } = batchOf(
    blobs(),
    Uint32Array.from({ length: 200 }, (_, i) => i),
  );
  const rows = (name: string, parts: Readonly<Record<string, Tensor>>): string =>
    write(name, encodeSafetensors(new Map(Object.entries(parts))));
  const x = features.get('input') ?? float32([]);
  const table = [...(labels.data as BigInt64Array)].map((y, i) =>
    [...(x.data as Float32Array).subarray(4 * i, 4 * i + 4), y].join(),
  );
  const csv = write('blobs.csv', ['a,b,c,d,y', ...table].join('\n'));
  const model = join(folder, 'mlp.onnx');
  writeModel(model, buildModel(blobModel, { seed: 1 }));
  const output = join(folder, 'runs', 'blobs');
  const recipe = write(
    'blobs.yaml',
    JSON.stringify({
      model,
      data: { train: { path: csv, label: 'y' }, test: { path: csv, label: 'y' } },
      privacy: { epsilon: 8, delta: 1e-4 },
      training: { batchSize: 50, steps: 30, optimizer: { name: 'sgd', learningRate: 0.5, momentum: 0.9 } },
      performance: { threads: 1 },
      output,
    }),
  );
  return { folder, write, rows, x, labels, csv, model, output, recipe };
}
